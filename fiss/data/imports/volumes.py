"""Volumes as slices: what DICOM series, NIfTI files and TIFF files of many pages share.

A volume has axes x (to the patient's left), y (to the back) and z (to the head). A slice shows x or y to the right, and
y downwards or z upwards, and is resampled to square pixels where its spacing differs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image

from fiss.data.imports.source import Array, BadFileError, Item, Pair
from fiss.labels import IGNORE

RESAMPLED = "resampled to square pixels"


@dataclass(frozen=True)
class Volume:
    """Image and mask, (X, Y, Z), and how far apart their pixels are."""

    image: Array
    mask: Array
    spacing: tuple[float, float, float]


class Last:
    """Volumes one at a time: the one read last is kept, for its next slice; so is what is wrong with it."""

    def __init__(self) -> None:
        self._name = ""
        self._found: Volume | BadFileError | None = None

    def get(self, name: str, load: Callable[[], Volume]) -> Volume:
        """The volume of that name."""
        if self._found is None or self._name != name:
            self._found = None  # two at a time may be too large
            try:
                self._name, self._found = name, load()
            except BadFileError as bad:
                self._name, self._found = name, bad
        if isinstance(self._found, BadFileError):
            raise self._found
        return self._found


def slices(
    name: str,
    group: str,
    part: str,
    shape: tuple[int, int, int],
    axis: int,
    every: int,
    load: Callable[[], Volume],
    last: Last,
) -> Iterator[Item]:
    """Its slices as items, every n-th of them."""
    for k in range(0, shape[axis], every):
        yield Item(f"{name}_{k:04d}", group, partial(_slice, name, axis, k, load, last), part)


def _slice(name: str, axis: int, k: int, load: Callable[[], Volume], last: Last) -> Pair:
    volume = last.get(name, load)
    image, mask = (np.take(array, k, axis).T for array in (volume.image, volume.mask))
    if axis != 2:
        image, mask = image[::-1], mask[::-1]
    if (mask == IGNORE).all():
        raise BadFileError(f"{name}_{k:04d}", "no mask")
    right, down = (volume.spacing[a] for a in range(3) if a != axis)
    finest = min(right, down)
    size = round(image.shape[1] * right / finest), round(image.shape[0] * down / finest)
    if size == image.shape[::-1]:
        return Pair(np.ascontiguousarray(image), np.ascontiguousarray(mask))
    picture, labels = (Image.fromarray(np.ascontiguousarray(array)) for array in (image, mask))
    return Pair(
        np.asarray(picture.resize(size, Image.Resampling.BILINEAR)),
        np.asarray(labels.resize(size, Image.Resampling.NEAREST)),
        (RESAMPLED,),
    )
