"""The engines of a loop whose clients are reached through the transport: sites that own their data, or workers that
answer for simulated clients.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.messages import Memory, Order, Probe, ProbeResult, Reply
from fiss.federation.spec import FederationSpec
from fiss.federation.wire import Message
from fiss.flare.transport import TOO_LATE, Transport
from fiss.models.classifier import Weights

Answer = TypeVar("Answer", ProbeResult, Reply)


class FlareEngine:
    """Sites that own their data, by their numbers. Who did not answer is noted, and not asked again in this job."""

    def __init__(
        self,
        transport: Transport,
        names: Mapping[int, str],
        spec: FederationSpec,
        silent: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.transport, self.names, self.spec, self.silent = transport, names, spec, silent
        self.numbers = {name: number for number, name in names.items()}
        self.missing: dict[int, str] = {}
        self.late: dict[int, str] = {}
        self.acknowledged: dict[int, int] = {}
        self._teachers: dict[int, str] = {}  # the teacher that each site has
        self._there: dict[int, Weights] = {}  # the model that each site was given last

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes to the sites and from them, so far."""
        return self.transport.sent, self.transport.received

    def probe(self, probes: Sequence[Probe]) -> Iterator[ProbeResult]:
        """Whoever answers."""
        messages, model = {}, probes[0].weights if probes else {}  # everyone is probed with the same model
        for probe in probes:
            known, there = self.acknowledged.get(probe.client, -1), self._there.pop(probe.client, None)
            messages[probe.client] = wire.from_probe(probe, None, self.spec.transfer, known, there)
        for probe_result in self._exchange(messages, wire.to_probe_result):
            self._there[probe_result.client] = model
            yield probe_result

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Whoever answers, of those who answered the probe; a teacher goes to each site once, and so does what never
        changes of the model."""
        messages, teachers = {}, {}
        model = orders[0].weights if orders else {}  # everyone is sent the same model
        for order in orders:
            client, teacher = order.client, order.teacher.name if order.teacher else ""
            if client in self.missing or client in self.late:
                continue
            send_teacher = bool(teacher) and self._teachers.get(client) != teacher
            there = self._there.pop(client, None)  # it may not get this message
            messages[client] = wire.from_order(order, None, send_teacher, self.spec.transfer, there)
            teachers[client] = teacher
            self._teachers.pop(client, None)
        shared = {id(tensor) for tensor in model.values()}
        self._there = {n: w for n, w in self._there.items() if any(id(t) in shared for t in w.values())}
        for reply in self._exchange(messages, partial(wire.to_reply, sent=model, transfer=self.spec.transfer)):
            self._teachers[reply.client] = teachers[reply.client]
            self._there[reply.client] = model
            yield reply

    def _exchange(
        self, outgoing: Mapping[int, Message], read: Callable[[Message], tuple[Answer, Memory | None]]
    ) -> Iterator[Answer]:
        def read_checked(site: str, message: Message) -> Answer:
            answer, memory = read(message)
            if answer.client != self.numbers[site] or memory is not None:
                raise UserError("it speaks for another")
            return answer

        messages = [(self.names[n], message) for n, message in outgoing.items() if n not in self.missing]
        quorum, patience = self.spec.quorum, self.spec.patience
        for site, answer in self.transport.exchange(messages, read_checked, quorum, patience, self.silent):
            if isinstance(answer, str):
                (self.late if answer == TOO_LATE else self.missing)[self.numbers[site]] = answer
            else:
                yield answer


class SimulatorEngine:
    """Simulated clients, shared out among the sites of a job; their memories stay here and travel with the messages."""

    def __init__(self, transport: Transport, memories: dict[int, Memory], transfer: str) -> None:
        self.transport, self.memories, self.transfer = transport, memories, transfer
        self._teachers: dict[str, set[str]] = {site: set() for site in transport.sites}  # those that each site has
        self._there: dict[str, Weights] = {}  # the model that each site was given last

    def probe(self, probes: Sequence[Probe]) -> Iterator[ProbeResult]:
        """Clients in turn to the sites."""
        messages = []
        for i, probe in enumerate(probes):
            site, memory = self._site(i), self._memory(probe.client)
            messages.append((site, wire.from_probe(probe, memory, self.transfer, there=self._there.get(site))))
            self._there[site] = probe.weights
        yield from self._exchange(messages, wire.to_probe_result)

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Clients in turn to the sites; what a site has of a teacher or of the model is not sent again."""
        messages = []
        for i, order in enumerate(orders):
            site, teacher = self._site(i), order.teacher.name if order.teacher else ""
            send_teacher = bool(teacher) and teacher not in self._teachers[site]
            memory, there = self._memory(order.client), self._there.get(site)
            messages.append((site, wire.from_order(order, memory, send_teacher, self.transfer, there)))
            self._teachers[site] |= {teacher} - {""}
            self._there[site] = order.weights
        yield from self._exchange(messages, wire.to_reply)

    def _exchange(
        self,
        messages: Sequence[tuple[str, Message]],
        read: Callable[[Message], tuple[Answer, Memory | None]],
    ) -> Iterator[Answer]:
        """All answers: where clients are simulated, one that fails is an error."""
        for site, message in self.transport.exchange(messages, lambda _, message: message):
            if isinstance(message, str):
                raise UserError(f"{site}: {message}.")
            answer, memory = read(message)
            assert memory is not None
            self.memories[answer.client] = memory
            yield answer

    def _memory(self, client: int) -> Memory:
        return self.memories.get(client, Memory())

    def _site(self, number: int) -> str:
        return self.transport.sites[number % len(self.transport.sites)]
