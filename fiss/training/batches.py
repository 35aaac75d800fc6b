"""Which images make up a client's batches, and the reader that reads them ahead.

An epoch is a shuffle addressed by client, round and epoch; each sample carries the key of its augmentation. So
batches are the same with any number of workers, and after a resume.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
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


class Reader(Iterator[tuple[Tensor, Tensor]]):
    """Batches of images and masks in the order in which they were asked for.

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

    def ask(self, batches: Iterable[list[Any]]) -> None:
        """These come next, after those asked for already; each is a list of what the images are addressed by."""
        self._asked.batches.extend(batches)

    def __next__(self) -> tuple[Tensor, Tensor]:
        for _ in range(2):  # the loader stops when it has handed out all it was asked for, and is started again
            if self._reading is None:
                self._reading = iter(self._loader)
            try:
                return next(self._reading)
            except StopIteration:
                self._reading = None
        raise StopIteration


class _Asked(Iterator[list[Any]]):
    """The loader's list of batches; it may grow while the loader goes through it."""

    def __init__(self) -> None:
        self.batches: deque[list[Any]] = deque()

    def __next__(self) -> list[Any]:
        if not self.batches:
            raise StopIteration
        return self.batches.popleft()
