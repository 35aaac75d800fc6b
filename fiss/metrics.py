"""From a confusion matrix to the numbers people read, all in percent.

The published definition: IoU_c = hits / (row + column - hits + 1e-6), and means run over the classes that the ground
truth holds. The paper's "old" and "base" classes count the background, so each mean comes with and without it.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE
from fiss.ops.scatter import add_up

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


def from_background(matrix_CC: Tensor) -> list[float | None]:
    """Share of the background's pixels that are called each channel, in percent; None where there is no background."""
    row = matrix_CC[BACKGROUND].double().cpu()
    return [100 * float(hit / row.sum()) if row.sum() > 0 else None for hit in row]


def summary(
    ious: Sequence[float | None], names: Sequence[str], tasks: Sequence[Sequence[str]], best: Mapping[str, float]
) -> Scores:
    """The means of one evaluation; `names` by channel from 1, `tasks` the classes that have come so far by task, `best`
    the highest past IoU of each class after earlier tasks."""
    channel = {name: i for i, name in enumerate(names, 1)}
    by_task = [[ious[channel[name]] for name in task if name in channel] for task in tasks]
    old = [value for task in by_task[:-1] for value in task]
    incremental = len(tasks) > 1
    lost = [best[name] - (ious[channel[name]] or 0.0) for name in names if name in best]
    return {
        "miou": mean(ious),
        "miou_foreground": mean(ious[1:]),
        "background": ious[BACKGROUND],
        "old": mean([ious[BACKGROUND], *old]) if incremental else None,
        "old_foreground": mean(old) if incremental else None,
        "new": mean(by_task[-1]) if incremental else None,
        "base": mean([ious[BACKGROUND], *by_task[0]]),
        "base_foreground": mean(by_task[0]),
        "forgetting": mean(lost) if incremental else None,
    }
