"""Distillation of feature maps, as PLOP, RCIL and FBL share it: which maps, and how their distances are weighted."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fiss.losses.pod import fold_logits
from fiss.methods.base import Step

Pair = tuple[Tensor, Tensor]


def feature_maps(step: Step) -> list[Pair]:
    """The encoder's stages and the decoder's output, of student and teacher."""
    assert step.teacher is not None
    pairs = list(zip(step.student.stages, step.teacher.stages, strict=True))
    return [*pairs, (step.student.decoded_BDhw, step.teacher.decoded_BDhw)]


def logit_maps(step: Step) -> Pair:
    """The small logits, the student's folded into the teacher's classes."""
    assert step.teacher is not None
    return fold_logits(step.student.small_BChw, step.teacher_channels), step.teacher.small_BChw


def weighted_distance(
    step: Step, distance: Callable[[Tensor, Tensor], Tensor], maps: Sequence[tuple[Pair, float]], scheduled: bool
) -> Tensor:
    """Mean over the maps of factor * mean over images of their distance; `scheduled`: times sqrt(C / new classes)."""
    total = torch.stack([factor * distance(*pair).mean() for pair, factor in maps]).mean()
    channels = step.label_space.channels
    return total * (math.sqrt(channels / max(channels - step.teacher_channels, 1)) if scheduled else 1.0)
