"""Sums over pixels by class or bin, without a loop and without waiting for the device.

B batch, C classes, D values of a pixel, H W pixels, N pixels in any arrangement.
"""

import math
from typing import Any

import torch
from torch import Tensor

COPIES = 64
"""On a GPU neighbouring pixels add to different copies of the result: additions to one address wait for each other."""
ROWS = 8
"""Rows of an image that are multiplied at a time: enough pieces to fill a GPU."""


def add_up(index_N: Tensor, size: int, values_N: Tensor | None = None) -> Tensor:
    """Sum of the values with each index, (size,); without values, how many there are."""
    index = index_N.long()
    copies = COPIES if index.is_cuda else 1
    if copies > 1:
        index = index + torch.arange(len(index), device=index.device) % copies * size
    values = torch.ones_like(index) if values_N is None else values_N
    total = torch.zeros(copies * size, dtype=values.dtype, device=index.device).scatter_add_(0, index, values)
    return total.view(copies, size).sum(0)


def means(values_N: Tensor, index_N: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean of the values with each index, 0 where there are none; and how many there are. Indices from `size` on do
    not count."""
    index = index_N.clamp(max=size)
    counts = add_up(index, size + 1)[:size]
    return add_up(index, size + 1, values_N)[:size] / counts.clamp(min=1), counts


def class_sums(values_BDHW: Tensor, labels_BHW: Tensor, classes: int) -> Tensor:
    """Sum of the values of each class's pixels, (C, D); labels from `classes` on do not count.

    Half-precision values are multiplied as they are and added in float32.
    """
    result: Tensor = _ClassSums.apply(values_BDHW, labels_BHW, classes)
    return result


class _ClassSums(torch.autograd.Function):
    """Membership times values; going back, every pixel takes the row of its class."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, labels: Tensor, classes: int) -> Tensor:
        ctx.save_for_backward(labels)
        ctx.dtype = values.dtype
        batch, width, height, _ = values.shape
        pieces = height // math.gcd(height, ROWS) if values.is_cuda else 1
        values = values.reshape(batch, width, pieces, -1).transpose(1, 2).reshape(batch * pieces, width, -1)
        member = labels.reshape(batch * pieces, 1, -1) == torch.arange(classes, device=labels.device)[:, None]
        if values.is_cuda and values.element_size() < 4:
            return torch.bmm(member.to(values.dtype), values.mT, out_dtype=torch.float32).sum(0)
        values = values if values.element_size() >= 4 else values.float()
        return torch.bmm(member.to(values.dtype), values.mT).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (labels,) = ctx.saved_tensors
        rows_DC = torch.nn.functional.pad(gradients[0].to(ctx.dtype), (0, 0, 0, 1)).T.contiguous()
        place = labels.clamp(max=rows_DC.shape[1] - 1).long()
        return rows_DC[:, place].transpose(0, 1), None, None
