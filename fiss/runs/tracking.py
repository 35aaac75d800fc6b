"""What operators already use: losses, scores and time of every round to TensorBoard, MLflow or Weights & Biases.

It listens where the display listens. On NVIDIA FLARE the same values go to FLARE's own receivers
(fiss/flare/tracking.py).
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fiss.errors import UserError, unknown
from fiss.progress import Progress
from fiss.runs.records import RoundRecord, ScoreRecord

MODULES = {"tensorboard": "tensorboard.summary", "mlflow": "mlflow", "wandb": "wandb"}
KINDS = tuple(MODULES)
ODD = re.compile(r"[^\w\-. /]")
Values = Mapping[str, float]


class Writer(Protocol):
    """Where values go."""

    def write(self, values: Values, step: int) -> None:
        """Values by name, after the round of that number, from 1."""
        ...

    def close(self) -> None:
        """Nothing comes any more."""
        ...


class TensorBoard:
    """Files for TensorBoard in the run folder, by its own writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self.make = import_module("tensorboard.summary").Writer
        self.writer: Any = None

    def write(self, values: Values, step: int) -> None:
        """Scalars."""
        if self.writer is None:  # the run folder may not be there before
            self.writer = self.make(str(self.folder))
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()


class MLflow:
    """A run of MLflow, wherever it is told to write."""

    def __init__(self, folder: Path) -> None:
        self.mlflow = import_module("mlflow")
        self.mlflow.start_run(run_name=folder.name)

    def write(self, values: Values, step: int) -> None:
        """Metrics."""
        self.mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self.mlflow.end_run()


class WandB:
    """A run of Weights & Biases."""

    def __init__(self, folder: Path) -> None:
        self.run = import_module("wandb").init(project="fiss", name=folder.name)

    def write(self, values: Values, step: int) -> None:
        """With the round as a value: scores of a round come after its losses, and steps may not go back."""
        self.run.log({**values, "round": step})

    def close(self) -> None:
        """End the run."""
        self.run.finish()


WRITERS: Mapping[str, Callable[[Path], Writer]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Tracked(Progress):
    """What `inner` hears of; rounds and scores go to the writer too."""

    def __init__(self, inner: Progress, writer: Writer) -> None:
        self.inner, self.writer = inner, writer

    def __getattribute__(self, name: str) -> Any:
        own = ("inner", "writer", "played", "scored")
        return object.__getattribute__(self, name) if name in own else getattr(self.inner, name)

    def played(self, record: RoundRecord) -> None:
        """A round."""
        self.writer.write(round_values(record), record.round)
        self.inner.played(record)

    def scored(self, record: ScoreRecord) -> None:
        """A score."""
        self.writer.write(score_values(record), record.round)
        self.inner.scored(record)


@contextmanager
def tracked(progress: Progress, kind: str, folder: Path) -> Iterator[Progress]:
    """A progress that also tracks; the same one if `kind` is empty."""
    if not kind:
        yield progress
        return
    require(kind)
    with closing(WRITERS[kind](folder)) as writer:
        yield Tracked(progress, writer)


def require(kind: str) -> None:
    """Refuse a tracker that is unknown or not installed."""
    if kind not in KINDS:
        raise unknown("tracker", kind, KINDS)
    try:
        import_module(MODULES[kind])
    except ImportError as error:
        raise UserError(f"--track {kind}: it is not installed ({error}): pip install {kind}.") from error


def tracker(kind: str, folder: Path, name: str) -> dict[str, Any]:
    """What a job that works in that run folder needs to make FLARE's receiver of that kind; nothing without a kind.
    MLflow and Weights & Biases write where they would from this process, under that name."""
    if not kind:
        return {}
    require(kind)
    if kind == "tensorboard":
        arguments = {"folder": str(folder.absolute() / "tensorboard")}
    elif kind == "mlflow":
        arguments = {"name": name, "uri": import_module("mlflow").get_tracking_uri()}
    else:
        place = Path(os.environ.get("WANDB_DIR", "")).absolute()
        arguments = {"name": name, "folder": str(place), "mode": os.environ.get("WANDB_MODE", "online")}
    return {"kind": kind, "arguments": arguments}


def round_values(record: RoundRecord) -> dict[str, float]:
    """What a round came to, by name."""
    replies = [reply for reply in record.replies if reply.images]
    found: dict[str, float | None] = {f"loss/{term}": value for term, value in record.losses.items()}
    found |= {"round/seconds": record.seconds, "round/images_per_second": record.images_per_second}
    found |= {"round/task": record.task, "round/trained": len(replies), "round/refused": len(record.refused)}
    found |= {"round/missing": None if record.missing is None else len(record.missing), "round/classes": record.classes}
    found |= {"bytes/sent": record.sent, "bytes/received": record.received}
    return {name: float(value) for name, value in found.items() if value is not None}


def score_values(record: ScoreRecord) -> dict[str, float]:
    """What a score came to, by names that MLflow allows too."""
    means = ("miou", "old", "new", "base", "forgetting")
    found = {f"{record.view}/{key}": getattr(record, key) for key in means}
    found |= {f"{record.view}/iou/{ODD.sub('_', name)}": value for name, value in record.iou.items()}
    return {name: float(value) for name, value in found.items() if value is not None}
