"""Which images make up a client's batches, and the reader that reads them ahead of the network.

An epoch is a shuffle addressed by client, round and epoch; each sample carries the key of its augmentation. So
batches are the same with any number of workers, and after a resume.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from fiss.data.transforms import stack
from fiss.rng import address, stream

Batch = list[tuple[int, int]]
"""Image index and augmentation key of each sample."""


def steps_per_epoch(images: int, batch: int, drop_last: bool) -> int:
    """Batches in an epoch: the incomplete one is dropped or kept; fewer images than a batch make one batch."""
    if images == 0:
        return 0
    full, rest = divmod(images, batch)
    return max(1, full + (not drop_last and rest > 1))


def epoch_batches(images: Sequence[int], batch: int, drop_last: bool, seed: int, *where: str | int) -> list[Batch]:
    """One epoch, shuffled. No batch has a single sample, which BatchNorm cannot take.

    One image left over joins the batch before it (or is dropped with `drop_last`); a client with one image sees it
    twice in a batch, augmented differently.
    """
    order = list(images)
    stream(seed, "order", *where).shuffle(order)
    if len(order) == 1:
        order *= 2
    samples = [(image, address(seed, "augment", *where, place)) for place, image in enumerate(order)]
    count = steps_per_epoch(len(images), batch, drop_last)
    batches = [samples[i * batch : (i + 1) * batch] for i in range(count)]
    if batches and not drop_last:
        batches[-1] = samples[(count - 1) * batch :]
    return batches


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Reader:
    """Reads batches of images and masks in the order in which they were asked for.

    `workers` processes (0: this one), one per core at most, read them ahead, from one client to the next. They live as
    long as the reader. Forked they share the memory of decoded images; `spawn` is for a process whose other threads a
    fork would leave in the middle of something.
    """

    def __init__(
        self,
        images: TorchDataset[tuple[Tensor, Tensor]],
        workers: int,
        pin: bool,
        context: Literal["fork", "spawn"] = "fork",
    ) -> None:
        self._asked = _Asked()
        self._next = self._last = 0
        workers = min(workers, _cores())
        self._loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            images,
            batch_sampler=self._asked,
            num_workers=workers,
            collate_fn=stack,
            pin_memory=pin,
            persistent_workers=workers > 0,
            multiprocessing_context=context if workers else None,
            generator=torch.Generator(),  # so that making a loader does not move the global stream
        )
        self._reading: Iterator[tuple[Tensor, Tensor]] | None = None

    def read(self, batches: Iterable[list[Any]]) -> "Batches":
        """Begin to read these, after all that was asked for before; each is a list of what images are addressed by."""
        wanted = list(batches)
        self._asked.batches.extend(wanted)
        self._last += len(wanted)
        return Batches(self, self._last - len(wanted), len(wanted))

    def take(self, number: int) -> tuple[Tensor, Tensor]:
        """The batch of that number, counted from the first that was ever asked for; those before it are let go."""
        assert self._next <= number < self._last, "batches are taken in the order in which they were asked for"
        while self._next < number:  # whoever asked for them did not come to their end
            self._read_one()
        return self._read_one()

    def _read_one(self) -> tuple[Tensor, Tensor]:
        self._next += 1
        for _ in range(2):  # the loader stops when it has handed out all it was asked for, and is started again
            if self._reading is None:
                self._reading = iter(self._loader)
            try:
                return next(self._reading)
            except StopIteration:
                self._reading = None
        raise AssertionError("the loader gave less than it was asked for")


@dataclass(frozen=True)
class Batches:
    """Batches that a reader was asked for; they are gone through once."""

    reader: Reader
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(self.first, self.first + self.count):
            yield self.reader.take(number)


@dataclass(frozen=True)
class Epoch:
    """A pass over a client's images: what is trained on, and before it what a method wants to see."""

    batches: Sequence[tuple[Tensor, Tensor]] | Batches
    preview: Sequence[tuple[Tensor, Tensor]] | Batches = ()


class _Asked(Iterator[list[Any]]):
    """The loader's list of batches; it may grow while the loader goes through it."""

    def __init__(self) -> None:
        self.batches: deque[list[Any]] = deque()

    def __next__(self) -> list[Any]:
        if not self.batches:
            raise StopIteration
        return self.batches.popleft()
