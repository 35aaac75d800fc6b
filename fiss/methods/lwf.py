"""Learning without forgetting: the student's old channels follow the teacher's, pixel by pixel."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fiss.losses.distillation import logit_distillation
from fiss.methods.base import Method, Step


@dataclass(frozen=True)
class LwF(Method):
    """Cross-entropy and distillation of logits.

    Its fields, which `fiss methods` lists, are its hyper-parameters.

    Example:
        >>> fiss.run("shapes", method=fiss.LwF(distillation=100.0))
    """

    name: ClassVar[str] = "lwf"
    needs_teacher: ClassVar[bool] = True

    distillation: float = 100.0
    """Weight of the distillation, which is a mean over pixels and channels, as published."""

    def losses(self, step: Step) -> dict[str, Tensor]:
        """Cross-entropy + weight * distillation."""
        assert step.teacher is not None
        kept = logit_distillation(step.student.log_p_BCHW, step.teacher.log_p_BCHW)
        return self.first_losses(step) | {"distillation": self.distillation * kept}
