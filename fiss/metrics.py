"""From a confusion matrix to the numbers people read, all in percent.

The published definition: IoU_c = hits / (row + column - hits + 1e-6), and means run over the classes that the ground
truth holds. The paper's "old" and "base" classes count the background, so each mean comes with and without it.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE, LabelSpace
from fiss.sums import add_up

Scores = dict[str, float | None]


def confusion(predicted_BHW: Tensor, labels_BHW: Tensor, channels: int) -> Tensor:
    """Pixels by true and predicted channel, (C, C); ignored pixels are left out. Stays on the device."""
    valid = labels_BHW != IGNORE
    pairs = labels_BHW.long() * channels + predicted_BHW.long()
    pairs = torch.where(valid, pairs, channels * channels)  # one more bin for the ignored: no sync as a mask would need
    return add_up(pairs.flatten(), channels * channels + 1)[:-1].view(channels, channels)


def iou(matrix_CC: Tensor) -> list[float | None]:
    """IoU by channel in percent; None for a class that the ground truth does not hold."""
    matrix = matrix_CC.double().cpu()
    hits, rows, columns = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    values = 100 * hits / (rows + columns - hits + 1e-6)
    return [float(v) if n else None for v, n in zip(values, rows, strict=True)]


def mean(values: Iterable[float | None]) -> float | None:
    """Mean over the classes there are."""
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None


def to_background(matrix_CC: Tensor) -> list[float | None]:
    """Share of each channel's pixels that are called background, in percent; None for a class without any."""
    matrix = matrix_CC.double().cpu()
    rows = matrix.sum(1)
    return [100 * float(hit / row) if row > 0 else None for hit, row in zip(matrix[:, BACKGROUND], rows, strict=True)]


def summary(ious: Sequence[float | None], label_space: LabelSpace, best: Mapping[str, float]) -> Scores:
    """The means of one evaluation; `best` is the highest past IoU of each class after earlier tasks."""
    last = label_space.group_channels(len(label_space.groups) - 1)
    old = range(1, last.start)
    base = label_space.group_channels(0)
    incremental = len(label_space.groups) > 1
    lost = [best[name] - (ious[label_space.channel(name)] or 0.0) for name in label_space.names if name in best]
    return {
        "miou": mean(ious),
        "miou_foreground": mean(ious[1:]),
        "background": ious[BACKGROUND],
        "old": mean([ious[BACKGROUND], *(ious[c] for c in old)]) if incremental else None,
        "old_foreground": mean(ious[c] for c in old) if incremental else None,
        "new": mean(ious[c] for c in last) if incremental else None,
        "base": mean([ious[BACKGROUND], *(ious[c] for c in base)]),
        "base_foreground": mean(ious[c] for c in base),
        "forgetting": mean(lost) if incremental else None,
    }
