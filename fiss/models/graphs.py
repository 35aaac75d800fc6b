"""A network's kernels launched as one: recorded on a GPU for images of one size, and replayed from then on.

Where images are small, launching hundreds of kernels takes longer than running them (docs/performance.md).
"""

from typing import cast

import torch
from torch import Tensor, nn

from fiss.models.segmenter import Segmenter, Trunk


class _Below(nn.Module):
    """What lies below a network's classifier, as a module of its own: its parameters are what is trained through the
    record."""

    def __init__(self, model: Segmenter, run: Trunk) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder
        self.run = run

    def forward(self, images_BCHW: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """As the network's own trunk."""
        outputs: tuple[Tensor, Tensor, tuple[Tensor, ...]] = self.run(images_BCHW)
        return outputs


def record(model: Segmenter, images_BCHW: Tensor, trains: bool) -> None:
    """Record the network below its classifier for images of this size, forward and, if it `trains`, backward.

    Whatever else comes (another size, a network in another mode or with other frozen parts) runs kernel by kernel, also
    where the record is of a compiled network: scoring would else compile it again for each mode and size. Call it with
    the precision of training set, and while nothing else uses the device.
    """
    model.train(trains)
    run = model.runs_with
    below = _Below(model, run).train(trains)
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # a cached cast would not be part of the record
    try:
        if trains:
            replay = torch.cuda.make_graphed_callables(below, (images_BCHW,), allow_unused_input=True)
        else:
            with torch.no_grad():
                replay = torch.cuda.make_graphed_callables(run, (images_BCHW,))
    finally:
        torch.set_autocast_cache_enabled(caches)
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])  # recording runs the network a few times, which moves BatchNorm's statistics
    model.runs_with = _Recorded(model.trunk, below, cast(Trunk, replay), images_BCHW, trains)


class _Recorded:
    """Replays where the record fits, and runs the network where it does not."""

    def __init__(self, run: Trunk, below: _Below, replay: Trunk, like: Tensor, trains: bool) -> None:
        self.run, self.replay, self.shape, self.type = run, replay, like.shape, like.dtype
        self.modules, self.parameters = list(below.modules())[1:], list(below.parameters())
        self.tensors = [*self.parameters, *below.buffers()]
        with torch.set_grad_enabled(trains):
            self.state = self._state()

    def _state(self) -> list[object]:
        """All that decides which kernels run, and on which memory."""
        return [
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            *(module.training for module in self.modules),
            *(parameter.requires_grad for parameter in self.parameters),
            *(tensor.data_ptr() for tensor in self.tensors),
        ]

    def __call__(self, images_BCHW: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        alike = images_BCHW.shape == self.shape and images_BCHW.dtype == self.type
        fits = alike and self._state() == self.state
        return self.replay(images_BCHW) if fits else self.run(images_BCHW)
