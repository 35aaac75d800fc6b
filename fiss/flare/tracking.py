"""What rounds come to, as FLARE's analytics events, and the receiver of FLARE's that `--track` puts into a job.

The server fires the events in its own process, so a site sends nothing more.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.widgets.streaming import AnalyticsReceiver

from fiss.errors import UserError
from fiss.runs.tracking import Values


class Analytics:
    """Fires values as events, in a thread of its own: no round waits for a tracker that does not answer."""

    def __init__(self, component: FLComponent, fl_ctx: FLContext) -> None:
        self.component, self.engine, self.thread = component, fl_ctx.get_engine(), ThreadPoolExecutor(1)

    def write(self, values: Values, step: int) -> None:
        """Values by name, after the round of that number, from 1."""
        self.thread.submit(self._fire, dict(values), step)

    def close(self) -> None:
        """Wait until all have been heard."""
        self.thread.shutdown()

    def _fire(self, values: Values, step: int) -> None:
        for name, value in values.items():
            dxo = create_analytic_dxo(name, value, AnalyticsDataType.SCALAR, global_step=step)
            with self.engine.new_context() as fl_ctx:
                send_analytic_dxo(self.component, dxo, fl_ctx)


class Tracker(AnalyticsReceiver):  # type: ignore[misc]
    """FLARE's receiver of that kind, which a job makes at the server only."""

    def __init__(self, kind: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(events=[ANALYTIC_EVENT_TYPE])
        self.kind, self.arguments = kind, arguments
        self.receiver: AnalyticsReceiver | None = None

    def initialize(self, fl_ctx: FLContext) -> None:
        """Make it. In a server's context it would begin a run for every site, and none for the federation."""
        if fl_ctx.get_process_type() != ProcessType.SERVER_JOB:
            raise UserError("Only the server tracks.")
        receiver = RECEIVERS[self.kind](**self.arguments)
        with fl_ctx.get_engine().new_context() as own:
            own.remove_prop(FLContextKey.PROCESS_TYPE, force_removal=True)
            receiver.initialize(own)
        self.receiver = receiver

    def save(self, fl_ctx: FLContext, shareable: Shareable, record_origin: str) -> None:
        """One value."""
        if self.receiver is not None:
            self.receiver.save(fl_ctx, shareable, record_origin)

    def finalize(self, fl_ctx: FLContext) -> None:
        """Nothing comes any more."""
        if self.receiver is not None:
            self.receiver.finalize(fl_ctx)


def tensorboard(folder: str) -> AnalyticsReceiver:
    """Writes into that folder; FLARE's own place goes with the job. Each value can be read at once."""
    from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver

    class Receiver(TBAnalyticsReceiver):  # type: ignore[misc]
        def initialize(self, fl_ctx: FLContext) -> None:
            self.root_log_dir = folder

        def save(self, fl_ctx: FLContext, shareable: Shareable, record_origin: str) -> None:
            super().save(fl_ctx, shareable, record_origin)
            self.writers_table[record_origin].flush()

    return Receiver()


def mlflow(uri: str, name: str) -> AnalyticsReceiver:
    """Writes to MLflow at that address."""
    from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver

    return MLflowReceiver(uri, {"experiment_name": "fiss", "run_name": name}, buffer_flush_time=0)


def wandb(folder: str, mode: str, name: str) -> AnalyticsReceiver:
    """Writes to Weights & Biases, or into that folder where nobody is logged in."""
    from nvflare.app_opt.tracking.wandb.wandb_receiver import WandBReceiver

    run = {"project": "fiss", "name": name, "group": name, "job_type": "federation", "dir": folder}
    return WandBReceiver(run, mode, process_timeout=60.0)


RECEIVERS: Mapping[str, Callable[..., AnalyticsReceiver]] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "wandb": wandb,
}
