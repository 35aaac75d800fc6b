"""Coefficients for the small network, and BatchNorm left alone after task 0, chosen without the validation images.

python docs/results/heldout.py VOCdevkit resnet50.safetensors OUT [JOBS [KEY=VALUE ...]]

Every tenth image of the training list is kept out of training and scored instead; 8-2's first four tasks, seed 2023.
Of each method the variant with the highest mean mIoU after tasks 1 to 3 is taken (`fiss compare OUT/*-*`). Give the
command again to go on where it stopped.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WEAK = 0.0022
"""The published 0.01 by 4.6: as many times as large as in the authors' logs is POD in ours."""
KEPT = {"training.batch_statistics": "kept_out"}
VARIANTS: list[tuple[str, dict[str, object]]] = [
    *(
        ("fbl", {"method.proportion_step": step, "method.pod_features": pod})
        for step in (0.1, 0.3)
        for pod in (0.01, WEAK)
    ),
    ("fbl", {"method.proportion_step": 0.3, "method.pod_features": 0.01, **KEPT}),
    *(("rcil", {"method.cube_features": cube}) for cube in (0.01, WEAK)),
    ("rcil", {"method.cube_features": 0.01, **KEPT}),
    *(("plop", {"method.pod_features": pod}) for pod in (0.01, WEAK)),
]


def split(data: Path, out: Path) -> None:
    """A VOCdevkit with the same images and other lists."""
    here, there = data / "VOC2012", out / "VOCdevkit" / "VOC2012"
    lists = Path("ImageSets", "Segmentation")
    (there / lists).mkdir(parents=True, exist_ok=True)
    for folder in ("JPEGImages", "SegmentationClassAug"):
        if not (there / folder).exists():
            (there / folder).symlink_to((here / folder).resolve())
    stems = (here / lists / "train_aug.txt").read_text().split()
    for name, part in (("train_aug", [s for i, s in enumerate(stems) if i % 10 < 9]), ("val", stems[9::10])):
        (there / lists / f"{name}.txt").write_text("\n".join(part) + "\n")


def play(out: Path, name: str, options: list[str]) -> bool:
    """Run it, or go on with it; whether that went well."""
    run = out / name
    if (run / "state.json").is_file():
        words = ["resume", str(run)]
    else:
        words = ["run", "voc-8-2-small", "--out", str(run), *options]
    with (out / f"{name}.log").open("ab") as log:
        code = subprocess.run([sys.executable, "-m", "fiss", *words], stdout=log, stderr=log, check=False).returncode
    print(f"{name}: {'done' if code == 0 else f'failed, see {log.name}'}", flush=True)
    return code == 0


def main() -> None:
    """The common first task, then all variants."""
    data, weights, out = (Path(word).resolve() for word in sys.argv[1:4])
    jobs, more = int((sys.argv[4:5] or ["1"])[0]), sys.argv[5:]
    split(data, out)
    settings = [f"data.root={out / 'VOCdevkit'}", f"model.weights={weights}", "evaluation.every=task"]
    settings += ["tasks.split=1,2,3,4,5,6,7,8; 9,10; 11,12; 13,14", *more]
    common = [word for setting in settings for word in ("--set", setting)]
    if not play(out, "base", common):
        sys.exit(1)

    def vary(variant: tuple[str, dict[str, object]]) -> bool:
        method, changes = variant
        own = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        options = ["--method", method, "--base", str(out / "base"), *common, *own]
        return play(out, "-".join([method, *map(str, changes.values())]), options)

    with ThreadPoolExecutor(jobs) as pool:
        sys.exit(not all(list(pool.map(vary, VARIANTS))))


if __name__ == "__main__":
    main()
