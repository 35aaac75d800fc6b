"""Readings and coefficients of FBL, PLOP and RCIL compared on the small network without the validation images.

python docs/results/heldout.py VOCdevkit resnet50.safetensors OUT [JOBS [KEY=VALUE ...]]

Every tenth image of the training list is kept out of training and scored instead; 8-2's first four tasks, seed 2023.
Of each method the variant with the highest mean mIoU after tasks 1 to 3 is taken; rejected pixels as "background or
any old class" are ours, and chosen apart. Give the command again to go on where it stopped.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fiss.checkpoint import RunFolder

WEAK = 0.0022
"""The published 0.01 by 4.5: POD is 3.8 to 6.7 times as large as in the authors' logs."""
STEP = {"method.proportion_step": 0.3}
"""Two local epochs here for six published: three times the step asks for as much at the end of a round."""
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


def finished(run: Path) -> bool:
    """Whether there is nothing left to do."""
    return (run / "state.json").is_file() and RunFolder.open(run).finished()


def play(run: Path, options: list[str]) -> bool:
    """Run it, or go on with it; whether that went well."""
    if finished(run):
        return True
    words = ["resume", str(run)] if (run / "config.toml").is_file() else ["run", "voc-8-2-small", "--out", str(run)]
    options = options if words[0] == "run" else []
    with run.with_name(f"{run.name}.log").open("ab") as log:
        command = [sys.executable, "-m", "fiss", *words, *options]
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    print(f"{run.name}: {'done' if code == 0 else f'failed, see {log.name}'}", flush=True)
    return code == 0


def ranking(out: Path) -> dict[str, list[tuple[float, Variant]]]:
    """By method, the best first: mean mIoU after the later tasks, of finished runs."""
    found: dict[str, list[tuple[float, Variant]]] = {}
    for variant in VARIANTS:
        if finished(out / name(variant)):
            scores = RunFolder.open(out / name(variant)).records("scores.jsonl")
            later = [score["miou"] for score in scores if score["ends_task"] and score["task"]]
            found.setdefault(group(variant), []).append((sum(later) / len(later), variant))
    return {method: sorted(rows, key=lambda row: -row[0]) for method, rows in found.items()}


def main() -> None:
    """The common first task, then all variants."""
    data, weights, out = (Path(word).resolve() for word in sys.argv[1:4])
    jobs, more = int((sys.argv[4:5] or ["1"])[0]), sys.argv[5:]
    split(data, out)
    shared = [f"data.root={out / 'VOCdevkit'}", f"model.weights={weights}", "evaluation.every=task"]
    shared += ["tasks.split=1,2,3,4,5,6,7,8; 9,10; 11,12; 13,14", *more]
    common = [word for setting in shared for word in ("--set", setting)]
    if not play(out / "base", common):
        sys.exit(1)

    def vary(variant: Variant) -> bool:
        method, changes = variant
        own = [word for setting in settings(changes) for word in ("--set", setting)]
        return play(out / name(variant), ["--method", method, "--base", str(out / "base"), *common, *own])

    with ThreadPoolExecutor(jobs) as pool:
        well = all(list(pool.map(vary, VARIANTS)))
    for method, rows in ranking(out).items():
        for place, (mean, variant) in enumerate(rows):
            print(f"{method}: {mean:.2f} {name(variant)}{'' if place else ', chosen'}")
    sys.exit(not well)


if __name__ == "__main__":
    main()
