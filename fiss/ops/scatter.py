"""Sums over pixels by class or bin, without a loop and without waiting for the device; and whether a GPU has kernels
for more.

B batch, C classes, D values of a pixel, H W pixels, N pixels in any arrangement.
"""

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def has_kernels(tensor: Tensor) -> bool:
    """Whether the kernels of fiss/ops/kernels.py serve this tensor: it is on a GPU, and Triton works there."""
    return tensor.is_cuda and _works(tensor.device)


@cache
def _works(device: torch.device) -> bool:
    """Tries one: an old GPU, or a machine without a compiler, is served by plain PyTorch."""
    if find_spec("triton") is None:
        return False
    from fiss.ops.kernels import entropy

    try:
        with torch.inference_mode(False):
            entropy(torch.zeros(1, 2, 1, 1, device=device))
    except Exception as error:  # whatever Triton raises, it is not for a run to die of
        warnings.warn(f"GPU kernels do not work here, plain PyTorch is slower ({error}).", stacklevel=2)
        return False
    return True


def add_up(index_N: Tensor, size: int, values_N: Tensor | None = None) -> Tensor:
    """Sum of the values with each index, (size,); without values, how many there are."""
    if has_kernels(index_N):
        from fiss.ops.kernels import AddUp

        added: Tensor = AddUp.apply(index_N, size, values_N)
        return added
    values = torch.ones_like(index_N, dtype=torch.long) if values_N is None else values_N
    wide = values.double() if values.is_floating_point() else values  # one by one, float32 stops growing
    return (
        torch.zeros(size, dtype=wide.dtype, device=wide.device).scatter_add_(0, index_N.long(), wide).to(values.dtype)
    )


def means(values_N: Tensor, index_N: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean of the values with each index, 0 where there are none; and how many there are. Indices from `size` on do
    not count."""
    index = index_N.clamp(max=size)
    counts = add_up(index, size + 1)[:size]
    return add_up(index, size + 1, values_N)[:size] / counts.clamp(min=1), counts


def class_sums(values_BDHW: Tensor, labels_BHW: Tensor, classes: int) -> Tensor:
    """Sum of the values of each class's pixels, (classes, D); labels from `classes` on do not count."""
    result: Tensor = _ClassSums.apply(values_BDHW, labels_BHW, classes)
    return result


class _ClassSums(torch.autograd.Function):
    """Membership times values; going back, every pixel takes the row of its class."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, labels: Tensor, classes: int) -> Tensor:
        ctx.save_for_backward(labels)
        member = labels.flatten(1)[:, None] == torch.arange(classes, device=labels.device)[:, None]
        return torch.bmm(member.to(values.dtype), values.flatten(2).mT).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (labels,) = ctx.saved_tensors
        rows_DC = torch.nn.functional.pad(gradients[0], (0, 0, 0, 1)).T.contiguous()
        place = labels.clamp(max=rows_DC.shape[1] - 1).int()
        return rows_DC[:, place].transpose(0, 1), None, None
