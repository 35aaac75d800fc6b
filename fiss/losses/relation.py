"""Forgetting-balanced relation consistency, equations 7 to 9, and the three terms the published code has in its
place.

The relations of a class are its prototype: the mean of the predicted distributions over its pixels. They are compared
with the mean of target distributions made from the teacher, weighted by how large the gradients of the class are in
its task.

B batch, C classes, K channels of the teacher, H W pixels, N pixels, G groups.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE
from fiss.losses.compensation import EPSILON, Balance
from fiss.losses.segmentation import wide
from fiss.ops.scatter import means

LEAST = 1e-35
"""Smallest prototype: one over it still fits into float32. A class is pulled back from up to 80 nats down."""
Target = Literal["moved", "divided"]


def relation_targets(teacher_CK: Tensor, how: Target) -> Tensor:
    """The relationship labels' prototypes, (C, C), from the teacher's.

    Relationship labels are the teacher's probabilities on the first K channels. At a pixel of a class that the
    teacher lacks, `moved` gives that class what the teacher called background; `divided` puts a 1 there, as the
    equation says, and divides by the sum. Either is the same for all pixels of a class, so it is done to the means.
    """
    channels, old = teacher_CK.shape
    target = F.pad(teacher_CK, (0, channels - old))
    one = torch.eye(channels, dtype=target.dtype, device=target.device)[old:]
    if how == "divided":
        new = (target[old:] + one) / 2
    else:
        new = target[old:] + target[old:, :1] * one
        new = torch.cat([torch.zeros_like(new[:, :1]), new[:, 1:]], 1)
    return torch.cat([target[:old], new])


def relation_consistency(
    sums_CC: Tensor, teacher_sums_CK: Tensor, balance: Balance, how: Target, most: float, background: bool
) -> Tensor:
    """Equation 9: sum over the classes present of weight * KL(target prototype, prototype), by their number.

    From the sums of the probabilities of student and teacher over the pixels of each class.

    The weight of a class is the mean gradient of its pixels by that of its group's, at most `most`; it carries no
    gradient.
    """
    count_C1 = balance.count_C.clamp(min=1)[:, None]
    prototype_CC = sums_CC / count_C1
    target_CC = relation_targets(teacher_sums_CK.detach() / count_C1, how)
    divergence_C = (torch.xlogy(target_CC, target_CC) - target_CC * prototype_CC.clamp(min=LEAST).log()).sum(1)
    first = 0 if background else BACKGROUND + 1
    present = balance.count_C[first:] > 0
    weight = (balance.class_C / (balance.group_C + EPSILON)).clamp(max=most)[first:]
    terms = torch.where(present, weight * divergence_C[first:], torch.zeros_like(weight))
    return terms.sum() / present.sum().clamp(min=1)


def published_confidence(
    log_p_BCHW: Tensor, teacher_log_p_BKHW: Tensor, labels_BHW: Tensor, weights_BHW: Tensor
) -> Tensor:
    """Published: mean over classes of |v a - v b|; a and b are mean confidences, v the mean weight of the class's
    pixels.

    a runs over the pixels that the student calls k, b over those labelled k (the teacher's confidence there); each is
    0 for a class without such pixels. Only a carries a gradient.
    """
    channels = log_p_BCHW.shape[1]
    confidence, called = log_p_BCHW.max(1)
    labels = labels_BHW.long().flatten()
    a, _ = means(confidence.exp().flatten(), called.flatten(), channels)
    b, _ = means(teacher_log_p_BKHW.detach().amax(1).exp().flatten(), labels, channels)
    v, _ = means(weights_BHW.detach().flatten(), labels, channels)
    return (v * a - v * b).abs().mean()


def published_soft_labels(log_p_BCHW: Tensor, teacher_BKHW: Tensor, labels_BHW: Tensor) -> Tensor:
    """Published: -mean over pixels and channels of softmax(t) * log p.

    t is the one-hot label (nothing where ignored) with the teacher's sigmoids on the first K channels of every pixel.
    """
    teacher = wide(teacher_BKHW).detach().sigmoid()
    valid = labels_BHW != IGNORE
    place = torch.where(valid, labels_BHW, torch.zeros_like(labels_BHW)).long()[:, None]
    one_hot = torch.zeros_like(log_p_BCHW).scatter_(1, place, valid[:, None].to(log_p_BCHW.dtype))
    target = torch.cat([teacher, one_hot[:, teacher.shape[1] :]], 1).softmax(1)
    return -(target * log_p_BCHW).mean()


def published_entropy_term(log_p_BCHW: Tensor) -> Tensor:
    """Published: -mean over pixels and channels of p ln p; here finite where p is 0."""
    return -(log_p_BCHW.exp() * log_p_BCHW).mean()
