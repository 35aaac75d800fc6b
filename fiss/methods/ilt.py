"""Incremental learning techniques: LwF's distillation, and the encoder's output follows the teacher's too."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fiss.losses.distillation import feature_distillation
from fiss.methods.base import Step
from fiss.methods.lwf import LwF


@dataclass(frozen=True)
class ILT(LwF):
    """Cross-entropy, distillation of logits and of the encoder's output.

    Its fields, which `fiss methods` lists, are its hyper-parameters.

    Example:
        >>> fiss.run("shapes", method=fiss.ILT(features=100.0))
    """

    name: ClassVar[str] = "ilt"

    features: float = 100.0
    """Weight of the mean squared difference of the encoders' outputs."""

    def losses(self, step: Step) -> dict[str, Tensor]:
        """LwF's terms + weight * squared difference."""
        assert step.teacher is not None
        kept = feature_distillation(step.student.encoded_BDhw, step.teacher.encoded_BDhw)
        return super().losses(step) | {"features": self.features * kept}
