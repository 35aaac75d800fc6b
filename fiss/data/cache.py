"""Decoded images kept in memory, so that each file is read and decoded once and not in every epoch.

The memory is shared: processes that read images for training, forked after this is made, fill it together and see what
the others have read.
"""

import mmap
import os
from collections.abc import Sequence
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from fiss.data.dataset import Split
from fiss.data.reading import Bytes, Picture, Reading


def free_bytes() -> int:
    """Memory that is free now; where the system does not say, more than anyone has."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 2**62


class Decoded:
    """A split whose images stay in memory once read, as many of the first ones as fit."""

    def __init__(self, split: Split, sizes: NDArray[np.int64], most_bytes: int, how: Reading | None = None) -> None:
        self._split = split
        self._how = how or Reading()
        self.name, self.stems = split.name, split.stems
        pixels = sizes.astype(np.int64).prod(1)
        size = np.dtype(self._how.dtype).itemsize
        self._colour = size * self._how.channels
        ends = np.cumsum(-(-(self._colour + 1) * pixels // size) * size)  # one byte of mask; floats lie at multiples
        self._fitting = int(np.searchsorted(ends, most_bytes, side="right"))
        self._starts: Sequence[int] = [0, *ends[: self._fitting].tolist()]
        self.bytes_kept = self._starts[-1]
        """Memory taken when all that fit have been read."""
        self._sizes = sizes
        self._memory = mmap.mmap(-1, max(self.bytes_kept, 1))  # shared with forked processes; taken when written to
        self._there = mmap.mmap(-1, max(self._fitting, 1))
        self._lock = get_context("fork").Lock()

    def read(self, i: int) -> tuple[Picture, Bytes]:
        """Image and mask, from memory if they are there."""
        if i >= self._fitting:
            return self._split.read(i)
        with self._lock:
            there = self._there[i]
        height, width = (int(side) for side in self._sizes[i])
        block = np.frombuffer(self._memory, np.uint8, (self._colour + 1) * height * width, self._starts[i])
        colour: Picture = block[: self._colour * height * width].view(self._how.dtype)
        image = colour.reshape(height, width, self._how.channels)
        mask = block[self._colour * height * width :].reshape(height, width)
        if not there:
            new_image, new_mask = self._split.read(i)
            if new_image.shape != image.shape:
                return new_image, new_mask  # the file has changed since it was measured
            image[:], mask[:] = new_image, new_mask
            with self._lock:  # only now may others look at it
                self._there[i] = 1
        image.flags.writeable = mask.flags.writeable = False
        return image, mask

    def fingerprint(self) -> str:
        """The files' own."""
        return self._split.fingerprint()
