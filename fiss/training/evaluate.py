"""Scoring a model on validation images."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from fiss.data.background import Table
from fiss.data.dataset import Split
from fiss.data.transforms import ScoredImages, View, normalise, stack
from fiss.errors import UserError
from fiss.metrics import confusion
from fiss.models.segmenter import Segmenter, pad
from fiss.training.fit import TrainingSpec, autocast
from fiss.watch import Watcher


@dataclass(frozen=True)
class EvaluationSpec:
    """How models are scored."""

    views: tuple[View, ...] = ("published",)
    """published: shorter side resized to `size`, centre crop, images without a seen class left out; full: every image
    as it is."""
    every: Literal["round", "task"] = "round"
    """Score after each round, or after each task only."""
    size: int = 512
    """Side of the published view."""
    batch: int = 24
    """Images at a time."""

    def __post_init__(self) -> None:
        if not self.views:
            raise UserError("evaluation.views is empty: name published, full, or both.")
        for field in ("size", "batch"):
            if getattr(self, field) < 1:
                raise UserError(f"evaluation.{field} = {getattr(self, field)}: must be 1 or more.")


@torch.inference_mode()
def evaluate(
    model: Segmenter,
    split: Split,
    images: Sequence[int],
    sizes: NDArray[np.int64],
    table: Table,
    view: View,
    spec: EvaluationSpec,
    training: TrainingSpec,
    watcher: Watcher,
) -> Tensor:
    """Confusion matrix of the model over those images, (C, C). Full images are batched with others of their size."""
    device = next(model.parameters()).device
    model.eval()
    channels = sum(model.classifier.sizes)
    total = torch.zeros(channels, channels, dtype=torch.long, device=device)
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i in images:
        alike[tuple(sizes[i]) if view == "full" else ()].append(i)
    batches = [group[a : a + spec.batch] for group in alike.values() for a in range(0, len(group), spec.batch)]
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        ScoredImages(split, table, view, spec.size),
        batch_sampler=batches,
        num_workers=training.workers,
        collate_fn=stack,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),
    )
    watcher.start(f"scoring {split.name}", len(images))
    for pictures, labels in loader:
        pictures, labels = pad(pictures.to(device), labels.to(device), model.divisor)
        with autocast(training, device):
            predicted = model(normalise(pictures).contiguous(memory_format=torch.channels_last)).logits_BCHW.argmax(1)
        total += confusion(predicted, labels, channels)
        watcher.advance(len(pictures))
    watcher.finish()
    return total
