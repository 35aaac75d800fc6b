"""Teeth in X-rays at four practices, in four steps: what each way of learning keeps, with its seconds and its bytes.

python docs/results/teeth.py DATA WEIGHTS OUT [--only ROW,...] [--jobs N] [--rounds N] [--epochs N] [--tiny]

DATA has images/, masks/ and classes.txt with the 32 teeth by FDI number; WEIGHTS has resnet50_imagenet.safetensors and
dinov2_vits14_reg.safetensors. An X-ray belongs to one practice and to one step, in which only the teeth of that step
are drawn; left and right are different classes, so nothing is flipped. Rates are the preset's; rounds, epochs, crop
and batch are what the time allows, alike for every row. Nothing is chosen on the validation images.

With 10 rounds of 6 local epochs, finetune takes about 2,900 steps of 8 images of 384 px. fbl and the trained trunk take
its first step over, so they need it (--only plays it with them): fbl trains the other three, the closed form nothing
more. On a CPU choose less, such as --rounds 3 --epochs 2 --crop 256 --batch 4, and --jobs 2 on two cores.

A row is written to OUT/rows as soon as it ends, with the machine it ran on. OUT/teeth.json and the printed table hold
all rows that lie there: give the command again to go on where it stopped, or copy rows that another machine made.
--tiny: small networks without weights, one round of one epoch, to see that all of it runs.
"""

import argparse
import json
import sys
from pathlib import Path

import collect
import torch

from fiss.config.config import Config
from fiss.config.presets import preset
from fiss.models.classifier import Weights
from fiss.progress import Progress
from fiss.reports.pictures import draw_tasks
from fiss.runs.folder import RunFolder
from fiss.runs.records import RoundRecord
from fiss.simulation import sweep
from fiss.simulation.sweep import Job, JobStatus
from fiss.statistics.ledger import Ledger

STEPS = {"incisors": "12", "canines": "3", "premolars": "45", "molars": "678"}
"""The second digits of their FDI numbers; the first is the quarter of the mouth."""
SPLIT = "; ".join(", ".join(f"FDI-{q}{tooth}" for q in "1234" for tooth in teeth) for teeth in STEPS.values())
FROZEN = {"name": "analytic", "trunk": "pretrained"}
ROWS = {
    "finetune": "finetune",
    "fbl": "fbl",
    "trained": "closed form, trained trunk",
    "untrained": "closed form, untrained trunk",
    "untrained-vit": "closed form, untrained ViT-S",
    "all-drawn": "the untrained trunk, all teeth drawn",
}
"""What is compared: for --only and the files, and for the table."""


BASE = "finetune"
FROM_BASE = ("fbl", "trained")
"""Rows whose first step is that of BASE: all three train it with plain cross-entropy."""


def configs(data: Path, weights: Path, given: argparse.Namespace) -> dict[str, Config]:
    """How each row is made."""
    tiny, crop = given.tiny, given.crop
    small = crop if tiny else min(252, crop - crop % 14)  # for a transformer with patches of 14 pixels
    first = (
        preset("folder")
        .replace(
            data={"root": str(data)},
            tasks={"split": SPLIT, "images": "partitioned"},
            world={"clients": 4, "joiners": 0, "per_round": 4, "rounds": given.rounds, "class_ratio": 1.0},
            model={"weights": "none", "encoder": "resnet18"}
            if tiny
            else {"weights": f"{weights}/resnet50_imagenet.safetensors"},
            augment={"crop": crop, "flip": 0.0},
            training={
                "epochs": given.epochs,
                "batch": given.batch,
                "precision": "bfloat16",
                "workers": 2 if torch.cuda.is_available() and not tiny else 0,
                "graphs": True,
            },
            evaluation={"size": crop, "every": "task"},
        )
        .replace(world={"split": "client-disjoint"})
    )
    once = {"rounds": 1}  # nothing is trained, so a second round would say nothing new
    transformer = {
        "architecture": "none",
        "encoder": "tu-test_vit" if tiny else "tu-vit_small_patch14_reg4_dinov2",
        "weights": "none" if tiny else f"{weights}/dinov2_vits14_reg.safetensors",
        "options": {},
    }
    frozen = first.replace(method=FROZEN, world=once)
    return {
        "finetune": first,
        "fbl": first.replace(method="fbl"),
        "trained": first.replace(method="analytic"),
        "untrained": frozen,
        "untrained-vit": frozen.replace(model=transformer, augment={"crop": small}, evaluation={"size": small}),
        "all-drawn": frozen.replace(tasks={"split": "all"}),
    }


def played(folder: RunFolder) -> list[RoundRecord]:
    """All rounds of a run, with those of the run whose first step it took over."""
    base = folder.config().base
    return (
        [*(r for r in RunFolder.open(Path(base)).rounds() if r.task == 0), *folder.rounds()]
        if base
        else folder.rounds()
    )


def sent(folder: RunFolder) -> float:
    """Megabytes that a practice sends in the whole run, in the mean: a model for every round in which it trains, and
    its sums."""
    sizes = {task: _bytes(folder.read_weights(name).weights) for task, name in folder.last_models().items()}
    trained = [round_.task for round_ in played(folder) for reply in round_.replies if reply.steps]
    sums = [s for path in folder.path.glob("ledger-*.safetensors") for s in Ledger.load(path).contributions.values()]
    counted = sum(_bytes(one.tensors(torch.float32)) for one in sums)
    return (sum(sizes.get(task, sizes[0]) for task in trained) + counted) / 4e6


def _bytes(tensors: Weights) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def one(key: str, path: Path) -> dict:
    """What there is to keep of a run."""
    folder = RunFolder.open(path)
    tasks, rounds = range(len(folder.ends())), played(folder)
    seconds = [round(sum(r.seconds for r in rounds if r.task == task), 1) for task in tasks]
    config, devices = folder.config(), (origin["device"] for origin in folder.origins())
    return {
        "name": ROWS[key],
        "hardware": " and ".join(dict.fromkeys(devices)),
        "rounds": config.world.rounds,
        "epochs": config.training.epochs,
        "batch": config.training.batch,
        "pixels": config.augment.crop,
        **collect.one(path),
        "seconds": seconds,
        "megabytes": round(sent(folder), 1),
    }


def fall(run: dict, of: int = 0) -> float | None:
    """Points of IoU that the classes of all steps but the last lose in the mean, from the end of their own step on;
    `of`: those of one step alone, from 1."""
    lost, known = [], {"background"}
    for step, iou in enumerate(run["iou"][:-1], 1):
        new, known = iou.keys() - known, known | iou.keys()
        lost += [(iou[c] or 0) - (run["iou"][-1][c] or 0) for c in new if of in (0, step)]
    return sum(lost) / len(lost) if lost else None


def table(record: dict) -> list[str]:
    """The record as Markdown."""
    lines = [
        "| | incisors | canines | premolars | molars | old teeth fall by | seconds | MB a practice sends | on |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in record["runs"]:
        scores = [f"{miou:.1f}" for miou in run["miou"]]
        lost = fall(run)
        blank = [""] * (4 - len(scores))
        scores = [*blank, *scores] if run["finished"] else [*scores, *blank]
        cells = [run["name"], *scores, "" if lost is None else f"{round(lost, 1) + 0:.1f}"]
        cells += [format(sum(run["seconds"]), ".0f"), format(run["megabytes"], ".0f"), run["hardware"]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


class Recorder(Progress):
    """Writes a row as soon as its run has ended."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def ended(self, job: JobStatus) -> None:
        """Of a run that ended a step, if it was stopped later."""
        print(job.job.name, job.state, job.detail, file=sys.stderr, flush=True)
        self.keep(job.job)

    def keep(self, job: Job) -> None:
        """Write what there is of it."""
        if (job.folder / "scores.jsonl").is_file():
            (self.out / "rows").mkdir(exist_ok=True)
            (self.out / "rows" / f"{job.name}.json").write_text(json.dumps(one(job.name, job.folder), indent=1))


def write(out: Path, options: str) -> None:
    """All rows that are there as one record, the table of it."""
    files = [out / "rows" / f"{key}.json" for key in ROWS]
    runs = [json.loads(file.read_text()) for file in files if file.is_file()]
    command = f"python docs/results/teeth.py DATA WEIGHTS OUT {options}"
    (out / "teeth.json").write_text(json.dumps({"command": command, "runs": runs}, indent=1))
    print("\n".join(table({"runs": runs})), flush=True)


def main() -> None:
    """Play what is not there yet, several runs side by side; a record even if it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "weights", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--only", default=",".join(ROWS), help="of " + ", ".join(ROWS))
    for name, usual in (("jobs", 1), ("rounds", 10), ("epochs", 6), ("crop", 384), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    out = given.out.resolve()
    only = set(given.only.split(","))
    if unknown := sorted(only - ROWS.keys()):
        parser.error(f"--only {unknown[0]}: the rows are {', '.join(ROWS)}")
    if given.tiny:
        given.rounds, given.epochs, given.crop, given.batch = 1, 1, 64, 4
    only |= {BASE} if only & set(FROM_BASE) else set()
    base = out / "runs" / BASE
    jobs = [
        Job(key, config.seed, config.replace(base=str(base)), out / "runs" / key, base)
        if key in FROM_BASE
        else Job(key, config.seed, config, out / "runs" / key, None)
        for key, config in configs(given.data.resolve(), given.weights.resolve(), given).items()
        if key in only
    ]
    sweep.check(jobs)
    recorder = Recorder(out)
    done: list[JobStatus] = []
    try:
        done = sweep.play(jobs, given.jobs, recorder)
    finally:
        for job in jobs:
            recorder.keep(job)
        write(out, " ".join(f"--{key} {getattr(given, key)}" for key in ("rounds", "epochs", "crop", "batch")))
    for job in jobs:
        if job.name in list(ROWS)[:4] and RunFolder.open(job.folder).finished():
            draw_tasks(job.folder, out / f"teeth-{job.name}.png", list(STEPS), Progress())
    sys.exit(any(status.state == "failed" for status in done))


if __name__ == "__main__":
    main()
