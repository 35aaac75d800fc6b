"""Joint image-and-mask augmentation and the views of an image that are scored, on torchvision's transforms.

A training sample is asked for by (index, key): the key seeds its crop and flip, so that a sample depends neither on
which worker makes it nor on what was made before. Images keep the type in which they are read, mostly bytes, until
they are on the device; `normalise` scales them there. Masks are resized as Pillow does it: torchvision's plain NEAREST,
which it takes for them by itself, is half a pixel off. torchvision takes seconds to import, so it waits for the first
image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fiss.data.dataset import Split
from fiss.errors import UserError, check_fields, check_least

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, in RGB."""

View = Literal["published", "full"]


@dataclass(frozen=True)
class AugmentSpec:
    """How a training image is cut; the defaults are the published ones."""

    crop: int = 512
    """Side of the square that a random part of the image is resized to."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Area of that part, relative to the image; parts that do not fit are drawn again, so above 1 means up to the
    whole."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Its aspect, drawn on a logarithmic scale."""
    flip: float = 0.5
    """Chance of a horizontal flip."""

    def __post_init__(self) -> None:
        check_least("augment.", self, 16, "crop")
        for field in ("scale", "ratio"):
            pair = getattr(self, field)
            if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
                raise UserError(f"augment.{field} = {list(pair)}: must be two numbers, 0 < low <= high.")
        check_fields("augment.", self, "from 0 to 1", lambda chance: 0 <= chance <= 1, "flip")


class TrainingImages(TorchDataset[tuple[Tensor, Tensor]]):
    """Augmented images (channels, crop, crop) and masks of ids (crop, crop), by (index, key)."""

    def __init__(self, split: Split, spec: AugmentSpec) -> None:
        from torchvision.transforms import v2

        self.split, self.spec = split, spec
        self.part = v2.RandomResizedCrop((spec.crop, spec.crop), spec.scale, spec.ratio)

    def __getitem__(self, sample: tuple[int, int]) -> tuple[Tensor, Tensor]:
        from torchvision.transforms import InterpolationMode as Mode
        from torchvision.transforms.v2 import functional as F

        index, key = sample
        image, mask = _tensors(self.split, index)
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(key)
        part = self.part.make_params([image])
        flip = bool(torch.rand(()) < self.spec.flip)
        torch.set_rng_state(before)
        size = [self.spec.crop, self.spec.crop]
        image = F.resized_crop(image, **part, size=size, interpolation=Mode.BILINEAR, antialias=True)
        mask = F.resized_crop(mask, **part, size=size, interpolation=Mode.NEAREST_EXACT)
        return (image.flip(-1), mask[0].flip(-1)) if flip else (image, mask[0])


class ScoredImages(TorchDataset[tuple[Tensor, Tensor]]):
    """Images to score, by (index, view): `published` (shorter side resized, centre crop of image and mask) or `full`,
    as they are; masks of ids."""

    def __init__(self, split: Split, size: int) -> None:
        self.split, self.size = split, size

    def __getitem__(self, sample: tuple[int, View]) -> tuple[Tensor, Tensor]:
        from torchvision.transforms import InterpolationMode as Mode
        from torchvision.transforms.v2 import functional as F

        index, view = sample
        image, mask = _tensors(self.split, index)
        if view == "published":
            size = [self.size]
            image = F.center_crop(F.resize(image, size, interpolation=Mode.BILINEAR, antialias=True), size)
            mask = F.center_crop(F.resize(mask, size, interpolation=Mode.NEAREST_EXACT), size)
        return image, mask[0]


def _tensors(split: Split, index: int) -> tuple[Tensor, Tensor]:
    """Image (channels, H, W) and mask of ids (1, H, W), of the type in which they are read."""
    image, mask = split.read(index)
    return torch.tensor(image).permute(2, 0, 1), torch.tensor(mask)[None]


def normalise(images_BCHW: Tensor) -> Tensor:
    """The scale of bytes to floats with ImageNet's mean and deviation, channels last, on whatever device the images
    are; other than three channels all have those of grey."""
    mean, std = _statistics(images_BCHW.device, images_BCHW.shape[1])
    return (images_BCHW.contiguous(memory_format=torch.channels_last).float() - mean) / std


@lru_cache(maxsize=8)
def _statistics(device: torch.device, channels: int) -> tuple[Tensor, Tensor]:
    """Kept on the device: a copy in every step would wait for it."""
    ours = (values if channels == 3 else [sum(values) / 3] * channels for values in (MEAN, STD))
    mean, std = (torch.tensor(values, device=device).view(channels, 1, 1) * 255 for values in ours)
    return mean, std


def stack(samples: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch of images and a batch of masks."""
    images, masks = zip(*samples, strict=True)
    return torch.stack(images), torch.stack(masks)
