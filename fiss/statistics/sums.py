"""What labelled features add up to: values that can be added and taken away, whatever they were split into.

A cell of a feature map has for each channel the share of its pixels with that label, and weighs as much as its pixels
that are not void. Per channel there are the weights and the weighted features added up; over all cells together one
Gram matrix. Products and sums are taken in float64, which neither autocast nor TF32 touches and which GPUs of data
centres compute as fast as float32. The error is 1e-14 of the sum of the terms' sizes over 20,000 cells, where products
in float32 leave 1e-7, and splits of the same images would no longer agree.

B images, C channels, D features, H W the labels' size, h w the feature map's, N cells, T numbers in a triangle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEAST = 1e-6
"""Channels that weigh less than this many cells hold nothing but what rounding left when others were taken out."""
ROWS = 4096
"""Cells whose features are held in float64 at once."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the cells of any number of images, in float64."""

    counts_C: Tensor
    """The weight of each channel, in cells."""
    sums_CD: Tensor
    """The weighted features of each channel, added up."""
    triangle_T: Tensor
    """The upper half, row by row, of the Gram matrix: weight times f f^T over all cells, added up. In float32 where it
    is only kept (`kept`)."""
    cells: int = 0
    """How many cells there were, void ones too; negative where more is taken away than added."""
    images: int = 0
    """How many images there were."""

    @classmethod
    def zero(cls, channels: int, features: int) -> "Sums":
        """The sums of no image at all."""
        shapes = {"counts": (channels,), "sums": (channels, features), "triangle": (features * (features + 1) // 2,)}
        return cls.from_tensors({name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}, 0, 0)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], cells: int, images: int) -> "Sums":
        """Sums from what `tensors` gave, widened to float64."""
        counts, sums, triangle = (tensors[name].double() for name in ("counts", "sums", "triangle"))
        return cls(counts, sums, triangle, cells, images)

    def tensors(self, dtype: torch.dtype | None = torch.float64) -> dict[str, Tensor]:
        """What is stored and sent, by name; None: each as it is. In float32 a number loses at most 2^-24 of itself."""
        named = {"counts": self.counts_C, "sums": self.sums_CD, "triangle": self.triangle_T}
        return {name: tensor.to(dtype or tensor.dtype) for name, tensor in named.items()}

    @classmethod
    def total(cls, parts: Sequence["Sums"], channels: int, features: int) -> "Sums":
        """All of them together, added up in this order, for so many channels or more."""
        total = cls.zero(max([channels, *(part.channels for part in parts)]), features)
        for part in parts:
            total.counts_C[: part.channels] += part.counts_C
            total.sums_CD[: part.channels] += part.sums_CD
            total.triangle_T.add_(part.triangle_T)
        return replace(total, cells=sum(part.cells for part in parts), images=sum(part.images for part in parts))

    def kept(self) -> "Sums":
        """The same in half the memory, if the triangle came as float32 and nothing was added to it."""
        short_T = self.triangle_T.float()
        return replace(self, triangle_T=short_T) if torch.equal(short_T.double(), self.triangle_T) else self

    @property
    def channels(self) -> int:
        """C."""
        return len(self.counts_C)

    @property
    def features(self) -> int:
        """D."""
        return self.sums_CD.shape[1]

    @property
    def present_C(self) -> Tensor:
        """Whether a channel has any weight."""
        return self.counts_C > LEAST

    def diagonal(self) -> Tensor:
        """Diagonal of the Gram matrix, (D,)."""
        rows_D = torch.arange(self.features, 0, -1, device=self.triangle_T.device)
        return self.triangle_T[rows_D.cumsum(0) - rows_D].double()  # where the rows of the triangle begin

    def gram(self) -> Tensor:
        """The whole Gram matrix, (D, D); a new one each time."""
        upper_DD = torch.zeros(self.features, self.features, dtype=torch.float64, device=self.triangle_T.device)
        upper_DD.masked_scatter_(_upper(upper_DD), self.triangle_T.double())
        return torch.triu(upper_DD, 1).T.add_(upper_DD)

    def within(self) -> Tensor:
        """The scatter within the classes: sum over channels of G_c - s_c s_c^T / n_c, where the G_c need not be known;
        (D, D)."""
        present = self.present_C
        roots = self.sums_CD[present] / self.counts_C[present, None].sqrt()
        return self.gram().addmm_(roots.T, roots, alpha=-1)

    def grown(self, channels: int) -> "Sums":
        """The sums with so many channels; the new ones, at the end, are empty."""
        more = channels - self.channels
        assert more >= 0, "a label space only grows"
        pad = torch.nn.functional.pad
        return replace(self, counts_C=pad(self.counts_C, (0, more)), sums_CD=pad(self.sums_CD, (0, 0, 0, more)))

    def __add__(self, other: "Sums") -> "Sums":
        return self._plus(other, 1)

    def __sub__(self, other: "Sums") -> "Sums":
        return self._plus(other, -1)

    def _plus(self, other: "Sums", sign: int) -> "Sums":
        a, b = (sums.grown(max(self.channels, other.channels)) for sums in (self, other))
        return Sums(
            a.counts_C.add(b.counts_C, alpha=sign),
            a.sums_CD.add(b.sums_CD, alpha=sign),
            a.triangle_T.double().add(b.triangle_T, alpha=sign),
            a.cells + sign * b.cells,
            a.images + sign * b.images,
        )

    def close(self, other: "Sums", tolerance: float = 1e-12) -> bool:
        """Whether two sums are equal, relative to the largest number of each kind."""
        if (self.channels, self.features) != (other.channels, other.features):
            return False
        pairs = zip(self.tensors().values(), other.tensors().values(), strict=True)
        same = all(float((a - b).abs().max()) <= tolerance * float(b.abs().max()) for a, b in pairs)
        return same and (self.cells, self.images) == (other.cells, other.images)


class Accumulator:
    """Adds up batch after batch on one device: its memory does not grow, and it waits for nothing until asked."""

    def __init__(self, channels: int, features: int, device: torch.device | str = "cpu") -> None:
        self.counts_C, self.sums_CD, self.gram_DD = (
            torch.zeros(shape, dtype=torch.float64, device=device)
            for shape in ((channels,), (channels, features), (features, features))
        )
        self.cells = self.images = 0

    def add_images(self, features_BDhw: Tensor, shares_BChw: Tensor, weights_Bhw: Tensor | None = None) -> None:
        """Count a batch: its feature maps, and the shares that `cell_shares` gives for maps of that size. A cell weighs
        as much as its shares together, or as `weights_Bhw` says."""
        assert features_BDhw.shape[2:] == shares_BChw.shape[2:], "shares for a map of another size"
        weights_B1hw = shares_BChw.sum(1, keepdim=True) if weights_Bhw is None else weights_Bhw[:, None]
        maps = (features_BDhw, shares_BChw, weights_B1hw)
        cells = (torch.split(m.permute(0, 2, 3, 1).flatten(0, 2), ROWS) for m in maps)
        for features, shares, weights_N1 in zip(*cells, strict=True):
            features_ND, shares_NC = features.double(), shares.double()
            self.counts_C += shares_NC.sum(0)
            self.sums_CD.addmm_(shares_NC.T, features_ND)
            weighted_ND = features_ND * weights_N1.double().sqrt()
            self.gram_DD.addmm_(weighted_ND.T, weighted_ND)
        self.images += len(features_BDhw)
        self.cells += len(features_BDhw) * features_BDhw.shape[2:].numel()

    def sums(self) -> Sums:
        """What has been counted so far, in memory."""
        triangle = self.gram_DD.masked_select(_upper(self.gram_DD)).cpu()
        return Sums(self.counts_C.cpu().clone(), self.sums_CD.cpu().clone(), triangle, self.cells, self.images)


def cell_shares(labels_BHW: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """Share of each channel among the pixels of each cell, (B, C, h, w) in float64; void and labels from `channels` on
    are left out. A pixel on the border of cells counts in each by its area there. All is counted in whole numbers, so
    that the order does not matter: a pixel is h by w of them, a cell H by W."""
    for side, cells in enumerate(size, 1):  # no pixel may be larger than a cell
        if cells > labels_BHW.shape[side]:
            labels_BHW = labels_BHW.repeat_interleave(-(-cells // labels_BHW.shape[side]), side)
    images, height, width = labels_BHW.shape
    bins = channels + 1  # one more for what is left out: no sync as a mask would need
    label_BHW = labels_BHW.long().clamp(max=channels)
    image_B11 = torch.arange(images, device=label_BHW.device)[:, None, None]
    total = torch.zeros(images * size[0] * size[1] * bins, dtype=torch.long, device=label_BHW.device)
    for row_H, tall_H in _overlaps(height, size[0], label_BHW.device):
        for column_W, wide_W in _overlaps(width, size[1], label_BHW.device):
            row_BH1 = (image_B11 * size[0] + row_H[:, None]) * (size[1] * bins)
            bin_BHW = label_BHW + row_BH1 + column_W * bins
            area_BHW = (tall_H[:, None] * wide_W).expand_as(label_BHW)
            total.scatter_add_(0, bin_BHW.flatten(), area_BHW.flatten())
    shares_BhwC = total.view(images, *size, bins)[..., :channels].double() / (height * width)
    return shares_BhwC.permute(0, 3, 1, 2)


def _overlaps(pixels: int, cells: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Along one side, where a pixel is `cells` long and a cell `pixels`: the cell in which each pixel begins and how
    much of it lies there; then, where they do not divide evenly, the next one and the rest."""
    begins = torch.arange(pixels, device=device) * cells
    first = begins // pixels
    inside = ((first + 1) * pixels - begins).clamp(max=cells)
    yield first, inside
    if pixels % cells:
        yield (first + 1).clamp(max=cells - 1), cells - inside


def _upper(matrix_DD: Tensor) -> Tensor:
    return torch.ones_like(matrix_DD, dtype=torch.bool).triu_()
