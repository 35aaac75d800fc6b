"""One log per side in plain words, beside FLARE's own: `fiss.log`, at most six files of a megabyte."""

import fcntl
import logging
import os
import shutil
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from fiss.progress import Progress

LOG = "fiss.log"
LARGEST, KEPT = 1_000_000, 5
"""Bytes of a file, and how many full ones are kept besides it."""
AUDIT, LONGEST_AUDIT = "audit.log", 5_000_000
"""FLARE's account of who asked for what, in each kit. `run` asks twice a second; FLARE lets it grow without end."""


class SharedLog(RotatingFileHandler):
    """A rotated log into which several processes write: one at a time, and nobody holds a file that was moved."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%Y-%m-%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        try:
            with Path(f"{self.baseFilename}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                super().emit(record)
                self.close()
        except OSError:  # a full disk must not stop a round
            self.handleError(record)

    def close(self) -> None:
        """Leave the file; the next line opens it again."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None


def cut_audit(kit: Path) -> None:
    """Let FLARE's audit.log begin anew where it is long; the last one is kept beside it. FLARE appends to it, so it can
    be emptied while it is open."""
    path = kit / AUDIT
    if path.is_file() and path.stat().st_size > LONGEST_AUDIT:
        shutil.copyfile(path, path.with_name(f"{AUDIT}.1"))
        os.truncate(path, 0)


def plain_log(folder: Path) -> logging.Logger:
    """The log of a side, in its folder; asked for twice, the same one."""
    log = logging.getLogger(f"fiss.log.{folder.absolute()}")
    if not log.handlers:
        log.addHandler(SharedLog(folder / LOG))
        log.setLevel(logging.INFO)
        log.propagate = False
    return log


class Logged(Progress):
    """Passes everything on to `inner`, and writes notices to the log as well."""

    def __init__(self, inner: Progress, folder: Path) -> None:
        self.inner, self.log = inner, plain_log(folder)

    def __getattribute__(self, name: str) -> Any:
        own = ("inner", "log", "notice")
        return object.__getattribute__(self, name) if name in own else getattr(self.inner, name)

    def notice(self, text: str) -> None:
        """One line."""
        self.log.info(" ".join(text.split()))
        self.inner.notice(text)
