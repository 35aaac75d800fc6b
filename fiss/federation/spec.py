"""What can be set about a federation: its sites and their data, its tasks, how replies become a model."""

from dataclasses import dataclass
from typing import Literal

from fiss.errors import UserError, check_fields, check_least


@dataclass(frozen=True)
class TaskSpec:
    """Which classes arrive when, and which images belong to a task."""

    split: str = "6-2"
    """`A-B` (A classes first, then B at a time), `all`, or lists of names or ids: `1, 2; 3; 4`."""
    order: tuple[str, ...] = ()
    """Class names or ids in the order in which `A-B` takes them; empty: the data set's own order."""
    images: Literal["overlapped", "disjoint", "partitioned"] = "overlapped"
    """overlapped: an image belongs to every task whose classes it shows; disjoint: only if all its classes have been
    seen by then; partitioned: to one task, drawn by the seed among those whose classes it shows."""


@dataclass(frozen=True)
class WorldSpec:
    """The sites and their data."""

    clients: int = 10
    """Sites at the start."""
    joiners: int = 4
    """Sites that join at each new task."""
    per_round: int = 4
    """Sites selected in each round."""
    rounds: int = 5
    """Rounds per task."""
    split: Literal["published", "client-disjoint", "dirichlet"] = "published"
    """published: every site draws from the same images, so sites overlap; client-disjoint: classes as published, each
    image at one site; dirichlet: each image at one site, the sites' shares of each class drawn from a Dirichlet
    distribution."""
    class_ratio: float = 0.5
    """Share of a task's classes that a site draws (rounded down, at least one)."""
    sample_ratio: float = 0.6
    """Share of the images with those classes that a site draws (published split)."""
    single_ratio: float = 0.4
    """The same where a task has one class only."""
    alpha: float = 0.5
    """Concentration of the Dirichlet split: the smaller, the more the sites differ."""
    own_labels: bool = False
    """A site labels only the classes it drew; the task's other classes are background in its masks."""
    lag: int = 0
    """Sites meet a new task's classes in different rounds, up to this many after the first that could."""
    stay: float = 0.0
    """Chance that a site stays on its old data when a task comes (until the next one does)."""
    train_staying: bool = False
    """Whether sites that stay train when they are selected; training on old data is rehearsal. Else they decline."""
    join: Literal["boundary", "any"] = "boundary"
    """When the joiners of a task join: with its first round, or each in any of its rounds."""
    away: float = 0.0
    """Chance that a site is not there in a round."""
    refresh: float = 0.0
    """Chance that a site has other images of the same classes from this round on: new data, and mostly nothing new in
    them."""

    def __post_init__(self) -> None:
        check_least("world.", self, 1, "clients", "per_round", "rounds")
        check_least("world.", self, 0, "joiners")
        shares = ("class_ratio", "sample_ratio", "single_ratio")
        check_fields("world.", self, "above 0 and at most 1", lambda share: 0 < share <= 1, *shares)
        below = f"from 0 to {self.rounds - 1}, less than world.rounds"
        check_fields("world.", self, below, lambda lag: 0 <= lag < self.rounds, "lag")
        check_fields("world.", self, "from 0 to below 1", lambda chance: 0 <= chance < 1, "stay", "away", "refresh")
        if self.refresh and self.split != "published":
            raise UserError(
                f"world.refresh draws other images for a site, world.split = {self.split} gives each to one."
            )
        check_fields("world.", self, "above 0 and at most 1,000,000", lambda alpha: 0 < alpha <= 1e6, "alpha")
        if self.per_round > self.clients:
            raise UserError(
                f"world.per_round = {self.per_round} is more than the {self.clients} clients (world.clients)."
            )

    @property
    def synchronous(self) -> bool:
        """Whether every site meets every task in its first round, and sits there in every round: as published."""
        return not (self.lag or self.stay or self.away or self.refresh) and self.join == "boundary"


Weighting = Literal["uniform", "images"]


@dataclass(frozen=True)
class FederationSpec:
    """How replies become a model."""

    weighting: Weighting = "uniform"
    """uniform: every client counts the same, as published; images: by the number of its images."""
    private_names: str = ""
    """A key that the sites share: class names then travel as keyed hashes, and the server learns how many classes there
    are and not which. Empty: they travel as they are."""
    largest: float = 0.0
    """An update so many times larger than the median of the others' is left out; 0: none is. With it, a round's
    replies are held until all are there."""
    quorum: float = 1.0
    """Share of the sites that were asked whose answers end a round; the others come too late (deployed only)."""
    patience: float = 0.0
    """Seconds after which a round goes on without the sites that have not answered; 0: as long as it takes (deployed
    only)."""
    transfer: Literal["float32", "bfloat16", "float16"] = "float32"
    """As what weights travel, both ways; the shorter types halve what is sent."""

    def __post_init__(self) -> None:
        check_least("federation.", self, 0, "largest", "patience")
        if not 0 < self.quorum <= 1:
            raise UserError(f"federation.quorum = {self.quorum}: a share above 0 and at most 1.")
