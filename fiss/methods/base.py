"""What a method is: a frozen value whose fields are its hyper-parameters and its config section.

It holds no state, so one object serves every client and nothing leaks between them. It gets a `Step` and returns
named loss terms; the training loop adds them up and owns backward, precision and optimizer. Of the verbs only
`losses` is required. A method with a `collection` stops training at some point and goes on by adding up features.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fiss.labels import LabelSpace
from fiss.losses.segmentation import Over, pixel_mean
from fiss.models.classifier import Start, Weights
from fiss.models.output import Output
from fiss.models.segmenter import Segmenter
from fiss.statistics.collection import Collection


@dataclass(frozen=True)
class Step:
    """One batch, seen by the student and, from the second group on, by the teacher.

    Example:
        >>> step.student.cross_entropy(step.labels_BHW)
    """

    labels_BHW: Tensor
    """Channels of the client's present classes, background, or ignored."""
    student: Output
    """What the network that is trained gives for the batch; gradients flow through it."""
    teacher: Output | None
    """The global model from before the client's transition; None in the first group or where the method needs none."""
    label_space: LabelSpace
    """All classes so far, by the group in which they came: `names`, `channels`, `group_channels(number)`."""
    teacher_channels: int
    """Channels the teacher has: the old classes and background; 0 without teacher."""
    epoch: int
    """Local epochs the client has finished in this task."""
    state: dict[str, Any]
    """The method's own notes, empty when a client's round begins; they never leave the client."""
    labelled_old: tuple[int, ...] = ()
    """Channels of the teacher that the client has labels for: classes that other clients taught the model before; none
    where tasks are told."""
    student_weights: Mapping[str, Tensor] = field(default_factory=dict)
    """The student's parameters by name, themselves and no copies: what is computed of them has gradients."""
    teacher_weights: Mapping[str, Tensor] = field(default_factory=dict)
    """The teacher's, without gradient; empty without teacher. Below `classifier.` the student has more: it grows."""


@dataclass(frozen=True)
class Method(ABC):
    """How not to forget.

    Example:
        >>> @dataclass(frozen=True)
        ... class Mine(fiss.Method):
        ...     name: ClassVar[str] = "mine"
        ...
        ...     def losses(self, step):
        ...         return {"mine": 2 * step.student.cross_entropy(step.labels_BHW).mean()}
    """

    name: ClassVar[str]
    needs_teacher: ClassVar[bool] = False
    """Whether `losses` looks at the teacher's output; only then is it computed."""
    ablations: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Parts that can be taken out (`--ablate NAME`), and the fields that do it."""

    start: Start = "random"
    """How the classifier of new classes starts: random, or from background."""
    mean_over: Over = "all"
    """Pixels that the cross-entropy divides by: all, as published, or the valid ones."""

    @property
    def collection(self) -> Collection | None:
        """How it adds up features for a classifier in closed form, once the trunk is trained; None: it trains for as
        long as there are rounds."""
        return None

    @abstractmethod
    def losses(self, step: Step) -> dict[str, Tensor]:
        """Named terms of the objective; their sum is minimised."""

    def first_losses(self, step: Step) -> dict[str, Tensor]:
        """Equation 1, the objective while there is nothing to forget: plain cross-entropy."""
        labels = step.labels_BHW
        return {"segmentation": pixel_mean(step.student.cross_entropy(labels), labels, self.mean_over)}

    @property
    def needs_preview(self) -> bool:
        """Whether `preview` is to see the images of an epoch before it is trained on; costs a pass over the data."""
        return False

    def preview(self, step: Step) -> None:
        """See one batch before the epoch that trains on it, the student as it trains but without gradient; write into
        `step.state`."""

    def begin_epoch(self, state: dict[str, Any], epoch: int, known: int, device: torch.device) -> None:
        """Make the notes that the steps of an epoch read and add to, after its preview; `known`: the teacher's
        channels. Tensors that stay where they are and are changed in place let all steps be alike."""

    def report(self, state: dict[str, Any], label_space: LabelSpace) -> dict[str, Any]:
        """What of the notes goes into the log of the round, as plain values."""
        return {}

    def adapt_network(self, model: Segmenter) -> None:
        """Change the network's structure, once, when it is built."""

    def prepare_training(self, model: Segmenter, groups: int) -> None:
        """Set the network up for training with `groups` groups of classes."""

    def consolidate(self, weights: Weights) -> Weights:
        """The weights that the server goes on with when a task ends, before the classifier grows."""
        return weights

    def convert_weights(self, model: Segmenter, weights: Weights) -> Weights:
        """Weights of a plain network as weights of the wired one."""
        return weights
