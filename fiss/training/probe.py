"""Looking at a client's own images, as a monitor asks for it: with the global model, or with a network that never
changes. One forward pass, no gradient.

B batch, D channels, K directions, h w size of a map.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fiss.data.transforms import normalise
from fiss.labels import BACKGROUND, IGNORE
from fiss.models.output import Output
from fiss.models.segmenter import Segmenter, pad
from fiss.monitors.rules import Evidence, FeatureStatistics
from fiss.ops.scatter import add_up
from fiss.training.batches import Reader
from fiss.training.device import autocast
from fiss.training.spec import TrainingSpec

UNKNOWN = 256
"""In a table: a class that the client holds and the label space lacks."""
DIRECTIONS = 64
"""In which the features of each stage are measured, drawn once and for all."""


@dataclass(frozen=True)
class ImagePass:
    """A network over some of a client's images: gives what it says of each batch, and its labels."""

    model: Segmenter
    reader: Reader
    images: Sequence[int]
    table: NDArray[np.int16]
    """From the ids in their masks to channels."""
    training: TrainingSpec

    def __iter__(self) -> Iterator[tuple[Output, Tensor]]:
        model, batch = self.model.eval(), self.training.batch
        device = next(model.parameters()).device
        to_channel = torch.from_numpy(self.table).to(device)
        batches = [self.images[a : a + batch] for a in range(0, len(self.images), batch)]
        for read in self.reader.read([(i, "published") for i in part] for part in batches):
            pictures, masks = (tensor.to(device, non_blocking=True) for tensor in read)
            pictures, labels = pad(pictures, to_channel[masks.int()], model.divisor)
            with autocast(self.training, device), torch.compiler.set_stance("force_eager"):
                output = model(normalise(pictures))
            yield output, labels


@torch.inference_mode()
def measure(over: ImagePass) -> Evidence:
    """Evidence from those images."""
    rows: list[Tensor] = []
    channels = sum(over.model.classifier.sizes)
    names: Tensor | int = 0
    for output, labels in over:
        entropy, called = output.entropy
        valid = labels != IGNORE
        own = valid & (labels != BACKGROUND)
        sums = (valid, entropy * valid, own, own & (called != labels))
        names = names + add_up(torch.where(own, called, channels).flatten(), channels + 1)
        rows.append(torch.stack([part.flatten(1).sum(1, dtype=torch.float64) for part in sums], 1))
    pixels, entropy, own, missed = torch.cat(rows).cpu().numpy().T
    assert isinstance(names, Tensor)
    counts = names[:-1].cpu().numpy()
    shares = tuple(float(share) for share in counts / max(int(counts.sum()), 1))
    return Evidence(len(over.images), *_mean(entropy, pixels), *_mean(missed, own), called=shares)


@torch.inference_mode()
def features(over: ImagePass) -> FeatureStatistics:
    """What the labelled pixels of those images look like to this network: of each stage the mean over them, brought
    to length 1 per channel, in a few directions; an image without any is left out."""
    rows: list[Tensor] = []
    for output, labels in over:
        own = ((labels != IGNORE) & (labels != BACKGROUND)).float()[:, None]
        parts = []
        for number, map_BDhw in enumerate((*output.stages, output.encoded_BDhw)):
            height, width = map_BDhw.shape[-2:]
            weights = F.adaptive_avg_pool2d(own, (height, width))
            mean_BD = (map_BDhw.float() * weights).sum((2, 3)) / weights.sum((2, 3)).clamp(min=1e-12)
            mean_BD = mean_BD / mean_BD.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)
            parts.append(mean_BD @ _directions(number, mean_BD.shape[1], mean_BD.device))
        rows.append(torch.cat(parts, 1)[own.sum((1, 2, 3)) > 0])
    found = torch.cat(rows).double().cpu().numpy()
    if len(found) < 2:
        return FeatureStatistics(len(found), (), ())
    mean, variance = (tuple(float(v) for v in values) for values in (found.mean(0), found.var(0, ddof=1)))
    return FeatureStatistics(len(found), mean, variance)


@lru_cache(maxsize=32)
def _directions(stage: int, channels: int, device: torch.device) -> Tensor:
    """Signs at random, (D, K), the same wherever and whenever they are asked for."""
    generator = torch.Generator().manual_seed(stage)
    signs = torch.randint(0, 2, (channels, DIRECTIONS), generator=generator) * 2 - 1
    return (signs / math.sqrt(channels)).to(device)


def _mean(part: NDArray[np.float64], whole: NDArray[np.float64]) -> tuple[float, float]:
    """Mean over the images of a share, where there is a whole, and its standard error, 1 where there are too few to
    tell."""
    shares = part[whole > 0] / whole[whole > 0]
    if len(shares) < 2:
        return float(shares.sum()), 1.0
    return float(shares.mean()), float(shares.std(ddof=1) / math.sqrt(len(shares)))
