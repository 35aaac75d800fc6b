"""Simulation: all clients in this process, one after another, with one trainer between them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from fiss.federation.client import Site, answer_order, answer_probe, read_epochs
from fiss.federation.messages import Memory, Order, Probe, ProbeResult, Reply, Snapshot
from fiss.federation.wire import rounded
from fiss.methods.base import Method
from fiss.models.classifier import Weights
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.training.trainer import Trainer


class InProcessEngine:
    """Clients that exist only while they train; their memories stay."""

    def __init__(
        self,
        site: Callable[[int, int], Site],
        method: Method,
        trainer: Trainer,
        memories: dict[int, Memory],
        progress: Progress,
        monitor: MonitorSpec,
        transfer: str = "float32",
    ) -> None:
        self.site, self.method, self.trainer = site, method, trainer
        self.memories, self.progress, self.monitor = memories, progress, monitor
        self.transfer = transfer

    def probe(self, probes: Sequence[Probe]) -> Iterator[ProbeResult]:
        """Each client in turn."""
        self.progress.start("probing clients", len(probes))
        if probes and self.transfer != "float32":
            sent = rounded(probes[0].weights, self.transfer)
            probes = [replace(probe, weights=sent) for probe in probes]
        for probe in probes:
            memory = self.memories.get(probe.client, Memory())
            site = self.site(probe.round, probe.client)
            probe_result, memory = answer_probe(probe, memory, site, self.monitor, self.trainer)
            self.memories[probe.client] = memory
            self.progress.advance()
            yield probe_result
        self.progress.finish()

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Each client in turn; what they will all read is asked for at once, so that nobody waits for the first
        images."""
        sites = [self.site(order.round, order.client) for order in orders]
        if orders and self.transfer != "float32":
            orders = self._after_the_way(orders)
        read = [read_epochs(order, site, self.method, self.trainer) for order, site in zip(orders, sites, strict=True)]
        for order, site, epochs in zip(orders, sites, read, strict=True):
            memory = self.memories.get(order.client, Memory())
            reply, self.memories[order.client] = answer_order(
                order, memory, site, self.method, self.trainer, epochs, self.progress
            )
            yield reply if self.transfer == "float32" else replace(reply, weights=rounded(reply.weights, self.transfer))
            del reply  # its weights are the server's now; they are not kept while the next one trains

    def _after_the_way(self, orders: Sequence[Order]) -> list[Order]:
        """The orders with weights as they arrive in a shorter type; each model is rounded once."""
        seen: dict[int, Weights] = {}

        def short(weights: Weights) -> Weights:
            if id(weights) not in seen:
                seen[id(weights)] = rounded(weights, self.transfer)
            return seen[id(weights)]

        def shortened(teacher: Snapshot | None) -> Snapshot | None:
            return replace(teacher, weights=short(teacher.weights)) if teacher is not None else None

        return [replace(order, weights=short(order.weights), teacher=shortened(order.teacher)) for order in orders]
