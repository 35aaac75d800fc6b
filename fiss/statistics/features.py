"""From the maps of a frozen trunk to the one feature map that is counted and classified.

Maps are brought to one grid and put side by side; then, if wanted, a fixed layer of random features, and a fixed
projection. Neither is ever trained: both are drawn from the seed.

B images, D features of all maps, K random ones, P projected ones, h w the grid.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fiss.errors import unknown
from fiss.models.segmenter import PRETRAINED, enlarge
from fiss.rng import address


@dataclass(frozen=True)
class FeatureSpec:
    """Which features."""

    maps: tuple[str, ...] = ("decoder", "encoder")
    """In this order: decoder (left out where there is none), encoder (its last map, after the activation), stage1,
    stage2, ... or from the last one stage-1, stage-2, ...; stages: all of these. pretrained/NAME: the same of the
    encoder as it was before any training."""
    stride: int = 16
    """Pixels along the side of a cell."""
    random: int = 0
    """Width of a fixed random layer with ReLU; 0: none."""
    projection: int = 0
    """Dimensions of a fixed random projection; 0: none."""

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Cells of an image of that size."""
        return -(-height // self.stride), -(-width // self.stride)

    def dimensions(self, channels: Mapping[str, int]) -> int:
        """Dimensions of the feature map, from the channels of the trunk's maps."""
        return self.projection or self.random or sum(channels[name] for name in self.chosen(channels))

    def chosen(self, known: Mapping[str, object]) -> tuple[str, ...]:
        """The names of its maps, all of them known."""
        found: list[str] = []
        for name in self.maps:
            if name == "decoder" and name not in known and len(self.maps) > 1:
                continue  # there is none, and what would be there is one of the others
            before, every = (PRETRAINED if name.startswith(PRETRAINED) else ""), f"{PRETRAINED}stages"
            if name not in known and name not in ("stages", every):
                raise unknown("feature map", name, [*known, "stages", *([every] if before else [])])
            start = f"{before}stage"
            all_of = [key for key in known if key.startswith(start) and key.removeprefix(start).isdecimal()]
            found += all_of if name in ("stages", every) else [name]
        return tuple(found)

    @property
    def needs_pretrained(self) -> bool:
        """Whether the encoder is wanted as it was before any training."""
        return any(name.startswith(PRETRAINED) for name in self.maps)


@dataclass(frozen=True, eq=False)
class FixedLayers:
    """What the maps go through; None where nothing is to be done."""

    random_DK: Tensor | None = None
    projection_KP: Tensor | None = None
    """Of the D features themselves where there is no random layer."""

    def to(self, device: torch.device) -> "FixedLayers":
        """On that device."""
        return FixedLayers(*(t if t is None else t.to(device) for t in vars(self).values()))


def draw_layers(spec: FeatureSpec, features: int, seed: int) -> FixedLayers:
    """The layers of that seed, for so many features of all maps, which they see as they are: standardised ones won a
    point on one trunk, lost one on another (docs/log.md), and would have to be agreed on before the first sums."""
    random_DK = _uniform(features, spec.random, seed, "random") if spec.random else None
    projection_KP = _uniform(spec.random or features, spec.projection, seed, "projection") if spec.projection else None
    return FixedLayers(random_DK, projection_KP)


def _uniform(rows: int, columns: int, seed: int, name: str) -> Tensor:
    """Entries of variance 1 / rows; uniform, as normal ones may differ in their last bits between machines."""
    generator = torch.Generator().manual_seed(address(seed, "features", name))
    bound = math.sqrt(3 / rows)
    return torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)


def named_maps(
    decoded_BDhw: Tensor, encoded_BDhw: Tensor, stages: tuple[Tensor, ...], pretrained: bool = False
) -> dict[str, Tensor]:
    """The maps of a trunk, by name; stages by their place from the first or, negative, from the last. `pretrained`:
    the second half of the stages, and one more, are those of the encoder before any training."""
    own = stages[: len(stages) // 2] if pretrained else stages
    named = {"decoder": decoded_BDhw, "encoder": encoded_BDhw, **_places(own)}
    if pretrained:
        kept = _places(stages[len(own) : -1]) | {"encoder": stages[-1]}
        named |= {f"{PRETRAINED}{name}": s for name, s in kept.items()}
    return named


def _places(stages: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"stage{i}": s for i, s in enumerate(stages, 1)} | {f"stage{-i}": s for i, s in enumerate(stages[::-1], 1)}


def feature_map(maps: Mapping[str, Tensor], spec: FeatureSpec, layers: FixedLayers, size: tuple[int, int]) -> Tensor:
    """The features on a grid of that size, (B, D, h, w) in float32 with the features of a cell side by side."""
    with torch.autocast(next(iter(maps.values())).device.type, enabled=False):
        on_grid = [_resize(maps[name].float(), size) for name in spec.chosen(maps)]
        features_BhwD = torch.cat(on_grid, 1).permute(0, 2, 3, 1)
        if layers.random_DK is not None:
            features_BhwD = F.relu(features_BhwD @ layers.random_DK)
        if layers.projection_KP is not None:
            features_BhwD = features_BhwD @ layers.projection_KP
    return features_BhwD.permute(0, 3, 1, 2)


def _resize(map_BDhw: Tensor, size: tuple[int, int]) -> Tensor:
    """Means over cells where it is finer than the grid, bilinear where it is coarser."""
    finer = [max(side, cells) for side, cells in zip(map_BDhw.shape[2:], size, strict=True)]
    if list(map_BDhw.shape[2:]) != finer:
        map_BDhw = enlarge(map_BDhw, finer)
    if finer == list(size):
        return map_BDhw
    if torch.compiler.is_exporting() and all(side % cells == 0 for side, cells in zip(finer, size, strict=True)):
        return F.avg_pool2d(map_BDhw, [int(side // cells) for side, cells in zip(finer, size, strict=True)])
    return F.adaptive_avg_pool2d(map_BDhw, size)


def digest(spec: FeatureSpec, layers: FixedLayers, trunk: Mapping[str, Tensor]) -> str:
    """What sums are made with, in one word: the same only for the same features of the same trunk."""
    found = hashlib.sha256(json.dumps(asdict(spec), sort_keys=True).encode())
    fixed = {name: tensor for name, tensor in vars(layers).items() if tensor is not None}
    for where, tensors in (("trunk", trunk), ("layers", fixed)):
        for name, tensor in sorted(tensors.items()):
            found.update(f"{where}/{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
