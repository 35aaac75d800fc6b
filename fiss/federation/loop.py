"""One federated round after another: the page that everything else serves.

In every round the server sends the model to the selected clients and averages what comes back. Before that, where tasks
are told (as in the published runs), the calendar announces them: the server keeps the global model as teacher and grows
the classifier. Where they are not, the server holds no calendar, no number of tasks and no list of classes. It probes
clients, adds the classes they miss to the label space, and keeps for each client whose monitor fired the global model
of that moment as its teacher.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fiss.federation.aggregate import aggregate
from fiss.federation.messages import Calendar, Order, Probe, ProbeResult, Reply, Snapshot
from fiss.federation.spec import Weighting
from fiss.labels import MOST_CLASSES, LabelSpace
from fiss.methods.base import Method
from fiss.models.classifier import Weights, grow
from fiss.progress import Progress
from fiss.rng import address

LONGEST_NAME = 200


class Engine(Protocol):
    """Carries probes and orders to clients and their answers back, in any order. Simulation and deployment differ in
    nothing else."""

    def probe(self, probes: Sequence[Probe]) -> Iterable[ProbeResult]:
        """Send the probes, wait for what the clients see."""
        ...

    def ask(self, orders: Sequence[Order]) -> Iterable[Reply]:
        """Send the orders, wait for the replies."""
        ...


@dataclass(frozen=True)
class Announcement:
    """A round of a calendar, where tasks are told."""

    calendar: Calendar
    names: tuple[str, ...]
    """The task's classes."""


@dataclass(frozen=True)
class Call:
    """Who is there in a round: all that the server learns from outside, unless tasks are told."""

    round: int
    selected: tuple[int, ...]
    probed: tuple[int, ...] = ()
    told: Announcement | None = None


@dataclass(frozen=True)
class Server:
    """All the server knows."""

    label_space: LabelSpace
    weights: Weights
    teacher: Snapshot | None = None
    """Everyone's, where tasks are told."""
    before: tuple[Snapshot | None, ...] = ()
    """Where they are not: for each group of classes the model from just before it entered."""
    taught: Mapping[int, Snapshot] = field(default_factory=dict)
    """And each client's teacher; many share one."""


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    call: Call
    server: Server
    """After the round."""
    probe_results: tuple[ProbeResult, ...]
    """By client; none where tasks are told."""
    replies: tuple[Reply, ...]
    """Without their weights, by client."""
    refused: dict[int, str]


def run(
    server: Server,
    calls: Iterable[Call],
    engine: Engine,
    method: Method,
    weighting: Weighting,
    seed: int,
    progress: Progress,
    largest: float = 0.0,
) -> Iterator[Round]:
    """Play the rounds of `calls`, starting from `server`."""
    for call in calls:
        probe_results: list[ProbeResult] = []
        if call.told is not None:
            if call.told.calendar.task == len(server.label_space.groups):
                server = begin_task(server, call.told.names, method, seed)
        else:
            empty = not server.label_space.names
            probe_results = _probed(server, call, engine)
            server = take_note(server, probe_results, call.round, method, seed, progress)
            if empty:  # so far they could only say what they hold; now there is a model to look through
                probe_results = _probed(server, call, engine)
                server = take_note(server, probe_results, call.round, method, seed, progress)
        orders = [
            Order(
                client,
                call.round,
                server.label_space,
                server.weights,
                server.teacher if call.told is not None else server.taught.get(client),
                call.told.calendar if call.told is not None else None,
            )
            for client in sorted(call.selected)
        ]
        result = aggregate(server.weights, engine.ask(orders), weighting, call.selected, largest)
        for client, why in result.refused.items():
            progress.notice(f"round {call.round + 1}: the update of client {client} was refused: {why}")
        server = replace(server, weights=result.weights)
        yield Round(call, server, tuple(probe_results), result.replies, result.refused)


def _probed(server: Server, call: Call, engine: Engine) -> list[ProbeResult]:
    probes = [Probe(client, call.round, server.label_space, server.weights) for client in sorted(call.probed)]
    return sorted(engine.probe(probes), key=lambda probe_result: probe_result.client)


def begin_task(server: Server, names: Sequence[str], method: Method, seed: int) -> Server:
    """A task is told: keep the global model as teacher, then make room for the new classes."""
    teacher = Snapshot(f"task-{len(server.label_space.groups) - 1}", server.label_space, server.weights)
    return replace(_grown(server, names, method, seed), teacher=teacher)


def take_note(
    server: Server, probe_results: Sequence[ProbeResult], round_: int, method: Method, seed: int, progress: Progress
) -> Server:
    """Clients have looked at their data: give those that passed to new classes their teacher, and make room for the
    classes that were missed, each once and in the order of their names, whoever reported them."""
    now = Snapshot(f"before-{round_:04d}", server.label_space, server.weights)
    groups, before, taught = len(server.label_space.groups), server.before, dict(server.taught)
    new: set[str] = set()
    for probe_result in probe_results:
        if problem := _problem(probe_result, server.label_space, new):
            progress.notice(f"round {round_ + 1}: what client {probe_result.client} reports is left out: {problem}")
            continue
        new |= set(probe_result.missing) - set(server.label_space.names)
        if probe_result.teacher is not None:
            teacher = now if probe_result.teacher >= groups else before[probe_result.teacher]
            if teacher is not None:
                taught[probe_result.client] = teacher
    if new:
        server = _grown(server, sorted(new), method, seed)
        before = (*before, now if now.label_space.names else None)
    return replace(server, before=before, taught=taught)


def _problem(probe_result: ProbeResult, space: LabelSpace, new: set[str]) -> str | None:
    names = probe_result.missing
    if not all(isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() for name in names):
        return f"a class name is empty, longer than {LONGEST_NAME} letters, or no printable text"
    if len({*space.names, *new, *names}) > MOST_CLASSES:
        return f"there would be more than {MOST_CLASSES} classes"
    if probe_result.teacher is not None and not 0 <= probe_result.teacher <= len(space.groups):
        return f"it asks for the model before group {probe_result.teacher}, and there are {len(space.groups)}"
    return None


def _grown(server: Server, names: Sequence[str], method: Method, seed: int) -> Server:
    """Let the method settle the model, then add a group of classes; the very first have nothing to start from."""
    space = server.label_space
    start = method.start if space.names else "random"
    settled = method.consolidate(server.weights) if space.names else server.weights
    weights = grow(settled, len(names), start, address(seed, "grow", len(space.groups)))
    return replace(server, label_space=space.grow(names), weights=weights)
