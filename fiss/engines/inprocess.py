"""Simulation: all clients in this process, one after another, with one student and one teacher network between them."""

from collections.abc import Callable, Iterator, Sequence

from fiss.federation.client import Site, answer
from fiss.federation.messages import Memory, Order, Reply
from fiss.methods.base import Method
from fiss.models.segmenter import Segmenter
from fiss.watch import Watcher


class InProcess:
    """Clients that exist only while they train; their memories stay."""

    def __init__(
        self,
        site: Callable[[int, int], Site],
        method: Method,
        student: Segmenter,
        teacher: Segmenter | None,
        memories: dict[int, Memory],
        watcher: Watcher,
    ) -> None:
        self.site, self.method = site, method
        self.student, self.teacher = student, teacher
        self.memories, self.watcher = memories, watcher

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Each client in turn."""
        for order in orders:
            memory = self.memories.get(order.client, Memory())
            site = self.site(order.task, order.client)
            reply, self.memories[order.client] = answer(
                order, memory, site, self.method, self.student, self.teacher, self.watcher
            )
            yield reply
