"""What the work tells a person while it goes on. The display listens; by default nobody does."""

from collections.abc import Mapping, Sequence
from typing import Any


class Progress:
    """Hears of everything that takes time; this one ignores it all.

    Example:
        >>> class Notices(fiss.Progress):
        ...     def notice(self, text):
        ...         print(text)
        >>> fiss.run("shapes", progress=Notices())
    """

    def notice(self, text: str) -> None:
        """Something a person should know, though nothing has to be done."""

    def start(self, what: str, total: int) -> None:
        """A counted piece of work begins: reading a data set, scoring images."""

    def advance(self, done: int = 1) -> None:
        """`done` more items of that work are finished."""

    def finish(self) -> None:
        """The counted work is over."""

    def round(self, task: int, round: int, clients: int) -> None:
        """A round begins; rounds are counted from 1."""

    def client(self, client: int, steps: int) -> None:
        """A client begins to train."""

    def step(self, images: int, losses: Mapping[str, float] | None) -> None:
        """One optimizer step; the losses come only now and then, since fetching them stalls a GPU."""

    def begin(self, rounds: int, steps: int, done: int) -> None:
        """The rounds begin: their number, their steps in all, and how many an earlier start has done."""

    def played(self, record: Any) -> None:
        """A round is over; a `RoundRecord` (fiss/runs/records.py)."""

    def scored(self, record: Any) -> None:
        """A model has been scored; a `ScoreRecord` (fiss/runs/records.py)."""

    def jobs(self, board: Sequence[Any]) -> None:
        """Where the runs of a sweep stand (`JobStatus` in fiss/simulation/sweep.py); told again and again."""

    def ended(self, job: Any) -> None:
        """A run of a sweep has finished or failed."""
