"""True transitions against those that monitors saw.

True: the first round in which a client holds data of a class it never held before; its first data do not count. Seen:
its monitor fired at a probe from then on, before the client's next true transition; the delay is counted in probes of
that client and in rounds. Every other firing is false. A transition is missed if the client was probed and its monitor
never fired; where the client was not probed at all before its next one, nobody could have seen it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fiss.monitors.rules import Evidence, MonitorSpec, Notes, judge


@dataclass(frozen=True)
class Probed:
    """A probe of a simulated client."""

    round: int
    client: int
    fired: bool
    """Whether its monitor did."""
    evidence: Evidence


@dataclass(frozen=True)
class Seen:
    """How one monitor did, as it stands in scores.jsonl."""

    true: int = 0
    seen: int = 0
    missed: int = 0
    false: int = 0
    unprobed: int = 0
    """True transitions after which the client was not probed."""
    precision: float | None = None
    """Share of the firings that were right."""
    recall: float | None = None
    """Share seen of the true transitions that could be."""
    delay_probes: float | None = None
    """Mean over those seen; 0 is the first probe after the transition."""
    delay_rounds: float | None = None
    clients: Mapping[int, "Seen"] | None = field(default=None, metadata={"with": "clients"})
    """The same of each client."""


def _seen(counts: Sequence[int], probes: float | None, rounds: float | None) -> Seen:
    true, seen, missed, false, unprobed = counts
    precision = seen / (seen + false) if seen + false else None
    recall = seen / (seen + missed) if seen + missed else None
    return Seen(true, seen, missed, false, unprobed, precision, recall, probes, rounds)


def compare(true: Sequence[int], probes: Sequence[tuple[int, bool]]) -> Seen:
    """One client: the rounds of its true transitions, and its probes as (round, fired), both in order."""
    seen = missed = unprobed = 0
    right: list[tuple[int, int]] = []
    for start, end in pairwise([*true, None]):
        assert start is not None
        own = [(r, fired) for r, fired in probes if r >= start and (end is None or r < end)]
        fired = [i for i, (_, f) in enumerate(own) if f]
        if fired:
            seen += 1
            right.append((fired[0], own[fired[0]][0] - start))
        elif own:
            missed += 1
        else:
            unprobed += 1
    false = sum(fired for _, fired in probes) - seen
    delays = [sum(d) / len(right) for d in zip(*right, strict=True)] if right else [None, None]
    return _seen((len(true), seen, missed, false, unprobed), *delays)


def total(parts: Iterable[Seen]) -> Seen:
    """All clients together."""
    parts = list(parts)
    seen = sum(p.seen for p in parts)

    def mean(key: str) -> float | None:
        return sum(getattr(p, key) * p.seen for p in parts if p.seen) / seen if seen else None

    counts = [sum(getattr(p, key) for p in parts) for key in ("true", "seen", "missed", "false", "unprobed")]
    return _seen(counts, mean("delay_probes"), mean("delay_rounds"))


def in_all(clients: Mapping[int, Seen]) -> Seen:
    """All clients together and each of them, delays to three places."""

    def rounded(seen: Seen) -> Seen:
        probes, rounds = (None if d is None else round(d, 3) for d in (seen.delay_probes, seen.delay_rounds))
        return replace(seen, delay_probes=probes, delay_rounds=rounds)

    return replace(rounded(total(clients.values())), clients={c: rounded(own) for c, own in clients.items()})


def by_client(true: Mapping[int, Sequence[int]], probes: Iterable[Probed], last: int) -> dict[int, Seen]:
    """From the true transitions and the probes in order, up to the round `last`. What came before a client's first
    probe was its first data for the federation, so nobody could see it."""
    by: dict[int, list[tuple[int, bool]]] = {}
    for probe in probes:
        by.setdefault(probe.client, []).append((probe.round, probe.fired))
    found: dict[int, Seen] = {}
    for client in sorted({*true, *by}):
        own = by.get(client, [])
        came = [r for r in true.get(client, ()) if r <= last]
        late = [r for r in came if own and r > own[0][0]]
        early = len(came) - len(late)
        seen = compare(late, own)
        if came or own:
            found[client] = replace(seen, true=len(came), unprobed=seen.unprobed + early)
    return found


def replay(spec: MonitorSpec, probes: Iterable[Probed]) -> list[Probed]:
    """The probes as if this monitor had judged what the clients measured in them."""
    notes: dict[int, Notes] = {}
    again = []
    for probe in probes:
        fired, kept = judge(spec, probe.evidence, notes.get(probe.client, {}))
        again.append(replace(probe, fired=fired and probe.client in notes))  # first data do not count
        notes[probe.client] = kept
    return again
