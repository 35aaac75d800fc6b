"""Who has joined, who is asked, and who holds what, round by round: the simulated world of a run.

Everything is decided by the seed and by which classes each image holds, so the whole plan is made before the run,
written beside its results, and made again (and compared) when a run resumes.

The published draw is one `random.Random(seed)` that feeds, round by round, first the selection of clients, then for
each selected client that holds no data of the present task its classes and its images. The other splits use addressed
streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from fiss.data.index import Presence
from fiss.errors import UserError
from fiss.federation.spec import TaskSpec, WorldSpec
from fiss.labels import TaskStream
from fiss.rng import stream


@dataclass(frozen=True)
class Holding:
    """What one site holds for a while."""

    classes: tuple[int, ...]
    """Class ids it drew."""
    images: tuple[int, ...]
    """Indices into the training split."""


@dataclass(frozen=True)
class RoundPlan:
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
    present: tuple[int, ...] = ()
    """Sites that are there and hold data, by number."""


Stage = tuple[int, int, int]
"""From a round on, a site is in a task, and holds its n-th draw of images for it: (round, task, n)."""


@dataclass(frozen=True)
class Plan:
    """The calendar and every holding in it."""

    round_plans: tuple[RoundPlan, ...]
    holdings: dict[tuple[int, int], Holding]
    """By task and site: what the site first holds in it; only sites that take part."""
    stages: dict[int, tuple[Stage, ...]]
    """By site, in order."""
    redrawn: dict[tuple[int, int, int], Holding] = field(default_factory=dict)
    """By task, site and n: what it holds after the n-th change."""

    def stage(self, client: int, round_: int) -> Stage:
        """Where a site stands in a round."""
        return _stage_at(self.stages[client], round_)

    def stays(self, client: int, round_: int) -> bool:
        """Whether a site is still on the data of an earlier task while the calendar has gone on, and will stay so until
        the next."""
        task, later = self.round_plans[round_].task, [s for s in self.stages[client] if s[0] > round_]
        return self.stage(client, round_)[1] < task and not any(stage[1] == task for stage in later)

    def holds(self, client: int, round_: int) -> bool:
        """Whether it is known what a site holds in a round."""
        return (self.stage(client, round_)[1], client) in self.holdings

    def holding(self, client: int, round_: int) -> Holding:
        """What a site holds in a round."""
        _, task, draw = self.stage(client, round_)
        return self.redrawn[task, client, draw] if draw else self.holdings[task, client]


def make_plan(
    spec: WorldSpec, tasks: TaskSpec, classes: TaskStream, presence: Presence, seed: int, everyone: bool = False
) -> Plan:
    """The whole calendar; `presence[i, c]` says whether image i holds class id c. `everyone` holds data in every task,
    not only the sites that are selected in it."""
    pools = [task_pool(tasks, classes, presence, task, seed) for task in range(len(classes.tasks))]
    for task, pool in enumerate(pools):
        if not len(pool):
            raise UserError(f"Task {task} ({', '.join(classes.names(task))}) has no image: nothing to learn from.")
    stages = _stages(spec, len(classes.tasks), seed)
    holdings: dict[tuple[int, int], Holding] = {}
    if spec.split != "published":
        split = _disjoint if spec.split == "client-disjoint" else _dirichlet
        for task, ids in enumerate(classes.tasks):
            count = spec.clients + spec.joiners * task
            shares = split(spec, ids, pools[task], presence, count, stream(seed, "split", task))
            holdings |= {(task, client): holding for client, holding in enumerate(shares)}
    published = Random(seed)
    round_plans: list[RoundPlan] = []
    used: set[tuple[int, int]] = set()
    for round_ in range(spec.rounds * len(classes.tasks)):
        task, left = round_ // spec.rounds, spec.rounds - round_ % spec.rounds
        joined = [client for client in sorted(stages) if stages[client][0][0] <= round_]
        there = [c for c in joined if not spec.away or stream(seed, "away", c, round_).random() >= spec.away]
        random = published if spec.split == "published" else stream(seed, "selection", round_)
        selected = random.sample(there, min(spec.per_round, len(there)))
        for client in selected:
            own = _stage_at(stages[client], round_)[1]
            used.add((own, client))
            if (own, client) not in holdings:
                holdings[own, client] = _published_draw(spec, classes.tasks[own], pools[own], presence, published)
        round_plans.append(RoundPlan(round_, task, left, len(joined), tuple(selected), present=tuple(there)))
    if everyone:
        used = {(task, client) for client, own_stages in stages.items() for _, task, _ in own_stages}
        for task, client in used - holdings.keys():  # drawn apart: the published stream goes on as it would
            random = stream(seed, "unselected", task, client)
            holdings[task, client] = _published_draw(spec, classes.tasks[task], pools[task], presence, random)
    plan = Plan(tuple(round_plans), {key: holdings[key] for key in sorted(used)}, stages)
    return _refreshed(plan, spec, pools, presence, seed) if spec.refresh else plan


def _stages(spec: WorldSpec, tasks: int, seed: int) -> dict[int, tuple[Stage, ...]]:
    """When every site joins, and when it meets which task."""
    stages: dict[int, tuple[Stage, ...]] = {}
    for client in range(spec.clients + spec.joiners * (tasks - 1)):
        first = 0 if client < spec.clients else 1 + (client - spec.clients) // spec.joiners
        own: list[Stage] = []
        for task in range(first, tasks):
            late = 0
            if task == first and task > 0 and spec.join == "any":
                late = stream(seed, "join", client).randrange(spec.rounds)
            elif task > first:
                if spec.stay and stream(seed, "stay", client, task).random() < spec.stay:
                    continue
                late = stream(seed, "lag", client, task).randint(0, spec.lag)
            own.append((task * spec.rounds + late, task, 0))
        stages[client] = tuple(own)
    return stages


def _stage_at(stages: Sequence[Stage], round_: int) -> Stage:
    return next(stage for stage in reversed(stages) if stage[0] <= round_)


def _refreshed(plan: Plan, spec: WorldSpec, pools: Sequence[NDArray[np.int64]], presence: Presence, seed: int) -> Plan:
    """The plan with new draws of the same classes between the stages."""
    stages: dict[int, tuple[Stage, ...]] = {}
    redrawn: dict[tuple[int, int, int], Holding] = {}
    rounds = len(plan.round_plans)
    for client, own in plan.stages.items():
        grown: list[Stage] = []
        for (start, task, _), end in zip(own, [*(stage[0] for stage in own[1:]), rounds], strict=True):
            grown.append((start, task, 0))
            held = plan.holdings.get((task, client))
            for round_ in range(start + 1, end):
                random = stream(seed, "refresh", client, round_)
                if held is not None and random.random() < spec.refresh:
                    draw = grown[-1][2] + 1
                    candidates = pools[task][presence[pools[task]][:, list(held.classes)].any(1)].tolist()
                    images = random.sample(candidates, min(len(held.images), len(candidates)))
                    redrawn[task, client, draw] = Holding(held.classes, tuple(sorted(images)))
                    grown.append((round_, task, draw))
        stages[client] = tuple(grown)
    return Plan(plan.round_plans, plan.holdings, stages, redrawn)


def joint_plan(plan: Plan, classes: TaskStream, presence: Presence, steps: int) -> Plan:
    """The upper bound: one site with all images and labels from the start, for `steps` in as many rounds as `plan`."""
    ids = classes.seen(len(classes.tasks) - 1)
    rounds = len(plan.round_plans)
    images = np.nonzero(_shows(presence, ids))[0]
    round_plans = (
        RoundPlan(r, 0, rounds - r, 1, (0,), steps * (r + 1) // rounds - steps * r // rounds, (0,))
        for r in range(rounds)
    )
    return Plan(tuple(round_plans), {(0, 0): Holding(ids, tuple(int(i) for i in images))}, {0: ((0, 0, 0),)})


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
