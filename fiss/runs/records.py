"""What stands in the logs of a run and in its splits: one schema for simulated and real federations.

Clients are numbers in a simulation and sites' names in a real federation. Keys that only some runs have are left out
where there is nothing to say; unknown keys are ignored, and the lines of earlier versions are read too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from math import isfinite
from statistics import mean
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fiss.errors import UserError
from fiss.federation.loop import Round
from fiss.federation.messages import ProbeResult, Reply
from fiss.monitors.accuracy import Probed, Seen
from fiss.monitors.rules import Evidence

T = TypeVar("T")
Client = int | str
"""A simulated client's number, or a site's name."""


class Records(tuple[T, ...]):
    """Records in the order in which they were written."""

    def to_pandas(self) -> Any:
        """A table with one row per record; nested values have columns of their own, such as `iou.disc`."""
        return pandas().json_normalize([to_json(record) for record in self])


def pandas() -> Any:
    """The library, where it is installed."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise UserError("pandas is not installed: pip install pandas.") from error


@dataclass(frozen=True, kw_only=True)
class ReplyRecord:
    """What a client answered, without its weights."""

    client: Client
    images: int
    """Images it holds; none means it could not train."""
    steps: int = 0
    samples: int = 0
    """Images seen in training, repeats counted."""
    losses: Mapping[str, float | None] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    """What the method has to say, such as how many pseudo labels it accepted."""
    transition: bool = False
    """Whether the client passed to new classes in this round."""

    @classmethod
    def of(cls, reply: Reply, client: Client) -> "ReplyRecord":
        """The record of a reply."""
        return cls(**{f.name: getattr(reply, f.name) for f in fields(cls)} | {"client": client})


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """What a client measured of its own data."""

    client: Client
    transition: bool
    """Whether its monitor fired."""
    missing: int = 0
    """Classes it holds that the label space lacked."""
    evidence: Evidence | None = field(default=None, metadata={"with": "evidence", "inline": True})
    """What it measured; a real site keeps that to itself."""

    @classmethod
    def of(cls, result: ProbeResult, client: Client, evidence: Mapping[str, Any] | None = None) -> "ProbeRecord":
        """The record of an answer to a probe, and of what the client remembers of it."""
        measured = Evidence(**evidence) if evidence else None
        return cls(client=client, transition=result.transition, missing=len(result.missing), evidence=measured)


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One line of rounds.jsonl."""

    round: int
    """From 1, as on the screen."""
    task: int = 0
    """That of the calendar; in a real federation the number of groups of classes so far, from 0."""
    clients: int = 0
    """Clients that have joined, or sites in the job."""
    selected: tuple[Client, ...] = ()
    probes: tuple[ProbeRecord, ...] | None = field(default=None, metadata={"with": "probes"})
    """None where tasks are announced and nobody is probed."""
    classes: int | None = field(default=None, metadata={"with": "classes"})
    """In the label space after the round, where tasks are not announced."""
    class_names: tuple[str, ...] | None = field(default=None, metadata={"with": "class_names"})
    """In a real federation: which ones."""
    replies: tuple[ReplyRecord, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Updates that were left out: why, by client."""
    missing: Mapping[str, str] | None = field(default=None, metadata={"with": "missing"})
    """In a real federation: sites that took no part, and why."""
    brought: Mapping[str, tuple[str, ...]] | None = field(default=None, metadata={"with": "brought"})
    """In a real federation: by class that is new in this round, the sites that hold it."""
    sent: int | None = field(default=None, metadata={"with": "sent"})
    """In a real federation: bytes of all messages to the sites."""
    received: int | None = field(default=None, metadata={"with": "received"})
    """And of their answers."""
    seconds: float
    images_per_second: float | None = None

    @classmethod
    def of(cls, result: Round, seconds: float, names: Mapping[int, str] | None = None, **more: Any) -> "RoundRecord":
        """The record of a round; `names` of the sites in a real federation, `more` by the names of the fields."""
        known: Mapping[int, Client] = {} if names is None else names
        return cls(
            round=result.participants.round + 1,
            selected=tuple(known.get(client, client) for client in result.participants.selected),
            replies=tuple(ReplyRecord.of(reply, known.get(reply.client, reply.client)) for reply in result.replies),
            refused={str(known.get(client, client)): why for client, why in result.refused.items()},
            seconds=round(seconds, 3),
            images_per_second=round(sum(r.samples for r in result.replies) / seconds, 1) if seconds else None,
            **more,
        )

    @property
    def transitions(self) -> tuple[Client, ...]:
        """Clients whose monitors fired."""
        return tuple(probe.client for probe in self.probes or () if probe.transition)

    @property
    def losses(self) -> dict[str, float]:
        """Every loss, the mean over the replies that carry it; a client that only adds up sums has none."""
        carried: dict[str, list[float]] = {}
        for reply in self.replies:
            for name, value in reply.losses.items():
                if value is not None:
                    carried.setdefault(name, []).append(value)
        return {name: mean(values) for name, values in carried.items()}


@dataclass(frozen=True, kw_only=True)
class ScoreRecord:
    """One line of scores.jsonl: a model in one view, in percent."""

    round: int
    """After which it was scored, from 1."""
    task: int
    """That of the calendar; in a real federation the number of groups of classes so far, from 0."""
    ends_task: bool | None = field(default=None, metadata={"with": "ends_task"})
    """Whether the task ends with this round. A real federation does not know that when it writes the line; whoever
    reads it has an answer."""
    view: str
    images: int = 0
    miou: float | None
    miou_foreground: float | None = None
    background: float | None = None
    old: float | None = None
    old_foreground: float | None = None
    new: float | None = None
    base: float | None = None
    base_foreground: float | None = None
    forgetting: float | None = None
    iou: Mapping[str, float | None] = field(default_factory=dict)
    to_background: Mapping[str, float | None] = field(default_factory=dict)
    """Share of each class's pixels that are called background."""
    from_background: Mapping[str, float | None] = field(default_factory=dict)
    """Share of the background's pixels that are called each class."""
    transitions: Seen | None = field(default=None, metadata={"with": "transitions"})
    """True ones against those that monitors saw, so far; where tasks are not announced."""
    entropy: float | None = field(default=None, metadata={"with": "transitions"})
    """Mean over the last probes."""


@dataclass(frozen=True, kw_only=True)
class HeldRecord:
    """What a client holds in a task, by names."""

    classes: tuple[str, ...]
    images: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """A task: its classes, and who holds what in it."""

    classes: tuple[str, ...]
    clients: Mapping[int, HeldRecord]


@dataclass(frozen=True, kw_only=True)
class Splits:
    """splits.json of a simulation: who is selected, who holds what."""

    data: str
    """Digest of all images' names and labels."""
    rounds: tuple[Mapping[str, Any], ...] = ()
    """The calendar."""
    tasks: tuple[TaskRecord, ...]
    present: tuple[tuple[int, ...], ...] | None = field(default=None, metadata={"with": "present"})
    """By round the clients that are there; this and what follows only where tasks are not announced."""
    stages: Mapping[int, tuple[tuple[int, ...], ...]] | None = field(default=None, metadata={"with": "stages"})
    """By client: from which round on it is in which task, with its n-th draw of images."""
    redrawn: Mapping[str, tuple[str, ...]] | None = field(default=None, metadata={"with": "redrawn"})
    """The images of those draws, by task/client/n."""
    transitions: Mapping[int, tuple[int, ...]] | None = field(default=None, metadata={"with": "transitions"})
    """The true ones: rounds by client."""


def renumbered(splits: Splits, by: int) -> Splits:
    """With so many more added to the number of every round."""
    stages, transitions = splits.stages or {}, splits.transitions or {}
    return replace(
        splits,
        rounds=tuple({key: own + by if key == "round" else own for key, own in one.items()} for one in splits.rounds),
        stages=splits.stages
        and {client: tuple((r + by, *which) for r, *which in own) for client, own in stages.items()},
        transitions=splits.transitions and {client: tuple(r + by for r in own) for client, own in transitions.items()},
    )


def to_json(value: Any) -> Any:
    """Plain values for JSON, keys in the order of the fields; None in place of numbers that JSON cannot say.

    A field marked `with` another one is left out where that is None; what is `inline` puts its keys among the others.
    """
    if is_dataclass(value):
        found: dict[str, Any] = {}
        for f in fields(value):
            if "with" not in f.metadata or getattr(value, f.metadata["with"]) is not None:
                own = to_json(getattr(value, f.name))
                found |= own if "inline" in f.metadata else {f.name: own}
        return found
    if isinstance(value, Mapping):
        return {key: to_json(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(own) for own in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def from_json(hint: Any, value: Any, where: str) -> Any:
    """Plain values as the type that `hint` says, unknown keys left out; what is damaged is named with `where`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(value, Mapping):
        own = [f for f in fields(hint) if f.name in value]
        try:
            hints = _hints(hint)  # type: ignore[arg-type]
            return hint(**{f.name: from_json(hints[f.name], value[f.name], f"{where}, {f.name}") for f in own})  # type: ignore[operator]
        except TypeError as error:
            raise UserError(f"{where}: damaged or foreign ({error}).") from error
    if origin is tuple and isinstance(value, (list, tuple)):
        if all(type(part) is arguments[0] for part in value):
            return tuple(value)  # a list of names may be long
        return tuple(from_json(arguments[0], part, where) for part in value)
    if origin is Mapping and isinstance(value, Mapping) and (arguments[0] is str or all(map(str.isdecimal, value))):
        return {arguments[0](key): from_json(arguments[1], part, where) for key, part in value.items()}
    if origin in (Union, UnionType):
        options = [option for option in arguments if option is not NoneType]
        if len(options) == 1:
            return None if value is None else from_json(options[0], value, where)
        if type(value) in options:
            return value
    if type(value) is hint or (hint is float and type(value) is int):
        return hint(value)
    raise UserError(f"{where}: damaged or foreign ({json.dumps(value, default=str)[:80]}).")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def read_rounds(lines: Iterable[Any], where: str, first: int = 1) -> Records[RoundRecord]:
    """The lines of rounds.jsonl; `first`: what their first round is called."""
    found: list[RoundRecord] = []
    for place, line in _numbered(lines, where):
        if isinstance(names := line.get("classes"), list):  # of a real federation before it wrote this schema
            last = found[-1] if found else None
            grown = last is not None and 0 < (last.classes or 0) < len(names)
            fired = line.get("transitions", ())
            heard = [{"client": name, "transition": name in fired} for name in line.get("heard", fired)]
            replies = [{**reply, "client": reply.get("site")} for reply in line.get("replies", ())]
            line |= {"task": (last.task if last else 0) + grown, "classes": len(names), "class_names": names}
            line |= {"probes": heard, "replies": replies}
        elif line.get("probes"):
            keys = [f.name for f in fields(Evidence)]
            split = [(p, {k: p[k] for k in keys if p.get(k) is not None}) for p in line["probes"]]
            line["probes"] = [{**probe, "evidence": evidence or None} for probe, evidence in split]
        found.append(_from_one(from_json(RoundRecord, line, place), first))
    return Records(found)


def read_scores(lines: Iterable[Any], where: str, view: str, first: int = 1) -> Records[ScoreRecord]:
    """The lines of scores.jsonl; `view` of those that do not say it, `first`: what their first round is called. Where
    nobody knew the tasks, the last score before the label space grew ends one, and so does the last of all."""
    found: list[ScoreRecord] = []
    for place, line in _numbered(lines, where):
        if "task" not in line:  # of a real federation before it wrote this schema
            last = found[-1] if found else None
            grown = last is not None and 1 < len(last.iou) < len(line.get("iou", ()))
            line |= {"task": (last.task if last else 0) + grown, "view": view}
        found.append(_from_one(from_json(ScoreRecord, line, place), first))
    last_of = {(record.view, record.task): i for i, record in enumerate(found)}
    for i, record in enumerate(found):
        if record.ends_task is None:
            found[i] = replace(record, ends_task=last_of[record.view, record.task] == i)
    return Records(found)


def _from_one(record: T, first: int) -> T:
    return record if first == 1 else replace(record, round=record.round + 1 - first)  # type: ignore[type-var,attr-defined]


def _numbered(lines: Iterable[Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line and how to name it; a line is a record of keys and values."""
    for number, line in enumerate(lines, 1):
        place = f"{where}, line {number}"
        if not isinstance(line, dict):
            raise UserError(f"{place}: damaged or foreign (no record of keys and values).")
        yield place, dict(line)


def probed(rounds: Iterable[RoundRecord]) -> list[Probed]:
    """Every probe of a simulated run, as `fiss/monitors/accuracy.py` takes them."""
    return [
        Probed(record.round, probe.client, probe.transition, probe.evidence)
        for record in rounds
        for probe in record.probes or ()
        if isinstance(probe.client, int) and probe.evidence is not None
    ]
