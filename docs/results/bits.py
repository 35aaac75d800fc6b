"""Whether two states of the source compute the same, to the bit: digests of the models after every task, side by side.

python docs/results/bits.py BEFORE AFTER OUT [--jobs N] [--only told-finetune told-fbl ...]

BEFORE and AFTER are folders with the package `fiss` of one state each, such as `git worktree add BEFORE 94513fb` makes.
shapes, tiny, three tasks: finetune, fbl, mib, plop and rcil with tasks announced and discovered, in one process, and
fbl and rcil with two rounds a task on FLARE's simulator. Writes the run folders to OUT, prints a table.
Give the command again to go on. A real federation has its own test: it gives what the same sites give in one process.

The losses of FBL were changed on purpose after 6f47ea4: where gradients are added up, when thresholds are made and how
equal entropies are taken, how a collapsed class is pulled back. So fbl differs from states before that, and plop where
its thresholds do; the others are to be the same.
"""

import argparse
import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from before_after import finished, fiss
from safetensors.numpy import load_file

METHODS = ("finetune", "fbl", "mib", "plop", "rcil")
TINY = {
    "training.threads": 1,
    "training.device": "cpu",
    "training.epochs": 1,
    "data.shapes_train": 60,
    "data.shapes_val": 20,
    "tasks.split": "6-3",
    "world.rounds": 1,
}
UNTOLD = {"monitor.name": "names", "world.lag": 1, "world.rounds": 3}
FLARE = {"world.rounds": 2}


def runs() -> dict[str, list[str]]:
    """By name, the words of `fiss run`."""
    found = {f"{kind}-{m}": (m, {}, own) for kind, own in (("told", {}), ("untold", UNTOLD)) for m in METHODS}
    found |= {f"flare-{m}": (m, {"--engine": "flare", "--workers": "1"}, FLARE) for m in ("fbl", "rcil")}
    words = {}
    for name, (method, options, settings) in found.items():
        words[name] = ["run", "shapes", "--method", method, "--seed", "1"]
        words[name] += [word for pair in options.items() for word in pair]
        words[name] += [w for key, value in (TINY | settings).items() for w in ("--set", f"{key}={value}")]
    return words


def digests(folder: Path) -> dict[str, str]:
    """Of each model that is kept, by its name: of the names, types, shapes and bytes of its tensors."""
    found = {}
    for path in sorted((folder / "weights").glob("task-*.safetensors")):
        digest = hashlib.sha256()
        for name, array in sorted(load_file(path).items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        found[path.stem] = digest.hexdigest()[:12]
    return found


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("before", "after", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--only", nargs="+", choices=list(runs()), default=list(runs()))
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)

    def play(name: str, state: str) -> dict[str, str]:
        folder, tree = out / f"{name}-{state}", given.before if state == "before" else given.after
        if not finished(folder):
            shutil.rmtree(folder, ignore_errors=True)
            if not fiss(tree, [*runs()[name], "--out", str(folder)], folder.with_suffix(".log")):
                return {}
        return digests(folder)

    with ThreadPoolExecutor(given.jobs) as pool:
        both = {name: [pool.submit(play, name, state) for state in ("before", "after")] for name in given.only}
        print("| run | model | before | after | |\n| --- | --- | --- | --- | --- |", flush=True)
        for name, pair in both.items():
            before, after = (found.result() for found in pair)
            for model in sorted({**before, **after}) or ["none"]:
                cells = before.get(model, "failed"), after.get(model, "failed")
                verdict = "failed" if "failed" in cells else "same" if cells[0] == cells[1] else "differs"
                print(f"| {name} | {model} | {cells[0]} | {cells[1]} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
