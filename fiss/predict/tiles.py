"""Large images in overlapping squares: the logits of a whole image a strip at a time, in memory that grows with its
width and not with its height.

Where tiles overlap they are blended. What lies near a tile's cut edge has seen too little of what is beyond it and does
not count, so a network that looks no further than that gives the same as for the whole image.

C classes, h W the size of a strip.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Part = Callable[[slice, slice], Tensor]
"""From rows and columns of an image to the logits there, (C, h, w)."""


def strips(logits_of: Part, size: tuple[int, int], tile: int, grid: int) -> Iterator[Tensor]:
    """Strips of logits (C, h, W) from the top downwards.

    Args:
        logits_of: What the network says of a part alone.
        size: Height and width of the image.
        tile: Side of a tile, a multiple of `grid`.
        grid: Tiles begin at multiples of this, so that the network's cells are those of the whole image.
    """
    rows, columns = (_windows(side, tile, grid) for side in size)
    kept: Tensor | None = None  # of the rows before: what the next ones still add to
    for number, (down, weight_h) in enumerate(rows):
        strip: Tensor | None = None
        for across, weight_w in columns:
            part_Chw = logits_of(down, across)
            if strip is None:
                strip = part_Chw.new_zeros((*part_Chw.shape[:2], size[1]))
            strip[..., across] += part_Chw * weight_w.to(part_Chw)
        assert strip is not None
        strip *= weight_h.to(strip)[:, None]
        if kept is not None:
            strip[:, : kept.shape[1]] += kept
        done = (rows[number + 1][0].start if number + 1 < len(rows) else size[0]) - down.start
        yield strip[:, :done]
        kept = strip[:, done:]


def _windows(side: int, tile: int, grid: int) -> list[tuple[slice, Tensor]]:
    """Where the tiles lie along a side, evenly, and how much each of their pixels counts: 1 in all at every pixel."""
    overlap = -(-tile // (4 * grid)) * grid
    far, margin = max(0, side - tile), overlap // 4
    count = -(-far // (tile - overlap))
    starts = [-(-far * k // (count * grid)) * grid for k in range(count + 1)] if count else [0]
    places = [slice(start, min(start + tile, side)) for start in starts]
    weights = []
    for place in places:
        pixels = torch.arange(place.start, place.stop) + 0.5
        ends = [pixels - place.start] * (place.start > 0) + [place.stop - pixels] * (place.stop < side)
        ramps = [((end - margin) / (overlap - 2 * margin)).clamp(0, 1) for end in ends]
        weights.append(torch.stack([torch.ones_like(pixels), *ramps]).amin(0))
    total = torch.zeros(side)
    for place, weight in zip(places, weights, strict=True):
        total[place] += weight
    return [(place, weight / total[place]) for place, weight in zip(places, weights, strict=True)]
