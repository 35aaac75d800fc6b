"""Simulation: all clients in this process, one after another, with one trainer between them."""

from collections.abc import Callable, Iterator, Sequence

from fiss.federation.client import Site, answer, batches, sight
from fiss.federation.messages import Memory, Order, Probe, Reply, Sighting
from fiss.methods.base import Method
from fiss.methods.monitors import MonitorSpec
from fiss.training.fit import Trainer
from fiss.watch import Watcher


class InProcess:
    """Clients that exist only while they train; their memories stay."""

    def __init__(
        self,
        site: Callable[[int, int], Site],
        method: Method,
        trainer: Trainer,
        memories: dict[int, Memory],
        watcher: Watcher,
        monitor: MonitorSpec,
    ) -> None:
        self.site, self.method, self.trainer = site, method, trainer
        self.memories, self.watcher, self.monitor = memories, watcher, monitor

    def probe(self, probes: Sequence[Probe]) -> Iterator[Sighting]:
        """Each client in turn."""
        self.watcher.start("probing clients", len(probes))
        for probe in probes:
            memory = self.memories.get(probe.client, Memory())
            site = self.site(probe.round, probe.client)
            sighting, memory = sight(probe, memory, site, self.monitor, self.trainer)
            self.memories[probe.client] = memory
            self.watcher.advance()
            yield sighting
        self.watcher.finish()

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Each client in turn; what they will all read is asked for at once, so that nobody waits for the first
        images."""
        sites = [self.site(order.round, order.client) for order in orders]
        for order, site in zip(orders, sites, strict=True):
            for epoch in batches(order, site, self.method, self.trainer.spec):
                self.trainer.reader.ask(epoch)
        for order, site in zip(orders, sites, strict=True):
            memory = self.memories.get(order.client, Memory())
            reply, self.memories[order.client] = answer(order, memory, site, self.method, self.trainer, self.watcher)
            yield reply
            del reply  # its weights are the server's now; they are not kept while the next one trains
