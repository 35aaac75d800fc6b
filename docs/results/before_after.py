"""Scores of methods with two states of the source, the same seeds in both: what a change of the losses is worth.

python docs/results/before_after.py BEFORE AFTER OUT [--jobs 16] [--device cpu] [--tiny] [--add shapes.json]

BEFORE and AFTER are folders with the package `fiss` of one state each, such as `git archive 6f47ea4 | tar -x -C BEFORE`
leaves there. Nothing else is needed: this file imports no fiss, the runs are `python -m fiss run` with PYTHONPATH set
to one of them. Runs of shapes, shortened as in `fiss demo`, one thread each; all but rcil take the first task of the
same state's finetune over, which trains it as they would. analytic is run with the second state only. Writes the run
folders, their output and table.md to OUT, and prints the table. Give the command again to go on: what is finished is
not run again. --tiny: one round. --add: the record to write means and deviations into, for `make.py`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

METHODS = ("rcil", "finetune", "fbl", "fbl-paper", "analytic")  # the longest first
BASED = ("fbl", "fbl-paper", "analytic")
SEEDS = (1, 2, 3)
STATES = ("before", "after")
SCORES = ("miou", "old", "new")


def states(method: str) -> Sequence[str]:
    """With which states a method is run: learning by sums is younger than the first."""
    return STATES[1:] if method == "analytic" else STATES


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
    parser.add_argument("--add", type=Path, metavar="shapes.json")
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
    tree = given.before if state == "before" else given.after
    done = fiss(tree, words, folder.with_suffix(".log"))
    print(f"{folder.name}: {'done' if done else f'FAILED, see {folder}.log'}", flush=True)


def fiss(tree: Path, words: Sequence[str], log: Path) -> bool:
    """A command with the package in that folder, on one thread; its output goes to `log`. Whether it ended well."""
    path = os.pathsep.join([str(tree.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
    with log.open("w") as out:
        command = [sys.executable, "-m", "fiss", *words]
        return not subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=log.parent
        ).returncode


def scores(folder: Path) -> dict[str, float] | None:
    """Those of the last task, and which share of the pixels that could get an old class was to get it and did."""
    if not finished(folder):
        return None
    last = json.loads((folder / "scores.jsonl").read_text().splitlines()[-1])
    found = {name: last[name] for name in SCORES}
    if pairs := shares(folder):
        found |= {"asked": 100 * mean(a for a, _ in pairs), "accepted": 100 * mean(b for _, b in pairs)}
    return found


def shares(folder: Path) -> list[tuple[float, float]]:
    """Of every client's epoch the share asked for, and that accepted of the pixels that the teacher calls an old class;
    the background is left out, which fbl-paper accepts whole."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    given = [
        epoch for line in rounds for reply in line["replies"] for epoch in reply["report"].get("pseudo_labels", ())
    ]
    counts = [[sum(e[k].values()) - e[k].get("background", 0) for k in ("accepted", "offered")] for e in given]
    return [(e["asked"], accepted / offered) for e, (accepted, offered) in zip(given, counts, strict=True) if offered]


def table(given: argparse.Namespace) -> str:
    """In Markdown."""
    lines = [
        f"| method | state | mIoU, seeds {', '.join(map(str, given.seeds))} | mIoU | old | new | asked | accepted |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in given.methods:
        for state in states(method):
            found = [scores(given.out / f"{state}-{method}-{seed}") for seed in given.seeds]
            there = [run for run in found if run is not None]
            if not there:
                continue
            means = [mean(run[name] for run in there) for name in SCORES]
            parts = [f"{mean(run[k] for run in there):.0f} %" if k in there[0] else "" for k in ("asked", "accepted")]
            each = ", ".join("missing" if run is None else f"{run['miou']:.1f}" for run in found)
            cells = [method, state, each, *(f"{value:.1f}" for value in means), *parts]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def summary(given: argparse.Namespace) -> dict[str, object]:
    """Mean and deviation over the seeds after each task, and at the end, of every method and state that is whole."""
    rows = []
    for method in given.methods:
        for state in states(method):
            folders = [given.out / f"{state}-{method}-{seed}" for seed in given.seeds]
            if not all(map(finished, folders)):
                continue
            ends = [by_task(folder) for folder in folders]
            columns = {f"task {t}": [end[t]["miou"] for end in ends] for t in range(len(ends[0]))}
            columns |= {name: [end[-1][name] for end in ends] for name in ("old", "new", "forgetting")}
            row = {"method": method, "state": state} | {k: spread(v) for k, v in columns.items()}
            if pairs := [pair for folder in folders for pair in shares(folder)]:
                off = [100 * (b - a) for a, b in pairs]
                both = [100 * mean(pair[i] for pair in pairs) for i in (0, 1)]
                row["asked and accepted"] = [round(value) for value in (*both, min(off), max(off))]
            rows.append(row)
    command = "python docs/results/before_after.py BEFORE AFTER OUT"
    return {"command": command, "before mended faults": False, "runs": len(given.seeds), "rows": rows}


def by_task(folder: Path) -> list[dict[str, float]]:
    """The last scores of each task."""
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    return list({line["task"]: line for line in lines if line.get("view", "published") == "published"}.values())


def spread(values: Sequence[float]) -> list[float]:
    """Mean and deviation."""
    return [round(mean(values), 1), round(stdev(values), 1)] if len(values) > 1 else [round(values[0], 1), 0.0]


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
            based = [method for method in BASED if method in given.methods and state in states(method)]
            runs += [pool.submit(play, given, state, method, seed) for method in based]
        for run in runs:
            run.result()
    if given.add:
        record = json.loads(given.add.read_text())
        record["tables"]["mended"] = summary(given)
        text = json.dumps(record, indent=1, ensure_ascii=False)
        given.add.write_text(re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n")
    (given.out / "table.md").write_text(table(given))
    print(table(given), end="")


if __name__ == "__main__":
    main()
