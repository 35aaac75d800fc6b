"""What can be set about local training and about scoring."""

from dataclasses import dataclass
from typing import Literal

from fiss.data.transforms import View
from fiss.errors import UserError, check_fields, check_least


@dataclass(frozen=True)
class TrainingSpec:
    """Local training; the defaults are the published ones."""

    epochs: int = 6
    """Local epochs per round."""
    later_epochs: int = 0
    """Local epochs per round in every later task; 0: as many as in the first."""
    batch: int = 24
    """Images per step."""
    first_rate: float = 0.01
    """Learning rate at which a client begins the first task."""
    later_rate: float = 0.001
    """Learning rate at which a client begins every later task."""
    horizon: int = 5
    """Rounds over which a client's rate falls from its first data and from each transition, if tasks are not told."""
    least_rate: float = 0.1
    """What it falls to, as a share of where it began."""
    momentum: float = 0.9
    """Of SGD with Nesterov momentum; it is lost between rounds, as published."""
    weight_decay: float = 1e-4
    """On every parameter."""
    drop_last: bool = True
    """Drop the incomplete batch of an epoch."""
    batch_statistics: Literal["averaged", "kept_out"] = "averaged"
    """averaged: clients update BatchNorm's running statistics and the server averages them; kept_out: they never
    change, and clients normalise with those they were given."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 autocast on a GPU that has it, float32 elsewhere."""
    compile: bool = False
    """torch.compile of the network below its classifier: takes minutes once, for long runs of a large network on a
    GPU."""
    graphs: bool = False
    """On a GPU, record the network's kernels once and replay them: for images so small that launching takes longer
    than computing."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1."""
    workers: int = 0
    """Processes that read images, one per core at most; 0 reads them in the training process."""
    cache: float = 4.0
    """GiB of memory for decoded images, shared by those processes, at most half of what is free; 0: every image is
    decoded each time."""
    threads: int = 0
    """CPU threads of torch; 0 leaves its own choice."""

    def __post_init__(self) -> None:
        counts = ("least_rate", "later_epochs", "workers", "threads", "cache", "weight_decay", "momentum")
        check_least("training.", self, 0, *counts)
        check_least("training.", self, 1, "epochs", "horizon")
        check_least("training.", self, 2, "batch")
        check_fields("training.", self, "above 0", lambda rate: rate > 0, "first_rate", "later_rate")

    def epochs_in(self, first: bool) -> int:
        """Local epochs per round, in the first task or in later ones."""
        return self.epochs if first or not self.later_epochs else self.later_epochs


@dataclass(frozen=True)
class EvaluationSpec:
    """How models are scored."""

    views: tuple[View, ...] = ("published",)
    """published: shorter side resized to `size`, centre crop, images without a seen class left out; full: every image
    as it is."""
    every: Literal["round", "task"] = "round"
    """Score after each round, or after each task only."""
    size: int = 512
    """Side of the published view, and what the shorter side of an image to segment is made; 0: it is left as it is,
    and there is no published view."""
    batch: int = 24
    """Images at a time."""

    def __post_init__(self) -> None:
        if not self.views:
            raise UserError("evaluation.views is empty: name published, full, or both.")
        check_least("evaluation.", self, 1, "batch")
        check_least("evaluation.", self, 1 if "published" in self.views else 0, "size")
