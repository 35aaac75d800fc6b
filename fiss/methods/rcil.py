"""RCIL: parallel branches that are folded and frozen when a task ends, and distillation of pooled cubes.

In the first task cross-entropy; afterwards MiB's two losses, and feature maps that follow the teacher's when pooled
over windows and over neighbouring channels.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fiss.losses.pod import channel_cube, spatial_cube
from fiss.methods.base import Step
from fiss.methods.features import Pair, feature_maps, logit_maps, weighted_distance
from fiss.methods.mib import MiB
from fiss.models import branches
from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter


@dataclass(frozen=True)
class RCIL(MiB):
    """MiB's losses, parallel branches, pooled cubes.

    Its fields, which `fiss methods` lists, are its hyper-parameters.

    Example:
        >>> fiss.run("shapes", method=fiss.RCIL(distillation=100.0))
    """

    name: ClassVar[str] = "rcil"

    distillation: float = 100.0
    """Weight of the unbiased distillation (ADE20k: 5)."""
    cube_features: float = 0.01
    """Weight of the pooled cubes of feature maps."""
    cube_logits: float = 0.0005
    """Weight of the spatially pooled small logits."""
    keep_function: bool = True
    """Whether folding leaves the network's function as it was; the published code's does not."""

    def losses(self, step: Step) -> dict[str, Tensor]:
        """MiB's terms + spatial and channel cubes; the stages are taken after their activation, as published."""
        features: list[Pair] = [(s.relu(), t.relu()) for s, t in feature_maps(step)]
        maps = [(pair, self.cube_features) for pair in features]
        spatial = [*maps, (logit_maps(step), self.cube_logits)]
        return super().losses(step) | {
            "spatial": weighted_distance(step, spatial_cube, spatial, scheduled=True),
            "channel": weighted_distance(step, channel_cube, maps, scheduled=True),
        }

    def adapt_network(self, model: Segmenter) -> None:
        """Split the convolutions."""
        branches.split(model)

    def prepare_training(self, model: Segmenter, groups: int) -> None:
        """From the second group on the left branches are frozen."""
        for module in model.modules():
            if isinstance(module, branches.Branches):
                module.freeze(groups > 1)

    def consolidate(self, weights: Weights) -> Weights:
        """Fold both branches into the left one."""
        return branches.fold(weights, self.keep_function)

    def convert_weights(self, model: Segmenter, weights: Weights) -> Weights:
        """Both branches begin as copies of the plain network's."""
        return branches.convert_weights(model, weights)


def reference() -> RCIL:
    """RCIL with the published code's folding, after which the network computes something else."""
    return RCIL(keep_function=False)
