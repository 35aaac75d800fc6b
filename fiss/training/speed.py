"""How fast this machine is: a few steps of the network that is meant, timed."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from fiss.data.dataset import Split
from fiss.data.transforms import TrainingImages, normalise
from fiss.labels import LabelSpace
from fiss.models.segmenter import pad
from fiss.statistics.head import head_of
from fiss.statistics.sums import Accumulator
from fiss.training.device import autocast, use_device
from fiss.training.trainer import TrainingConfig, build_network

REPEATS = 5


@dataclass(frozen=True)
class Speed:
    """Seconds for one image, each the median of several tries: the machine may be busy, and stay so."""

    read: float
    """Decoding it and cutting a part out of it."""
    train: float
    """A step forward and back."""
    count: float
    """Adding up its features; 0 where the method does not."""
    score: float
    """A step forward."""


def measure(config: TrainingConfig, split: Split, classes: int) -> Speed:
    """Time a batch of this config on images of this split, with so many classes."""
    device = use_device(config.training)
    names = tuple(map(str, range(classes)))
    model = build_network(config, LabelSpace((names,)), device, "none")
    images, batch = TrainingImages(split, config.augment), config.training.batch
    order = [i % len(split.stems) for i in range(batch)]
    read, masks, taken = [], [], []
    for i in order:
        began = perf_counter()
        image, mask = images[i, i]
        taken.append(perf_counter() - began)
        read.append(image)
        masks.append(mask)
    per_read = median(taken)
    pictures, _ = pad(normalise(torch.stack(read).to(device)), torch.stack(masks).to(device), model.divisor)

    def forward() -> None:
        with torch.inference_mode(), autocast(config.training, device):
            model(pictures)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with autocast(config.training, device):
            loss = torch.logsumexp(model(pictures).logits_BCHW, 1).mean()
        torch.autograd.backward(loss)

    def count() -> None:
        with torch.inference_mode(), autocast(config.training, device):
            features = head_of(model).map(*model.trunk(pictures), pictures.shape[-2:])
            shares = torch.full((batch, classes + 1, *features.shape[2:]), 1 / (classes + 1), device=device)
            Accumulator(classes + 1, features.shape[1], device).add_images(features, shares)

    collection = config.method.collection
    trains = collection is None or collection.trunk_rounds != 0
    model.train()
    per_step = _seconds(step, device) / batch if trains else 0.0
    model.eval()
    per_count = _seconds(count, device) / batch if collection is not None else 0.0
    return Speed(per_read, per_step, per_count, _seconds(forward, device) / batch)


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Median of several runs after a first one."""
    taken = []
    for _ in range(1 + REPEATS):
        began = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(perf_counter() - began)
    return median(taken[1:])
