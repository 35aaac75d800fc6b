"""The sums of a run on the disk: one file, named by the round in which they last changed, that state.json refers to.

The file is written before the state that needs it, under a name of its own, so that a run killed between the two finds
the one that its state means.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fiss.errors import UserError
from fiss.federation.messages import Collected, Memory
from fiss.statistics.ledger import Ledger


class SumsFiles:
    """The files of sums in one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: tuple[Ledger | None, str, str] = (None, "", "")  # on the disk now, its name and digest

    def write(self, collected: Collected, round_: int) -> dict[str, Any]:
        """What state.json says of them; the file is written if they are not those of the last round."""
        if collected.ledger is not None and collected.ledger is not self._last[0]:
            name = f"ledger-{round_:04d}"
            while f"{name}.safetensors" == self._last[1]:  # state.json still means that one
                name += "-again"
            path = self.path / f"{name}.safetensors"
            collected.ledger.save(path)
            self._last = (collected.ledger, path.name, _digest(path))
        heard = {str(client): last for client, last in sorted(collected.heard.items())}
        there = {"ledger": self._last[1], "sha256": self._last[2]} if collected.ledger is not None else {}
        return {"took_part": list(collected.took_part), "heard": heard, **there}

    def read(self, record: Mapping[str, Any]) -> Collected:
        """Read the sums that state.json names."""
        took_part = tuple(int(client) for client in record["took_part"])
        heard = {int(client): int(last) for client, last in record["heard"].items()}
        if "ledger" not in record:
            return Collected(took_part, heard)
        path = self.path / str(record["ledger"])
        if path.is_file() and _digest(path) != record["sha256"]:
            raise UserError(f"{path}: damaged, its digest is not the one in state.json.")
        self._last = (Ledger.load(path), path.name, str(record["sha256"]))
        return Collected(took_part, heard, self._last[0])

    def clear(self, record: Mapping[str, Any]) -> None:
        """Remove all but the file that state.json names."""
        for path in self.path.glob("ledger-*.safetensors*"):
            if path.name != record.get("ledger"):
                path.unlink()


def remembered(memory: Memory) -> dict[str, Any]:
    """A client's memory as it stands in state.json; what it counted only where features are added up."""
    return {key: value for key, value in asdict(memory).items() if key != "counted" or value}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
