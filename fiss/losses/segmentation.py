"""Equation 1: cross-entropy over the labelled pixels.

Losses take log-probabilities, which are computed once per network and batch (`Output.log_p_BCHW`).

B batch, C classes, H W pixels.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fiss.labels import IGNORE

Over = Literal["all", "valid"]


def wide(tensor: Tensor) -> Tensor:
    """In float32 or wider: losses are never computed in half precision."""
    return tensor if tensor.is_floating_point() and tensor.element_size() >= 4 else tensor.float()


def pixel_mean(values_BHW: Tensor, labels_BHW: Tensor, over: Over) -> Tensor:
    """Sum of the pixels' values divided by the number of all pixels, as published, or of those not ignored."""
    count = labels_BHW.numel() if over == "all" else (labels_BHW != IGNORE).sum().clamp(min=1)
    return values_BHW.sum() / count


def pixel_cross_entropy(log_p_BCHW: Tensor, labels_BHW: Tensor) -> Tensor:
    """-log p(label) of each pixel, 0 where ignored, (B, H, W)."""
    return F.nll_loss(log_p_BCHW, labels_BHW.long(), ignore_index=IGNORE, reduction="none")


def cross_entropy(log_p_BCHW: Tensor, labels_BHW: Tensor, over: Over = "all") -> Tensor:
    """Mean of -log p(label), ignored pixels counting nothing: over all pixels, as published, or over the valid ones."""
    return pixel_mean(pixel_cross_entropy(log_p_BCHW, labels_BHW), labels_BHW, over)
