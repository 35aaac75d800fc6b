"""How new classes come to a federation's knowledge: announced by a calendar, or discovered by the sites.

With a calendar, as in the published runs, the server hears of every task in its first round. It keeps the global model
as everyone's teacher and grows the classifier. Otherwise it holds no calendar, no number of tasks and no list of
classes. It probes clients, adds the classes they miss to the label space, and keeps for each client whose monitor fired
the global model of that moment as its teacher.

Clients are on the same two ways: `client_round` says how a client passes to new classes and how its learning rate
falls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fiss.federation.loop import Engine, Participants
from fiss.federation.messages import Announcement, Memory, Order, Probe, ProbeResult, Server, Snapshot
from fiss.labels import MOST_CLASSES, LabelSpace
from fiss.methods.base import Method
from fiss.models.classifier import grow
from fiss.progress import Progress
from fiss.rng import address
from fiss.training.schedule import rate_at, rate_in_round
from fiss.training.spec import TrainingSpec

LONGEST_NAME = 200


@dataclass(frozen=True)
class Calendar:
    """Every task is announced in its first round."""

    method: Method
    seed: int
    rounds: Mapping[int, Announcement]
    names: Sequence[tuple[str, ...]]
    """The classes of each task."""

    @property
    def first_space(self) -> LabelSpace:
        """What the server begins with: the first task's classes."""
        return LabelSpace((self.names[0],))

    def open_round(
        self, server: Server, there: Participants, engine: Engine, progress: Progress
    ) -> tuple[Server, tuple[ProbeResult, ...]]:
        """In the first round of a task: keep the global model as teacher, then make room for the new classes."""
        task = self.rounds[there.round].task
        if task < len(server.label_space.groups):
            return server, ()
        teacher = Snapshot(f"task-{task - 1}", server.label_space, server.weights)
        before = (*(None for _ in server.before), teacher)  # one is needed, so one is kept
        return replace(grown(server, self.names[task], self.method, self.seed), before=before), ()

    def teacher(self, server: Server, client: int) -> Snapshot | None:
        """Everyone's."""
        return server.before[-1]

    def announcement(self, round_: int) -> Announcement | None:
        """The task of the round."""
        return self.rounds[round_]

    @property
    def first_rounds(self) -> int:
        """Rounds of the first task."""
        return sum(announced.task == 0 for announced in self.rounds.values())


@dataclass(frozen=True)
class Discovery:
    """Nothing is announced: clients look at their own data and say what the label space lacks."""

    method: Method
    seed: int
    first_rounds: int = 5
    """Rounds in which the rate of a client falls."""

    @property
    def first_space(self) -> LabelSpace:
        """What the server begins with: nothing but background."""
        return LabelSpace(((),))

    def open_round(
        self, server: Server, there: Participants, engine: Engine, progress: Progress
    ) -> tuple[Server, tuple[ProbeResult, ...]]:
        """Probe, and take note of what was seen; twice where so far clients could only say what they hold."""
        for _ in range(1 if server.label_space.names else 2):
            probes = [Probe(client, there.round, server.label_space, server.weights) for client in sorted(there.probed)]
            results = sorted(engine.probe(probes), key=lambda result: result.client)
            server = take_note(server, results, there.round, self.method, self.seed, progress)
        return server, tuple(results)

    def teacher(self, server: Server, client: int) -> Snapshot | None:
        """The client's own."""
        return server.teachers.get(client)

    def announcement(self, round_: int) -> Announcement | None:
        """Nothing."""
        return None


def take_note(
    server: Server, probe_results: Sequence[ProbeResult], round_: int, method: Method, seed: int, progress: Progress
) -> Server:
    """Clients have looked at their data: give those that passed to new classes their teacher, and make room for the
    classes that were missed, each once and in the order of their names, whoever reported them."""
    now = Snapshot(f"after-{round_:04d}", server.label_space, server.weights)
    groups, before, teachers = len(server.label_space.groups), server.before, dict(server.teachers)
    new: set[str] = set()
    for result in probe_results:
        if problem := _problem(result, server.label_space, new):
            progress.notice(f"round {round_ + 1}: what client {result.client} reports is left out: {problem}")
            continue
        new |= set(result.missing) - set(server.label_space.names)
        if result.teacher is not None:
            teacher = now if result.teacher >= groups else before[result.teacher]
            if teacher is not None:
                teachers[result.client] = teacher
    if new:
        server = grown(server, sorted(new), method, seed)
        before = (*before, now if now.label_space.names else None)
    return replace(server, before=before, teachers=teachers)


def _problem(result: ProbeResult, space: LabelSpace, new: set[str]) -> str | None:
    names = result.missing
    if not all(isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() for name in names):
        return f"a class name is empty, longer than {LONGEST_NAME} letters, or no printable text"
    if len({*space.names, *new, *names}) > MOST_CLASSES:
        return f"there would be more than {MOST_CLASSES} classes"
    if result.teacher is not None and not 0 <= result.teacher <= len(space.groups):
        return f"it asks for the model before group {result.teacher}, and there are {len(space.groups)}"
    return None


def grown(server: Server, names: Sequence[str], method: Method, seed: int) -> Server:
    """Let the method consolidate the model, then add a group of classes; the very first have nothing to start from."""
    space = server.label_space
    start = method.start if space.names else "random"
    consolidated = method.consolidate(server.weights) if space.names else server.weights
    weights = grow(consolidated, len(names), start, address(seed, "grow", len(space.groups)))
    return replace(server, label_space=space.grow(names), weights=weights)


@dataclass(frozen=True)
class ClientRound:
    """How a client goes through a round."""

    memory: Memory
    """What it remembers when the round begins."""
    transition: bool
    """Whether it passed to new classes in this round."""
    rate: Callable[[int, int], float]
    """Learning rate by step and by the steps of the round."""


def client_round(order: Order, memory: Memory, spec: TrainingSpec) -> ClientRound:
    """With a task announced, a new number is a new task, where the rate begins again; it falls over the rounds that are
    left. Without, the client's own monitor has said when it began; it falls from then over `training.horizon` rounds.
    """
    first_rate = spec.first_rate if order.first else spec.later_rate
    if order.announced is None:
        passed = order.round - memory.since
        return ClientRound(
            memory,
            memory.since == order.round and memory.transitions > 0,
            lambda step, steps: rate_in_round(first_rate, passed + step / steps, spec.horizon, spec.least_rate),
        )
    rounds_left, transition = order.announced.rounds_left, order.announced.task != memory.task
    if transition:
        memory = replace(memory, task=order.announced.task, rate=first_rate, epochs=0, since=order.round)
    start = memory.rate
    return ClientRound(memory, transition, lambda step, steps: rate_at(start, step, steps * rounds_left))
