"""Equation 1: the mean of the pixels' cross-entropy.

B batch, H W pixels.
"""

from typing import Literal

from torch import Tensor

from fiss.labels import IGNORE

Over = Literal["all", "valid"]


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32 or wider: losses are never computed in half precision."""
    return tensor if tensor.is_floating_point() and tensor.element_size() >= 4 else tensor.float()


def pixel_mean(values_BHW: Tensor, labels_BHW: Tensor, over: Over) -> Tensor:
    """Sum of the pixels' values divided by the number of all pixels, as published, or of those not ignored."""
    count = labels_BHW.numel() if over == "all" else (labels_BHW != IGNORE).sum().clamp(min=1)
    return values_BHW.sum() / count
