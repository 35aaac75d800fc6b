"""Which images make up a client's batches, and the loader that reads them.

An epoch is a shuffle addressed by client, round and epoch; each sample carries the key of its augmentation. So
batches are the same with any number of workers, and after a resume.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fiss.data.transforms import TrainingImages, stack
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


def load(dataset: TrainingImages, batches: Sequence[Batch], workers: int, pin: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches as tensors, read ahead by `workers` processes (0: in this one)."""
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=stack,
        pin_memory=pin,
        generator=torch.Generator(),  # so that making a loader does not move the global stream
    )
    return iter(loader)
