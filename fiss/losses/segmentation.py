"""Equation 1: cross-entropy over the labelled pixels.

B batch, C classes, H W pixels.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fiss.labels import IGNORE

Over = Literal["all", "valid"]


def cross_entropy(logits_BCHW: Tensor, labels_BHW: Tensor, over: Over = "all") -> Tensor:
    """Mean of -log p(label), ignored pixels counting nothing: over all pixels, as published, or over the valid ones."""
    if not logits_BCHW.is_floating_point() or logits_BCHW.element_size() < 4:
        logits_BCHW = logits_BCHW.float()
    total = F.cross_entropy(logits_BCHW, labels_BHW.long(), ignore_index=IGNORE, reduction="sum")
    if over == "all":
        return total / labels_BHW.numel()
    return total / (labels_BHW != IGNORE).sum().clamp(min=1)
