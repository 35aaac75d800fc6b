"""Every method on shapes, three seeds: python docs/results/shapes.py OUT [--jobs N] [METHOD ...] [KEY=VALUE ...]

One run folder per method and seed under OUT. The first task of a seed is trained once, by finetune, and taken over by
the others; RCIL, whose network differs, trains its own, as in the published runs. What is finished is skipped, what was
interrupted goes on, so the command can be given again. At the end: the table of `fiss compare OUT/*`.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SEEDS = (1, 2, 3)
ALONE = ("rcil", "rcil-reference", "joint")
SHARED = ("lwf", "ilt", "mib", "mib-100", "plop", "plop-reference", "fbl", "fbl-paper", "fbl-reference")
ABLATIONS = ("pseudo-labels", "compensation", "relation", "pod")
METHODS = ("finetune", *SHARED, *ALONE, *(f"without-{part}" for part in ABLATIONS))


def fiss(*arguments: str) -> None:
    """One command of the package, its output to a log beside the run."""
    log = Path(arguments[arguments.index("--out") + 1] if "--out" in arguments else arguments[-1] + ".log")
    log = log if log.suffix == ".log" else log.with_name(log.name + ".log")
    with log.open("a") as file:
        subprocess.run([sys.executable, "-m", "fiss", *arguments], stdout=file, stderr=file, check=True)


def run(out: Path, name: str, seed: int, settings: list[str]) -> str:
    """Start a run, go on with it, or see that it is finished."""
    folder = out / f"{name}-{seed}"
    if (folder / "config.toml").is_file():
        fiss("resume", str(folder))
        return folder.name
    words = ["run", "shapes", "--seed", str(seed), *(w for s in settings for w in ("--set", s)), "--out", str(folder)]
    if name == "joint":
        words += ["--joint"]
    elif name.startswith("without-"):
        words += ["--method", "fbl", "--ablate", name.removeprefix("without-")]
    else:
        words += ["--method", name]
    if name not in ("finetune", *ALONE):
        words += ["--base", str(out / f"finetune-{seed}")]
    fiss(*words)
    return folder.name


def main(out: Path, jobs: int, wanted: list[str], settings: list[str]) -> None:
    """First what others build on, then the rest, several at a time."""
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in METHODS if name in wanted or not wanted]
    with ThreadPoolExecutor(jobs) as pool:
        first = {s: pool.submit(run, out, "finetune", s, settings) for s in SEEDS}
        todo = [pool.submit(run, out, name, s, settings) for name in names if name in ALONE for s in SEEDS]
        for seed, base in first.items():
            base.result()
            rest = (name for name in names if name not in ("finetune", *ALONE))
            todo += [pool.submit(run, out, name, seed, settings) for name in rest]
        for job in todo:
            print("done:", job.result(), flush=True)
    folders = [str(out / f"{name}-{seed}") for name in names for seed in SEEDS]
    subprocess.run([sys.executable, "-m", "fiss", "compare", "--markdown", *folders], check=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    jobs = int(words.pop(words.index("--jobs") + 1)) if "--jobs" in words else 1
    rest = [w for w in words if w != "--jobs"]
    main(Path(rest[0]), jobs, [w for w in rest[1:] if "=" not in w], [w for w in rest[1:] if "=" in w])
