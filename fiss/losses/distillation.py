"""Distillation on old channels: LwF's on logits, ILT's on features, MiB's with the background shift taken into
account.

B batch, C classes of the student, K channels of the teacher (K <= C), H W pixels, D feature channels. Channels from K
on are new to the teacher, whether or not the client has labels for them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE
from fiss.losses.segmentation import Over, pixel_mean, wide


def logit_distillation(student_BCHW: Tensor, teacher_BKHW: Tensor) -> Tensor:
    """LwF: -mean over pixels and the K old channels of softmax(teacher) * log softmax(student's old channels)."""
    teacher = wide(teacher_BKHW).detach()
    student = wide(student_BCHW)[:, : teacher.shape[1]]
    return -(teacher.softmax(1) * student.log_softmax(1)).mean()


def feature_distillation(student_BDhw: Tensor, teacher_BDhw: Tensor) -> Tensor:
    """ILT: mean squared difference of two feature maps."""
    return F.mse_loss(wide(student_BDhw), wide(teacher_BDhw).detach())


def unbiased_cross_entropy(logits_BCHW: Tensor, labels_BHW: Tensor, old: int, over: Over = "all") -> Tensor:
    """MiB: cross-entropy in which "background" means background or any of the `old` channels."""
    logits = wide(logits_BCHW)
    norm_BHW = logits.logsumexp(1)
    labels = labels_BHW.long()
    background = (labels < old) & (labels != IGNORE)
    target = labels.clamp(max=logits.shape[1] - 1)
    own_BHW = logits.gather(1, target[:, None])[:, 0]
    chosen = torch.where(background, logits[:, : max(old, 1)].logsumexp(1), own_BHW)
    loss = torch.where(labels == IGNORE, torch.zeros_like(norm_BHW), norm_BHW - chosen)
    return pixel_mean(loss, labels, over)


def unbiased_distillation(student_BCHW: Tensor, teacher_BKHW: Tensor) -> Tensor:
    """MiB: the teacher's background is matched by the student's background and new channels together; mean over K."""
    teacher = wide(teacher_BKHW).detach()
    student = wide(student_BCHW)
    old = teacher.shape[1]
    norm_B1HW = student.logsumexp(1, keepdim=True)
    merged = torch.cat([student[:, :1], student[:, old:]], 1).logsumexp(1, keepdim=True)
    log_p = torch.cat([merged, student[:, BACKGROUND + 1 : old]], 1) - norm_B1HW
    return -(teacher.softmax(1) * log_p).mean()
