"""What server and clients exchange, and what a client remembers by itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fiss.labels import LabelSpace
from fiss.models.classifier import Weights
from fiss.statistics.ledger import Ledger
from fiss.statistics.sums import Sums


@dataclass(frozen=True)
class Snapshot:
    """A global model as it was once, under a name."""

    name: str
    label_space: LabelSpace
    weights: Weights = field(repr=False)


@dataclass(frozen=True)
class Server:
    """All the server knows."""

    label_space: LabelSpace
    weights: Weights = field(repr=False)
    before: tuple[Snapshot | None, ...] = (None,)
    """For each group of classes the global model from just before it entered; where tasks are announced the last one
    only."""
    teachers: Mapping[int, Snapshot] = field(default_factory=dict)
    """Where they are not: each client's teacher; many share one."""
    collected: "Collected | None" = None
    """What a method that adds up features has so far; None for all others."""


@dataclass(frozen=True)
class Collected:
    """What the server keeps where features are added up."""

    took_part: tuple[int, ...] = ()
    """Clients that trained the trunk."""
    heard: Mapping[int, int] = field(default_factory=dict)
    """By client the round whose contribution is the last that counts."""
    ledger: Ledger | None = None
    """Their sums; None while the trunk is trained."""


@dataclass(frozen=True)
class Announcement:
    """What a server that knows the tasks says of them with an order, as in the published runs."""

    task: int
    """A client that hears a new number passes to the new task."""
    rounds_left: int
    """Rounds of the task still to come, this one included; sets the horizon of the learning rate."""
    steps: int | None = None
    """A fixed number of steps instead of epochs."""


@dataclass(frozen=True)
class Probe:
    """The server asks a client to look at its own data with the global model."""

    client: int
    round: int
    label_space: LabelSpace
    weights: Weights = field(repr=False)


@dataclass(frozen=True)
class SiteScore:
    """How well a model segments the images that a site keeps from training; pixels, which add up over sites."""

    images: int
    pixels: Mapping[str, tuple[int, int]]
    """By class, the background too: pixels that truth and model agree on, and pixels that one of them claims."""


@dataclass(frozen=True)
class ProbeResult:
    """What a client has to say about it; its scores stay in its own memory."""

    client: int
    missing: tuple[str, ...] = ()
    """Classes it holds and the label space lacks."""
    transition: bool = False
    """Whether its monitor fired."""
    teacher: int | None = None
    """It needs the global model from just before this group of classes entered as its teacher; a number beyond the last
    group means the present model, None that nothing changes."""
    score: SiteScore | None = None
    """How good the model is on images that the site keeps from training, if it says so."""


@dataclass(frozen=True)
class Order:
    """The server asks a client to train."""

    client: int
    round: int
    label_space: LabelSpace
    weights: Weights = field(repr=False)
    teacher: Snapshot | None
    """The global model from before the client's transition; None before its first."""
    announced: Announcement | None = None
    """Only where tasks are announced."""
    heard: int | None = None
    """Not to train, but to add up features: the last round whose contribution of this client counts, -1 for none."""

    @property
    def first(self) -> bool:
        """Whether the client has nothing to forget yet."""
        return self.announced.task == 0 if self.announced is not None else self.teacher is None


@dataclass(frozen=True)
class Contribution:
    """What a client adds to the sums."""

    sums: Sums = field(repr=False)
    """Rounded to the type in which they travel."""
    made_with: str
    """Digest of the trunk and the features."""
    period: int
    """The round from which on it labelled these classes: what it added then belongs together."""
    since: int | None = None
    """In place of all that it added in periods from this one on; None: besides it."""


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
    """Whether the client passed to new classes in this round."""
    contribution: Contribution | None = field(repr=False, default=None)
    """What it adds to the sums, if that was asked for and there is anything new."""


@dataclass(frozen=True)
class Memory:
    """What a client keeps between orders; it never leaves the client."""

    task: int = -1
    """The task that was announced to it."""
    rate: float = 0.0
    """The learning rate it reached."""
    epochs: int = 0
    """Local epochs it has done since its transition."""
    teacher: str = ""
    """Name of the snapshot it learns from."""
    since: int = -1
    """Round of its last transition, or of its first data; -1 before that."""
    transitions: int = 0
    """How many it has had."""
    held: int = 0
    """Checksum of the images it held at its last probe."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What it measured at its last probe."""
    looks: Mapping[str, Any] = field(default_factory=dict)
    """What those images look like."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Its monitor's own."""
    counted: Mapping[str, Any] = field(default_factory=dict)
    """What it has added to the sums so far."""
