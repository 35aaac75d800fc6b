"""Finetuning: cross-entropy on whatever is labelled now. It forgets; it is the lower bound."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fiss.methods.base import Method, Step


@dataclass(frozen=True)
class Finetune(Method):
    """Cross-entropy only.

    Its fields, which `fiss methods` lists, are its hyper-parameters.

    Example:
        >>> fiss.run("shapes", method=fiss.Finetune(mean_over="valid"))
    """

    name: ClassVar[str] = "finetune"

    def losses(self, step: Step) -> dict[str, Tensor]:
        """Equation 1, in every task."""
        return self.first_losses(step)
