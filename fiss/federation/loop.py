"""One federated round after another: the page that everything else serves.

In every round the server learns who is there, passes to new classes if there are any, sends the model to the selected
clients, and averages what comes back. How it hears of new classes is decided once, by the boundaries it is given
(`boundaries.py`): a calendar announces every task, as in the published runs, or the sites discover them by themselves.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fiss.federation.aggregate import Aggregated, aggregate
from fiss.federation.collection import Gathering
from fiss.federation.messages import Announcement, Order, Probe, ProbeResult, Reply, Server, Snapshot
from fiss.federation.spec import FederationSpec
from fiss.progress import Progress


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
class Participants:
    """Who is there in a round: all that the server learns from outside."""

    round: int
    selected: tuple[int, ...]
    """Who is to train."""
    probed: tuple[int, ...] = ()
    """Who is asked to look at its own data first, where nobody announces tasks."""
    there: tuple[int, ...] | None = None
    """Who could be asked, as far as that is known."""
    urgent: tuple[int, ...] | None = None
    """Who is asked to train before others are: clients with classes that nobody has trained on yet. None: nobody is,
    it stays as drawn."""

    def with_first(self, holders: Iterable[int]) -> "Participants":
        """As many, but those with classes that are new in this round before others that were drawn."""
        if self.urgent is None:
            return self
        first = {*self.urgent, *holders} & set(self.there or ())
        order = [*sorted(first), *(client for client in self.selected if client not in first)]
        return replace(self, selected=tuple(sorted(order[: len(self.selected)])))


class Boundaries(Protocol):
    """How the server hears that there are new classes."""

    def open_round(
        self, server: Server, there: Participants, engine: Engine, progress: Progress
    ) -> tuple[Server, tuple[ProbeResult, ...]]:
        """The server with room for the classes that are new in this round, and what clients saw in their data."""
        ...

    def teacher(self, server: Server, client: int) -> Snapshot | None:
        """The global model from before the client passed to its present classes."""
        ...

    def announcement(self, round_: int) -> Announcement | None:
        """What is said of the task with the orders of a round."""
        ...

    @property
    def first_rounds(self) -> int:
        """How long classes are learned from nothing: the first task, or as long as a client's rate falls."""
        ...


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    participants: Participants
    server: Server
    """After the round."""
    probe_results: tuple[ProbeResult, ...]
    """By client; none where tasks are announced."""
    replies: tuple[Reply, ...]
    """Without their weights, by client."""
    refused: dict[int, str]


def run(
    server: Server,
    rounds: Iterable[Participants],
    boundaries: Boundaries,
    engine: Engine,
    spec: FederationSpec,
    progress: Progress,
    gathering: Gathering | None = None,
) -> Iterator[Round]:
    """Play the rounds, starting from `server`. With a `gathering` clients train in the first rounds only, and then add
    up features."""
    for there in rounds:
        server, probe_results = boundaries.open_round(server, there, engine, progress)
        names = set(server.label_space.names)
        there = there.with_first(
            result.client for result in probe_results if result.missing and names >= set(result.missing)
        )
        announced = boundaries.announcement(there.round)
        result = Aggregated(server.weights, (), {})
        if gathering is None or gathering.trains(there.round):
            orders = [
                Order(
                    client,
                    there.round,
                    server.label_space,
                    server.weights,
                    boundaries.teacher(server, client),
                    announced,
                )
                for client in sorted(there.selected)
            ]
            result = aggregate(server.weights, engine.ask(orders), spec.weighting, there.selected, spec.largest)
        server = replace(server, weights=result.weights)
        replies, refused = result.replies, result.refused
        if gathering is not None:
            server = gathering.took_part(server, there.round, replies)
            asked = gathering.asked(server, there.round, there.selected, there.there)
            server, more, odd = gathering.gather(server, there.round, asked, announced, engine.ask)
            replies, refused = (*replies, *more), refused | odd
        for client, why in refused.items():
            progress.notice(f"round {there.round + 1}: the update of client {client} was refused: {why}")
        yield Round(there, server, probe_results, replies, refused)
