"""Monitors: how a client notices by itself that it holds classes it never held before.

At a probe the client looks at its own data with the global model, and at new images also with a network that never
changes (`features.py`), and gets `Evidence`. A monitor is a rule from the evidence and its own notes to yes or no, and
to new notes; the notes stay in the client's memory. Only `told`, `oracle` and `reference` are given what a simulation
knows and a real client does not.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fiss.errors import UserError

Notes = Mapping[str, Any]
Name = Literal["told", "oracle", "names", "entropy", "reference", "images", "misfit", "features", "never"]


@dataclass(frozen=True)
class MonitorSpec:
    """How clients notice new classes; anything but `told` in a synchronous world runs a server that knows no tasks."""

    name: Name = "told"
    """told: announced, as in the published runs; oracle: nothing is announced, and each client alone knows when it
    holds a new class (in a world that is not synchronous, told means this); names: the label space lacks a class it
    holds; entropy: as the paper says, its mean entropy rises by tau or more; reference: the same with the published
    code's resets, which always fire; images: it holds other images than before; misfit: other images, and the global
    model contradicts their labels more than those before, or calls what is labelled something else; features: other
    images, and what is labelled in them looks otherwise than before, or the label space lacks a class it holds;
    never."""
    probed: Literal["selected", "all"] = "selected"
    """Who is probed in a round: the clients that are to train, or everyone there."""
    sample: int = 0
    """Images that a client looks at, drawn once for what it holds; 0: all."""
    tau: float = 0.6
    """Rise of the mean entropy, in nats (entropy, reference)."""
    rise: float = 0.05
    """Least rise of the share of its labelled pixels that the global model contradicts (misfit)."""
    sigmas: float = 3.0
    """The rise must also be so many times its standard error (misfit)."""
    shift: float = 0.5
    """Or so large a share of its labelled pixels is called by channels that were not called so before (misfit)."""
    compared: int = 256
    """Images whose look is compared whenever a client's images change; fewer show less (features)."""
    level: float = 0.01
    """How unlikely the difference must be if nothing were new (features)."""

    def __post_init__(self) -> None:
        for key in ("sample", "tau", "rise", "sigmas", "shift", "level"):
            if getattr(self, key) < 0:
                raise UserError(f"monitor.{key} = {getattr(self, key)}: must be 0 or more.")
        if self.compared < 2:
            raise UserError(f"monitor.compared = {self.compared}: must be 2 or more.")


@dataclass(frozen=True)
class Evidence:
    """What a client knows at a probe."""

    images: int
    """Images looked at."""
    entropy: float
    """Mean over them of the mean entropy of their pixels, in nats."""
    entropy_error: float
    """Its standard error, as of a sample of all the images there could be."""
    missed: float
    """Mean share of the pixels labelled with a class that the global model calls background or something else."""
    missed_error: float
    called: tuple[float, ...] = ()
    """What the global model calls the pixels labelled with a class: their shares by channel."""
    lacks: bool = False
    """Whether the label space lacks a class it holds."""
    changed: bool = False
    """Whether it holds other images than at its last probe."""
    chance: float = 1.0
    """How likely these would look so much unlike those, if nothing were new."""
    transitions: int = 0
    """True transitions of the client so far; only a simulation knows."""
    task: int = 0
    """The calendar's task; only a simulation knows."""


Rule = Callable[[MonitorSpec, Evidence, Notes], tuple[bool, Notes]]


def _told(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    return now.transitions > notes.get("transitions", 0), {"transitions": now.transitions}


def _names(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    return now.lacks, {}


def _entropy(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    return now.entropy - notes.get("last", math.inf) >= spec.tau, {"last": now.entropy}


def _reference(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    """The last score is set to -1 whenever the calendar says that a task begins."""
    last = notes.get("last", -1.0) if notes.get("task") == now.task else -1.0
    return now.entropy - last > spec.tau, {"last": now.entropy, "task": now.task}


def _images(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    return now.changed, {}


def _misfit(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    """Without other images there is nothing new, however much the model may have forgotten in between. With them: a
    class that the model does not know contradicts it. One that it knows from other clients does not, but the model
    calls it by a channel that it had before and did not call this client's pixels; that is no sign where it also agrees
    with the labels better, for then it has learnt them."""
    kept = {"missed": now.missed, "missed_error": now.missed_error, "called": list(now.called)}
    if not now.changed or not notes:
        return False, kept
    rise = now.missed - notes["missed"]
    contradicted = rise >= max(spec.rise, spec.sigmas * math.hypot(now.missed_error, notes["missed_error"]))
    pairs = list(zip(now.called, notes["called"], strict=False))[1:]  # channels of both probes, without background
    renamed = sum(max(new - old, 0.0) for new, old in pairs) >= spec.shift and rise > -spec.rise
    return contradicted or renamed, kept


def _features(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    """A class that the label space lacks is new to everyone, so also to this client; one that was reported and not
    taken in counts once."""
    unknown_class = now.lacks and (now.changed or not notes.get("lacks", False))
    return unknown_class or (now.changed and now.chance <= spec.level), {"lacks": now.lacks}


def _never(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    return False, {}


RULES: dict[Name, Rule] = {
    "told": _told,
    "oracle": _told,
    "names": _names,
    "entropy": _entropy,
    "reference": _reference,
    "images": _images,
    "misfit": _misfit,
    "features": _features,
    "never": _never,
}


def judge(spec: MonitorSpec, now: Evidence, notes: Notes) -> tuple[bool, Notes]:
    """Whether the monitor fires, and its new notes."""
    return RULES[spec.name](spec, now, notes)
