"""The built-in data set: textured shapes on textured ground, drawn from a seed, nothing to download.

Twelve classes that differ in outline only: objects of every class take their two colours and their pattern from one
distribution (brighter and finer than the grounds'), so one pixel says nothing about the class. Objects are large,
several to an image, and overlap: an image picked for one class shows others too, and what is background in one task
is a class of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fiss.data.dataset import Dataset
from fiss.data.reading import Bytes

Points = NDArray[np.float64]


def _circle(radius: float, x: float = 0.0, y: float = 0.0) -> Points:
    angles = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    return np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1)


def _star(points: int, inner: float) -> Points:
    angles = np.arange(2 * points) * np.pi / points - np.pi / 2
    radii = np.where(np.arange(2 * points) % 2 == 0, 1.0, inner)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1)


def _heart() -> Points:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([np.sin(t) ** 3, -(y + 2.5) / 15], 1)


def _polygon(*corners: tuple[float, float]) -> Points:
    return np.array(corners, dtype=np.float64)


_ARM = 0.36
OUTLINES: dict[str, tuple[Points, ...]] = {
    "disc": (_circle(0.85),),
    "ring": (_circle(1.0), _circle(0.52)),
    "square": (_polygon((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),),
    "triangle": (_polygon((0, -1.05), (1.05, 0.8), (-1.05, 0.8)),),
    "star": (_star(5, 0.42) * 1.15,),
    "cross": (
        _polygon(
            (-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
            (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM),
        ),
    ),
    "crescent": (_circle(1.05), _circle(0.85, 0.5, -0.1)),
    "arrow": (_polygon((-1.1, -0.35), (0.0, -0.35), (0.0, -0.95), (1.15, 0), (0.0, 0.95), (0.0, 0.35), (-1.1, 0.35)),),
    "ell": (_polygon((-0.9, -1), (-0.15, -1), (-0.15, 0.3), (0.9, 0.3), (0.9, 1), (-0.9, 1)),),
    "hourglass": (_polygon((-0.9, -1), (0.9, -1), (0.15, 0), (0.9, 1), (-0.9, 1), (-0.15, 0)),),
    "heart": (_heart() * 1.05,),
    "comb": (
        _polygon(
            (-1, -0.8), (-0.5, -0.8), (-0.5, 0.1), (-0.25, 0.1), (-0.25, -0.8), (0.25, -0.8), (0.25, 0.1),
            (0.5, 0.1), (0.5, -0.8), (1, -0.8), (1, 0.8), (-1, 0.8),
        ),
    ),
}  # fmt: skip
"""Outline of each class on [-1, 1], a second polygon is a hole; y points down."""

CLASSES = tuple(OUTLINES)


@cache
def _grid(size: int) -> tuple[Points, Points]:
    y, x = np.mgrid[0:size, 0:size] / size
    return x, y


def _texture(rng: np.random.Generator, size: int, fine: bool) -> Points:
    """Two random colours mixed by a random pattern: fine (objects) or coarse (grounds), with pixel noise."""
    x, y = _grid(size)
    kind, angle, phase, scale = rng.random(4)
    frequency = (9 + 9 * scale) if fine else (1.5 + 2.5 * scale)
    u = np.cos(np.pi * angle) * x + np.sin(np.pi * angle) * y
    v = np.cos(np.pi * angle) * y - np.sin(np.pi * angle) * x
    first = np.sin(2 * np.pi * (frequency * u + phase))
    wave = first if kind < 1 / 3 else first * np.sin(2 * np.pi * (frequency * v + phase))
    if kind > 2 / 3:
        wave = first + np.sin(2 * np.pi * frequency * v) + 0.5 * np.sin(2 * np.pi * frequency * (u - v))
    mix = 1 / (1 + np.exp(-3 * wave))
    low, high = rng.random((2, 3)) * 0.5 + (0.5 if fine else 0.0)
    colour = low + mix[..., None] * (high - low)
    return np.asarray(235 * colour + 10 + 24 * (rng.random((size, size, 1)) - 0.5))


def _stamp(rng: np.random.Generator, name: str, size: int) -> Bytes:
    """A 0/1 mask of one object at a random place, size and slight round_plan."""
    radius = size * (0.16 + 0.10 * rng.random())
    round_plan = np.radians(40 * (rng.random() - 0.5))
    centre = radius * 0.7 + (size - 1.4 * radius) * rng.random(2)
    matrix = np.array([[np.cos(round_plan), np.sin(round_plan)], [-np.sin(round_plan), np.cos(round_plan)]])
    canvas = Image.new("L", (size, size), 0)
    pen = ImageDraw.Draw(canvas)
    for points, fill in zip(OUTLINES[name], (1, 0), strict=False):
        pen.polygon([(float(px), float(py)) for px, py in points @ matrix * radius + centre], fill=fill)
    return np.asarray(canvas)


def draw(seed: int, split: str, number: int, size: int) -> tuple[Bytes, Bytes]:
    """Image `number` of a split: (size, size, 3) bytes and its mask of class ids, 0 is background."""
    rng = np.random.default_rng([seed, 0 if split == "train" else 1, number])
    image, mask = _texture(rng, size, fine=False), np.zeros((size, size), np.uint8)
    for _ in range(3 + int(3 * rng.random())):
        identity = 1 + int(len(CLASSES) * rng.random())
        tries = (_stamp(rng, CLASSES[identity - 1], size) for _ in range(4))
        stamp = min(tries, key=lambda s: int((mask[s == 1] > 0).sum()))
        image = np.where(stamp[..., None], _texture(rng, size, fine=True), image)
        mask[stamp == 1] = identity
    return image.clip(0, 255).astype(np.uint8), mask


@dataclass(frozen=True)
class ShapesSplit:
    """Images drawn when asked for."""

    name: str
    count: int
    size: int
    seed: int

    @property
    def stems(self) -> Sequence[str]:
        """shapes-train-0000 and so on."""
        return [f"shapes-{self.name}-{i:04d}" for i in range(self.count)]

    def read(self, i: int) -> tuple[Bytes, Bytes]:
        """Image and mask."""
        return draw(self.seed, self.name, i, self.size)

    def fingerprint(self) -> str:
        """The same parameters draw the same images."""
        return f"shapes-{DRAWING}-{self.count}-{self.size}-{self.seed}"


DRAWING = 2
"""Raised whenever the drawings change, so that no index of older ones is used."""


def load(train: int, val: int, size: int, seed: int) -> Dataset:
    """The two splits."""
    return Dataset("shapes", CLASSES, ShapesSplit("train", train, size, seed), ShapesSplit("val", val, size, seed))
