"""The runs and federations that the page shows: found in folders, looked at together, read by several readers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from time import monotonic

from fiss.errors import UserError
from fiss.web.watch import WatchedRun

DEPTH = 3
"""Folders below those that were named in which runs are looked for."""
SEARCH_EVERY = 10.0
"""Seconds between two searches for runs that are new."""
LEFT_OUT = ("weights", "kits", "provision", "images", "masks")


class Shelf:
    """Every run below some folders."""

    def __init__(self, folders: Iterable[Path], least: float = 0.5) -> None:
        self.folders = [folder.absolute() for folder in folders]
        self.least = least
        """Seconds between two refreshes, however many readers ask."""
        self.runs: dict[str, WatchedRun] = {}
        self.lock = Lock()
        self.searched = self.refreshed = float("-inf")
        self.search()

    def search(self) -> None:
        """Search the folders for runs."""
        self.searched = monotonic()
        found = [run for folder in self.folders for run in _runs(folder, DEPTH)]
        new = {run.id: self.runs.get(run.id, run) for run in found}
        order = sorted(new, key=lambda key: (new[key].federation is None, str(new[key].path)))
        self.runs = {key: new[key] for key in order}

    def refresh(self, search: bool = False) -> None:
        """Read what is new of every run, once for all readers."""
        with self.lock:
            if monotonic() - self.refreshed < self.least:
                return
            if search or monotonic() - self.searched > SEARCH_EVERY:
                self.search()
            for run in self.runs.values():
                run.refresh()
            self.refreshed = monotonic()

    def get(self, key: str) -> WatchedRun | None:
        """The run of that id."""
        return self.runs.get(key)

    def find(self, key: str) -> WatchedRun:
        """The run of that id; an error if there is none."""
        if (run := self.runs.get(key)) is None:
            raise UserError("There is no such run any more.")
        return run


def _runs(folder: Path, depth: int) -> Iterator[WatchedRun]:
    """A run, a federation, or those in the folders below."""
    if (folder / "project.yml").is_file() and (folder / "federation.toml").is_file():
        yield WatchedRun(folder / "run", folder)
    elif (folder / "config.toml").is_file():
        yield WatchedRun(folder, folder.parent if (folder.parent / "project.yml").is_file() else None)
    elif depth:
        try:
            below = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in LEFT_OUT)
        except OSError:
            return
        for path in below:
            if not path.name.startswith("."):
                yield from _runs(path, depth - 1)
