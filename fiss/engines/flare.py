"""NVIDIA FLARE carries the messages: the only file that imports it.

FLARE has a controller on the server and an executor at each site. Ours hold nothing: the controller (`Relay`) hands an
engine to a function that drives our loop, the executor (`Desk`) hands each message to one that answers it. Both
functions are named in the job, so that this file knows of nothing above it.
"""

import importlib
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fiss.engines import wire
from fiss.engines.wire import Packed
from fiss.errors import UserError
from fiss.federation.messages import Memory, Order, Probe, Reply, Sighting

TASK = "fiss"


def _named(path: str) -> Callable[..., Any]:
    """The function `package.module:name`."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _shareable(packed: Packed) -> Shareable:
    data = Shareable()
    data["text"], data["arrays"] = packed.text, packed.arrays
    return data


class Relay(Controller):  # type: ignore[misc]
    """On the server: calls `main(engine, **arguments)`."""

    def __init__(self, main: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.main, self.arguments = main, arguments

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The whole job."""
        sites = sorted(client.name for client in fl_ctx.get_engine().get_clients())
        _named(self.main)(Carrier(self, fl_ctx, abort_signal, sites), **self.arguments)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to clear up."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late is left out."""


class Desk(Executor):  # type: ignore[misc]
    """At a site: gives every message to the function that `main(**arguments)` made when the first one came."""

    def __init__(self, main: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.main, self.arguments = main, arguments
        self.answer: Callable[[Packed], Packed] | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One message."""
        if self.answer is None:
            self.answer = _named(self.main)(**self.arguments)
        try:
            return _shareable(self.answer(Packed(shareable["text"], shareable["arrays"])))
        except Exception as error:  # the server has to hear of it, or it would wait
            self.log_exception(fl_ctx, f"could not answer: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)


class Carrier:
    """Takes messages to sites and brings their answers back, in the order in which they come."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal, sites: list[str]) -> None:
        self.controller, self.fl_ctx, self.abort_signal, self.sites = controller, fl_ctx, abort_signal, sites

    def exchange(self, messages: Sequence[tuple[str, Packed]]) -> Iterator[Packed]:
        """Each message to the site of that name, one at a time at each site; a site that fails is an error."""
        answers: queue.Queue[tuple[str, Shareable]] = queue.Queue()

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers.put((client_task.client.name, client_task.result))
            client_task.result = None

        waiting: dict[str, deque[Packed]] = defaultdict(deque)
        for site, packed in messages:
            waiting[site].append(packed)

        def send_next(site: str) -> None:
            if waiting[site]:
                task = Task(TASK, data=_shareable(waiting[site].popleft()), result_received_cb=received)
                self.controller.broadcast(task, self.fl_ctx, targets=[site], min_responses=1)

        for site in list(waiting):
            send_next(site)
        for _ in messages:
            while True:
                try:
                    site, result = answers.get(timeout=0.5)
                    break
                except queue.Empty:
                    if self.abort_signal.triggered:
                        raise UserError("The job was stopped.") from None
            if result.get_return_code() != ReturnCode.OK:
                raise UserError(f"{site} could not answer ({result.get_return_code()}); its log says why.")
            send_next(site)
            yield Packed(result["text"], result["arrays"])
            del result


class Simulated:
    """Simulated clients, shared out among the sites of a job; their memories stay here and travel with the messages."""

    def __init__(self, carrier: Carrier, memories: dict[int, Memory]) -> None:
        self.carrier, self.memories = carrier, memories
        self.has: dict[str, set[str]] = {site: set() for site in carrier.sites}

    def probe(self, probes: Sequence[Probe]) -> Iterator[Sighting]:
        """Clients in turn to the sites."""
        messages = [
            (self._site(i), wire.from_probe(probe, self._memory(probe.client))) for i, probe in enumerate(probes)
        ]
        for packed in self.carrier.exchange(messages):
            sighting, memory = wire.to_sighting(packed)
            assert memory is not None
            self.memories[sighting.client] = memory
            yield sighting

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Clients in turn to the sites; a teacher goes to each site once."""
        messages = []
        for i, order in enumerate(orders):
            site, teacher = self._site(i), order.teacher.name if order.teacher else ""
            missing = bool(teacher) and teacher not in self.has[site]
            messages.append((site, wire.from_order(order, self._memory(order.client), missing)))
            self.has[site] |= {teacher} - {""}
        for packed in self.carrier.exchange(messages):
            reply, memory = wire.to_reply(packed)
            assert memory is not None
            self.memories[reply.client] = memory
            yield reply

    def _memory(self, client: int) -> Memory:
        return self.memories.get(client, Memory())

    def _site(self, number: int) -> str:
        return self.carrier.sites[number % len(self.carrier.sites)]
