"""Where a run's numbers come from: which program, on which machine, when. One record each time a run is begun or gone
on with."""

import hashlib
import inspect
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fiss.methods import name_of
from fiss.methods.base import Method

SOURCE = Path(__file__).parents[2]


def origin(device: torch.device, method: Method | None = None) -> dict[str, Any]:
    """The record of this process; a method of a user's own is in no commit of ours, so its file is told too."""
    on_gpu = device.type == "cuda"
    return {
        "fiss": fiss_version(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{platform.machine()}, {os.cpu_count()} CPUs",
        "threads": torch.get_num_threads(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        **(_file_of(method) if method is not None else {}),
    }


def _file_of(method: Method) -> dict[str, str]:
    """The name of a user's own method and the digest of the file that it stands in, where it stands in one."""
    if ":" not in (name := name_of(method)):
        return {}
    try:
        source = inspect.getsourcefile(type(method))
        return {"method": name, "method_sha256": hashlib.sha256(Path(source or "").read_bytes()).hexdigest()}
    except (OSError, TypeError):  # of a notebook's cell
        return {"method": name}


def method_changed(before: Iterable[Mapping[str, Any]], now: Mapping[str, Any]) -> str | None:
    """What is to be said if the file of a user's own method is not the one that the last process worked with."""
    digests = [record["method_sha256"] for record in before if "method_sha256" in record]
    if not digests or "method_sha256" not in now or digests[-1] == now["method_sha256"]:
        return None
    return (
        f"The file of {now['method']} was changed since this run was last worked on: earlier rounds are those of the "
        "file as it was. origin.json has both digests; for numbers that belong together start a new run."
    )


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
