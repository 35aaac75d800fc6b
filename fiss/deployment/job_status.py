"""What a job does now: job.json in the run folder, which the job writes and whoever supervises or looks on reads."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import time
from typing import Protocol, TypeVar

from fiss.errors import UserError
from fiss.federation.loop import Engine
from fiss.federation.messages import Order, Probe, ProbeResult, Reply
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.records import from_json

JOB, SEEN, SILENT = "job.json", "seen.json", "silent.json"
FRESH = 60.0
"""Seconds for which what the supervisor says of silent sites counts; it says it again every second."""
PROBED, TRAINS = "look at their data", "train"
"""What the sites of `waiting` do."""
HEARD_EVERY = 5.0
"""Seconds between two notes of who is connected, if nobody came or went."""
Answer = TypeVar("Answer", ProbeResult, Reply)
Kind = TypeVar("Kind")


class SiteEngine(Engine, Protocol):
    """An engine that knows which sites do not answer."""

    missing: dict[int, str]
    """Sites that are not asked again, and why."""
    late: dict[int, str]
    """Sites whose answers a round did not wait for."""
    acknowledged: dict[int, int]
    """The last round in which each site's probe result was taken note of."""

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes to the sites and from them, so far."""
        ...


@dataclass(frozen=True)
class JobStatus:
    """Who is in the present job, and what it does."""

    sites: tuple[str, ...] = ()
    missing: Mapping[str, float] = field(default_factory=dict)
    """Sites that do not answer any more, and since when."""
    round: int = -1
    """The one that is played, from 0."""
    doing: str = ""
    """What those it waits for do in it."""
    waiting: tuple[str, ...] = ()
    """Sites that were asked and have not answered yet."""
    since: float = 0.0
    """When they were asked."""

    @classmethod
    def read(cls, run: RunFolder) -> "JobStatus":
        """Nobody, if no job has begun."""
        try:
            return _read(cls, run.path / JOB)
        except (OSError, ValueError, UserError):
            return cls()

    def write(self, run: RunFolder) -> None:
        """Write the status for other processes to read."""
        write_atomically(run.path / JOB, json.dumps(asdict(self)).encode())


def silent_sites(run: RunFolder) -> list[str]:
    """Sites that the supervisor does not hear of any more; a round does not wait for them."""
    path = run.path / SILENT
    try:
        return list(json.loads(path.read_bytes())) if time() - path.stat().st_mtime < FRESH else []
    except (OSError, ValueError):
        return []


class Observed:
    """An engine whose work can be followed: it says in job.json whom it waits for, and knows who brought which
    classes."""

    def __init__(self, engine: Engine, run: RunFolder, names: Mapping[int, str]) -> None:
        self.engine, self.run, self.names = engine, run, names
        self._brought: dict[str, set[str]] = {}
        self.status = JobStatus(tuple(sorted(names.values())))
        self.status.write(run)

    def probe(self, probes: Sequence[Probe]) -> Iterator[ProbeResult]:
        """As the engine does."""
        for result in self._followed(PROBED, probes, self.engine.probe(probes)):
            for name in result.missing:
                if isinstance(name, str):  # nobody has checked what a site says
                    self._brought.setdefault(name, set()).add(self.names[result.client])
            yield result

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """As the engine does."""
        yield from self._followed(TRAINS, orders, self.engine.ask(orders))

    def holders(self, new: Collection[str]) -> dict[str, tuple[str, ...]] | None:
        """For each of these classes, the sites that said in this round that they hold it; None if there is none."""
        found = {name: tuple(sorted(self._brought[name])) for name in sorted(new) if name in self._brought}
        self._brought.clear()
        return found or None

    def lost(self, missing: Iterable[int]) -> None:
        """A round is over, and those sites do not answer any more."""
        known, now = self.status.missing, time()
        names = [self.names[number] for number in missing]
        self._tell(waiting=(), doing="", missing={name: known.get(name, now) for name in names})

    def _followed(self, doing: str, asked: Sequence[Probe | Order], answers: Iterable[Answer]) -> Iterator[Answer]:
        waiting = {self.names[one.client] for one in asked}
        if asked:
            self._tell(doing=doing, round=asked[0].round, waiting=tuple(sorted(waiting)), since=time())
        for answer in answers:
            waiting.discard(self.names[answer.client])
            self._tell(waiting=tuple(sorted(waiting)))
            yield answer

    def _tell(self, **changed: object) -> None:
        self.status = replace(self.status, **changed)  # type: ignore[arg-type]
        self.status.write(self.run)


@dataclass(frozen=True)
class Seen:
    """Which sites the server sees, as `fiss federation run` last heard: seen.json in the run folder."""

    at: float = 0.0
    connected: Mapping[str, float] = field(default_factory=dict)
    """And when each was last heard of."""

    @classmethod
    def read(cls, path: Path) -> "Seen":
        """Read the status in a run folder; empty if nobody watches over the federation."""
        try:
            return _read(cls, path / SEEN)
        except (OSError, ValueError, UserError):
            return cls()

    @property
    def fresh(self) -> bool:
        """Whether somebody watches now."""
        return time() - self.at < 4 * HEARD_EVERY

    def noted(self, path: Path, connected: Mapping[str, float]) -> "Seen":
        """What is seen now; written if it is news."""
        now = time()
        if connected.keys() == self.connected.keys() and now - self.at < HEARD_EVERY:
            return self
        new = Seen(now, dict(connected))
        write_atomically(path / SEEN, json.dumps(asdict(new)).encode())
        return new


def _read(kind: type[Kind], path: Path) -> Kind:
    """What another fiss added is left out."""
    value: Kind = from_json(kind, json.loads(path.read_bytes()), str(path))
    return value
