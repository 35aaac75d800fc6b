"""Runs that are killed, and what must be the same in two runs."""

import json
import os
import signal
from pathlib import Path

from fiss.progress import Progress
from fiss.runs import folder
from fiss.runs.folder import RunFolder


def result(path: Path) -> dict[str, bytes]:
    """What must be the same in two runs: scores and models, to the bit; rounds but for their time."""
    rounds = [{k: v for k, v in r.items() if "second" not in k} for r in RunFolder(path).records("rounds.jsonl")]
    state = json.loads((path / "state.json").read_text())
    return {
        "scores": (path / "scores.jsonl").read_bytes(),
        "splits": (path / "splits.json").read_bytes(),
        "rounds": json.dumps(rounds).encode(),
        "state": json.dumps({k: v for k, v in state.items() if k != "lengths"}).encode(),
        **{p.name: p.read_bytes() for p in sorted((path / "weights").iterdir()) if not p.name.endswith(".part")},
    }


class KillAtStep(Progress):
    def __init__(self, at):
        self.left = at

    def step(self, images, losses):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(work):
    """Run `work` in a process that kills itself with SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die_in_fsync(at, monkeypatch):
    """SIGKILL in the at-th fsync, with the file torn in half where it is a file."""
    calls, real = [0], os.fsync

    def fsync(descriptor):
        calls[0] += 1
        if calls[0] == at:
            path = Path(f"/proc/self/fd/{descriptor}").resolve()
            if path.is_file():  # of a log, only what this round appended can be torn
                size = os.fstat(descriptor).st_size
                os.ftruncate(descriptor, size - 5 if path.suffix == ".jsonl" else size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)

    monkeypatch.setattr(folder.os, "fsync", fsync)
