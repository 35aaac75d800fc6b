"""What losses need of full-size logits and of feature maps, as GPU kernels that read them once and keep nothing else.

Plain PyTorch computes the same (fiss/models/output.py, fiss/losses/pod.py), and is what runs on a CPU; there, a
softmax at full size is written and read again by every operation, which costs a GPU many times what it needs. Here a
program takes a block of pixels with all their channels into registers.

Logits are (B, C, H, W), contiguous; labels are bytes, 255 is ignored. Feature maps are channels last.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

IGNORE = tl.constexpr(255)
CELLS = 2**21
"""In which numbers are added up, all copies together."""


@triton.jit
def _load(logits, image, pixel, pixels, channels, C: tl.constexpr):
    """Logits of a block of pixels, (C, block), -inf beyond the last channel."""
    channel = tl.arange(0, C)
    at = logits + image.to(tl.int64) * channels * pixels + channel[:, None] * pixels + pixel[None, :]
    wanted = (channel < channels)[:, None]
    z = tl.load(at, mask=wanted & (pixel < pixels)[None, :], other=0.0).to(tl.float32)
    return tl.where(wanted, z, float("-inf"))


@triton.jit
def _log_sum(z):
    top = tl.max(z, 0)
    return top + tl.log(tl.sum(tl.exp(z - top[None, :]), 0))


@triton.jit
def _cross_entropy(logits, labels, out, pixels, channels, C: tl.constexpr, BLOCK: tl.constexpr):
    image, pixel = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = _load(logits, image, pixel, pixels, channels, C)
    place = image.to(tl.int64) * pixels + pixel
    label = tl.load(labels + place, mask=pixel < pixels, other=255).to(tl.int32)
    own = tl.sum(tl.where(tl.arange(0, C)[:, None] == label[None, :], z, 0.0), 0)
    tl.store(out + place, tl.where(label == IGNORE, 0.0, _log_sum(z) - own), mask=pixel < pixels)


@triton.jit
def _cross_entropy_back(logits, labels, upper, out, pixels, channels, C: tl.constexpr, BLOCK: tl.constexpr):
    image, pixel = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = _load(logits, image, pixel, pixels, channels, C)
    place = image.to(tl.int64) * pixels + pixel
    label = tl.load(labels + place, mask=pixel < pixels, other=255).to(tl.int32)
    up = tl.load(upper + place, mask=pixel < pixels, other=0.0)
    up = tl.where(label == IGNORE, 0.0, up)
    channel = tl.arange(0, C)
    p = tl.exp(z - _log_sum(z)[None, :])
    gradient = up[None, :] * (p - (channel[:, None] == label[None, :]).to(tl.float32))
    at = out + image.to(tl.int64) * channels * pixels + channel[:, None] * pixels + pixel[None, :]
    tl.store(at, gradient.to(out.dtype.element_ty), mask=(channel < channels)[:, None] & (pixel < pixels)[None, :])


@triton.jit
def _class_sums(
    logits, labels, out, pixels, channels, blocks, tiles, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Sums of the probabilities over the pixels of ROWS classes, of every tile that falls to this program."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, C), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        image, pixel = tile // blocks, (tile % blocks) * BLOCK + tl.arange(0, BLOCK)
        label = tl.load(labels + image.to(tl.int64) * pixels + pixel, mask=pixel < pixels, other=255).to(tl.int32)
        if (
            tl.sum((label // ROWS == tl.program_id(1)).to(tl.int32), 0) > 0
        ):  # else none of its pixels is of these classes
            z = _load(logits, image, pixel, pixels, channels, C)
            p = tl.exp(z - _log_sum(z)[None, :])
            member = (row[:, None] == label[None, :]).to(tl.float32)
            coarse = p.to(tl.bfloat16).to(
                tl.float32
            )  # the units multiply ten bits: what they would cut off comes after
            total += tl.dot(member, tl.trans(coarse), input_precision="tf32")
            total += tl.dot(member, tl.trans(p - coarse), input_precision="tf32")
    at = out + (tl.program_id(0) * tl.num_programs(1) * ROWS + row[:, None]) * C + tl.arange(0, C)[None, :]
    tl.store(at, total)


@triton.jit
def _both_back(logits, labels, upper, by_class, out, pixels, channels, classes, C: tl.constexpr, BLOCK: tl.constexpr):
    """Of cross-entropies, `upper` by pixel, and of sums by class, `by_class` (classes, channels): both gradients added,
    with the logits read and the result written once."""
    image, pixel = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = _load(logits, image, pixel, pixels, channels, C)
    place = image.to(tl.int64) * pixels + pixel
    label = tl.load(labels + place, mask=pixel < pixels, other=255).to(tl.int32)
    channel = tl.arange(0, C)
    p = tl.exp(z - _log_sum(z)[None, :])
    up = tl.load(upper + place, mask=pixel < pixels, other=0.0)
    up = tl.where(label == IGNORE, 0.0, up)
    gradient = up[None, :] * (p - (channel[:, None] == label[None, :]).to(tl.float32))
    wanted = (channel < channels)[:, None] & (label < classes)[None, :]
    row = tl.load(by_class + label[None, :] * channels + channel[:, None], mask=wanted, other=0.0)
    gradient += p * (row - tl.sum(p * row, 0)[None, :])
    at = out + image.to(tl.int64) * channels * pixels + channel[:, None] * pixels + pixel[None, :]
    tl.store(at, gradient.to(out.dtype.element_ty), mask=(channel < channels)[:, None] & (pixel < pixels)[None, :])


@triton.jit
def _entropy(logits, out, classes, pixels, channels, C: tl.constexpr, BLOCK: tl.constexpr):
    image, pixel = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = _load(logits, image, pixel, pixels, channels, C)
    log_p = z - _log_sum(z)[None, :]
    terms = tl.where(log_p > -80.0, tl.exp(log_p) * log_p, 0.0)
    place = image.to(tl.int64) * pixels + pixel
    tl.store(out + place, -tl.sum(terms, 0), mask=pixel < pixels)
    largest = tl.minimum(tl.argmax(z, 0).to(tl.int32), channels - 1)  # of what is no number, any
    tl.store(classes + place, largest, mask=pixel < pixels)


@triton.jit
def _strips(
    student, teacher, out, inner, length, stride, groups, group_stride, depth, LENGTH: tl.constexpr, D: tl.constexpr
):
    """Mean of student^2 - teacher^2 over a run of `length` positions `stride` apart, for D channels.

    Run number r begins at (r // inner // groups) * whole + (r // inner % groups) * group_stride + r % inner * depth,
    whole being all groups' extent.
    """
    run, channel = tl.program_id(0), tl.program_id(1) * D + tl.arange(0, D)
    outer = run // inner
    start = (
        (outer // groups).to(tl.int64) * groups * group_stride + (outer % groups) * group_stride + run % inner * depth
    )
    total = tl.zeros((D,), tl.float32)
    for first in range(0, length, LENGTH):
        position = first + tl.arange(0, LENGTH)
        at = start + position[:, None].to(tl.int64) * stride + channel[None, :]
        wanted = (position < length)[:, None] & (channel < depth)[None, :]
        s = tl.load(student + at, mask=wanted, other=0.0).to(tl.float32)
        t = tl.load(teacher + at, mask=wanted, other=0.0).to(tl.float32)
        total += tl.sum((s - t) * (s + t), 0)
    tl.store(out + run.to(tl.int64) * depth + channel, total / length, mask=channel < depth)


@triton.jit
def _strips_back(student, rows, columns, out, height, width, scale, depth, WIDE: tl.constexpr, D: tl.constexpr):
    """The gradient of one line of one image: 2 student (row's / strip's width + column's / strip's height)."""
    line, channel = tl.program_id(0), tl.program_id(1) * D + tl.arange(0, D)
    image, y = line // height, line % height
    across, down = width // scale, height // scale
    for first in range(0, width, WIDE):
        x = first + tl.arange(0, WIDE)
        wanted = (x < width)[:, None] & (channel < depth)[None, :]
        at = (line.to(tl.int64) * width + x[:, None]) * depth + channel[None, :]
        s = tl.load(student + at, mask=wanted, other=0.0).to(tl.float32)
        in_row = (line.to(tl.int64) * scale + (x // across)[:, None]) * depth + channel[None, :]
        in_column = ((image.to(tl.int64) * scale + y // down) * width + x[:, None]) * depth + channel[None, :]
        by_row = tl.load(rows + in_row, mask=wanted, other=0.0) * (2.0 / across)
        by_column = tl.load(columns + in_column, mask=wanted, other=0.0) * (2.0 / down)
        tl.store(out + at, (s * (by_row + by_column)).to(out.dtype.element_ty), mask=wanted)


@triton.jit
def _add_up(index, values, out, count, size, copies, VALUED: tl.constexpr, BLOCK: tl.constexpr):
    """Adds 1, or the value, to the cell of each index, in one of many copies of the cells: neighbours in different
    ones, since additions to one address wait for each other."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = at < count
    place = tl.load(index + at, mask=wanted, other=0).to(tl.int32)
    wanted = wanted & (place >= 0) & (place < size)
    cell = out + (at % copies) * size + place
    if VALUED:
        tl.atomic_add(cell, tl.load(values + at, mask=wanted, other=0), mask=wanted, sem="relaxed")
    else:
        tl.atomic_add(cell, tl.full((BLOCK,), 1, tl.int32), mask=wanted, sem="relaxed")


def _grid(logits: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs over pixels and images, and how large each is."""
    batch, channels, height, width = logits.shape
    c = max(triton.next_power_of_2(channels), 16)
    cells, warps = (2048, 2) if c <= 64 else (4096, 4)  # the fastest of those tried
    block = max(cells // c, 16)
    return (triton.cdiv(height * width, block), batch), {"C": c, "BLOCK": block, "num_warps": warps}


class CrossEntropy(torch.autograd.Function):
    """-log p(label) of each pixel, 0 where ignored, (B, H, W)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels = logits.contiguous(), labels.contiguous()
        ctx.save_for_backward(logits, labels)
        out = torch.empty(labels.shape, dtype=torch.float32, device=logits.device)
        grid, sizes = _grid(logits)
        _cross_entropy[grid](logits, labels, out, labels[0].numel(), logits.shape[1], **sizes)
        return out

    @staticmethod
    def backward(ctx: Any, *upper: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        out = torch.empty_like(logits)
        grid, sizes = _grid(logits)
        up = upper[0].contiguous()
        _cross_entropy_back[grid](logits, labels, up, out, labels[0].numel(), logits.shape[1], **sizes)
        return out, None


def class_sums(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sum of the probabilities over the pixels of each class, (classes, C); no gradient."""
    logits, labels = logits.detach().contiguous(), labels.contiguous()
    (blocks, batch), sizes = _grid(logits)
    rows = min(max(triton.next_power_of_2(classes), 16), 64)
    pieces = triton.cdiv(classes, rows)
    programs = min(blocks * batch, 512 // pieces)
    parts = torch.empty(programs, pieces * rows, sizes["C"], dtype=torch.float32, device=logits.device)
    channels, pixels = logits.shape[1], labels[0].numel()
    _class_sums[(programs, pieces)](logits, labels, parts, pixels, channels, blocks, blocks * batch, ROWS=rows, **sizes)
    return parts.sum(0)[:classes, :channels].contiguous()


class CrossEntropyAndSums(torch.autograd.Function):
    """-log p(label) of each pixel, and the sums of the probabilities over the pixels of each class, (classes, C)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        logits, labels = logits.contiguous(), labels.contiguous()
        ctx.save_for_backward(logits, labels)
        out = torch.empty(labels.shape, dtype=torch.float32, device=logits.device)
        grid, sizes = _grid(logits)
        _cross_entropy[grid](logits, labels, out, labels[0].numel(), logits.shape[1], **sizes)
        return out, class_sums(logits, labels, classes)

    @staticmethod
    def backward(ctx: Any, *upper: Tensor) -> tuple[Tensor, None, None]:
        logits, labels = ctx.saved_tensors
        out = torch.empty_like(logits)
        grid, sizes = _grid(logits)
        up, rows = (tensor.contiguous() for tensor in upper)
        _both_back[grid](logits, labels, up, rows, out, labels[0].numel(), logits.shape[1], len(rows), **sizes)
        return out, None, None


class AddUp(torch.autograd.Function):
    """Sum of the values with each index, (size,); without values, how many there are."""

    @staticmethod
    def forward(ctx: Any, index: Tensor, size: int, values: Tensor | None) -> Tensor:
        index = index.contiguous()
        ctx.save_for_backward(index)
        copies = min(max(CELLS // size, 8), 1024)
        kind = torch.int32 if values is None else values.dtype
        out = torch.zeros(copies, size, dtype=kind, device=index.device)
        given = index if values is None else values.contiguous()
        _add_up[(triton.cdiv(len(index), 1024),)](
            index, given, out, len(index), size, copies, VALUED=values is not None, BLOCK=1024
        )
        return out.sum(0)

    @staticmethod
    def backward(ctx: Any, *upper: Tensor) -> tuple[None, None, Tensor]:
        (index,) = ctx.saved_tensors
        return None, None, upper[0][index.int()]


def entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """-sum p ln p of each pixel, and its most probable channel, (B, H, W) each; no gradient."""
    logits = logits.detach().contiguous()
    shape = (logits.shape[0], *logits.shape[2:])
    out = torch.empty(shape, dtype=torch.float32, device=logits.device)
    classes = torch.empty(shape, dtype=torch.int32, device=logits.device)
    grid, sizes = _grid(logits)
    _entropy[grid](logits, out, classes, out[0].numel(), logits.shape[1], **sizes)
    return out, classes


class Strips(torch.autograd.Function):
    """Of the difference of two squared maps: means over the rows, (B, h, scale, D), and the columns, (B, scale, w, D),
    of scale x scale equal regions."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, scale: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(student)
        ctx.scale = scale
        batch, depth, height, width = student.shape
        across, down = width // scale, height // scale
        rows = torch.empty(batch, height, scale, depth, dtype=torch.float32, device=student.device)
        columns = torch.empty(batch, scale, width, depth, dtype=torch.float32, device=student.device)
        block = min(triton.next_power_of_2(depth), 128)
        sizes = {"LENGTH": 16, "D": block, "num_warps": 2}
        many = triton.cdiv(depth, block)
        # A run of a row: neighbours; runs of one line follow each other. A run of a column: one line apart.
        _strips[(batch * height * scale, many)](
            student, teacher, rows, 1, across, depth, scale, across * depth, depth, **sizes
        )
        _strips[(batch * scale * width, many)](
            student, teacher, columns, width, down, width * depth, scale, down * width * depth, depth, **sizes
        )
        return rows, columns

    @staticmethod
    def backward(ctx: Any, *upper: Tensor) -> tuple[Tensor, None, None]:
        (student,) = ctx.saved_tensors
        batch, depth, height, width = student.shape
        out = torch.empty_like(student)  # channels last, as the student's map
        block = min(triton.next_power_of_2(depth), 128)
        by_row, by_column = (tensor.contiguous() for tensor in upper)
        _strips_back[(batch * height, triton.cdiv(depth, block))](
            student, by_row, by_column, out, height, width, ctx.scale, depth, WIDE=16, D=block
        )
        return out, None, None
