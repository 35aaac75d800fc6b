"""One client's local training: epochs of SGD on a method's losses."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.labels import LabelSpace
from fiss.methods.base import Method, Step
from fiss.models.segmenter import Segmenter, pad
from fiss.training.schedule import rate_at
from fiss.watch import Watcher


@dataclass(frozen=True)
class TrainingSpec:
    """Local training; the defaults are the published ones."""

    epochs: int = 6
    """Local epochs per round."""
    batch: int = 24
    """Images per step."""
    first_rate: float = 0.01
    """Learning rate at which a client begins the first task."""
    later_rate: float = 0.001
    """Learning rate at which a client begins every later task."""
    momentum: float = 0.9
    """Of SGD with Nesterov momentum; it is lost between rounds, as published."""
    weight_decay: float = 1e-4
    """On every parameter."""
    drop_last: bool = True
    """Drop the incomplete batch of an epoch."""
    batch_statistics: Literal["averaged", "kept_out"] = "averaged"
    """averaged: clients update BatchNorm's running statistics and the server averages them; kept_out: they never
    change or travel back, and clients normalise with those they were given."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 autocast on a GPU that has it, float32 elsewhere."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1."""
    workers: int = 0
    """Processes that read images; 0 reads them in the training process."""
    threads: int = 0
    """CPU threads of torch; 0 leaves its own choice."""

    def __post_init__(self) -> None:
        for field, least in (
            ("epochs", 1),
            ("batch", 2),
            ("workers", 0),
            ("threads", 0),
            ("weight_decay", 0),
            ("momentum", 0),
        ):
            if getattr(self, field) < least:
                raise UserError(f"training.{field} = {getattr(self, field)}: must be {least} or more.")
        for field in ("first_rate", "later_rate"):
            if getattr(self, field) <= 0:
                raise UserError(f"training.{field} = {getattr(self, field)}: must be above 0.")


def pick_device(name: str) -> torch.device:
    """The device a spec asks for."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UserError(f"training.device = {name}: use auto, cpu, cuda or cuda:N.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"training.device = {name}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    return torch.device(name if kind == "cuda" else "cpu")


def autocast(spec: TrainingSpec, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision as the spec asks for it."""
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if spec.precision == "bfloat16" or (spec.precision == "auto" and has_it):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def place(model: Segmenter, device: torch.device) -> Segmenter:
    """On the device, channels last: faster on GPUs and on CPUs alike."""
    return model.to(device).to(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Lesson:
    """What a client is to learn in one round."""

    label_space: LabelSpace
    rate: float
    """Learning rate at which it begins."""
    horizon: int
    """Steps from its beginning to the end of the task."""
    epochs: Sequence[int]
    """Steps of each epoch."""
    epochs_done: int
    """Local epochs of the task before it."""


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


def fit(
    student: Segmenter,
    teacher: Segmenter | None,
    batches: Iterator[tuple[Tensor, Tensor]],
    method: Method,
    lesson: Lesson,
    spec: TrainingSpec,
    watcher: Watcher,
) -> Fitted:
    """Train `student` in place. `batches` gives those of each epoch, twice where the method looks before it trains."""
    device = next(student.parameters()).device
    groups = len(lesson.label_space.groups)
    known = sum(teacher.classifier.sizes) if teacher is not None else 0
    state: dict[str, Any] = {}
    _set_training(student, method, groups, spec)
    optimizer = torch.optim.SGD(
        [p for p in student.parameters() if p.requires_grad],
        lr=lesson.rate,
        momentum=spec.momentum,
        nesterov=spec.momentum > 0,
        weight_decay=spec.weight_decay,
    )

    def see(epoch: int) -> tuple[Step, int]:
        images, labels = next(batches)
        images, labels = pad(
            images.to(device, non_blocking=True), labels.to(device, non_blocking=True), student.divisor
        )
        images = normalise(images).contiguous(memory_format=torch.channels_last)
        with autocast(spec, device):
            with torch.no_grad():  # not inference mode: losses save the output for backward
                taught = teacher(images) if teacher is not None else None
            output = student(images)
        return Step(labels, output, taught, lesson.label_space, known, epoch, state), len(images)

    objective = method.losses if groups > 1 else method.first_losses
    totals: dict[str, Tensor] = {}
    steps, seen, told = 0, 0, 0.0
    for epoch, length in enumerate(lesson.epochs, lesson.epochs_done):
        if teacher is not None and method.looks:
            student.eval()
            with torch.no_grad():
                for _ in range(length):
                    method.look(see(epoch)[0])
            _set_training(student, method, groups, spec)
        for _ in range(length):
            optimizer.param_groups[0]["lr"] = rate_at(lesson.rate, steps, lesson.horizon)
            step, count = see(epoch)
            terms = objective(step)
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for name, value in terms.items():
                totals[name] = totals.get(name, torch.zeros((), device=device)) + value.detach()
            steps, seen = steps + 1, seen + count
            fresh = monotonic() - told > 0.5
            told = monotonic() if fresh else told
            watcher.step(count, {k: float(v.detach()) for k, v in terms.items()} if fresh else None)
    means = {name: float(total) / steps for name, total in totals.items()}
    report = method.report(state, lesson.label_space)
    return Fitted(steps, seen, means, rate_at(lesson.rate, steps, lesson.horizon), report)


def _set_training(student: Segmenter, method: Method, groups: int, spec: TrainingSpec) -> None:
    student.train()
    method.arm(student, groups)
    if spec.batch_statistics == "kept_out":
        for module in student.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
