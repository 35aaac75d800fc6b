"""What one pass over a split notes of each image beside its classes, for what is suspicious about a data set: what is
ignored, where ids touch the border, what the image looks like, how its mask is stored."""

from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fiss.data.dataset import FileSplit, Split
from fiss.data.reading import Bytes, Picture, is_wide
from fiss.labels import IGNORE

POINTS = 72
"""Rows and columns that are looked at in an image."""
ALIKE = 8
"""Bits of 128 in which two views of the same thing may differ."""
JPEG, ONE_BIT, WIDE = 1, 2, 4
"""How files are stored: a mask as JPEG, a mask with one bit per pixel, an image of which only the high bytes count."""


class ImageSummary(NamedTuple):
    """One image."""

    counts: NDArray[np.int64]
    """Pixels of each id, (256,)."""
    code: tuple[int, int]
    """128 bits: whether it gets brighter to the right and downwards, in 64 places. No bit is set in a plain image."""
    digest: tuple[int, int]
    """128 bits of its pixels, so that equal ones mean equal images; 0 for an image of one colour, as empty slices
    are."""
    sides: NDArray[np.bool_]
    """Which ids touch the top, bottom, left and right, (4, 256)."""
    stored: int


@dataclass(frozen=True)
class SplitSummary:
    """All images of a split."""

    pixels: NDArray[np.int64]
    """Pixels of every id in all masks, (256,)."""
    images: NDArray[np.int64]
    """Images that show it, (256,)."""
    sides: NDArray[np.int64]
    """Images where it touches the top, bottom, left and right, (4, 256)."""
    ignored: NDArray[np.int64]
    """Ignored pixels by image."""
    labelled: NDArray[np.bool_]
    """Whether an image shows a class."""
    codes: NDArray[np.uint64]
    """What it looks like, by image, (N, 2)."""
    digests: NDArray[np.uint64]
    """Of its pixels, by image, (N, 2)."""
    stored: NDArray[np.uint8]
    """How its files are stored, by image."""

    @classmethod
    def of(cls, count: int) -> "SplitSummary":
        """An empty summary of so many images, none looked at yet."""
        totals = np.zeros(256, np.int64), np.zeros(256, np.int64), np.zeros((4, 256), np.int64)
        ours = np.zeros(count, np.int64), np.zeros(count, bool), np.zeros((count, 2), np.uint64)
        return cls(*totals, *ours, np.zeros((count, 2), np.uint64), np.zeros(count, np.uint8))

    def note(self, i: int, image: ImageSummary) -> None:
        """Add an image."""
        counts = image.counts
        self.pixels[:] += counts
        self.images[:] += counts > 0
        self.sides[:] += image.sides
        self.labelled[i] = counts[1:IGNORE].any()
        self.ignored[i], self.codes[i], self.digests[i] = counts[IGNORE], image.code, image.digest
        self.stored[i] = image.stored

    def arrays(self) -> dict[str, Any]:
        """The arrays by name, as they are kept on the disk."""
        return {f"looks_{field.name}": getattr(self, field.name) for field in fields(self)}


def summarize(split: Split, i: int, image: Picture, mask: Bytes) -> ImageSummary:
    """An image that has just been read."""
    sides = np.zeros((4, 256), bool)
    for side, line in zip(sides, (mask[0], mask[-1], mask[:, 0], mask[:, -1]), strict=True):
        side[line] = True
    stored = _stored(split, i) if isinstance(split, FileSplit) else 0
    return ImageSummary(np.bincount(mask.ravel(), minlength=256), code_of(image), digest_of(image), sides, stored)


def digest_of(image: Picture) -> tuple[int, int]:
    """128 bits of its pixels and shape; 0 where all pixels are alike."""
    if (image == image[:1, :1]).all():
        return 0, 0
    digest = blake2b(str(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return int.from_bytes(digest.digest()[:8], "big"), int.from_bytes(digest.digest()[8:], "big")


def code_of(image: Picture) -> tuple[int, int]:
    """What an image looks like: where it gets brighter, in the means of 9x9 parts of it."""
    rows, columns = (np.linspace(0, side - 1, POINTS).astype(int) for side in image.shape[:2])
    points = image[rows[:, None], columns].astype(np.float32).mean(-1)
    means = points.reshape(9, POINTS // 9, 9, POINTS // 9).mean((1, 3))
    across, down = means[:8, 1:] - means[:8, :-1], means[1:, :8] - means[:-1, :8]
    first, second = (int.from_bytes(np.packbits(change > 1).tobytes(), "big") for change in (across, down))
    return first, second


def alike(some: NDArray[np.uint64], others: NDArray[np.uint64], itself: bool = False) -> NDArray[np.int64]:
    """For each of `some` codes, (N, 2), the first of the `others` that looks alike, or -1. `itself`: they are the same
    list, and none is its own likeness."""
    found = np.full(len(some), -1, np.int64)
    plain = [np.bitwise_count(codes).sum(1) < 2 * ALIKE for codes in (some, others)]
    for i in np.nonzero(~plain[0])[0]:
        near = np.nonzero(np.bitwise_count(others[:, 0] ^ some[i, 0]) <= ALIKE)[0]
        near = near[np.bitwise_count(others[near] ^ some[i]).sum(1) <= ALIKE]
        near = near[~plain[1][near] & ~(itself & (near == i))]
        if len(near):
            found[i] = near[0]
    return found


def _stored(split: FileSplit, i: int) -> int:
    """Kinds of the stored files, from their first bytes, whatever they are called."""
    with Image.open(split.masks[i]) as mask:
        stored = JPEG * (mask.format in ("JPEG", "MPO")) | ONE_BIT * (mask.mode == "1")
    with suppress(OSError), Image.open(split.images[i]) as image:  # some TIFF files only another library reads
        stored |= WIDE * (is_wide(image) and not split.how.window)
    return stored
