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


def logit_distillation(log_p_BCHW: Tensor, teacher_log_p_BKHW: Tensor) -> Tensor:
    """LwF: -mean over pixels and the K old channels of p(teacher) * log p(student), the student's old channels taken
    alone."""
    teacher = teacher_log_p_BKHW.detach()
    return -(teacher.exp() * log_p_BCHW[:, : teacher.shape[1]].log_softmax(1)).mean()


def feature_distillation(student_BDhw: Tensor, teacher_BDhw: Tensor) -> Tensor:
    """ILT: mean squared difference of two feature maps."""
    return F.mse_loss(wide(student_BDhw), wide(teacher_BDhw).detach())


def unbiased_cross_entropy(
    log_p_BCHW: Tensor, labels_BHW: Tensor, old: int, over: Over = "all", without: tuple[int, ...] = ()
) -> Tensor:
    """MiB: cross-entropy in which "background" means background or any of the `old` channels, except those in
    `without`."""
    labels = labels_BHW.long()
    own_BHW = log_p_BCHW.gather(1, labels.clamp(max=log_p_BCHW.shape[1] - 1)[:, None])[:, 0]
    meant = log_p_BCHW[:, : max(old, 1)]
    if without:
        meant = torch.cat([meant[:, k : k + 1] for k in range(meant.shape[1]) if k not in without], 1)
    chosen = torch.where(labels == BACKGROUND, meant.logsumexp(1), own_BHW)
    return pixel_mean(torch.where(labels == IGNORE, torch.zeros_like(chosen), -chosen), labels, over)


def unbiased_distillation(log_p_BCHW: Tensor, teacher_log_p_BKHW: Tensor) -> Tensor:
    """MiB: the teacher's background is matched by the student's background and new channels together; mean over K."""
    teacher = teacher_log_p_BKHW.detach()
    old = teacher.shape[1]
    merged = torch.cat([log_p_BCHW[:, :1], log_p_BCHW[:, old:]], 1).logsumexp(1, keepdim=True)
    return -(teacher.exp() * torch.cat([merged, log_p_BCHW[:, BACKGROUND + 1 : old]], 1)).mean()
