"""Where a run's numbers come from: which program, on which machine, when. One record each time a run is begun or gone
on with."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).parents[2]


def origin(device: torch.device) -> dict[str, Any]:
    """The record of this process."""
    on_gpu = device.type == "cuda"
    return {
        "fiss": fiss_version(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{platform.machine()}, {os.cpu_count()} CPUs",
        "threads": torch.get_num_threads(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def fiss_version() -> str:
    """Version of the installed package."""
    try:
        return version("fiss")
    except PackageNotFoundError:  # run from a plain copy of the source
        return "unknown"


def commit() -> str:
    """The commit of the source this runs from, marked where files were changed since; FISS_COMMIT names that of a copy
    without its history. Empty where nobody knows, as in an installed package."""
    if named := os.environ.get("FISS_COMMIT"):
        return named
    if not (SOURCE / ".git").exists():  # not that of a repository around an installed package
        return ""
    try:
        found = _git("rev-parse", "--short", "HEAD")
        return found + (" and changes" if found and _git("status", "--porcelain", "--", "fiss") else "")
    except OSError:
        return ""


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "--no-optional-locks", "-C", str(SOURCE), *words], capture_output=True, text=True
    ).stdout.strip()
