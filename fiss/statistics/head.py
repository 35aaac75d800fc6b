"""The network's head where the classifier is solved: fixed features of the trunk's maps, and a linear classifier.

B images, C channels, D features, h w the grid.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fiss.models.segmenter import Head, Segmenter
from fiss.statistics.features import FeatureSpec, FixedLayers, draw_layers, feature_map, named_maps

BUFFERS = ("head.weight", "head.bias")


class SolvedHead(Head):
    """Features as they were added up, and the classifier that came of them. The fixed layers are drawn from the seed
    wherever the network is built, so they are neither sent nor stored."""

    def __init__(self, spec: FeatureSpec, model: Segmenter, seed: int) -> None:
        super().__init__()
        channels = model.map_channels
        self.spec, self.features = replace(spec, maps=spec.chosen(channels)), spec.dimensions(channels)
        layers = draw_layers(spec, sum(channels[name] for name in self.spec.maps), seed)
        for name, tensor in vars(layers).items():
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("weight", torch.zeros(0, self.features))
        self.register_buffer("bias", torch.zeros(0))

    @property
    def layers(self) -> FixedLayers:
        """Where the network is."""
        return FixedLayers(self.random_DK, self.projection_KP)  # type: ignore[arg-type]

    def map(self, decoded: Tensor, encoded: Tensor, stages: tuple[Tensor, ...], size: Sequence[int]) -> Tensor:
        """The features of images of that size, (B, D, h, w); without a stride on the decoder's own grid."""
        grid = self.spec.grid(size[0], size[1]) if self.spec.stride else (decoded.shape[2], decoded.shape[3])
        named = named_maps(decoded, encoded, stages, self.spec.needs_pretrained)
        return feature_map(named, self.spec, self.layers, grid)

    def forward(self, decoded: Tensor, encoded: Tensor, stages: tuple[Tensor, ...], size: Sequence[int]) -> Tensor:
        """Scores on the grid, (B, C, h, w)."""
        features_BDhw = self.map(decoded, encoded, stages, size)
        with torch.autocast(features_BDhw.device.type, enabled=False):
            scores_BhwC = features_BDhw.permute(0, 2, 3, 1) @ self.weight.T + self.bias
        return scores_BhwC.permute(0, 3, 1, 2)


def head_of(model: Segmenter) -> SolvedHead:
    """A network's head, which a method that adds up features has given it."""
    assert isinstance(model.head, SolvedHead)
    return model.head
