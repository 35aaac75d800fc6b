"""What one forward pass offers, and what losses ask of it pixel by pixel.

On a GPU the questions go to kernels that read the logits once (fiss/ops/kernels.py). Elsewhere they share one
log-softmax.

B batch, C classes, D feature channels, H W the image's size, h w a smaller one.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE
from fiss.ops.scatter import class_sums, has_kernels


@dataclass(frozen=True)
class Output:
    """Everything one forward pass offers; a method finds one of the student and one of the teacher in its step.

    Example:
        >>> step.teacher.log_p_BCHW.exp()[:, 1:]
    """

    logits_BCHW: Tensor
    """At the input's resolution."""
    small_BChw: Tensor
    """At the decoder's resolution."""
    decoded_BDhw: Tensor
    """What the classifier sees."""
    encoded_BDhw: Tensor
    """The encoder's last map, after its activation."""
    stages: tuple[Tensor, ...]
    """The encoder's stages, (B, D, h, w) each."""

    @cached_property
    def log_p_BCHW(self) -> Tensor:
        """Log-probabilities at the input's resolution, in float32 or wider; computed once, when first asked for."""
        logits = self.logits_BCHW
        return F.log_softmax(logits, 1, dtype=torch.float32 if logits.element_size() < 4 else None)

    def cross_entropy(self, labels_BHW: Tensor) -> Tensor:
        """-log p(label) of each pixel, 0 where ignored, (B, H, W)."""
        if has_kernels(self.logits_BCHW):
            from fiss.ops.kernels import CrossEntropy

            pixels: Tensor = CrossEntropy.apply(self.logits_BCHW, labels_BHW)
            return pixels
        return F.nll_loss(self.log_p_BCHW, labels_BHW.long(), ignore_index=IGNORE, reduction="none")

    def none_but_first(self, channels: int, chosen_BHW: Tensor, without: tuple[int, ...] = ()) -> Tensor:
        """-log of what the background and the other first channels, `without` some, have together, at the chosen
        pixels, 0 elsewhere, (B, H, W)."""
        labels = torch.where(chosen_BHW, BACKGROUND, IGNORE).to(torch.uint8)
        half = self.logits_BCHW.element_size() < 4  # gradients nearly cancel: they are added before they are rounded
        whole = replace(self, logits_BCHW=self.logits_BCHW.float()) if half else self
        among = whole.logits_BCHW[:, :channels]
        if without:
            among = torch.cat([among[:, c : c + 1] for c in range(channels) if c not in without], 1)
        return whole.cross_entropy(labels) - replace(self, logits_BCHW=among).cross_entropy(labels)

    def class_sums(self, labels_BHW: Tensor, classes: int) -> Tensor:
        """Sum of the probabilities over the pixels of each class, (classes, C); no gradient."""
        if has_kernels(self.logits_BCHW):
            from fiss.ops import kernels

            return kernels.class_sums(self.logits_BCHW, labels_BHW, classes)
        return class_sums(self.log_p_BCHW.detach().exp(), labels_BHW, classes)

    def cross_entropy_and_sums(self, labels_BHW: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """`cross_entropy` and `class_sums`, both with gradients; one backward pass reads the logits once."""
        if has_kernels(self.logits_BCHW):
            from fiss.ops.kernels import CrossEntropyAndSums

            pixels, sums = CrossEntropyAndSums.apply(self.logits_BCHW, labels_BHW, classes)
            return pixels, sums
        return self.cross_entropy(labels_BHW), class_sums(self.log_p_BCHW.exp(), labels_BHW, classes)

    @cached_property
    def entropy(self) -> tuple[Tensor, Tensor]:
        """-sum p ln p over the channels in nats, and the most probable channel, (B, H, W) each; no gradient."""
        if has_kernels(self.logits_BCHW):
            from fiss.ops.kernels import entropy

            return entropy(self.logits_BCHW)
        log_p = self.log_p_BCHW.detach()
        return -(log_p.exp() * log_p).sum(1), log_p.max(1).indices
