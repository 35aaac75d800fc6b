"""NVIDIA FLARE carries the messages; of this room this file, filters.py and admin.py import it.

FLARE has a controller on the server and an executor at each site. Ours hold nothing: the controller (`FissController`)
hands a transport to a function that drives our loop, the executor (`FissExecutor`) hands each message to one that
answers it. Both functions are named in the job (job.py), so that this file knows of nothing above it.
"""

import math
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fiss.errors import UserError
from fiss.federation.wire import Message
from fiss.flare.filters import refuse_unfiltered, refuse_unknown_names, result_filters, to_message, to_shareable
from fiss.flare.job import TASK, server_function, site_function
from fiss.flare.parent import end_with_parent
from fiss.flare.tracking import Tracker as Tracker  # kits allow a job the classes of this module

TOO_LATE, TOO_SLOW, CUT_OFF = "it was too late", "it did not answer in time", "it was cut off, or started anew"
SILENT = "it was not heard of any more"
SUSPECT_AFTER = 20.0
"""Seconds without an answer after which FLARE is told that a site may be gone: it is, unless its job is heard of within
a minute, which it is every ten seconds while it works."""
T = TypeVar("T")


class FissController(Controller):  # type: ignore[misc]
    """On the server: calls the job's entry point with the transport to the sites."""

    def __init__(self, entry_point: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        end_with_parent()
        self.entry_point, self.arguments = entry_point, arguments

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The whole job."""
        sites = sorted(client.name for client in fl_ctx.get_engine().get_clients())
        server_function(self.entry_point)(Transport(self, fl_ctx, abort_signal, sites), **self.arguments)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to clear up."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late is left out."""


class FissExecutor(Executor):  # type: ignore[misc]
    """At a site: gives every message to the function that the job's entry point made when the first one came."""

    def __init__(self, entry_point: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        end_with_parent()
        self.entry_point, self.arguments = entry_point, arguments
        self.answer: Callable[[Message], Message] | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One message."""
        try:
            filters = result_filters(fl_ctx)
            if self.answer is None:
                folder = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT))
                answering = site_function(self.entry_point, folder)
                self.answer = answering(folder, **self.arguments, differences=bool(filters))
            answer = self.answer(to_message(shareable))
            refuse_unknown_names(filters, answer)
            return to_shareable(answer)
        except Exception as error:  # the server has to hear of it, or it would wait
            self.log_exception(fl_ctx, f"could not answer: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Just before an answer leaves: unless every filter acted on it, the server hears only that there is none."""
        if event_type == EventType.AFTER_TASK_RESULT_FILTER:
            answer = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            try:
                refuse_unfiltered(result_filters(fl_ctx), answer)
            except Exception as error:
                answer.clear()
                answer.update(make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR))
                self.log_exception(fl_ctx, f"did not send its answer: {error}")


class Transport:
    """Takes messages to sites and brings their answers back, in the order in which they come."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal, sites: list[str]) -> None:
        self.controller, self.fl_ctx, self.abort_signal, self.sites = controller, fl_ctx, abort_signal, sites
        self.sent = self.received = 0
        """Bytes of messages and answers so far."""

    def exchange(
        self,
        messages: Sequence[tuple[str, Message]],
        read: Callable[[str, Message], T],
        quorum: float = 1.0,
        patience: float = 0.0,
        silent: Callable[[], Collection[str]] = tuple,
    ) -> Iterator[tuple[str, T | str]]:
        """Each message to the site of that name, one at a time at each site. Gives every site's answer as `read`
        returns it, or the reason why there is none. It ends when a share `quorum` has given an answer that can be
        read, or after `patience` seconds (0: never). Sites that are `silent` meanwhile are not waited for."""
        answers: queue.Queue[tuple[str, Shareable | str]] = queue.Queue()
        open_tasks: dict[str, Task] = {}

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers.put((client_task.client.name, client_task.result))
            client_task.result = None

        def done(task: Task, fl_ctx: FLContext) -> None:
            if task.completion_status != TaskCompletionStatus.OK:
                dead = task.completion_status == TaskCompletionStatus.CLIENT_DEAD
                answers.put((task.props["site"], CUT_OFF if dead else TOO_SLOW))

        waiting: dict[str, deque[Message]] = defaultdict(deque)
        for site, message in messages:
            waiting[site].append(message)

        def send_next(site: str) -> None:
            if waiting[site]:
                message = waiting[site].popleft()
                self.sent += message.size
                data = to_shareable(message)
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
        left, needed, readable = len(messages), math.ceil(quorum * len(messages)), 0
        next_check = monotonic() + SUSPECT_AFTER
        while left and readable < needed:
            try:
                site, result = answers.get(timeout=0.5)
            except queue.Empty:
                if self.abort_signal.triggered:
                    raise UserError("The job was stopped.") from None
                for site in open_tasks.keys() & set(silent()):
                    answers.put((site, SILENT))
                    self.controller.cancel_task(open_tasks[site])
                if patience and monotonic() > next_check:
                    next_check = monotonic() + SUSPECT_AFTER
                    for site in open_tasks:
                        self.controller.communicator.process_dead_client_report(site, self.fl_ctx)
                continue
            if open_tasks.pop(site, None) is None:
                continue  # reported twice: it answered, and its task ended
            left -= 1
            if isinstance(result, str):
                yield site, result
            elif result.get_return_code() != ReturnCode.OK:
                yield site, f"it could not answer ({str(result.get_return_code())[:40]}); its log says why"
            else:
                try:
                    message = to_message(result)
                    self.received += message.size
                    answer: T | str = read(site, message)
                    readable += 1
                except Exception as error:  # whatever a site sends must not stop the others
                    answer = f"its answer cannot be read ({type(error).__name__}: {str(error)[:200]!r})"
                yield site, answer
            del result
            send_next(site)
        for site, task in open_tasks.items():
            self.controller.cancel_task(task)
            yield site, TOO_LATE
