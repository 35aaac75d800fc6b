"""One federated round after another: the page that everything else serves.

The calendar announces tasks (they are told, as in the published runs). At a new task the server keeps the global
model as teacher and grows the classifier; in every round it sends the model to the selected clients and averages what
comes back.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fiss.data.world import Turn
from fiss.federation.aggregate import FederationSpec, aggregate
from fiss.federation.messages import Order, Reply, Snapshot
from fiss.labels import LabelSpace, TaskStream
from fiss.methods.base import Method
from fiss.models.classifier import Weights, grow
from fiss.rng import address
from fiss.watch import Watcher


class Engine(Protocol):
    """Carries orders to clients and their replies back, in any order. Simulation and deployment differ in nothing
    else."""

    def ask(self, orders: Sequence[Order]) -> Iterable[Reply]:
        """Send the orders, wait for the replies."""
        ...


@dataclass(frozen=True)
class Server:
    """All the server knows."""

    label_space: LabelSpace
    weights: Weights
    teacher: Snapshot | None = None


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    turn: Turn
    server: Server
    """After the round."""
    replies: tuple[Reply, ...]
    """Without their weights, by client."""
    refused: dict[int, str]


def run(
    server: Server,
    turns: Sequence[Turn],
    tasks: TaskStream,
    engine: Engine,
    method: Method,
    spec: FederationSpec,
    seed: int,
    watcher: Watcher,
) -> Iterator[Round]:
    """Play the rounds of `turns`, starting from `server`."""
    for turn in turns:
        if turn.task == len(server.label_space.groups):
            server = begin_task(server, tasks.names(turn.task), method, seed)
        watcher.round(turn.task, turn.round, len(turn.selected))
        orders = [
            Order(
                client,
                turn.round,
                turn.task,
                turn.rounds_left,
                server.label_space,
                server.weights,
                server.teacher,
                turn.steps,
            )
            for client in sorted(turn.selected)
        ]
        result = aggregate(server.weights, engine.ask(orders), spec.weighting, turn.selected)
        for client, why in result.refused.items():
            watcher.notice(f"round {turn.round}: the update of client {client} was refused: {why}")
        server = replace(server, weights=result.weights)
        yield Round(turn, server, result.replies, result.refused)


def begin_task(server: Server, names: Sequence[str], method: Method, seed: int) -> Server:
    """Keep the global model as teacher, let the method settle it, then make room for the new classes."""
    task = len(server.label_space.groups)
    teacher = Snapshot(f"task-{task - 1}", server.label_space, server.weights)
    settled = method.settle(server.weights)
    weights = grow(settled, len(names), method.start, address(seed, "grow", task))
    return Server(server.label_space.grow(names), weights, teacher)
