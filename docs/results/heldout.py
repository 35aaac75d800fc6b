"""Readings and coefficients of FBL, PLOP, RCIL and MiB compared on the small network without the validation images.

python docs/results/heldout.py VOCdevkit resnet50.safetensors OUT [JOBS [KEY=VALUE ...]]

Every tenth image of the training list is kept out of training and scored instead; 8-2's first four tasks, seed 2023.
Of each method the variant with the highest mean mIoU after tasks 1 to 3 is taken; rejected pixels as "background or
any old class" are ours, and chosen apart. Give the command again to go on where it stopped.
"""

import sys
from pathlib import Path

from fiss.config.presets import choose
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation import sweep
from fiss.simulation.sweep import Job

PRESET = "voc-8-2-small"
WEAK = 0.0022
"""The published 0.01 by 4.5: POD is 3.8 to 6.7 times as large as in the authors' logs."""
STEP = {"method.proportion_step": 0.3}
"""Two local epochs here for six published: with three times the step a client's second round asks for 0.8 in both."""
START = {"method.start": "random"}
"""New classes as copies of the background, as published, cost MiB its background in 8-2 with two local epochs."""
Variant = tuple[str, dict[str, object]]
VARIANTS: list[Variant] = [
    # first: coefficients
    ("fbl", {}),
    ("fbl", STEP),
    ("fbl", {"method.pod_features": WEAK}),
    ("fbl", {**STEP, "method.pod_features": WEAK}),
    ("rcil", {}),
    ("rcil", {"method.cube_features": WEAK}),
    ("plop", {}),
    ("plop", {"method.pod_features": WEAK}),
    # then: readings of the paper and of the published code
    ("fbl", {"method.background_quantile": False}),
    ("fbl", {**STEP, "method.background_quantile": False}),
    ("fbl", {**STEP, "method.share_factor": True}),
    ("fbl-reference", {}),
    ("fbl-reference", STEP),
    ("rcil-reference", {}),
    ("plop-reference", {}),
    ("mib", {}),
    ("mib", START),
    ("fbl", START),
    ("fbl", {**STEP, **START}),
    ("plop", START),
    ("rcil", START),
    # and ours
    ("fbl", {"method.rejected": "old"}),
    ("fbl", {**STEP, "method.rejected": "old"}),
    ("plop", {"method.rejected": "old"}),
]


def name(variant: Variant) -> str:
    """Of its run folder."""
    method, changes = variant
    return "-".join([method, *(f"{key.split('.')[1]}={value}" for key, value in changes.items())])


def group(variant: Variant) -> str:
    """Which variants are compared: readings of one method, and apart from them what is ours."""
    return variant[0].split("-")[0] + (", ours" if "method.rejected" in variant[1] else "")


def settings(changes: dict[str, object]) -> list[str]:
    """As --set takes them."""
    return [f"{key}={str(value).lower()}" for key, value in changes.items()]


def split(data: Path, out: Path) -> None:
    """A VOCdevkit with the same images and other lists."""
    here, there = data / "VOC2012", out / "VOCdevkit" / "VOC2012"
    lists = Path("ImageSets", "Segmentation")
    (there / lists).mkdir(parents=True, exist_ok=True)
    for folder in ("JPEGImages", "SegmentationClassAug"):
        if not (there / folder).exists():
            (there / folder).symlink_to((here / folder).resolve())
    stems = (here / lists / "train_aug.txt").read_text().split()
    for part, chosen in (("train_aug", [s for i, s in enumerate(stems) if i % 10 < 9]), ("val", stems[9::10])):
        (there / lists / f"{part}.txt").write_text("\n".join(chosen) + "\n")


def jobs(data: Path, weights: Path, out: Path, more: list[str]) -> list[Job]:
    """The common first task, and all variants from it."""
    shared = [f"data.root={data}", f"model.weights={weights}", "evaluation.every=task"]
    shared += ["tasks.split=1,2,3,4,5,6,7,8; 9,10; 11,12; 13,14", *more]
    config, base = choose(PRESET, settings=shared), out / "base"
    found = [Job("finetune", config.seed, config, base, None)]
    for variant in VARIANTS:
        method, changes = variant
        config = choose(PRESET, method, settings=[*shared, *settings(changes)], base=base)
        found.append(Job(name(variant), config.seed, config, out / name(variant), base))
    return found


def ranking(out: Path) -> dict[str, list[tuple[float, Variant]]]:
    """By method, the best first: mean mIoU after the later tasks, of finished runs."""
    found: dict[str, list[tuple[float, Variant]]] = {}
    for variant in VARIANTS:
        folder = RunFolder(out / name(variant))
        if folder.finished():
            later = [score.miou for score in folder.ends() if score.task]
            found.setdefault(group(variant), []).append((sum(later) / len(later), variant))
    return {method: sorted(rows, key=lambda row: -row[0]) for method, rows in found.items()}


def main() -> None:
    """All runs, and what they choose."""
    data, weights, out = (Path(word).resolve() for word in sys.argv[1:4])
    parallel, more = int((sys.argv[4:5] or ["1"])[0]), sys.argv[5:]
    split(data, out)
    wanted, failed = jobs(out / "VOCdevkit", weights, out, more), False
    sweep.check(wanted)
    for status in sweep.play(wanted, parallel, Progress()):
        failed |= status.state == "failed"
        print(status.job.name, status.state, [round(m, 1) for m in status.miou if m], status.detail, flush=True)
    for method, rows in ranking(out).items():
        for place, (mean, variant) in enumerate(rows):
            print(f"{method}: {mean:.2f} {name(variant)}{'' if place else ', chosen'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
