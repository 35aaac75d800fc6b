"""Pooled outputs of feature maps, and how far student and teacher are apart in them: PLOP's local POD, RCIL's pooled
cubes.

B batch, D channels of a map, h w its size. Every function gives one number per image, (B,). Distances are norms whose
gradient at zero is zero, so a student equal to its teacher is left in peace.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fiss.losses.segmentation import wide

SCALES = (1, 2, 4)
KERNELS = (4, 8, 12, 16, 20, 24)


def fold_logits(small_BChw: Tensor, old: int) -> Tensor:
    """The student's logits as the teacher's classes: channel 0 takes the sum of the background's and all new ones."""
    return torch.cat([small_BChw[:, :1] + small_BChw[:, old:].sum(1, keepdim=True), small_BChw[:, 1:old]], 1)


def local_pod(student_BDhw: Tensor, teacher_BDhw: Tensor, scales: Sequence[int] = SCALES) -> Tensor:
    """Norm of the difference of strip means of the squared maps, over scale x scale regions of each map."""
    difference = _squared_difference(student_BDhw, teacher_BDhw)
    parts = []
    for scale in scales:
        height, width = difference.shape[-2] // scale, difference.shape[-1] // scale
        if height == 0 or width == 0:
            continue  # a map smaller than the scale has no such regions
        regions = difference[..., : scale * height, : scale * width]
        regions = regions.reshape(*regions.shape[:2], scale, height, scale, width)
        parts += [regions.mean(5).flatten(1), regions.mean(3).flatten(1)]
    return safe_norm(torch.cat(parts, 1))


def spatial_cube(student_BDhw: Tensor, teacher_BDhw: Tensor, kernels: Sequence[int] = KERNELS) -> Tensor:
    """Norm of the difference of the squared maps averaged over windows of several sizes, mean over the sizes."""
    difference = _squared_difference(student_BDhw, teacher_BDhw)
    pooled = (F.avg_pool2d(difference, kernel, 1, kernel // 2) for kernel in kernels)
    return torch.stack([safe_norm(part.flatten(1)) for part in pooled]).mean(0)


def channel_cube(student_BDhw: Tensor, teacher_BDhw: Tensor) -> Tensor:
    """Norm of the difference of the squared maps averaged over three neighbouring channels at each position."""
    difference = _squared_difference(student_BDhw, teacher_BDhw)
    padded = F.pad(difference, (0, 0, 0, 0, 1, 1))
    return safe_norm(((padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3).flatten(1))


def _squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    return wide(student).square() - wide(teacher).detach().square()


def safe_norm(vectors_BN: Tensor) -> Tensor:
    """Euclidean norm of each row; its gradient is zero where the norm is."""
    total = vectors_BN.square().sum(1)
    positive = total > 0
    return torch.where(positive, total, torch.ones_like(total)).sqrt() * positive
