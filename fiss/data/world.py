"""Who has joined, who is asked, and who holds what, round by round: the simulated world of a run.

Everything is decided by the seed and by which classes each image holds, so the whole plan is made before the run,
written beside its results, and made again (and compared) when a run resumes.

The published draw is one `random.Random(seed)` that feeds, round by round, first the selection of clients, then for
each selected client that holds no data of the present task its classes and its images. The other splits use addressed
streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fiss.errors import UserError
from fiss.labels import TaskStream
from fiss.rng import stream

Presence = NDArray[np.bool_]


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

    def __post_init__(self) -> None:
        for field in ("clients", "per_round", "rounds"):
            if getattr(self, field) < 1:
                raise UserError(f"world.{field} = {getattr(self, field)}: must be 1 or more.")
        if self.joiners < 0:
            raise UserError(f"world.joiners = {self.joiners}: must be 0 or more.")
        for field in ("class_ratio", "sample_ratio", "single_ratio"):
            if not 0 < getattr(self, field) <= 1:
                raise UserError(f"world.{field} = {getattr(self, field)}: must be above 0 and at most 1.")
        if not 0 < self.alpha <= 1e6:
            raise UserError(f"world.alpha = {self.alpha}: must be above 0 and at most 1,000,000.")
        if self.per_round > self.clients:
            raise UserError(
                f"world.per_round = {self.per_round} is more than the {self.clients} clients (world.clients)."
            )


@dataclass(frozen=True)
class Holding:
    """What one site holds during one task."""

    classes: tuple[int, ...]
    """Class ids it drew."""
    images: tuple[int, ...]
    """Indices into the training split."""


@dataclass(frozen=True)
class Turn:
    """One round of the calendar."""

    round: int
    task: int
    rounds_left: int
    """Rounds of this task still to come, this one included."""
    clients: int
    """Sites that have joined."""
    selected: tuple[int, ...]
    """In the order in which they were drawn."""
    steps: int | None = None
    """Optimizer steps per site, where they are fixed rather than counted in epochs (joint training)."""


@dataclass(frozen=True)
class Plan:
    """The calendar and every holding in it."""

    turns: tuple[Turn, ...]
    holdings: dict[tuple[int, int], Holding]
    """By task and site; only sites that take part."""


def make_plan(spec: WorldSpec, tasks: TaskSpec, classes: TaskStream, presence: Presence, seed: int) -> Plan:
    """The whole calendar; `presence[i, c]` says whether image i holds class id c."""
    pools = [task_pool(tasks, classes, presence, task, seed) for task in range(len(classes.tasks))]
    for task, pool in enumerate(pools):
        if not len(pool):
            raise UserError(f"Task {task} ({', '.join(classes.names(task))}) has no image: nothing to learn from.")
    published = Random(seed)
    turns: list[Turn] = []
    holdings: dict[tuple[int, int], Holding] = {}
    for round_ in range(spec.rounds * len(classes.tasks)):
        task, count = round_ // spec.rounds, spec.clients + spec.joiners * (round_ // spec.rounds)
        ids = classes.tasks[task]
        if spec.split == "published":
            selected = published.sample(range(count), spec.per_round)
            for client in selected:
                if (task, client) not in holdings:
                    holdings[task, client] = _published_draw(spec, ids, pools[task], presence, published)
        else:
            selected = stream(seed, "selection", round_).sample(range(count), spec.per_round)
            if round_ % spec.rounds == 0:
                split = _disjoint if spec.split == "client-disjoint" else _dirichlet
                shares = split(spec, ids, pools[task], presence, count, stream(seed, "split", task))
                holdings |= {(task, client): holding for client, holding in enumerate(shares)}
        turns.append(Turn(round_, task, spec.rounds - round_ % spec.rounds, count, tuple(selected)))
    used = {(turn.task, client) for turn in turns for client in turn.selected}
    return Plan(tuple(turns), {key: holdings[key] for key in sorted(used)})


def joint_plan(plan: Plan, classes: TaskStream, presence: Presence, steps: int) -> Plan:
    """The upper bound: one site with all images and labels from the start, for `steps` in as many rounds as `plan`."""
    ids = classes.seen(len(classes.tasks) - 1)
    rounds = len(plan.turns)
    images = np.nonzero(_shows(presence, ids))[0]
    turns = (Turn(r, 0, rounds - r, 1, (0,), steps * (r + 1) // rounds - steps * r // rounds) for r in range(rounds))
    return Plan(tuple(turns), {(0, 0): Holding(ids, tuple(int(i) for i in images))})


def task_pool(tasks: TaskSpec, classes: TaskStream, presence: Presence, task: int, seed: int) -> NDArray[np.int64]:
    """Indices of the images that belong to a task."""
    member = _shows(presence, classes.tasks[task])
    if tasks.images == "disjoint":
        later = [i for i in range(1, presence.shape[1]) if i not in classes.seen(task)]
        member &= ~_shows(presence, later)
    elif tasks.images == "partitioned":
        shown = np.stack([_shows(presence, ids) for ids in classes.tasks], 1)
        for i in np.nonzero(member)[0]:
            choices = [int(t) for t in np.nonzero(shown[i])[0]]
            member[i] = stream(seed, "partition", int(i)).choice(choices) == task
    return np.nonzero(member)[0]


def _shows(presence: Presence, ids: Sequence[int]) -> Presence:
    """Whether an image shows any of these classes, (N,)."""
    return np.asarray(presence[:, list(ids)].any(1))


def _draw_classes(spec: WorldSpec, ids: Sequence[int], random: Random) -> list[int]:
    if len(ids) == 1:
        return list(ids)  # nothing is drawn, so the published stream does not move
    return sorted(random.sample(list(ids), max(1, int(len(ids) * spec.class_ratio))))


def _published_draw(
    spec: WorldSpec, ids: Sequence[int], pool: NDArray[np.int64], presence: Presence, random: Random
) -> Holding:
    drawn = _draw_classes(spec, ids, random)
    candidates = pool[presence[pool][:, drawn].any(1)].tolist()
    ratio = spec.single_ratio if len(ids) == 1 else spec.sample_ratio
    return Holding(tuple(drawn), tuple(sorted(random.sample(candidates, int(len(candidates) * ratio)))))


def _disjoint(
    spec: WorldSpec, ids: Sequence[int], pool: NDArray[np.int64], presence: Presence, count: int, random: Random
) -> list[Holding]:
    """Classes as in the published draw; each image goes to one of the sites that drew a class it shows."""
    drawn = [_draw_classes(spec, ids, random) for _ in range(count)]
    wants = np.zeros((count, presence.shape[1]), bool)
    for client, classes in enumerate(drawn):
        wants[client, classes] = True
    images: list[list[int]] = [[] for _ in range(count)]
    for i in pool.tolist():
        takers = np.nonzero((wants & presence[i]).any(1))[0]
        if len(takers):
            images[int(random.choice(takers.tolist()))].append(i)
    return [Holding(tuple(c), tuple(i)) for c, i in zip(drawn, images, strict=True)]


def _dirichlet(
    spec: WorldSpec, ids: Sequence[int], pool: NDArray[np.int64], presence: Presence, count: int, random: Random
) -> list[Holding]:
    """Each image counts for its rarest class of the task and goes to a site by that class's shares."""
    shares = {c: [random.gammavariate(spec.alpha, 1.0) + 1e-300 for _ in range(count)] for c in ids}
    frequency = presence[pool].sum(0)
    images: list[list[int]] = [[] for _ in range(count)]
    for i in pool.tolist():
        rarest = min((c for c in ids if presence[i, c]), key=lambda c: (frequency[c], c))
        images[random.choices(range(count), shares[rarest])[0]].append(i)
    held = [tuple(c for c in ids if presence[own][:, c].any()) if own else () for own in images]
    return [Holding(c, tuple(i)) for c, i in zip(held, images, strict=True)]
