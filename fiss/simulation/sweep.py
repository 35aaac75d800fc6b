"""Many runs with one command: every method and seed of a preset, the first task trained once per seed and shared.

Each run is a process of its own with a run folder of its own, so one that fails takes nothing with it. What is finished
is skipped and what was interrupted goes on, so the same command can be given again at any time.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Any

from fiss import methods
from fiss.config.config import Config, to_toml
from fiss.config.identity import differences
from fiss.config.presets import choose
from fiss.errors import UserError, unknown
from fiss.methods.base import Method
from fiss.progress import Progress
from fiss.runs.folder import LOGS, RunFolder, write_atomically
from fiss.runs.lock import locked
from fiss.runs.run import Run
from fiss.simulation.advice import warnings
from fiss.simulation.scenario import is_announced, open_scenario

PAPER = ("finetune", "lwf", "ilt", "mib", "plop", "rcil", "fbl")
BASE = "finetune"
"""Trains the first task that the others take over."""


def contenders(words: Sequence[str]) -> list[str]:
    """Names of methods, ablations (fbl-without-pod) and `joint`; `paper` and `all` stand for several."""
    ablations = [f"fbl-without-{part}" for part in methods.find("fbl").ablations]
    groups = {"paper": list(PAPER), "ablations": ablations, "all": [*methods.METHODS, *ablations, "joint"]}
    named = [name for word in words for name in groups.get(word, [word])]
    known = [*groups["all"], *groups]
    for name in named:
        if name not in known and ":" not in name:
            raise unknown("method", name, [*known, "or package.module:Class"])
    return list(dict.fromkeys(named))


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    seed: int
    config: Config
    folder: Path
    base: Path | None
    """The run whose first task it takes over."""

    @property
    def log(self) -> Path:
        """What its process says."""
        return self.folder.parent / ".sweep" / f"{self.folder.name}.log"

    @property
    def begun(self) -> bool:
        """Whether its folder holds a run."""
        return (self.folder / "config.toml").is_file()

    @property
    def first_task_done(self) -> bool:
        """Whether the model after its first task is written; that is enough for others to begin."""
        return (self.folder / "weights" / "task-0.safetensors").is_file()


def plan(preset: Config, names: Sequence[str], seeds: Sequence[int], out: Path, share: bool = False) -> list[Job]:
    """The jobs, those that others build on first. `share`: a method that would train the first task in its own way
    takes the common one over too."""
    if preset.base or preset.joint:
        raise UserError(
            "A sweep decides itself which runs begin from another and which are joint: leave base and joint."
        )
    jobs: dict[Path, Job] = {}
    for seed in seeds:
        base = out / f"{preset.name}-{BASE}-seed{seed}"
        wanted = [_job(preset, name, seed, out, base, share) for name in names]
        if any(job.base for job in wanted):
            jobs[base] = _job(preset, BASE, seed, out, base, share)
        for job in wanted:
            if job.folder in jobs and jobs[job.folder] != job:
                raise UserError(f"{job.name} and {jobs[job.folder].name} would both be {job.folder}.")
            jobs[job.folder] = job
    return sorted(jobs.values(), key=lambda job: job.base is not None)  # stable: otherwise as asked for


def _job(preset: Config, name: str, seed: int, out: Path, base: Path, share: bool) -> Job:
    joint = name == "joint"
    plain, _, part = name.partition("-without-")
    method = preset.method if joint else preset.replace(method=plain).method
    method = methods.ablate(method, part) if part else method
    announced = is_announced(replace(preset, joint=joint))
    alone = joint or name == BASE or not announced or not (share or _first_task_is_plain(method))
    label = name.replace(":", ".").lower()
    config = replace(preset, seed=seed, joint=joint, method=method, base="" if alone else str(base.absolute()))
    return Job(name, seed, config, out / f"{preset.name}-{label}-seed{seed}", None if alone else base)


def _first_task_is_plain(method: Method) -> bool:
    """Whether it would train the first task as finetune does, so that it may take it over."""
    if method.collection is not None and method.collection.trunk_rounds is not None:
        return False
    verbs = ("prepare_training", "first_losses", *(["adapt_network"] if method.collection is None else []))
    same = all(getattr(type(method), verb) is getattr(Method, verb) for verb in verbs)
    return same and method.mean_over == methods.find(BASE).mean_over


@dataclass
class JobStatus:
    """Where a job stands."""

    job: Job
    state: str = "waiting"
    """waiting, running, finished or failed."""
    detail: str = ""
    """The round it is in, or why it failed."""
    miou: tuple[float | None, ...] = ()
    """After each finished task."""
    sizes: tuple[int, ...] = ()
    """Of the logs when they were last read."""


@dataclass(frozen=True)
class Sweep:
    """What a sweep leaves.

    Args:
        jobs: All its runs, and where each stands.

    Example:
        >>> fiss.compare(fiss.sweep("shapes", ["finetune", "fbl"]).runs)
    """

    jobs: tuple[JobStatus, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs that can be compared: at least one task of them is finished."""
        return [Run(status.job.folder) for status in self.jobs if status.miou]

    @property
    def failed(self) -> list[JobStatus]:
        """The jobs that did not finish; `detail` says why."""
        return [status for status in self.jobs if status.state == "failed"]

    @property
    def by_preset(self) -> dict[str, list[Run]]:
        """`runs` by the name of their preset."""
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.config.name, []).append(run)
        return found


def sweep(
    what: Sequence[str | Path | Config],
    names: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    parallel: int,
    share: bool,
    settings: Mapping[str, Any],
    progress: Progress,
) -> Sweep:
    """Play every method with every seed of every preset or config."""
    for key in settings:
        if key.startswith("method."):
            raise UserError(
                f"--set {key}={settings[key]}: a sweep has many methods; put this one into a config file and name the "
                "file."
            )
    jobs: list[Job] = []
    for one in what:
        preset = choose(one, settings=settings)
        jobs += plan(preset, contenders(names), seeds or [preset.seed], out, share)
    check(jobs)
    for warning in _warnings(jobs):
        progress.notice(warning)
    return Sweep(tuple(play(jobs, parallel, progress)))


def _warnings(jobs: Sequence[Job]) -> Iterator[str]:
    """What each run that is still to begin would say at its start, once, before hours are lost."""
    said: set[str] = set()
    for job in {(job.config.name, job.name): job for job in jobs if not job.begun}.values():
        heard = Notices()
        try:
            lines = warnings(open_scenario(job.config, heard, fresh=True))
        except UserError as error:  # that run fails, the others do not
            lines = [f"{job.folder.name} will fail: {error}"]
        for text in (*heard.lines, *lines):
            if text not in said:
                yield text
            said.add(text)


class Notices(Progress):
    """Keeps what is noticed."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def notice(self, text: str) -> None:
        """A line."""
        self.lines.append(text)


def refresh(status: JobStatus) -> None:
    """Read from the run folder what there is to know."""
    job = status.job
    sizes = tuple(log.stat().st_size if (log := job.folder / name).is_file() else 0 for name in LOGS)
    if not job.begun or sizes == status.sizes:
        return
    status.sizes, folder = sizes, RunFolder.open(job.folder)
    try:
        ends, rounds = folder.ends(job.config.evaluation.views[0]), len(folder.rounds())
    except UserError:
        return  # a line is being written
    status.miou = tuple(score.miou for score in ends)
    if status.state == "running":
        status.detail = f"task {len(ends)}, {rounds} rounds done"


def check(jobs: Sequence[Job]) -> None:
    """Refuse two runs in one folder, and folders that hold runs with other settings."""
    for job in jobs:
        if sum(other.folder == job.folder for other in jobs) > 1:
            raise UserError(
                f"Two runs of this sweep would both be {job.folder}: give the config files other names inside."
            )
        if not job.begun:
            continue
        there = RunFolder.open(job.folder).config()
        if there.base and job.base:  # the folder of a sweep may have been moved since
            there = replace(there, base=job.config.base)
        if odd := differences(there, job.config):
            raise UserError(
                f"{job.folder} holds a run with other settings ({', '.join(odd)}); --out names another folder."
            )


def play(jobs: Sequence[Job], parallel: int, progress: Progress) -> list[JobStatus]:
    """Run all jobs, `parallel` at a time; gives how each ended."""
    with ExitStack() as stack:
        for folder in {job.folder.parent for job in jobs}:
            mark = folder / ".sweep" / "lock"
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            stack.enter_context(locked(mark, f"{folder}: another sweep is at work in it; --out names another folder."))
        return _play(jobs, parallel, progress)


def _play(jobs: Sequence[Job], parallel: int, progress: Progress) -> list[JobStatus]:
    board = {job.folder: JobStatus(job) for job in jobs}
    for status in board.values():
        if (status.job.folder / "state.json").is_file() and RunFolder.open(status.job.folder).finished():
            status.state, status.detail = "finished", "was there"
            refresh(status)
    running: dict[Path, subprocess.Popen[bytes]] = {}
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the runs are stopped with the sweep
    try:
        while any(p.state in ("waiting", "running") for p in board.values()):
            for folder, status in board.items():
                if status.state != "waiting":
                    continue
                base = board[status.job.base] if status.job.base else None
                ready = base is None or base.job.first_task_done
                if ready and len(running) < parallel:
                    running[folder] = _start(status.job, parallel)
                    status.state = "running"
                elif base and base.state == "failed" and not ready:
                    status.state, status.detail = "failed", f"{base.job.folder.name} failed"
                    progress.ended(status)
            for folder, process in list(running.items()):
                status = board[folder]
                ended = process.poll() is not None
                refresh(status)
                if ended:
                    del running[folder]
                    failed = process.returncode != 0
                    status.state, status.detail = ("failed", _last_line(status.job.log)) if failed else ("finished", "")
                    progress.ended(status)
            progress.jobs(list(board.values()))
            sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        signal.signal(signal.SIGTERM, before)
    return list(board.values())


def _start(job: Job, parallel: int) -> "subprocess.Popen[bytes]":
    if job.begun:
        words = ["resume", str(job.folder)]
    else:
        file = job.log.with_name(f"{job.folder.name}.toml")
        write_atomically(file, to_toml(job.config).encode())
        words = ["run", str(file), "--out", str(job.folder)]
    threads = max(1, (os.cpu_count() or 1) // parallel)
    variables = os.environ | ({"OMP_NUM_THREADS": str(threads)} if parallel > 1 else {})
    with job.log.open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "fiss", *words], stdout=log, stderr=log, env=variables)


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"{lines[-1].strip() if lines else 'no output'} (see {path})"
