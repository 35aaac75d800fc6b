"""Segmenting images with a trained model: masks and probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fiss.data.dataset import Bytes, read_image, read_lines
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.federation.private_names import private
from fiss.models.segmenter import Segmenter, pad
from fiss.runs.run import Where, load_model, open_model
from fiss.training.device import pick_device

AT_ONCE = 8
"""Channels enlarged at a time: a large image with many classes needs no more memory than one with few."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model sees in an image.

    Args:
        mask: The channel of every pixel, (H, W); 0 is background.
        names: What each channel means, the background first.
        logits_Chw: The model's own answer, at the size it saw the image.

    Example:
        >>> seen = fiss.Predictor(run)("photo.jpg")
        >>> seen.names[seen.mask[0, 0]], seen.shares
    """

    mask: Bytes
    names: tuple[str, ...]
    logits_Chw: Tensor = field(repr=False)

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """Of every channel at every pixel, (C, H, W); made when first asked for, since they are large."""
        found_CHW = torch.empty((len(self.names), *self.mask.shape))
        for first, part in _enlarged(self.logits_Chw, self.mask.shape):
            found_CHW[first : first + len(part)] = part
        found_CHW.sub_(found_CHW.amax(0)).exp_()  # in place: they may be as large as the memory allows
        return found_CHW.div_(found_CHW.sum(0)).numpy()

    @property
    def shares(self) -> dict[str, float]:
        """The share of the pixels of each class that is in it."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.names)) / self.mask.size
        return {name: float(share) for name, share in zip(self.names, counts, strict=True) if share}


class Predictor:
    """A model that is ready to look at images.

    Args:
        run: A run or its folder, whose newest model it is; or a model file with the run's config.toml beside or above.
        device: auto, cpu, cuda, cuda:N.
        classes: A file of class names, one per line, where the model's are private.

    Example:
        >>> predictor = fiss.Predictor("runs/demo/fbl")
        >>> predictor("photo.jpg").mask
    """

    def __init__(self, run: Where, device: str = "auto", classes: Path | str | None = None) -> None:
        config, snapshot, file = open_model(run)
        names, key = snapshot.label_space.names, config.federation.private_names
        if classes is not None and not key:
            raise UserError("--classes is for runs with federation.private_names, and this one has none.")
        self.model = load_model(config, snapshot, file, pick_device(device))
        self.names = ("background", *(_readable(names, key, classes) if key else names))
        self.size = config.evaluation.size

    @torch.inference_mode()
    def __call__(self, image: Path | str | Bytes) -> Prediction:
        """Segment an image: a file, or an array (H, W, 3) or (H, W) of bytes.

        The model sees it at the size it was scored at; its logits are enlarged to the image's own.

        Example:
            >>> predictor(np.zeros((100, 80, 3), np.uint8)).mask.shape
            (100, 80)
        """
        pixels = _rgb(read_image(Path(image)) if isinstance(image, (Path, str)) else image)
        logits_Chw = logits_of(self.model, pixels, self.size)
        best = torch.full(pixels.shape[:2], -torch.inf, device=logits_Chw.device)
        found = torch.zeros(pixels.shape[:2], dtype=torch.uint8, device=logits_Chw.device)
        for first, part in _enlarged(logits_Chw, pixels.shape[:2]):
            top, channel = part.max(0)
            better = top > best
            best, found = torch.where(better, top, best), torch.where(better, (channel + first).to(torch.uint8), found)
        return Prediction(found.cpu().numpy(), self.names, logits_Chw)


def logits_of(model: Segmenter, image: Bytes, size: int = 0) -> Tensor:
    """Logits (C, h, w) of an image (H, W, 3) whose shorter side is first made `size`; 0: as it is."""
    height, width = image.shape[:2]
    scale = size / min(height, width) if size else 1
    small = [max(1, round(side * scale)) for side in (height, width)]
    pixels = torch.tensor(image).permute(2, 0, 1)[None].to(next(model.parameters()).device).float()
    if size:
        pixels = F.interpolate(pixels, small, mode="bilinear", antialias=True).round()
    padded, _ = pad(pixels, torch.zeros_like(pixels[:, 0], dtype=torch.uint8), model.divisor)
    logits: Tensor = model(normalise(padded)).logits_BCHW
    return logits[0, :, : small[0], : small[1]].float()


def _enlarged(logits_Chw: Tensor, size: tuple[int, ...]) -> Iterator[tuple[int, Tensor]]:
    """The logits at that size, a few channels at a time, each time with the first one's number."""
    for first in range(0, len(logits_Chw), AT_ONCE):
        yield first, F.interpolate(logits_Chw[None, first : first + AT_ONCE], size, mode="bilinear")[0]


def _rgb(image: Bytes) -> Bytes:
    image = np.asarray(image)
    if image.ndim == 2:
        image = np.stack([image] * 3, -1)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise UserError(f"An image of shape {image.shape} and type {image.dtype}: expected (H, W, 3) or (H, W), uint8.")
    return image


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
