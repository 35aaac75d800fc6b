"""Forgetting-balanced semantic compensation, equations 3 to 6: cross-entropy weighted by how large a pixel's gradient
is in its group.

Groups are the background and the classes of each task. Weights carry no gradient. Dividing by the mean of its own
group gives every group the mean weight 1: the loss tells hard from easy pixels within a group, it does not move
weight between groups.

B batch, C classes, H W pixels, G groups (group 0 is the background, group 1 the first task), N pixels.
"""

import torch
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE, LabelSpace
from fiss.losses.segmentation import wide

EPSILON = 1e-8


def group_table(label_space: LabelSpace, device: torch.device) -> Tensor:
    """Group of each channel, (256,); 0 is the background, and ignored pixels have a group of their own, the last."""
    table = torch.full((256,), len(label_space.groups) + 1, dtype=torch.long)
    table[BACKGROUND] = 0
    for group in range(len(label_space.groups)):
        table[list(label_space.group_channels(group))] = group + 1
    return table.to(device)


def means(values_N: Tensor, index_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean of the values with each index below `count`, 0 where there are none; and how many there are."""
    totals = torch.zeros(count, dtype=values_N.dtype, device=values_N.device)
    counts = torch.zeros(count, dtype=values_N.dtype, device=values_N.device)
    inside = index_N < count
    place = torch.where(inside, index_N, torch.zeros_like(index_N))
    totals.scatter_add_(0, place, torch.where(inside, values_N, torch.zeros_like(values_N)))
    counts.scatter_add_(0, place, inside.to(values_N.dtype))
    return totals / counts.clamp(min=1), counts


def gradients(logits_BCHW: Tensor, labels_BHW: Tensor, old: int, exponent: float) -> Tensor:
    """Equations 3 and 4: |p(label) - 1|, raised to `exponent` where the label is an old class; 0 where ignored, (B,
    H, W)."""
    p = _at_label(wide(logits_BCHW).detach().softmax(1), labels_BHW)
    gradient = (1 - p).clamp(min=0)
    is_old = (labels_BHW > BACKGROUND) & (labels_BHW < old)
    gradient = torch.where(is_old, gradient.pow(exponent), gradient)
    return torch.where(labels_BHW == IGNORE, torch.zeros_like(gradient), gradient)


def balanced_weights(gradients_BHW: Tensor, labels_BHW: Tensor, label_space: LabelSpace) -> Tensor:
    """Equations 5 and 6: each pixel's gradient by the mean of its group, (B, H, W)."""
    groups = group_table(label_space, labels_BHW.device)[labels_BHW.long()]
    count = len(label_space.groups) + 1
    mean_G, _ = means(gradients_BHW.flatten(), groups.flatten(), count)
    mean_G = torch.cat([mean_G, mean_G.new_ones(1)])  # ignored pixels: their gradient is 0 anyway
    return gradients_BHW / (mean_G[groups] + EPSILON)


def published_weights(logits_BCHW: Tensor, labels_BHW: Tensor, label_space: LabelSpace, old: int) -> Tensor:
    """What the published code weights with, (B, H, W).

    g = |sigmoid(z_label) - 1| ^ (old / C) everywhere. Background and first task are one group with weight g / mean.
    Classes the teacher lacks have weight 1. A task in between has the sum of g / mean over the nested groups "tasks 1
    to j" for every j from its own to the last old one.
    """
    exponent = old / logits_BCHW.shape[1]
    g = (1 - _at_label(wide(logits_BCHW).detach().sigmoid(), labels_BHW)).clamp(min=0).pow(exponent)
    groups = (group_table(label_space, labels_BHW.device)[labels_BHW.long()] - 1).clamp(
        min=0
    )  # background joins task 0
    count = len(label_space.groups)
    known = labels_BHW < old
    sums, counts = means(g.flatten(), torch.where(known, groups, count).flatten(), count)
    sums = sums * counts
    nested_sum, nested_count = sums[1:].cumsum(0), counts[1:].cumsum(0)
    inverse = torch.where(nested_sum > 0, nested_count / nested_sum.clamp(min=EPSILON), torch.zeros_like(nested_sum))
    old_groups = torch.arange(1, count, device=g.device) < _groups_below(label_space, old)
    inverse = torch.where(old_groups, inverse, torch.zeros_like(inverse))
    first = counts[:1] / sums[:1].clamp(min=EPSILON)
    factor = torch.cat([first, inverse.flip(0).cumsum(0).flip(0), g.new_zeros(1)])
    weights = torch.where(known, g * factor[groups.clamp(max=count)], torch.ones_like(g))
    return torch.where(labels_BHW == IGNORE, torch.zeros_like(g), weights)


def _groups_below(label_space: LabelSpace, old: int) -> int:
    """How many groups the teacher knows."""
    return sum(1 for group in range(len(label_space.groups)) if label_space.group_channels(group).start < old)


def _at_label(values_BCHW: Tensor, labels_BHW: Tensor) -> Tensor:
    place = torch.where(labels_BHW == IGNORE, torch.zeros_like(labels_BHW), labels_BHW).long()
    return values_BCHW.gather(1, place[:, None])[:, 0]
