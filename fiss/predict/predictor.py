"""Segmenting images with a trained model: masks and probabilities."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fiss.config.config import Config
from fiss.data import ade20k, shapes, voc
from fiss.data.dataset import read_lines
from fiss.data.folder import read_classes
from fiss.data.reading import Bytes, Picture
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.federation.private_names import private
from fiss.models.segmenter import Segmenter, pad
from fiss.predict.tiles import strips
from fiss.runs.pretrained import is_pretrained
from fiss.runs.run import Where, load_model, open_model, path_of
from fiss.training.device import pick_device

AT_ONCE = 8
"""Channels enlarged at a time: a large image with many classes needs no more memory than one with few."""


Blocks = Callable[[], Iterator[tuple[int, int, Tensor]]]
"""Logits at an image's own size, (c, h, W) at a time with the first channel and row, made anew whenever asked."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model sees in an image.

    Args:
        mask: The channel of every pixel, (H, W); 0 is background.
        names: What each channel means, the background first.

    Example:
        >>> seen = fiss.Predictor(run)("photo.jpg")
        >>> seen.names[seen.mask[0, 0]], seen.shares
    """

    mask: Bytes
    names: tuple[str, ...]
    blocks: Blocks = field(repr=False)
    """The logits it was made of. In tiles the network looks at the image again."""
    found_confidence: NDArray[np.float32] | None = field(repr=False, default=None)

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """Probabilities of the channels at every pixel, (C, H, W); made when first asked for, since they are large."""
        found_CHW = torch.empty((len(self.names), *self.mask.shape))
        for channel, row, part in self.blocks():
            found_CHW[channel : channel + part.shape[0], row : row + part.shape[1]] = part
        found_CHW.sub_(found_CHW.amax(0)).exp_()  # in place: they may be as large as the memory allows
        return found_CHW.div_(found_CHW.sum(0)).numpy()

    @cached_property
    def confidence(self) -> NDArray[np.float32]:
        """The probability of the class in the mask, (H, W); made when first asked for.

        It is the network's own opinion. Networks are mostly too confident, most of all on images unlike those they
        were trained on, so 0.9 does not mean right nine times in ten; it says which pixels to look at first.
        """
        if self.found_confidence is not None:
            return self.found_confidence
        return _most_likely(self.blocks(), self.mask.shape, True)[1]

    def unsure(self, below: float = 0.6) -> NDArray[np.bool_]:
        """Where no class has that probability, (H, W).

        Which value suits a use is seen on labelled images that the model was not trained on: the share of the errors
        that it catches, and of the correct pixels that it catches with them.

        Example:
            >>> seen.unsure(0.6).mean()
        """
        return self.confidence < below

    @property
    def shares(self) -> dict[str, float]:
        """The share of the pixels of each class that is in it."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.names)) / self.mask.size
        return {name: float(share) for name, share in zip(self.names, counts, strict=True) if share}


class Predictor:
    """A model that is ready to look at images.

    Args:
        run: A run or its folder, whose newest model it is; a model file with the run's config.toml beside or above; or
            a folder written by segmentation_models_pytorch's `save_pretrained`.
        device: auto, cpu, cuda, cuda:N.
        classes: A file of class names, one per line, where the model's are private or it has none.
        tile: Look at images at their own size, in overlapping squares of so many pixels: for images whose details
            are lost in a smaller one. 0: whole images, their shorter side made as long as when the model was scored.

    Example:
        >>> predictor = fiss.Predictor("runs/demo/fbl")
        >>> predictor("photo.jpg").mask
    """

    def __init__(self, run: Where, device: str = "auto", classes: Path | str | None = None, tile: int = 0) -> None:
        self.config, snapshot, self.file = open_model(run, classes)
        names, key = snapshot.label_space.names, self.config.federation.private_names
        if classes is not None and not key and not is_pretrained(path_of(run)):
            raise UserError("--classes is for models whose classes have no names or private ones; these have names.")
        self.model = load_model(self.config, snapshot, self.file, pick_device(device))
        self.names = ("background", *(_readable(names, key, classes) if key else names))
        self.ids = _ids(self.config, self.names[1:])
        self.size, self.how = self.config.evaluation.size, self.config.reading
        self.grid = math.lcm(self.model.divisor, int(self.model.encoder.output_stride))
        self.tile = tile + -tile % self.grid
        if tile and tile < 4 * self.grid:
            raise UserError(f"--tile {tile}: at least {4 * self.grid} pixels for this network.")

    def __call__(self, image: Path | str | NDArray[Any]) -> Prediction:
        """Segment an image: a file, or an array (H, W, channels) or (H, W) of the values that files of its kind have.

        The model sees it at the size it was scored at; its logits are enlarged to the image's own.

        Example:
            >>> predictor(np.zeros((100, 80, 3), np.uint8)).mask.shape
            (100, 80)
        """
        return next(self.many([image], 1))

    def many(self, images: Iterable[Path | str | NDArray[Any]], batch: int = 4) -> Iterator[Prediction]:
        """Segment many images, as one at a time: they are read and come back in their order.

        Args:
            images: Files or arrays, as for one.
            batch: How many are read at a time; those of one size go through the network together.

        Example:
            >>> for seen in predictor.many(["a.jpg", "b.jpg"]):
            ...     print(seen.shares)
        """
        how = self.how  # that of training
        return self.segment((how.read(Path(i)) if isinstance(i, (Path, str)) else how.take(i) for i in images), batch)

    def segment(self, pictures: Iterable[Picture], batch: int = 4) -> Iterator[Prediction]:
        """Segment many images that were read with `predictor.how`."""
        left = iter(pictures)
        while pixels := list(islice(left, max(1, batch))):
            yield from [self._tiled(image) for image in pixels] if self.tile else self._whole(pixels)

    @torch.inference_mode()
    def _whole(self, images: Sequence[Picture]) -> list[Prediction]:
        small = [_resized(self.model, image, self.size) for image in images]
        found: dict[int, Tensor] = {}
        for shape in dict.fromkeys(one.shape for one in small):
            own = [i for i, one in enumerate(small) if one.shape == shape]
            found |= zip(own, _logits(self.model, torch.cat([small[i] for i in own])), strict=True)
        return [self._prediction(found[i], image.shape[:2]) for i, image in enumerate(images)]

    def _prediction(self, logits_Chw: Tensor, size: tuple[int, int]) -> Prediction:
        return Prediction(channels_of(logits_Chw, size), self.names, partial(_enlarged, logits_Chw, size))

    @torch.inference_mode()
    def _tiled(self, image: Picture) -> Prediction:
        height, width = size = image.shape[:2]

        @torch.inference_mode()
        def look(rows: slice, columns: slice) -> Tensor:
            return logits_of(self.model, image[rows, columns])

        def blocks() -> Iterator[tuple[int, int, Tensor]]:
            row = 0
            for strip_ChW in strips(look, (height, width), self.tile, self.grid):
                yield 0, row, strip_ChW
                row += strip_ChW.shape[1]

        mask, confidence = _most_likely(blocks(), size, True)
        return Prediction(mask, self.names, blocks, confidence)


def channels_of(logits_Chw: Tensor, size: tuple[int, ...]) -> Bytes:
    """The channel of every pixel, (H, W), once the logits are enlarged to that size."""
    much = math.prod(size) > 4 * math.prod(logits_Chw.shape[1:])  # else finding out takes as long
    channels = _may_win(logits_Chw) if much else torch.arange(len(logits_Chw))
    found, _ = _most_likely(_enlarged(logits_Chw[channels], size), size, False)
    mask: Bytes = channels.to(torch.uint8).cpu().numpy()[found]
    return mask


def logits_of(model: Segmenter, image: Picture, size: int = 0) -> Tensor:
    """Logits (C, h, w) of an image (H, W, channels) whose shorter side is first made `size`; 0: as it is."""
    return _logits(model, _resized(model, image, size))[0]


def _resized(model: Segmenter, image: Picture, size: int) -> Tensor:
    """The image on the model's device, (1, channels, h, w)."""
    height, width = image.shape[:2]
    scale = size / min(height, width) if size else 1
    small = [max(1, round(side * scale)) for side in (height, width)]
    pixels = torch.tensor(image).permute(2, 0, 1)[None].to(next(model.parameters()).device).float()
    if not size:
        return pixels
    pixels = F.interpolate(pixels, small, mode="bilinear", antialias=True)
    return pixels.round() if image.dtype == np.uint8 else pixels  # as in training


def _logits(model: Segmenter, pixels_B3hw: Tensor) -> Tensor:
    """Logits of images on the scale of bytes, (B, C, h, w)."""
    height, width = pixels_B3hw.shape[2:]
    padded, _ = pad(pixels_B3hw, torch.zeros_like(pixels_B3hw[:, 0], dtype=torch.uint8), model.divisor)
    logits: Tensor = model(normalise(padded)).logits_BCHW
    return logits[..., :height, :width].float()


def _enlarged(logits_Chw: Tensor, size: tuple[int, ...]) -> Iterator[tuple[int, int, Tensor]]:
    """The logits at that size, a few channels at a time."""
    for first in range(0, len(logits_Chw), AT_ONCE):
        part = logits_Chw[None, first : first + AT_ONCE]
        if part.shape[2:] != size:
            part = F.interpolate(part, size, mode="bilinear")
        yield first, 0, part[0]


def _may_win(logits_Chw: Tensor) -> Tensor:
    """Channels that can be the largest somewhere once they are enlarged: between four neighbours none is above its
    largest there, and one is above the largest of all channels' least."""
    most = least = logits_Chw
    for side in (1, 2):
        if (pairs := logits_Chw.shape[side] - 1) > 0:
            most = torch.maximum(most.narrow(side, 0, pairs), most.narrow(side, 1, pairs))
            least = torch.minimum(least.narrow(side, 0, pairs), least.narrow(side, 1, pairs))
    near = 1e-5 * logits_Chw.abs().amax()  # what interpolation may round
    return (most >= least.amax(0) - near).flatten(1).any(1).nonzero()[:, 0]


def _most_likely(
    blocks: Iterator[tuple[int, int, Tensor]], size: tuple[int, ...], confidence: bool
) -> tuple[Bytes, NDArray[np.float32]]:
    """The channel with the largest logit of every pixel, (H, W), and, if asked for, its probability."""
    best, total = torch.full(size, -torch.inf), torch.zeros(size)
    found = torch.zeros(size, dtype=torch.uint8)
    for first, row, part in blocks:
        here = slice(row, row + part.shape[1])
        top, channel = (tensor.cpu() for tensor in part.max(0))
        before, better = best[here], top > best[here]
        most = torch.where(better, top, before)
        if confidence:
            among = (part - most.to(part)).exp().sum(0).cpu()
            total[here] = total[here] * (before - most).exp() + among
        found[here] = torch.where(better, (channel + first).to(torch.uint8), found[here])
        best[here] = most
    return found.numpy(), total.reciprocal().numpy()


def _ids(config: Config, names: Sequence[str]) -> tuple[str, ...]:
    """The names of all mask ids of the data set, from 1; none where the data set is not there to say them."""
    fixed = {"voc": voc.CLASSES, "ade20k": ade20k.CLASSES, "shapes": shapes.CLASSES}
    listed = Path(config.data.root or ".").expanduser() / "classes.txt"
    has_list = config.data.name == "folder" and config.data.root and listed.is_file()
    found = fixed.get(config.data.name) or (read_classes(listed) if has_list else ())
    return found if set(names) <= set(found) else ()


def _readable(names: Sequence[str], key: str, classes: Path | str | None) -> tuple[str, ...]:
    if classes is None:
        raise UserError(
            "The class names of this model are private: --classes FILE, one name per line, makes them readable."
        )
    own = {private(name, key): name for name in read_lines(Path(classes))}
    lost = [name for name in names if name not in own]
    if lost:
        raise UserError(f"{classes}: {len(lost)} of the model's {len(names)} classes are not in it.")
    return tuple(own[name] for name in names)
