"""Networks, and what training needs of them again and again: made once, in one way, for simulated and real clients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from fiss.data.transforms import AugmentSpec, normalise
from fiss.labels import LabelSpace
from fiss.methods.base import Method
from fiss.models.classifier import Weights
from fiss.models.graphs import record
from fiss.models.segmenter import ModelSpec, Segmenter, build, pad
from fiss.rng import address
from fiss.training.batches import Reader
from fiss.training.device import autocast, place
from fiss.training.spec import TrainingSpec


class TrainingConfig(Protocol):
    """What of a config says how a network is made and trained."""

    @property
    def seed(self) -> int:
        """Seed of everything random."""

    @property
    def model(self) -> ModelSpec:
        """Section `model` of the config."""

    @property
    def method(self) -> Method:
        """Section `method`."""

    @property
    def training(self) -> TrainingSpec:
        """Section `training`."""

    @property
    def augment(self) -> AugmentSpec:
        """Section `augment`; it has the size of the images."""


def build_network(
    config: TrainingConfig, label_space: LabelSpace, device: torch.device | None = None, weights: str | None = None
) -> Segmenter:
    """The network, adapted to the method; random weights come from the seed. `weights` replaces those of the config."""
    spec = config.model if weights is None else replace(config.model, weights=weights)
    model = build(spec, label_space.sizes, address(config.seed, "model"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(address(config.seed, "wire"))
        config.method.adapt_network(model)
    return place(model, device) if device is not None else model


def build_trainer(
    config: TrainingConfig,
    student: Segmenter,
    reader: Reader,
    plain_reader: Reader | None = None,
    feature_network: Segmenter | None = None,
    groups: Sequence[int] = (1, 2),
) -> "Trainer":
    """A trainer around a network. `groups`: the numbers of groups of classes to make ready for on a GPU; a method may
    freeze parts of the network after the first."""
    spec, device = config.training, next(student.parameters()).device
    teacher = build_network(config, LabelSpace(((),)), device, "none") if config.method.needs_teacher else None
    if spec.compile:
        student.compile()
        if teacher is not None:
            teacher.compile()
    if spec.graphs and device.type == "cuda":
        side = config.augment.crop + -config.augment.crop % student.divisor
        images = torch.zeros((spec.batch, student.spec.channels, side, side), device=device)
        images = images.contiguous(memory_format=torch.channels_last)
        with autocast(spec, device):
            for count in groups:
                set_training(student, config.method, count, spec)
                record(student, images)
            if teacher is not None:
                record(teacher.eval(), images)
    return Trainer(student, teacher, reader, spec, plain_reader, feature_network)


class Trainer:
    """What training needs again and again, made once: the networks, the optimizer, the reader."""

    def __init__(
        self,
        student: Segmenter,
        teacher: Segmenter | None,
        reader: Reader,
        spec: TrainingSpec,
        plain_reader: Reader | None = None,
        feature_network: Segmenter | None = None,
    ) -> None:
        self.plain_reader = plain_reader  # reads images for probes: as they are
        self.feature_network = feature_network  # a network that never changes, to compare images with
        self.student, self.teacher, self.reader, self.spec = student, teacher, reader, spec
        self.device = next(student.parameters()).device
        self._teacher_weights: Weights | None = None
        self._shown: Weights | None = None
        self._optimizer: torch.optim.SGD | None = None

    def teach(self, weights: Weights, sizes: Sequence[int]) -> Segmenter:
        """The teacher with these weights; they are loaded only if it has others now."""
        assert self.teacher is not None
        if weights is not self._teacher_weights:
            self.teacher.load(weights, sizes)
            self.teacher.eval()
            self._teacher_weights = weights
        return self.teacher

    def show(self, weights: Weights, sizes: Sequence[int]) -> Segmenter:
        """The student with these weights, for evaluation; they are loaded only if it has others now."""
        if weights is not self._shown:
            self.student.load(weights, sizes)
            self._shown = weights
        return self.student

    def prepare(self, weights: Weights, sizes: Sequence[int]) -> None:
        """The student with these weights, for training."""
        self._shown = None
        self.student.load(weights, sizes)

    def fresh_optimizer(self, rate: float) -> torch.optim.SGD:
        """An SGD optimizer over the parameters that the student trains now, with no momentum yet."""
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
            self._optimizer.state.update({p: {"momentum_buffer": torch.zeros_like(p)} for p in parameters})
        for kept in self._optimizer.state.values():  # 0 rather than absent: a first step is like every other
            kept["momentum_buffer"].zero_()
        return self._optimizer

    def on_device(self, batch: tuple[Tensor, Tensor], table: Tensor) -> tuple[Tensor, Tensor]:
        """Images as the network wants them and labels as channels, on the device."""
        images, masks = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        images, labels = pad(images, table[masks.int()], self.student.divisor)
        return normalise(images), labels


def set_training(student: Segmenter, method: Method, groups: int, spec: TrainingSpec) -> None:
    """Modes and frozen parts as the method wants them while there are so many groups of classes."""
    student.train()
    method.prepare_training(student, groups)
    if spec.batch_statistics == "kept_out":
        for module in student.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
