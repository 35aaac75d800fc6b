"""A network's kernels launched as one: recorded on a GPU for images of one size, and replayed from then on.

Where images are small, launching hundreds of kernels takes longer than running them (docs/performance.md).
"""

from typing import cast

import torch
from torch import Tensor, nn

from fiss.models.segmenter import Segmenter, Trunk

Outputs = tuple[Tensor, Tensor, tuple[Tensor, ...]]
State = tuple[object, ...]


def record(model: Segmenter, images_BCHW: Tensor) -> None:
    """Record the network below its classifier for images of this size, forward and, if it is in training, backward.

    A record is of the network as it is now: its modes and its frozen parts. There may be several, for several states
    and sizes. Whatever else comes runs as before. Call it with the precision of training set, and while nothing else
    uses the device.
    """
    known = model.runs_with
    recorded = known if isinstance(known, Recorded) else Recorded(model)
    recorded.add(images_BCHW)
    model.runs_with = recorded


class Recorded:
    """Replays where a record fits, and runs the network where none does."""

    def __init__(self, model: Segmenter) -> None:
        self.model, self.run = model, model.runs_with
        below = _Below(model, self.run)
        self.modules, self.parameters = list(below.modules())[1:], list(below.parameters())
        self.tensors = [*self.parameters, *below.buffers()]
        self.replays: dict[State, Trunk] = {}

    def add(self, images_BCHW: Tensor) -> None:
        """Record the network as it is now, unless there is such a record."""
        trains = self.model.training
        with torch.set_grad_enabled(trains):
            state = self._state(images_BCHW)
            if state in self.replays:
                return
            kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
            caches = torch.is_autocast_cache_enabled()
            torch.set_autocast_cache_enabled(False)  # a cached cast would not be part of the record
            example = (images_BCHW.clone(),)  # a record writes its images there, so each has its own
            try:
                if trains:
                    below = _Below(self.model, self.run)
                    replay = torch.cuda.make_graphed_callables(below, example, allow_unused_input=True)
                else:
                    replay = torch.cuda.make_graphed_callables(self.run, example)
            finally:
                torch.set_autocast_cache_enabled(caches)
                with torch.no_grad():
                    for name, buffer in self.model.named_buffers():
                        buffer.copy_(kept[name])  # recording runs the network, which moves BatchNorm's statistics
        self.replays[state] = cast(Trunk, replay)

    def _state(self, images_BCHW: Tensor) -> State:
        """All that decides which kernels run, and on which memory."""
        return (
            images_BCHW.shape,
            images_BCHW.dtype,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            *(module.training for module in self.modules),
            *(parameter.requires_grad for parameter in self.parameters),
            *(tensor.data_ptr() for tensor in self.tensors),
        )

    def __call__(self, images_BCHW: Tensor) -> Outputs:
        """Answer as the network's own trunk does."""
        return self.replays.get(self._state(images_BCHW), self.run)(images_BCHW)


class _Below(nn.Module):
    """What lies below a network's classifier, as a module of its own: its parameters are what is trained through the
    record."""

    def __init__(self, model: Segmenter, run: Trunk) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder
        self.run = run

    def forward(self, images_BCHW: Tensor) -> Outputs:
        """Answer as the network's own trunk does."""
        outputs: Outputs = self.run(images_BCHW)
        return outputs
