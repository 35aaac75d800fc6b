"""How a run folder counts rounds in its files: from 1, as the screen does.

Folders of format 1 count from 0: they are read as if they counted from 1, and a run that goes on in one counts in them
as it did.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FORMAT = 2
"""That of a new folder."""


@dataclass(frozen=True)
class Counting:
    """The counting of one folder."""

    path: Path

    @property
    def format(self) -> int:
        """What state.json says; ours where no round is finished."""
        try:
            with (self.path / "state.json").open("rb") as file:
                found = re.search(rb'"format": (\d+)', file.read(100))  # the first key of what may be long
        except OSError:
            found = None
        return int(found[1]) if found else FORMAT

    @property
    def first(self) -> int:
        """What the first round is called in its files."""
        return 0 if self.format == 1 else 1

    def model_of(self, round_: int) -> str:
        """What the model after a round is called."""
        return f"round-{round_ - 1 + self.first:04d}"

    def round_of(self, model: str) -> int:
        """After which round a model was kept: one of the last rounds', or a teacher after so many rounds."""
        kind, number = model.split("-")[:2]
        return int(number) + (1 - self.first if kind == "round" else 0)
