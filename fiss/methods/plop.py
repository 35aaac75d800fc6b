"""PLOP: pseudo labels where the teacher's entropy is below its class's median, and local POD on feature maps."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fiss.losses.pod import local_pod
from fiss.methods.base import Step
from fiss.methods.features import feature_maps, logit_maps, weighted_distance
from fiss.methods.pseudo_labels import PseudoLabelled


@dataclass(frozen=True)
class PLOP(PseudoLabelled):
    """Pseudo labels below the median entropy, and local POD.

    Its fields, which `fiss methods` lists, are its hyper-parameters.

    Example:
        >>> fiss.run("shapes", method=fiss.PLOP(pod_logits=0.0))
    """

    name: ClassVar[str] = "plop"

    pod_features: float = 0.01
    """Weight of local POD on the encoder's stages and the decoder's output (ADE20k: 0.001)."""
    pod_logits: float = 0.0005
    """Weight of local POD on the small logits (ADE20k: 0.00001)."""

    def losses(self, step: Step) -> dict[str, Tensor]:
        """Cross-entropy on pseudo labels + POD."""
        labels, factor = self.relabel(step)
        pixels = step.student.cross_entropy(labels) * factor[:, None, None]
        maps = [(pair, self.pod_features) for pair in feature_maps(step)] + [(logit_maps(step), self.pod_logits)]
        return {
            "segmentation": self.mean(pixels, step, labels),
            **self.unsure(step, labels),
            "pod": weighted_distance(step, local_pod, maps, scheduled=True),
        }


def reference() -> PLOP:
    """PLOP with the published code's faulty histogram in place of the median."""
    return PLOP(thresholds="published")
