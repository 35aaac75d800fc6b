"""Forgetting-balanced semantic compensation, equations 3 to 6: cross-entropy weighted by how large a pixel's gradient
is in its group.

Groups are the background and the classes of each task. Weights carry no gradient. Dividing by the mean of its own
group gives every group the mean weight 1: the loss tells hard from easy pixels within a group, it does not move
weight between groups.

B batch, C classes, H W pixels, G groups (group 0 is the background, group 1 the first task), N pixels.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE, LabelSpace
from fiss.losses.segmentation import wide
from fiss.ops.scatter import means

EPSILON = 1e-8


@lru_cache(maxsize=8)
def groups_of(label_space: LabelSpace, device: torch.device) -> Tensor:
    """Group of each channel, (C,); 0 is the background. Kept on the device: a copy in every step would wait for it."""
    sizes = [1, *(len(group) for group in label_space.groups if group)]
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(device)


@lru_cache(maxsize=8)
def exponents(channels: int, old: int, device: torch.device, labelled_old: tuple[int, ...] = ()) -> Tensor:
    """What the gradient of each channel's pixels is raised to, (C + 1,): old classes to their share of all classes,
    those that the client has labels for as well as any of its own. The last is for ignored pixels."""
    table = torch.ones(channels + 1)
    table[BACKGROUND + 1 : old] = (old - 1 - len(labelled_old)) / (channels - 1)
    table[list(labelled_old)] = 1.0
    return table.to(device)


def gradients(pixels_BHW: Tensor, labels_BHW: Tensor, exponents_C: Tensor) -> Tensor:
    """Equations 3 and 4 from each pixel's cross-entropy -log p(label): |p(label) - 1|, raised to the exponent of its
    label; 0 where ignored, (B, H, W)."""
    exponent = exponents_C[labels_BHW.clamp(max=len(exponents_C) - 1).int()]
    return (-torch.expm1(-pixels_BHW.detach())).pow(exponent)


@dataclass(frozen=True)
class Balance:
    """How large the gradients of a batch are, by class and by group."""

    class_C: Tensor
    """Mean gradient of each class's pixels, 0 without any."""
    group_C: Tensor
    """Mean gradient of the group that the class is in."""
    count_C: Tensor
    """Pixels of each class."""


def balance(gradients_BHW: Tensor, labels_BHW: Tensor, group_C: Tensor) -> Balance:
    """One sum over the pixels gives the means of classes and, from these, of groups; `group_C` as `groups_of` it."""
    mean_C, count_C = means(gradients_BHW.flatten(), labels_BHW.flatten(), len(group_C))
    total_G = torch.zeros_like(mean_C).scatter_add(0, group_C, mean_C * count_C)  # never more groups than channels
    count_G = torch.zeros_like(count_C).scatter_add(0, group_C, count_C)
    return Balance(mean_C, (total_G / count_G.clamp(min=1))[group_C], count_C)


def balanced_weights(gradients_BHW: Tensor, labels_BHW: Tensor, balance: Balance) -> Tensor:
    """Equations 5 and 6: each pixel's gradient by the mean of its group, (B, H, W)."""
    divisor = torch.cat([balance.group_C + EPSILON, balance.group_C.new_ones(1)])  # ignored pixels: 0 anyway
    return gradients_BHW / divisor[labels_BHW.clamp(max=len(balance.group_C)).int()]


def published_weights(logits_BCHW: Tensor, labels_BHW: Tensor, label_space: LabelSpace, old: int) -> Tensor:
    """What the published code weights with, (B, H, W).

    g = |sigmoid(z_label) - 1| ^ (old / C) everywhere. Background and first task are one group with weight g / mean.
    Classes the teacher lacks have weight 1. A task in between has the sum of g / mean over the nested groups "tasks 1
    to j" for every j from its own to the last old one.
    """
    exponent = old / logits_BCHW.shape[1]
    g = (1 - _at_label(wide(logits_BCHW).detach().sigmoid(), labels_BHW)).clamp(min=0).pow(exponent)
    group_C = (groups_of(label_space, labels_BHW.device) - 1).clamp(min=0)  # background joins task 0
    groups = group_C[labels_BHW.clamp(max=len(group_C) - 1).int()]  # ignored pixels get weight 0 in the end
    count = sum(1 for group in label_space.groups if group)
    known = labels_BHW < old
    sums, counts = means(g.flatten(), torch.where(known, groups, count).flatten(), count)
    sums = sums * counts
    nested_sum, nested_count = sums[1:].cumsum(0), counts[1:].cumsum(0)
    inverse = torch.where(nested_sum > 0, nested_count / nested_sum.clamp(min=EPSILON), torch.zeros_like(nested_sum))
    old_groups = torch.arange(1, count, device=g.device) < _groups_below(label_space, old)
    inverse = torch.where(old_groups, inverse, torch.zeros_like(inverse))
    first = counts[:1] / sums[:1].clamp(min=EPSILON)
    factor = torch.cat([first, inverse.flip(0).cumsum(0).flip(0), g.new_zeros(1)])
    weights = torch.where(known, g * factor[groups], torch.ones_like(g))
    return torch.where(labels_BHW == IGNORE, torch.zeros_like(g), weights)


def _groups_below(label_space: LabelSpace, old: int) -> int:
    """How many groups the teacher knows."""
    filled = [i for i, group in enumerate(label_space.groups) if group]
    return sum(1 for group in filled if label_space.group_channels(group).start < old)


def _at_label(values_BCHW: Tensor, labels_BHW: Tensor) -> Tensor:
    place = torch.where(labels_BHW == IGNORE, torch.zeros_like(labels_BHW), labels_BHW).long()
    return values_BCHW.gather(1, place[:, None])[:, 0]
