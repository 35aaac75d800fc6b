"""One client's local training: epochs of SGD on a method's losses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from fiss.training.batches import Epoch
from fiss.training.device import autocast
from fiss.training.trainer import Trainer, set_training


@dataclass(frozen=True)
class TrainingPlan:
    """What a client is to learn in one round, and how fast."""

    label_space: LabelSpace
    table: Table
    """From the ids in its masks to channels."""
    rate: Callable[[int], float]
    """Learning rate by step."""
    epochs_done: int
    """Local epochs of the task before this round."""
    first: bool
    """Whether there is nothing to forget yet."""


@dataclass(frozen=True)
class TrainingResult:
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


@contextmanager
def without_trace(student: Segmenter) -> Iterator[None]:
    """The student as it trains, without gradient; its statistics and what is drawn afterwards stay as they were."""
    kept = [buffer.clone() for buffer in student.buffers()]
    device = next(student.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        yield
        for buffer, before in zip(student.buffers(), kept, strict=True):
            buffer.copy_(before)


def fit(
    trainer: Trainer,
    teacher: Segmenter | None,
    method: Method,
    plan: TrainingPlan,
    epochs: Sequence[Epoch],
    progress: Progress,
) -> TrainingResult:
    """Train the student in place on the batches of those epochs."""
    student, spec, device = trainer.student, trainer.spec, trainer.device
    groups = sum(map(bool, plan.label_space.groups))  # of its first data too, if others have more
    known = sum(teacher.classifier.sizes) if teacher is not None else 0
    labelled_old = tuple(sorted({int(c) for c in plan.table if BACKGROUND < c < known}))
    table = torch.from_numpy(plan.table).to(device)
    state: dict[str, Any] = {}
    set_training(student, method, groups, spec)
    optimizer = trainer.fresh_optimizer(plan.rate(0))
    weights = dict(student.named_parameters())
    taught = {name: p.detach() for name, p in teacher.named_parameters()} if teacher is not None else {}

    def forward(batch: tuple[Tensor, Tensor], epoch: int) -> Step:
        images, labels = trainer.on_device(batch, table)
        with autocast(spec, device):
            with torch.no_grad():  # not inference mode: losses may save what the teacher says for backward
                target = teacher(images) if teacher is not None else None
            output = student(images)
        return Step(labels, output, target, plan.label_space, known, epoch, state, labelled_old, weights, taught)

    objective = method.first_losses if plan.first else method.losses
    totals: dict[str, Tensor] = {}
    steps, seen, shown_at = 0, 0, 0.0
    for number, epoch in enumerate(epochs, plan.epochs_done):
        if epoch.preview:
            with without_trace(student):
                for batch in epoch.preview:
                    method.preview(forward(batch, number))
        if not plan.first:
            method.begin_epoch(state, number, known, device)
        for batch in epoch.batches:
            optimizer.param_groups[0]["lr"] = plan.rate(steps)
            step = forward(batch, number)
            terms = objective(step)
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for name, value in terms.items():
                totals[name] = totals[name] + value.detach() if name in totals else value.detach()
            count = len(step.labels_BHW)
            steps, seen = steps + 1, seen + count
            show = monotonic() - shown_at > 0.5  # fetching the losses makes a GPU wait
            shown_at = monotonic() if show else shown_at
            progress.step(count, {k: float(v.detach()) for k, v in terms.items()} if show else None)
    means = {name: float(total) / steps for name, total in totals.items()}
    return TrainingResult(steps, seen, means, plan.rate(steps), method.report(state, plan.label_space))
