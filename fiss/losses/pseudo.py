"""Adaptive class-balanced pseudo labels: a threshold of entropy per class (algorithm 1), labels (equation 2).

Thresholds come in three ways: exact, from all pixels at once; streamed, from a histogram that grows batch by batch, so
that no extra pass over the data is needed; and as published, from a coarse histogram read wrongly.

B batch, C classes, K channels of the teacher, H W pixels, N pixels in any arrangement, E edges of a histogram.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from fiss.labels import BACKGROUND
from fiss.ops.scatter import add_up

BINS = (2048, 6144)
"""The streamed histogram: bins below and above an entropy of 1e-7, spaced evenly in its logarithm. The first is for all
that float32 hardly tells from 0."""


def published_entropy(log_p_BKHW: Tensor, channels: int) -> Tensor:
    """The published code's: mean over channels, divided by ln K and by ln C, (B, H, W); at most 1 / (K ln C)."""
    p = log_p_BKHW.detach().exp()
    return -(p * (p + 1e-8).log()).mean(1) / (math.log(max(p.shape[1], 2)) * math.log(channels))


def exact_thresholds(entropy_N: Tensor, classes_N: Tensor, proportion: float, channels: int) -> Tensor:
    """Algorithm 1: of the sorted entropies of a class, the one at index floor(n * proportion), (K,).

    The index is kept within the list; a class without pixels gets -1 and so no pseudo labels.
    """
    by_entropy = entropy_N.argsort(stable=True)
    order = by_entropy[classes_N[by_entropy].argsort(stable=True)]
    counts = torch.bincount(classes_N, minlength=channels)
    index = torch.minimum((counts * proportion).long(), counts - 1) + counts.cumsum(0) - counts
    chosen = entropy_N[order][index.clamp(0, max(len(order) - 1, 0))] if len(order) else entropy_N.new_zeros(channels)
    return torch.where(counts > 0, chosen, chosen.new_full((), -1.0))


@lru_cache(maxsize=8)
def edges(channels: int, device: torch.device) -> Tensor:
    """Upper edges of the streamed histogram, (E,), each a float32; the last one is above the largest entropy there
    is."""
    top = math.log(max(channels, 2)) * (1 + 1e-5)
    low = torch.logspace(-37, -7, BINS[0] + 1, device=device, dtype=torch.float64)[:-1]
    high = torch.logspace(-7, math.log10(top), BINS[1], device=device, dtype=torch.float64)
    return torch.cat([low, high]).float().double()


def tally(entropy_N: Tensor, classes_N: Tensor, counted_N: Tensor, channels: int, edges_E: Tensor) -> Tensor:
    """Histogram of the entropies of the pixels that count, by class, (K, E)."""
    place = torch.bucketize(entropy_N.to(edges_E.dtype), edges_E, right=True).clamp(max=len(edges_E) - 1)
    cells = channels * len(edges_E)
    flat = torch.where(counted_N, classes_N * len(edges_E) + place, cells)  # one more cell for those that do not
    return add_up(flat, cells + 1)[:-1].view(channels, len(edges_E))


def streamed_thresholds(histogram_KE: Tensor, edges_E: Tensor, proportion: float | Tensor) -> Tensor:
    """The upper edge of the bin in which the asked proportion of a class is reached, (K,), -1 for one without pixels.

    What lies below is accepted: at least what was asked for, and equal entropies together.
    """
    cumulative_KE = histogram_KE.cumsum(1).double()
    total_K1 = cumulative_KE[:, -1:]
    place_K1 = torch.searchsorted(cumulative_KE, total_K1 * proportion).clamp(max=len(edges_E) - 1)
    return torch.where(total_K1 > 0, edges_E[place_K1], -1.0)[:, 0].float()


@lru_cache(maxsize=8)
def published_edges(device: torch.device) -> Tensor:
    """Upper edges of the published histogram: a hundred even bins on [0, 1]."""
    return torch.arange(1, 101, device=device, dtype=torch.float64) / 100


def published_thresholds(histogram_KE: Tensor, proportion: float) -> Tensor:
    """The published code's quantile of a hundred even bins, faults included, (K,).

    The running total adds the index of a bin instead of its count, so before bin b it is b (b - 1) / 2 whatever the
    data. A bin settles a class if the target lies between the total before it and that and its count; if none does, the
    last bin, mostly empty, makes it plus or minus infinity or NaN. A class without pixels has 0.
    """
    counts = histogram_KE.double()
    total = counts.sum(1, keepdim=True)
    target = total * proportion
    running = torch.arange(counts.shape[1] + 1, device=counts.device, dtype=torch.double)
    running = running * (running - 1) / 2
    settles = (running[:-1] <= target) & (running[:-1] + counts >= target)
    found = settles.any(1, keepdim=True)
    place = torch.where(found, settles.long().argmax(1, keepdim=True), counts.shape[1] - 1)
    before = torch.where(found, running[place], running[-1])
    value = (place + (target - before) / counts.gather(1, place)) / counts.shape[1]
    return torch.where(total > 0, value, torch.zeros_like(value))[:, 0].float()


def pseudo_labels(labels_BHW: Tensor, classes_BHW: Tensor, accepted_BHW: Tensor, rejected: int) -> Tensor:
    """Equation 2: background-labelled pixels take the teacher's class where accepted, `rejected` elsewhere."""
    offered = torch.where(accepted_BHW, classes_BHW.to(labels_BHW.dtype), torch.full_like(labels_BHW, rejected))
    return torch.where(labels_BHW == BACKGROUND, offered, labels_BHW)


def accepted_share(labels_BHW: Tensor, accepted_BHW: Tensor) -> Tensor:
    """PLOP's factor of each image, (B,): accepted background pixels by background pixels, 0 without any."""
    open_BHW = labels_BHW == BACKGROUND
    return (accepted_BHW & open_BHW).flatten(1).sum(1) / (open_BHW.flatten(1).sum(1) + 1e-6)


def offered_and_accepted(labels_BHW: Tensor, classes_BHW: Tensor, accepted_BHW: Tensor, channels: int) -> Tensor:
    """How many background-labelled pixels the teacher gives each class, and how many of them are accepted, (2, K)."""
    kind = torch.where(labels_BHW == BACKGROUND, 2 * classes_BHW + accepted_BHW, 2 * channels)
    rejected, accepted = add_up(kind.flatten(), 2 * channels + 1)[:-1].view(channels, 2).T
    return torch.stack([rejected + accepted, accepted])
