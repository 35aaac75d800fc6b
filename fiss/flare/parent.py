"""A job's process ends with the FLARE process that started it.

FLARE watches too, but begins late and only asks: a job whose parent is killed while it starts is told by nobody, and
one that is sending its answer goes on trying without end.
"""

import os
import signal
import sys
import threading
from time import sleep

import psutil

JOBS = ("nvflare.private.fed.app.client.worker_process", "nvflare.private.fed.app.server.runner_process")
"""What FLARE runs for a job, at a site and on the server."""
GRACE = 15.0
"""Seconds in which the job may end by itself."""


def end_with_parent() -> None:
    """In a process of a job: end it some seconds after its parent is gone, which it may be already."""
    program = sys.modules["__main__"].__spec__
    if program is not None and program.name in JOBS:
        parent = os.getppid()
        there = any(word.startswith("nvflare.") for word in psutil.Process(parent).cmdline())
        watch(parent if there else -1, GRACE)


def watch(parent: int, grace: float) -> None:
    """End this process, whatever it does, `grace` seconds after its parent is another than that."""

    def wait() -> None:
        while os.getppid() == parent:
            sleep(min(1.0, grace))
        sleep(grace)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
