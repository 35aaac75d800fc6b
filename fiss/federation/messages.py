"""What server and clients exchange, and what a client remembers by itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fiss.labels import LabelSpace
from fiss.models.classifier import Weights


@dataclass(frozen=True)
class Snapshot:
    """A global model as it was once, under a name."""

    name: str
    label_space: LabelSpace
    weights: Weights = field(repr=False)


@dataclass(frozen=True)
class Order:
    """The server asks a client to train."""

    client: int
    round: int
    task: int
    """Announced by the server; a client that hears a new number passes to the new task."""
    rounds_left: int
    """Rounds of the task still to come, this one included; sets the horizon of the learning rate."""
    label_space: LabelSpace
    weights: Weights = field(repr=False)
    teacher: Snapshot | None
    """The global model from before the task; None in the first."""
    steps: int | None = None
    """A fixed number of steps instead of epochs."""


@dataclass(frozen=True)
class Reply:
    """A client's answer."""

    client: int
    images: int
    """Images it holds; none means it could not train and sends no weights."""
    weights: Weights = field(repr=False, default_factory=dict)
    steps: int = 0
    samples: int = 0
    """Images seen in training, repeats counted."""
    losses: Mapping[str, float] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    """What the method has to say, such as how many pseudo labels it accepted."""
    transition: bool = False
    """Whether this order began a task for the client."""


@dataclass(frozen=True)
class Memory:
    """What a client keeps between orders; it never leaves the client."""

    task: int = -1
    """The task it is in."""
    rate: float = 0.0
    """The learning rate it reached."""
    epochs: int = 0
    """Local epochs it has done in this task."""
    score: float | None = None
    """The score of its last probe."""
    teacher: str = ""
    """Name of the snapshot it learns from."""
