"""Scores of methods with two states of the source, the same seeds in both: what a change of the losses is worth.

python docs/results/before_after.py BEFORE AFTER OUT [--jobs 16] [--device cpu] [--tiny]

BEFORE and AFTER are folders with the package `fiss` of one state each, such as `git archive 6f47ea4 | tar -x -C BEFORE`
leaves there. Nothing else is needed: this file imports no fiss, the runs are `python -m fiss run` with PYTHONPATH set
to one of them. Runs of shapes, shortened as in `fiss demo`, one thread each; fbl and fbl-paper take the first task of
the same state's finetune over, which trains it as they would. Writes the run folders, their output and table.md to
OUT, and prints the table. Give the command again to go on: what is finished is not run again. --tiny: one round.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import mean

METHODS = ("rcil", "finetune", "fbl", "fbl-paper")  # the longest first
BASED = ("fbl", "fbl-paper")
SEEDS = (1, 2, 3)
STATES = ("before", "after")
SCORES = ("miou", "old", "new")


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s BEFORE AFTER OUT ..."
    )
    for name in ("before", "after", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="one round and one epoch, to see that all of it runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    return parser.parse_args()


def finished(folder: Path) -> bool:
    """Whether the run is."""
    state = folder / "state.json"
    return state.is_file() and bool(json.loads(state.read_text()).get("finished"))


def play(given: argparse.Namespace, state: str, method: str, seed: int) -> None:
    """One run in a process of its own; one that was stopped begins anew."""
    folder: Path = given.out / f"{state}-{method}-{seed}"
    if finished(folder):
        return
    if folder.exists():
        shutil.rmtree(folder)
    settings = {"world.sample_ratio": 0.55, "training.threads": 1, "training.device": given.device}
    if given.tiny:
        settings |= {"world.rounds": 1, "training.epochs": 1, "data.shapes_train": 60, "data.shapes_val": 20}
    words = ["run", "shapes", "--method", method, "--seed", str(seed), "--out", str(folder)]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    if method in BASED:
        words += ["--base", str(given.out / f"{state}-finetune-{seed}")]
    tree = (given.before if state == "before" else given.after).resolve()
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with folder.with_suffix(".log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-m", "fiss", *words],
            env=os.environ | threads | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=given.out,
        )
    print(f"{folder.name}: {'done' if done.returncode == 0 else f'FAILED, see {log.name}'}", flush=True)


def scores(folder: Path) -> dict[str, float] | None:
    """Those of the last task, and which share of the pixels that could get a pseudo label was to get one and did."""
    if not finished(folder):
        return None
    last = json.loads((folder / "scores.jsonl").read_text().splitlines()[-1])
    found = {name: last[name] for name in SCORES}
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    given = [
        epoch for line in rounds for reply in line["replies"] for epoch in reply["report"].get("pseudo_labels", ())
    ]
    pairs = [(e["asked"], sum(e["accepted"].values()) / max(sum(e["offered"].values()), 1)) for e in given]
    if pairs:
        found |= {"asked": 100 * mean(a for a, _ in pairs), "accepted": 100 * mean(b for _, b in pairs)}
    return found


def table(given: argparse.Namespace) -> str:
    """In Markdown."""
    lines = [
        f"| method | state | mIoU, seeds {', '.join(map(str, given.seeds))} | mIoU | old | new | asked | accepted |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in given.methods:
        for state in STATES:
            found = [scores(given.out / f"{state}-{method}-{seed}") for seed in given.seeds]
            there = [run for run in found if run is not None]
            if not there:
                continue
            means = [mean(run[name] for run in there) for name in SCORES]
            shares = [f"{mean(run[k] for run in there):.0f} %" if k in there[0] else "" for k in ("asked", "accepted")]
            each = ", ".join("missing" if run is None else f"{run['miou']:.1f}" for run in found)
            cells = [method, state, each, *(f"{value:.1f}" for value in means), *shares]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, and print the table."""
    given = options()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        bases: dict[tuple[str, int], Future[None]] = {}
        runs = []
        for method in (m for m in METHODS if m in given.methods and m not in BASED):
            for state in STATES:
                for seed in given.seeds:
                    run = pool.submit(play, given, state, method, seed)
                    runs.append(run)
                    if method == "finetune":
                        bases[state, seed] = run
        for (state, seed), base in bases.items():
            base.result()
            runs += [pool.submit(play, given, state, method, seed) for method in BASED if method in given.methods]
        for run in runs:
            run.result()
    (given.out / "table.md").write_text(table(given))
    print(table(given), end="")


if __name__ == "__main__":
    main()
