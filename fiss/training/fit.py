"""One client's local training: epochs of SGD on a method's losses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from fiss.data.label_maps import Table
from fiss.labels import BACKGROUND, LabelSpace
from fiss.methods.base import Method, Step
from fiss.models.segmenter import Segmenter
from fiss.progress import Progress
from fiss.training.device import autocast
from fiss.training.trainer import Trainer, set_training


@dataclass(frozen=True)
class Lesson:
    """What a client is to learn in one round."""

    label_space: LabelSpace
    table: Table
    """From the ids in its masks to channels."""
    rate: Callable[[int], float]
    """Learning rate by step."""
    epochs: Sequence[int]
    """Steps of each epoch."""
    epochs_done: int
    """Local epochs of the task before it."""
    first: bool
    """Whether there is nothing to forget yet."""


@dataclass(frozen=True)
class Fitted:
    """What local training came to."""

    steps: int
    images: int
    """Samples seen, repeats counted."""
    losses: Mapping[str, float]
    """Mean of each term over the steps."""
    rate: float
    """The learning rate reached."""
    report: Mapping[str, Any]
    """What the method has to say."""


def fit(trainer: Trainer, teacher: Segmenter | None, method: Method, lesson: Lesson, progress: Progress) -> Fitted:
    """Train the student in place on the batches that the reader was asked for: those of each epoch, twice where the
    method looks before it trains."""
    student, spec, device = trainer.student, trainer.spec, trainer.device
    groups = sum(map(bool, lesson.label_space.groups))  # of its first data too, if others have more
    known = sum(teacher.classifier.sizes) if teacher is not None else 0
    labelled_old = tuple(sorted({int(c) for c in lesson.table if BACKGROUND < c < known}))
    table = torch.from_numpy(lesson.table).to(device)
    state: dict[str, Any] = {}
    set_training(student, method, groups, spec)
    optimizer = trainer.fresh_optimizer(lesson.rate(0))

    def see(epoch: int) -> Step:
        images, labels = trainer.next_batch(table)
        with autocast(spec, device):
            with torch.no_grad():  # not inference mode: losses may save what the teacher says for backward
                taught = teacher(images) if teacher is not None else None
            output = student(images)
        return Step(labels, output, taught, lesson.label_space, known, epoch, state, labelled_old)

    objective = method.first_losses if lesson.first else method.losses
    totals: dict[str, Tensor] = {}
    steps, seen, told = 0, 0, 0.0
    for epoch, length in enumerate(lesson.epochs, lesson.epochs_done):
        if teacher is not None and method.needs_preview:
            student.eval()
            with torch.no_grad():
                for _ in range(length):
                    method.preview(see(epoch))
            set_training(student, method, groups, spec)
        for _ in range(length):
            optimizer.param_groups[0]["lr"] = lesson.rate(steps)
            step = see(epoch)
            terms = objective(step)
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for name, value in terms.items():
                totals[name] = totals[name] + value.detach() if name in totals else value.detach()
            count = len(step.labels_BHW)
            steps, seen = steps + 1, seen + count
            fresh = monotonic() - told > 0.5
            told = monotonic() if fresh else told
            progress.step(count, {k: float(v.detach()) for k, v in terms.items()} if fresh else None)
    means = {name: float(total) / steps for name, total in totals.items()}
    report = method.report(state, lesson.label_space)
    return Fitted(steps, seen, means, lesson.rate(steps), report)
