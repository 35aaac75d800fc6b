"""Compensation and relation consistency together, equations 3 to 9: what they share is computed once.

B batch, C classes, K channels of the teacher, H W pixels.
"""

import torch
from torch import Tensor

from fiss.fuse import fused
from fiss.losses.compensation import balance, balanced_weights, gradients
from fiss.losses.relation import Target, relation_consistency
from fiss.losses.segmentation import Over, pixel_cross_entropy, pixel_mean


@fused
def balanced_losses(
    log_p_BCHW: Tensor,
    teacher_log_p_BKHW: Tensor,
    labels_BHW: Tensor,
    factor_B: Tensor,
    weights_BHW: Tensor | None,
    group_C: Tensor,
    exponents_C: Tensor,
    over: Over,
    relation: Target | None,
    most: float,
    background: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted cross-entropy, the relation consistency (0 where no kind is asked for), and the pixels' weights.

    `weights_BHW` are given weights in place of the balanced ones; `factor_B` multiplies the cross-entropy of an image.
    """
    pixels = pixel_cross_entropy(log_p_BCHW, labels_BHW)
    gradient = gradients(pixels, labels_BHW, exponents_C)
    mean = balance(gradient, labels_BHW, group_C)
    weights = balanced_weights(gradient, labels_BHW, mean) if weights_BHW is None else weights_BHW
    compensation = pixel_mean(pixels * weights * factor_B[:, None, None], labels_BHW, over)
    consistency = torch.zeros_like(compensation)
    if relation is not None:
        consistency = relation_consistency(log_p_BCHW, teacher_log_p_BKHW, labels_BHW, mean, relation, most, background)
    return compensation, consistency, weights
