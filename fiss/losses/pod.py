"""Pooled outputs of feature maps, and how far student and teacher are apart in them: PLOP's local POD, RCIL's pooled
cubes.

B batch, D channels of a map, h w its size. Every function gives one number per image, (B,). Distances are norms whose
gradient at zero is zero, so a student equal to its teacher is left in peace.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fiss.losses.segmentation import wide
from fiss.ops.scatter import has_kernels

SCALES = (1, 2, 4)
KERNELS = (4, 8, 12, 16, 20, 24)


def fold_logits(small_BChw: Tensor, old: int) -> Tensor:
    """The student's logits as the teacher's classes: channel 0 takes the sum of the background's and all new ones."""
    return torch.cat([small_BChw[:, :1] + small_BChw[:, old:].sum(1, keepdim=True), small_BChw[:, 1:old]], 1)


def local_pod(student_BDhw: Tensor, teacher_BDhw: Tensor, scales: Sequence[int] = SCALES) -> Tensor:
    """Norm of the difference of strip means of the squared maps, over scale x scale regions of each map."""
    height, width = student_BDhw.shape[-2:]
    scales = [scale for scale in scales if scale <= min(height, width)]  # a smaller map has no such regions
    finest = max(scales)
    total = torch.zeros((), dtype=wide(student_BDhw).dtype, device=student_BDhw.device)
    if height % finest == 0 and width % finest == 0 and all(finest % scale == 0 for scale in scales):
        rows, columns = strips(student_BDhw, teacher_BDhw, finest)  # the maps are read once: coarser strips are means
        for scale in scales:
            batch, _, _, depth = rows.shape
            coarser = (
                rows.reshape(batch, height, scale, finest // scale, depth).mean(3),
                columns.reshape(batch, scale, finest // scale, width, depth).mean(2),
            )
            total = total + sum(part.square().sum((1, 2, 3)) for part in coarser)
    else:
        for scale in scales:
            total = total + sum(part.square().sum((1, 2, 3)) for part in strips(student_BDhw, teacher_BDhw, scale))
    return safe_root(total)


def strips(student_BDhw: Tensor, teacher_BDhw: Tensor, scale: int) -> tuple[Tensor, Tensor]:
    """Of the difference of the squared maps, cut to scale x scale equal regions: the mean of each region's rows, (B, h,
    scale, D), and columns, (B, scale, w, D). What does not fit is cut off."""
    maps = student_BDhw, teacher_BDhw.detach()
    fit = all(side % scale == 0 for side in student_BDhw.shape[-2:])
    if fit and all(has_kernels(m) and m.is_contiguous(memory_format=torch.channels_last) for m in maps):
        from fiss.ops.kernels import Strips

        rows, columns = Strips.apply(*maps, scale)
    else:
        rows, columns = _Strips.apply(*maps, scale)
    return rows, columns


class _Strips(torch.autograd.Function):
    """Keeps the student's map as it is, in half precision too; squares and differences are not kept."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(student)
        ctx.scale = scale
        batch, depth, height, width = (*student.shape[:2], student.shape[2] // scale, student.shape[3] // scale)
        s, t = (m[..., : scale * height, : scale * width].permute(0, 2, 3, 1) for m in (student, teacher))
        difference = (wide(s) - t) * (wide(s) + t)
        by_row = difference.reshape(batch, scale * height, scale, width, depth).mean(3)
        by_column = difference.reshape(batch, scale, height, scale * width, depth).mean(2)
        return by_row, by_column

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (student,) = ctx.saved_tensors
        scale, (batch, depth, full_height, full_width) = ctx.scale, student.shape
        height, width = full_height // scale, full_width // scale
        s = student[..., : scale * height, : scale * width].permute(0, 2, 3, 1)
        s = s.reshape(batch, scale, height, scale, width, depth)
        by_row = gradients[0].reshape(batch, scale, height, scale, 1, depth) * (2 / width)
        by_column = gradients[1].reshape(batch, scale, 1, scale, width, depth) * (2 / height)
        gradient = ((by_row + by_column) * s).to(student.dtype)
        gradient = gradient.reshape(batch, scale * height, scale * width, depth).permute(0, 3, 1, 2)
        return F.pad(gradient, (0, full_width - scale * width, 0, full_height - scale * height)), None, None


def spatial_cube(student_BDhw: Tensor, teacher_BDhw: Tensor, kernels: Sequence[int] = KERNELS) -> Tensor:
    """Norm of the difference of the squared maps averaged over windows of several sizes, mean over the sizes."""
    norms: Tensor = _WindowNorms.apply(_squared_difference(student_BDhw, teacher_BDhw).contiguous(), tuple(kernels))
    return norms


class _WindowNorms(torch.autograd.Function):
    """Averaging over windows is a product with a matrix A from each side of a map X, so the squared norm of what comes
    out is the sum of X * (A^T A X A^T A); and half its gradient is the second factor, which is there already."""

    @staticmethod
    def forward(ctx: Any, map_BDhw: Tensor, kernels: tuple[int, ...]) -> Tensor:
        gradient, norms = torch.zeros_like(map_BDhw), []
        for kernel in kernels:
            down, across = (_windows(side, kernel, map_BDhw.device, map_BDhw.dtype) for side in map_BDhw.shape[-2:])
            twice = down @ map_BDhw @ across
            norms.append(safe_root((map_BDhw * twice).sum((1, 2, 3))))
            inverse = torch.where(norms[-1] > 0, 1 / norms[-1], torch.zeros_like(norms[-1]))
            gradient.addcmul_(twice, inverse[:, None, None, None], value=1 / len(kernels))
        ctx.save_for_backward(gradient)
        return torch.stack(norms).mean(0)

    @staticmethod
    def backward(ctx: Any, *upper: Tensor) -> tuple[Tensor, None]:
        return upper[0][:, None, None, None] * ctx.saved_tensors[0], None


@lru_cache(maxsize=64)
def _windows(side: int, kernel: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A^T A of the averages over windows along one side, with zeros around it."""
    a = F.avg_pool1d(torch.eye(side, device=device, dtype=torch.float64)[None], kernel, 1, kernel // 2)[0].T
    return (a.T @ a).to(dtype)


def channel_cube(student_BDhw: Tensor, teacher_BDhw: Tensor) -> Tensor:
    """Norm of the difference of the squared maps averaged over three neighbouring channels at each position."""
    difference = _squared_difference(student_BDhw, teacher_BDhw)
    padded = F.pad(difference, (0, 0, 0, 0, 1, 1))
    return safe_root(((padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3).square().sum((1, 2, 3)))


def _squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    return wide(student).square() - wide(teacher).detach().square()


def safe_root(total_B: Tensor) -> Tensor:
    """Square root whose gradient is zero at zero; what is no number stays none."""
    positive = ~(total_B <= 0)
    return torch.where(positive, total_B, torch.ones_like(total_B)).sqrt() * positive
