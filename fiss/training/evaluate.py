"""Scoring a model on validation images."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fiss.data.index import Presence
from fiss.data.label_maps import Table
from fiss.data.transforms import View, normalise
from fiss.labels import LabelSpace
from fiss.metrics import confusion
from fiss.models.segmenter import Segmenter, pad
from fiss.progress import Progress
from fiss.training.batches import Reader
from fiss.training.device import autocast
from fiss.training.spec import EvaluationSpec, TrainingSpec


def scored_images(view: View, classes: Sequence[str], label_space: LabelSpace, presence: Presence) -> list[int]:
    """Every image, or in the published view those that show a class seen so far."""
    if view == "full":
        return list(range(len(presence)))
    known = [i for i, name in enumerate(classes, 1) if name in label_space.names]
    return [int(i) for i in np.nonzero(presence[:, known].any(1))[0]]


@torch.inference_mode()
def evaluate(
    model: Segmenter,
    reader: Reader,
    images: Sequence[int],
    sizes: NDArray[np.int64],
    table: Table,
    view: View,
    spec: EvaluationSpec,
    training: TrainingSpec,
    progress: Progress,
) -> Tensor:
    """Confusion matrix of the model over those images, (C, C). Full images are batched with others of their size."""
    device = next(model.parameters()).device
    model.eval()
    channels = sum(model.classifier.sizes)
    total = torch.zeros(channels, channels, dtype=torch.long, device=device)
    to_channel = torch.from_numpy(table).to(device)
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i in images:
        alike[tuple(sizes[i]) if view == "full" else ()].append(i)
    batches = [group[a : a + spec.batch] for group in alike.values() for a in range(0, len(group), spec.batch)]
    progress.start("scoring", len(images))
    for read in reader.read([(i, view) for i in batch] for batch in batches):
        pictures, masks = (tensor.to(device, non_blocking=True) for tensor in read)
        pictures, labels = pad(pictures, to_channel[masks.int()], model.divisor)
        with autocast(training, device), torch.compiler.set_stance("force_eager"):  # not worth a compilation of its own
            predicted = model(normalise(pictures)).logits_BCHW.max(1).indices
        total += confusion(predicted, labels, channels)
        progress.advance(len(pictures))
    progress.finish()
    return total
