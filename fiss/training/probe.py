"""Looking at a client's own images with the global model, as a monitor asks for it: one forward pass, no gradient."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fiss.data.transforms import normalise
from fiss.labels import BACKGROUND, IGNORE
from fiss.methods.monitors import Evidence
from fiss.models.segmenter import Segmenter, pad
from fiss.sums import add_up
from fiss.training.batches import Reader
from fiss.training.fit import TrainingSpec, autocast

UNKNOWN = 256
"""In a table: a class that the client holds and the label space lacks."""


@torch.inference_mode()
def look(
    model: Segmenter,
    reader: Reader,
    images: Sequence[int],
    table: NDArray[np.int16],
    batch: int,
    training: TrainingSpec,
) -> Evidence:
    """Evidence from those images; `table` maps the ids of their masks to channels."""
    device = next(model.parameters()).device
    model.eval()
    to_channel = torch.from_numpy(table).to(device)
    batches = [images[a : a + batch] for a in range(0, len(images), batch)]
    reader.ask([(i, "published") for i in part] for part in batches)
    rows: list[Tensor] = []
    channels = sum(model.classifier.sizes)
    names = torch.zeros(channels + 1, dtype=torch.long, device=device)
    for _ in batches:
        pictures, masks = (tensor.to(device, non_blocking=True) for tensor in next(reader))
        pictures, labels = pad(pictures, to_channel[masks.int()], model.divisor)
        with autocast(training, device), torch.compiler.set_stance("force_eager"):
            entropy, called = model(normalise(pictures)).entropy
        valid = labels != IGNORE
        own = valid & (labels != BACKGROUND)
        sums = (valid, entropy * valid, own, own & (called != labels))
        names += add_up(torch.where(own, called, channels).flatten(), channels + 1)
        rows.append(torch.stack([part.flatten(1).sum(1, dtype=torch.float64) for part in sums], 1))
    pixels, entropy, own, missed = torch.cat(rows).cpu().numpy().T
    counts = names[:-1].cpu().numpy()
    shares = tuple(float(share) for share in counts / max(int(counts.sum()), 1))
    return Evidence(len(images), *_mean(entropy, pixels), *_mean(missed, own), called=shares)


def _mean(part: NDArray[np.float64], whole: NDArray[np.float64]) -> tuple[float, float]:
    """Mean over the images of a share, where there is a whole, and its standard error, 1 where there are too few to
    tell."""
    shares = part[whole > 0] / whole[whole > 0]
    if len(shares) < 2:
        return float(shares.sum()), 1.0
    return float(shares.mean()), float(shares.std(ddof=1) / math.sqrt(len(shares)))
