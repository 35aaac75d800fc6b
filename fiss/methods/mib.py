"""Modelling the background: cross-entropy and distillation that know what background means in a task.

To the labels, background may be any old class; to the teacher, it may be any new one.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fiss.losses.distillation import unbiased_cross_entropy, unbiased_distillation
from fiss.methods.base import Method, Step
from fiss.models.classifier import Start


@dataclass(frozen=True)
class MiB(Method):
    """Unbiased cross-entropy and unbiased distillation.

    Its fields, which `fiss methods` lists, are its hyper-parameters.

    Example:
        >>> fiss.run("shapes", method=fiss.MiB(start="random"))
    """

    name: ClassVar[str] = "mib"
    needs_teacher: ClassVar[bool] = True

    start: Start = "background"
    distillation: float = 10.0
    """Weight of the distillation: 10 in the published runs on VOC and 1 on ADE20k; its author used 100 on 15-1."""

    def losses(self, step: Step) -> dict[str, Tensor]:
        """Unbiased cross-entropy + weight * unbiased distillation."""
        assert step.teacher is not None
        log_p = step.student.log_p_BCHW
        old, own = step.teacher_channels, step.labelled_old
        kept = unbiased_distillation(log_p, step.teacher.log_p_BCHW)
        return {
            "segmentation": unbiased_cross_entropy(log_p, step.labels_BHW, old, self.mean_over, without=own),
            "distillation": self.distillation * kept,
        }


def authors_15_1() -> MiB:
    """MiB with the weight that its author used on VOC 15-1."""
    return MiB(distillation=100.0)
