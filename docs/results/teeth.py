"""Teeth in X-rays at four practices, in four steps: what each way of learning keeps, with its seconds and its bytes.

python docs/results/teeth.py DATA WEIGHTS OUT [--jobs N] [--tiny]

DATA has images/, masks/ and classes.txt with the 32 teeth by FDI number; WEIGHTS has resnet50_imagenet.safetensors and
dinov2_vits14_reg.safetensors. An X-ray belongs to one practice and to one step, in which only the teeth of that step
are drawn; left and right are different classes, so nothing is flipped. Lengths and rates are the presets' or what the
time allowed; nothing is chosen on the validation images. Writes OUT/teeth.json, and prints the table of it. Give the
command again to go on where it stopped. --tiny: small networks without weights, to see that all of it runs.
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
from fiss.simulation import sweep
from fiss.simulation.sweep import Job, JobStatus
from fiss.statistics.ledger import Ledger

STEPS = {"incisors": "12", "canines": "3", "premolars": "45", "molars": "678"}
"""The second digits of their FDI numbers; the first is the quarter of the mouth."""
SPLIT = "; ".join(", ".join(f"FDI-{q}{tooth}" for q in "1234" for tooth in teeth) for teeth in STEPS.values())
FROZEN = {"name": "analytic", "trunk": "pretrained"}


def configs(data: Path, weights: Path, tiny: bool) -> dict[str, Config]:
    """What is compared, by what it is called in the table."""
    crop, small = (64, 64) if tiny else (384, 252)  # the second for a transformer with patches of 14 pixels
    first = (
        preset("folder")
        .replace(
            data={"root": str(data)},
            tasks={"split": SPLIT, "images": "partitioned"},
            world={"clients": 4, "joiners": 0, "per_round": 4, "rounds": 1 if tiny else 10, "class_ratio": 1.0},
            model={"weights": "none", "encoder": "resnet18"}
            if tiny
            else {"weights": f"{weights}/resnet50_imagenet.safetensors"},
            augment={"crop": crop, "flip": 0.0},
            training={
                "epochs": 1 if tiny else 6,
                "batch": 4 if tiny else 8,
                "workers": 0 if tiny else 2,
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
        "closed form, trained trunk": first.replace(method="analytic"),
        "closed form, untrained trunk": frozen,
        "closed form, untrained ViT-S": frozen.replace(
            model=transformer, augment={"crop": small}, evaluation={"size": small}
        ),
        "the untrained trunk, all teeth drawn": frozen.replace(tasks={"split": "all"}),
    }


def folder_name(name: str) -> str:
    """Of a run, by what it is called."""
    return name.replace(",", "").replace(" ", "-")


def sent(folder: RunFolder) -> float:
    """Megabytes that a practice sends in the whole run, in the mean: a model for every round in which it trains, and
    its sums."""
    sizes = {task: _bytes(folder.read_weights(name).weights) for task, name in folder.last_models().items()}
    trained = [round_.task for round_ in folder.rounds() for reply in round_.replies if reply.steps]
    sums = [s for path in folder.path.glob("ledger-*.safetensors") for s in Ledger.load(path).contributions.values()]
    counted = sum(_bytes(one.tensors(torch.float32)) for one in sums)
    return (sum(sizes.get(task, sizes[0]) for task in trained) + counted) / 4e6


def _bytes(tensors: Weights) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def one(name: str, path: Path) -> dict:
    """What there is to keep of a run."""
    folder = RunFolder.open(path)
    tasks, rounds = range(len(folder.ends())), folder.rounds()
    seconds = [round(sum(r.seconds for r in rounds if r.task == task), 1) for task in tasks]
    return {"name": name, **collect.one(path), "seconds": seconds, "megabytes": round(sent(folder), 1)}


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
        "| | 1: incisors | 2: canines | 3: premolars | 4: molars | old teeth fall by | seconds | MB a practice sends |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in record["runs"]:
        scores = [f"{miou:.1f}" for miou in run["miou"]]
        lost = fall(run)
        blank = [""] * (4 - len(scores))
        scores = [*blank, *scores] if run["finished"] else [*scores, *blank]
        cells = [run["name"], *scores, "" if lost is None else f"{round(lost, 1) + 0:.1f}"]
        lines.append(f"| {' | '.join([*cells, format(sum(run['seconds']), '.0f'), format(run['megabytes'], '.0f')])} |")
    return lines


def write(runs: dict[str, Path], out: Path, hardware: str, command: str) -> None:
    """The record of those that ended a step, the table, and what each run on the larger network saw after every
    step."""
    found = {name: path for name, path in runs.items() if (path / "scores.jsonl").is_file()}
    record = {"hardware": hardware, "command": command, "runs": [one(name, path) for name, path in found.items()]}
    (out / "teeth.json").write_text(json.dumps(record, indent=1))
    print("\n".join(table(record)), flush=True)
    for name, path in list(found.items())[:4]:
        steps = len(RunFolder.open(path).last_models())
        draw_tasks(path, out / f"teeth-{folder_name(name)}.png", list(STEPS)[:steps], Progress())


def main() -> None:
    """Play what is not there yet, several runs side by side; a record even if it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "weights", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    out = given.out.resolve()
    wanted = configs(given.data.resolve(), given.weights.resolve(), given.tiny)
    runs = {name: out / "runs" / folder_name(name) for name in wanted}
    jobs = [Job(name, config.seed, config, runs[name], None) for name, config in wanted.items()]
    sweep.check(jobs)
    done: list[JobStatus] = []
    try:
        done = sweep.play(jobs, given.jobs, Progress())
    finally:
        for status in done:
            print(status.job.name, status.state, status.detail, file=sys.stderr)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        command = f"python docs/results/teeth.py DATA WEIGHTS OUT --jobs {given.jobs}{' --tiny' if given.tiny else ''}"
        write(runs, out, device, command)
    sys.exit(any(status.state == "failed" for status in done))


if __name__ == "__main__":
    main()
