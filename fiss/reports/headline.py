"""Who won and who forgot, in words: the headline of the page about runs, and what `fiss demo` says at its end."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from fiss.runs.records import ScoreRecord

LITTLE = 0.5
"""Points of mIoU that are no difference worth a word."""


@dataclass(frozen=True)
class Standing:
    """Where a method ended: the means over its seeds, in percent."""

    label: str
    joint: bool
    """The upper bound: it had all images at once, so it wins nothing."""
    miou: float | None
    forgotten: float | None
    """Points of IoU that old classes lost since each was known best; None after a single task."""
    new: float | None

    def words(self) -> str:
        """What the method came to, as a sentence."""
        if self.miou is None:
            return f"{self.label} has no score."
        if self.joint:
            return f"{self.label} had all images at once, which is the upper bound: {self.miou:.1f} mIoU."
        ends = f"{self.label} ends at {self.miou:.1f} mIoU"
        if self.forgotten is None:
            return f"{ends}; it learnt one task only, so there is nothing to forget yet."
        if self.forgotten <= LITTLE:
            return f"{ends} and forgot next to nothing."
        return f"{ends} and forgot {self.forgotten:.1f} points of the old classes."


def standings(rows: Mapping[str, tuple[bool, Sequence[ScoreRecord]]]) -> list[Standing]:
    """Methods, the best first; of each whether it is the upper bound, and the last score of every seed."""
    found = []
    for label, (joint, ends) in rows.items():
        values = (mean_of(getattr(end, key) for end in ends) for key in ("miou", "forgetting", "new"))
        found.append(Standing(label, joint, *values))
    return sorted(found, key=lambda one: -(one.miou or 0))


def headline(found: Sequence[Standing]) -> str:
    """Who won, and who forgot."""
    if not found:
        return "No run is finished yet."
    rivals = [one for one in found if one.miou is not None and not one.joint]
    if len(rivals) < 2:
        return (rivals or found)[0].words()
    first, last = rivals[0].miou or 0.0, max(rivals, key=lambda one: one.forgotten or 0.0)
    level = [one.label for one in rivals if first - (one.miou or 0.0) <= LITTLE]
    best = f"{_listed(level)} ends best, with {first:.1f} mIoU"
    if len(level) > 1:
        best = f"{_listed(level)} are level, with {first:.1f} mIoU"
    if last.forgotten is None:
        return f"{best}."
    if last.forgotten <= LITTLE:
        return f"{best}; none forgot anything to speak of."
    if level == [last.label]:
        return f"{best}, though it forgot most: {last.forgotten:.1f} points of the old classes."
    return f"{best}; {last.label} forgot most: {last.forgotten:.1f} points of the old classes."


def told(found: Sequence[Standing]) -> Iterator[str]:
    """The headline, and a sentence for each method where there are several."""
    yield headline(found)
    if len(found) > 1:
        yield from (one.words() for one in found)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there."""
    return mean(there) if (there := [v for v in values if v is not None]) else None


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
