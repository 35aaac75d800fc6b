"""What training needs again and again, made once for all clients."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fiss.data.transforms import normalise
from fiss.methods.base import Method
from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter, pad
from fiss.training.batches import Reader
from fiss.training.spec import TrainingSpec


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


def set_training(student: Segmenter, method: Method, groups: int, spec: TrainingSpec) -> None:
    """Modes and frozen parts as the method wants them while there are so many groups of classes."""
    student.train()
    method.prepare_training(student, groups)
    if spec.batch_statistics == "kept_out":
        for module in student.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
