"""The growing classifier: one 1x1 convolution per group of classes, outputs side by side.

Growing is a function from weights to weights, so that a server grows a model without building one, and any
participant rebuilds the network from the label space alone.

B batch, D feature channels, C classes (channels), h w the decoder's resolution.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]
Start = Literal["random", "background"]

PREFIX = "classifier.groups"


class Classifier(nn.Module):
    """Concatenated 1x1 convolutions; channel 0 of the first group is background."""

    def __init__(self, features: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.groups = nn.ModuleList(nn.Conv2d(features, size, 1) for size in sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Channels per group."""
        return tuple(int(group.out_channels) for group in self.groups)  # type: ignore[arg-type]

    def forward(self, features_BDhw: Tensor) -> Tensor:
        """Logits, (B, C, h, w)."""
        return torch.cat([group(features_BDhw) for group in self.groups], 1)


def grow(weights: Weights, size: int, start: Start, seed: int) -> Weights:
    """The weights with one more group of `size` classes.

    `random` draws them as a fresh convolution would. `background` gives every new class the background's vector and
    splits the background's probability evenly: its bias and theirs become the old bias minus ln(size + 1), and no
    other probability moves.
    """
    groups = sum(name.startswith(f"{PREFIX}.") and name.endswith(".weight") for name in weights)
    first, offset = weights[f"{PREFIX}.0.weight"], weights[f"{PREFIX}.0.bias"].clone()
    grown = dict(weights)
    if start == "background":
        offset[0] -= math.log(size + 1)
        grown[f"{PREFIX}.0.bias"] = offset
        grown[f"{PREFIX}.{groups}.weight"] = first[:1].repeat(size, 1, 1, 1)
        grown[f"{PREFIX}.{groups}.bias"] = offset[:1].repeat(size)
    else:
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(first.shape[1])
        for name, shape in (("weight", (size, *first.shape[1:])), ("bias", (size,))):
            new = torch.empty(shape).uniform_(-bound, bound, generator=generator)
            grown[f"{PREFIX}.{groups}.{name}"] = new.to(first)
    return grown
