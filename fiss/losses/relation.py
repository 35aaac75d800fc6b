"""Forgetting-balanced relation consistency, equations 7 to 9, and the three terms the published code has in its
place.

The relations of a class are its prototype: the mean of the predicted distributions over its pixels. They are compared
with the mean of target distributions made from the teacher, weighted by how large the gradients of the class are in
its task.

B batch, C classes, K channels of the teacher, H W pixels, N pixels, G groups.
"""

from typing import Literal

import torch
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE, LabelSpace
from fiss.losses.compensation import EPSILON, group_table, means
from fiss.losses.segmentation import wide

Target = Literal["moved", "divided"]


def relation_targets(teacher_BKHW: Tensor, labels_BHW: Tensor, channels: int, how: Target) -> Tensor:
    """The relationship label as a distribution, (B, C, H, W).

    The teacher's probabilities on the first K channels. At a pixel of a class the teacher lacks, `moved` gives that
    class what the teacher called background; `divided` puts a 1 there, as the equation says, and divides by the sum.
    """
    teacher = wide(teacher_BKHW).detach().softmax(1)
    old = teacher.shape[1]
    target = torch.cat([teacher, teacher.new_zeros(teacher.shape[0], channels - old, *teacher.shape[2:])], 1)
    is_new = ((labels_BHW >= old) & (labels_BHW != IGNORE))[:, None]
    place = torch.where(is_new[:, 0], labels_BHW, torch.zeros_like(labels_BHW)).long()[:, None]
    if how == "divided":
        one_hot = torch.zeros_like(target).scatter_(1, place, is_new.to(target.dtype))
        return (target + one_hot) / (1 + is_new.to(target.dtype))
    background = target[:, :1]
    kept = torch.cat([torch.where(is_new, torch.zeros_like(background), background), target[:, 1:]], 1)
    return kept.scatter_add(1, place, torch.where(is_new, background, torch.zeros_like(background)))


def relation_consistency(
    logits_BCHW: Tensor,
    target_BCHW: Tensor,
    labels_BHW: Tensor,
    gradients_BHW: Tensor,
    label_space: LabelSpace,
    most: float,
    background: bool,
) -> Tensor:
    """Equation 9: sum over the classes present of weight * KL(target prototype, prototype), by their number.

    The weight of a class is the mean gradient of its pixels by that of its task's, at most `most`; it carries no
    gradient.
    """
    channels = logits_BCHW.shape[1]
    p = wide(logits_BCHW).softmax(1)
    labels = labels_BHW.long().flatten()
    member_CN = (labels == torch.arange(channels, device=labels.device)[:, None]).to(p.dtype)
    count_C = member_CN.sum(1)
    share_CN = member_CN / count_C.clamp(min=1)[:, None]
    prototype_CC = share_CN @ p.transpose(0, 1).flatten(1).T
    target_CC = share_CN @ target_BCHW.transpose(0, 1).flatten(1).T.to(p.dtype)
    divergence_C = (torch.xlogy(target_CC, target_CC) - target_CC * prototype_CC.clamp(min=1e-12).log()).sum(1)
    present = count_C > 0
    if not background:
        present = present & (torch.arange(channels, device=labels.device) != BACKGROUND)
    weight_C = _class_weights(gradients_BHW, labels_BHW, label_space, channels, most)
    terms = torch.where(present, weight_C * divergence_C, torch.zeros_like(divergence_C))
    return terms.sum() / present.sum().clamp(min=1)


def _class_weights(
    gradients: Tensor, labels_BHW: Tensor, label_space: LabelSpace, channels: int, most: float
) -> Tensor:
    labels, values = labels_BHW.long().flatten(), gradients.flatten()
    table = group_table(label_space, labels.device)
    by_class, _ = means(values, labels, channels)
    by_group, _ = means(values, table[labels], len(label_space.groups) + 1)
    return (by_class / (by_group[table[:channels]] + EPSILON)).clamp(max=most).detach()


def published_confidence(logits_BCHW: Tensor, teacher_BKHW: Tensor, labels_BHW: Tensor, weights_BHW: Tensor) -> Tensor:
    """Published: mean over classes of |v a - v b|; a and b are mean confidences, v the mean weight of the class's
    pixels.

    a runs over the pixels that the student calls k, b over those labelled k (the teacher's confidence there); each is
    0 for a class without such pixels. Only a carries a gradient.
    """
    channels = logits_BCHW.shape[1]
    confidence, called = wide(logits_BCHW).softmax(1).max(1)
    labels = labels_BHW.long().flatten()
    a, _ = means(confidence.flatten(), called.flatten(), channels)
    b, _ = means(wide(teacher_BKHW).detach().softmax(1).amax(1).flatten(), labels, channels)
    v, _ = means(weights_BHW.detach().flatten(), labels, channels)
    return (v * a - v * b).abs().mean()


def published_soft_labels(logits_BCHW: Tensor, teacher_BKHW: Tensor, labels_BHW: Tensor) -> Tensor:
    """Published: -mean over pixels and channels of softmax(t) * log softmax(z).

    t is the one-hot label (nothing where ignored) with the teacher's sigmoids on the first K channels of every pixel.
    """
    z, teacher = wide(logits_BCHW), wide(teacher_BKHW).detach().sigmoid()
    valid = labels_BHW != IGNORE
    place = torch.where(valid, labels_BHW, torch.zeros_like(labels_BHW)).long()[:, None]
    one_hot = torch.zeros_like(z).scatter_(1, place, valid[:, None].to(z.dtype))
    target = torch.cat([teacher, one_hot[:, teacher.shape[1] :]], 1).softmax(1)
    return -(target * z.log_softmax(1)).mean()


def published_entropy_term(logits_BCHW: Tensor) -> Tensor:
    """Published: -mean over pixels and channels of p ln p; here finite where p is 0."""
    log_p = wide(logits_BCHW).log_softmax(1)
    return -(log_p.exp() * log_p).mean()
