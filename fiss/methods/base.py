"""What a method is: a frozen value whose fields are its hyper-parameters and its config section.

It holds no state, so one object serves every client and nothing leaks between them. It gets a `Step` and returns
named loss terms; the training loop adds them up and owns backward, precision and optimizer.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fiss.labels import LabelSpace
from fiss.losses.segmentation import Over
from fiss.models.classifier import Start
from fiss.models.segmenter import Output


@dataclass(frozen=True)
class Step:
    """One batch, seen by the student and, from the second group on, by the teacher."""

    labels_BHW: Tensor
    """Channels of the client's present classes, background, or ignored."""
    student: Output
    teacher: Output | None
    """The global model from before the client's transition; None in the first group or where the method needs none."""
    label_space: LabelSpace
    teacher_channels: int
    """Channels the teacher has: the old classes and background; 0 without teacher."""


@dataclass(frozen=True)
class Method(ABC):
    """How not to forget."""

    name: ClassVar[str]
    needs_teacher: ClassVar[bool] = False
    """Whether `losses` looks at the teacher's output; only then is it computed."""

    start: Start = "random"
    """How the classifier of new classes starts: random, or from background."""
    mean_over: Over = "all"
    """Pixels that the cross-entropy divides by: all, as published, or the valid ones."""

    @abstractmethod
    def losses(self, step: Step) -> dict[str, Tensor]:
        """Named terms of the objective; their sum is minimised."""
