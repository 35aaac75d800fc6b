"""Looking at a client's own images, as a monitor asks for it: with the global model, or with a network that never
changes. One forward pass, no gradient.

B batch, D channels, K directions, h w size of a map.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from fiss.monitors.features import Rows
from fiss.monitors.rules import Evidence
from fiss.ops.scatter import add_up
from fiss.training.batches import Reader
from fiss.training.device import autocast
from fiss.training.spec import TrainingSpec

UNKNOWN = 256
"""In a table: a class that the client holds and the label space lacks."""
DIRECTIONS = 32
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
    alone: bool = False
    """Whether all that is not labelled with a class is taken out of the images."""

    def __iter__(self) -> Iterator[tuple[Output, Tensor]]:
        model, batch = self.model.eval(), self.training.batch
        device = next(model.parameters()).device
        to_channel = torch.from_numpy(self.table).to(device)
        batches = [self.images[a : a + batch] for a in range(0, len(self.images), batch)]
        for read in self.reader.read([(i, "published") for i in part] for part in batches):
            pictures, masks = (tensor.to(device, non_blocking=True) for tensor in read)
            pictures, labels = pad(pictures, to_channel[masks.int()], model.divisor)
            shown = normalise(pictures)
            if self.alone:
                shown = shown * is_class(labels)[:, None]
            with autocast(self.training, device), torch.compiler.set_stance("force_eager"):
                output = model(shown)
            yield output, labels


def is_class(labels: Tensor) -> Tensor:
    """Where pixels are labelled with a class."""
    return (labels != IGNORE) & (labels != BACKGROUND)


@torch.inference_mode()
def measure(over: ImagePass) -> Evidence:
    """Evidence from those images."""
    rows: list[Tensor] = []
    channels = sum(over.model.classifier.sizes)
    names: Tensor | int = 0
    for output, labels in over:
        entropy, called = output.entropy
        valid = labels != IGNORE
        own = is_class(labels)
        sums = (valid, entropy * valid, own, own & (called != labels))
        names = names + add_up(torch.where(own, called, channels).flatten(), channels + 1)
        rows.append(torch.stack([part.flatten(1).sum(1, dtype=torch.float64) for part in sums], 1))
    pixels, entropy, own, missed = torch.cat(rows).cpu().numpy().T
    assert isinstance(names, Tensor)
    counts = names[:-1].cpu().numpy()
    shares = tuple(float(share) for share in counts / max(int(counts.sum()), 1))
    return Evidence(len(over.images), *_mean(entropy, pixels), *_mean(missed, own), called=shares)


@torch.inference_mode()
def features(over: ImagePass) -> Rows:
    """What the labelled pixels of those images look like to this network, without their surroundings: a row for each
    image that has any."""
    rows = [feature_rows(output, is_class(labels)) for output, labels in replace(over, alone=True)]
    return torch.cat(rows).double().cpu().numpy()


def feature_rows(output: Output, own_BHW: Tensor) -> Tensor:
    """For each stage the mean over those pixels, brought to length 1 per channel, in a few directions; an image without
    any is left out."""
    own_B1HW, parts = own_BHW.float()[:, None], []
    for number, map_BDhw in enumerate((*output.stages, output.encoded_BDhw)):
        height, width = map_BDhw.shape[-2:]
        weights = F.adaptive_avg_pool2d(own_B1HW, (height, width))
        mean_BD = (map_BDhw.float() * weights).sum((2, 3)) / weights.sum((2, 3)).clamp(min=1e-12)
        mean_BD = mean_BD / mean_BD.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)
        parts.append(mean_BD @ _directions(number, mean_BD.shape[1], mean_BD.device))
    return torch.cat(parts, 1)[own_BHW.any(2).any(1)]


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
