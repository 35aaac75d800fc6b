"""NVIDIA FLARE carries the messages; only this file and flare_admin.py import it.

FLARE has a controller on the server and an executor at each site. Ours hold nothing: the controller (`FissController`)
hands an engine to a function that drives our loop, the executor (`FissExecutor`) hands each message to one that answers
it. Both functions are named in the job, so that this file knows of nothing above it.
"""

import importlib
import math
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.messages import Memory, Order, Probe, ProbeResult, Reply
from fiss.federation.spec import FederationSpec
from fiss.federation.wire import Message
from fiss.models.classifier import Weights

TASK = "fiss"
TOO_LATE, TOO_SLOW, GONE = "it was too late", "it did not answer in time", "it was cut off, or started anew"
DOUBT = 20.0
"""Seconds without an answer after which FLARE is told that a site may be gone: it is, unless its job is heard of within
a minute, which it is every ten seconds while it works."""
Answer = TypeVar("Answer", ProbeResult, Reply)
T = TypeVar("T")


SERVER_MAINS = ("fiss.simulation.on_flare:server", "fiss.simulation.on_flare:serve")
SITE_MAINS = ("fiss.simulation.on_flare:worker", "fiss.simulation.on_flare:attend")
"""What a job may call: whoever may submit one must not be able to run anything else. At a site that owns its data only
the last."""


def _named(path: str, allowed: Sequence[str]) -> Callable[..., Any]:
    """The function `package.module:name`."""
    if path not in allowed:
        raise UserError(f"{path} is not for a job to call here.")
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _shareable(message: Message) -> Shareable:
    data = Shareable()
    data["text"], data["arrays"] = message.text, message.arrays
    return data


class FissController(Controller):  # type: ignore[misc]
    """On the server: calls `main(engine, **arguments)`."""

    def __init__(self, main: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.main, self.arguments = main, arguments

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The whole job."""
        sites = sorted(client.name for client in fl_ctx.get_engine().get_clients())
        _named(self.main, SERVER_MAINS)(Transport(self, fl_ctx, abort_signal, sites), **self.arguments)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to clear up."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late is left out."""


class FissExecutor(Executor):  # type: ignore[misc]
    """At a site: gives every message to the function that `main(folder, **arguments)` made when the first one came;
    the folder is the site's own."""

    def __init__(self, main: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.main, self.arguments = main, arguments
        self.answer: Callable[[Message], Message] | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One message."""
        try:
            if self.answer is None:
                folder = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT))
                allowed = SITE_MAINS[-1:] if (folder / "site.toml").is_file() else SITE_MAINS
                self.answer = _named(self.main, allowed)(folder, **self.arguments)
            return _shareable(self.answer(Message(shareable["text"], shareable["arrays"])))
        except Exception as error:  # the server has to hear of it, or it would wait
            self.log_exception(fl_ctx, f"could not answer: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)


class Transport:
    """Takes messages to sites and brings their answers back, in the order in which they come."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal, sites: list[str]) -> None:
        self.controller, self.fl_ctx, self.abort_signal, self.sites = controller, fl_ctx, abort_signal, sites

    def exchange(
        self,
        messages: Sequence[tuple[str, Message]],
        read: Callable[[str, Message], T],
        quorum: float = 1.0,
        patience: float = 0.0,
    ) -> Iterator[tuple[str, T | str]]:
        """Each message to the site of that name, one at a time at each site. Gives what came from whom, as `read`
        understands it, or why there is nothing. It ends when a share `quorum` has given an answer that can be read, or
        after `patience` seconds (0: never)."""
        answers: queue.Queue[tuple[str, Shareable | str]] = queue.Queue()
        open_tasks: dict[str, Task] = {}

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers.put((client_task.client.name, client_task.result))
            client_task.result = None

        def done(task: Task, fl_ctx: FLContext) -> None:
            if task.completion_status != TaskCompletionStatus.OK:
                dead = task.completion_status == TaskCompletionStatus.CLIENT_DEAD
                answers.put((task.props["site"], GONE if dead else TOO_SLOW))

        waiting: dict[str, deque[Message]] = defaultdict(deque)
        for site, message in messages:
            waiting[site].append(message)

        def send_next(site: str) -> None:
            if waiting[site]:
                data = _shareable(waiting[site].popleft())
                task = Task(
                    TASK,
                    data,
                    props={"site": site},
                    timeout=math.ceil(patience),
                    result_received_cb=received,
                    task_done_cb=done,
                )
                open_tasks[site] = task
                self.controller.broadcast(task, self.fl_ctx, targets=[site], min_responses=1)

        for site in list(waiting):
            send_next(site)
        left, enough, good = len(messages), math.ceil(quorum * len(messages)), 0
        doubtful = monotonic() + DOUBT
        while left and good < enough:
            try:
                site, result = answers.get(timeout=0.5)
            except queue.Empty:
                if self.abort_signal.triggered:
                    raise UserError("The job was stopped.") from None
                if patience and monotonic() > doubtful:
                    doubtful = monotonic() + DOUBT
                    for site in open_tasks:
                        self.controller.communicator.process_dead_client_report(site, self.fl_ctx)
                continue
            if open_tasks.pop(site, None) is None:
                continue  # said twice: it answered, and its task ended
            left -= 1
            if isinstance(result, str):
                yield site, result
            elif result.get_return_code() != ReturnCode.OK:
                yield site, f"it could not answer ({str(result.get_return_code())[:40]}); its log says why"
            else:
                try:
                    said: T | str = read(site, Message(result.get("text", ""), result.get("arrays", {})))
                    good += 1
                except Exception as error:  # whatever a site sends must not stop the others
                    said = f"its answer cannot be read ({type(error).__name__}: {str(error)[:200]!r})"
                yield site, said
            del result
            send_next(site)
        for site, task in open_tasks.items():
            self.controller.cancel_task(task)
            yield site, TOO_LATE


class FlareEngine:
    """Sites that own their data, by their numbers. Who did not answer is noted, and not asked again in this job."""

    def __init__(self, transport: Transport, names: Mapping[int, str], spec: FederationSpec) -> None:
        self.transport, self.names, self.spec = transport, names, spec
        self.numbers = {name: number for number, name in names.items()}
        self.has: dict[str, str] = {}
        self.missing: dict[int, str] = {}
        self.late: dict[int, str] = {}
        self.heard: dict[int, int] = {}
        self.shown: dict[int, Weights] = {}

    def probe(self, probes: Sequence[Probe]) -> Iterator[ProbeResult]:
        """Whoever answers."""
        messages = {
            probe.client: wire.from_probe(probe, None, self.spec.transfer, self.heard.get(probe.client, -1))
            for probe in probes
        }
        self.shown.clear()
        for probe_result in self._exchange(messages, wire.to_probe_result):
            self.shown[probe_result.client] = probes[0].weights  # everyone is shown the same model
            yield probe_result

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Whoever answers, of those who answered the probe; a teacher goes to each site once."""
        messages, taught = {}, {}
        for order in orders:
            if order.client in self.missing or order.client in self.late:
                continue
            site, teacher = self.names[order.client], order.teacher.name if order.teacher else ""
            unknown = bool(teacher) and self.has.get(site) != teacher
            shown = self.shown.get(order.client)
            messages[order.client] = wire.from_order(order, None, unknown, self.spec.transfer, shown)
            taught[order.client] = teacher
            self.has.pop(site, None)  # it may not get this message
        self.shown.clear()
        for reply in self._exchange(messages, wire.to_reply):
            self.has[self.names[reply.client]] = taught[reply.client]
            yield reply

    def _exchange(
        self, outgoing: Mapping[int, Message], read: Callable[[Message], tuple[Answer, Memory | None]]
    ) -> Iterator[Answer]:
        def understood(site: str, message: Message) -> Answer:
            said, memory = read(message)
            if said.client != self.numbers[site] or memory is not None:
                raise UserError("it speaks for another")
            return said

        messages = [(self.names[n], message) for n, message in outgoing.items() if n not in self.missing]
        for site, said in self.transport.exchange(messages, understood, self.spec.quorum, self.spec.patience):
            if isinstance(said, str):
                (self.late if said == TOO_LATE else self.missing)[self.numbers[site]] = said
            else:
                yield said


class SimulatorEngine:
    """Simulated clients, shared out among the sites of a job; their memories stay here and travel with the messages."""

    def __init__(self, transport: Transport, memories: dict[int, Memory], transfer: str) -> None:
        self.transport, self.memories, self.transfer = transport, memories, transfer
        self.has: dict[str, set[str]] = {site: set() for site in transport.sites}

    def probe(self, probes: Sequence[Probe]) -> Iterator[ProbeResult]:
        """Clients in turn to the sites."""
        messages = [
            (self._site(i), wire.from_probe(probe, self._memory(probe.client), self.transfer))
            for i, probe in enumerate(probes)
        ]
        for message in self._answers(messages):
            probe_result, memory = wire.to_probe_result(message)
            assert memory is not None
            self.memories[probe_result.client] = memory
            yield probe_result

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Clients in turn to the sites; a teacher goes to each site once."""
        messages = []
        for i, order in enumerate(orders):
            site, teacher = self._site(i), order.teacher.name if order.teacher else ""
            missing = bool(teacher) and teacher not in self.has[site]
            messages.append((site, wire.from_order(order, self._memory(order.client), missing, self.transfer)))
            self.has[site] |= {teacher} - {""}
        for message in self._answers(messages):
            reply, memory = wire.to_reply(message)
            assert memory is not None
            self.memories[reply.client] = memory
            yield reply

    def _answers(self, messages: Sequence[tuple[str, Message]]) -> Iterator[Message]:
        """All of them: where clients are simulated, one that fails is an error."""
        for site, answer in self.transport.exchange(messages, lambda site, message: message):
            if isinstance(answer, str):
                raise UserError(f"{site}: {answer}.")
            yield answer

    def _memory(self, client: int) -> Memory:
        return self.memories.get(client, Memory())

    def _site(self, number: int) -> str:
        return self.transport.sites[number % len(self.transport.sites)]
