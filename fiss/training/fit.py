"""One client's local training: epochs of SGD on a method's losses."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fiss.data.label_maps import Table
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.labels import BACKGROUND, LabelSpace
from fiss.methods.base import Method, Step
from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter, pad
from fiss.progress import Progress
from fiss.training.batches import Reader


@dataclass(frozen=True)
class TrainingSpec:
    """Local training; the defaults are the published ones."""

    epochs: int = 6
    """Local epochs per round."""
    later_epochs: int = 0
    """Local epochs per round in every later task; 0: as many as in the first."""
    batch: int = 24
    """Images per step."""
    first_rate: float = 0.01
    """Learning rate at which a client begins the first task."""
    later_rate: float = 0.001
    """Learning rate at which a client begins every later task."""
    horizon: int = 5
    """Rounds over which a client's rate falls from its first data and from each transition, if tasks are not told."""
    least_rate: float = 0.1
    """What it falls to, as a share of where it began."""
    momentum: float = 0.9
    """Of SGD with Nesterov momentum; it is lost between rounds, as published."""
    weight_decay: float = 1e-4
    """On every parameter."""
    drop_last: bool = True
    """Drop the incomplete batch of an epoch."""
    batch_statistics: Literal["averaged", "kept_out"] = "averaged"
    """averaged: clients update BatchNorm's running statistics and the server averages them; kept_out: they never
    change, and clients normalise with those they were given."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 autocast on a GPU that has it, float32 elsewhere."""
    compile: bool = False
    """torch.compile of the network below its classifier: takes minutes once, for long runs of a large network on a
    GPU."""
    graphs: bool = False
    """On a GPU, record the network's kernels once and replay them: for images so small that launching takes longer
    than computing."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1."""
    workers: int = 0
    """Processes that read images, one per core at most; 0 reads them in the training process."""
    cache: float = 4.0
    """GiB of memory for decoded images, shared by those processes, at most half of what is free; 0: every image is
    decoded each time."""
    threads: int = 0
    """CPU threads of torch; 0 leaves its own choice."""

    def __post_init__(self) -> None:
        for field, least in (
            ("epochs", 1),
            ("horizon", 1),
            ("least_rate", 0),
            ("later_epochs", 0),
            ("batch", 2),
            ("workers", 0),
            ("threads", 0),
            ("cache", 0),
            ("weight_decay", 0),
            ("momentum", 0),
        ):
            if getattr(self, field) < least:
                raise UserError(f"training.{field} = {getattr(self, field)}: must be {least} or more.")
        for field in ("first_rate", "later_rate"):
            if getattr(self, field) <= 0:
                raise UserError(f"training.{field} = {getattr(self, field)}: must be above 0.")

    def epochs_in(self, first: bool) -> int:
        """Local epochs per round, in the first task or in later ones."""
        return self.epochs if first or not self.later_epochs else self.later_epochs


def pick_device(name: str) -> torch.device:
    """The device a spec asks for, by number: torch wants one where it makes a device the current one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UserError(f"device = {name}: use auto, cpu, cuda or cuda:N.")
    if kind == "cpu":
        return torch.device("cpu")
    if int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"device = {name}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    return torch.device("cuda", int(number or 0))


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


class Trainer:
    """What training needs again and again, made once: the networks, the optimizer, the reader."""

    def __init__(
        self,
        student: Segmenter,
        teacher: Segmenter | None,
        reader: Reader,
        spec: TrainingSpec,
        plain: Reader | None = None,
        feature_network: Segmenter | None = None,
    ) -> None:
        self.plain = plain  # reads images that are looked at and not trained on
        self.feature_network = feature_network  # a network that never changes, to compare images with
        self.student, self.teacher, self.reader, self.spec = student, teacher, reader, spec
        self.device = next(student.parameters()).device
        self._taught_by: Weights | None = None
        self._shown: Weights | None = None
        self._optimizer: torch.optim.SGD | None = None

    def teach(self, weights: Weights, sizes: Sequence[int]) -> Segmenter:
        """The teacher with those weights; they are loaded only if it has others."""
        assert self.teacher is not None
        if weights is not self._taught_by:
            self.teacher.load(weights, sizes)
            self.teacher.eval()
            self._taught_by = weights
        return self.teacher

    def show(self, weights: Weights, sizes: Sequence[int]) -> Segmenter:
        """The student with those weights, to look through; they are loaded only if it has others."""
        if weights is not self._shown:
            self.student.load(weights, sizes)
            self._shown = weights
        return self.student

    def prepare(self, weights: Weights, sizes: Sequence[int]) -> None:
        """The student with those weights, to train."""
        self._shown = None
        self.student.load(weights, sizes)

    def fresh_optimizer(self, rate: float) -> torch.optim.SGD:
        """SGD without momentum from before, on what the student trains now."""
        parameters = [p for p in self.student.parameters() if p.requires_grad]
        if self._optimizer is None or list(map(id, self._optimizer.param_groups[0]["params"])) != list(
            map(id, parameters)
        ):
            self._optimizer = torch.optim.SGD(
                parameters,
                lr=rate,
                momentum=self.spec.momentum,
                nesterov=self.spec.momentum > 0,
                weight_decay=self.spec.weight_decay,
                fused=self.device.type == "cuda",
            )
        self._optimizer.state.clear()
        return self._optimizer

    def next_batch(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Images as the network wants them and labels as channels, on the device."""
        images, masks = (tensor.to(self.device, non_blocking=True) for tensor in next(self.reader))
        images, labels = pad(images, table[masks.int()], self.student.divisor)
        return normalise(images), labels


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


def set_training(student: Segmenter, method: Method, groups: int, spec: TrainingSpec) -> None:
    """Modes and frozen parts as the method wants them while there are so many groups of classes."""
    student.train()
    method.prepare_training(student, groups)
    if spec.batch_statistics == "kept_out":
        for module in student.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
