"""The contact sheet of a data set: one page of small pictures, each class under its name, what is suspicious first.

Names that are shifted by one, masks of other images and ignored objects are seen at a glance, and in no table.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Template
from PIL import Image, ImageDraw

from fiss.data.dataset import Split
from fiss.data.index import DataCheck, Index
from fiss.data.reading import Bytes, as_shown
from fiss.errors import UserError
from fiss.labels import IGNORE
from fiss.predict.palette import colours_of
from fiss.progress import Progress
from fiss.runs.folder import write_atomically

SIDE = 176
"""Of a small picture, pixels."""
SHOWN = 4
"""Pictures for each class, and for each suspicion."""


@dataclass(frozen=True)
class Tile:
    """A small picture."""

    name: str
    picture: str
    """WebP, as text."""
    names: tuple[str, ...]
    """The classes that are in it."""


@dataclass(frozen=True)
class Section:
    """Small pictures under a heading."""

    title: str
    text: str
    colour: str
    tiles: tuple[Tile, ...]


class _Sheet:
    """What is drawn of a data set, one image in memory at a time."""

    def __init__(self, found: DataCheck) -> None:
        self.parts = ((found.dataset.train, found.train), (found.dataset.val, found.val))
        self.names = dict(enumerate(("background", *found.dataset.classes))) | {IGNORE: "ignored"}
        colours = np.full((256, 3), 255, np.uint8)
        colours[: len(self.names) - 1] = colours_of(len(self.names) - 1)
        self.colours = colours
        self.places = {stem: (split, i) for split, _ in self.parts for i, stem in enumerate(split.stems)}

    def colour(self, i: int) -> str:
        """The colour as the page writes it."""
        return "#" + bytes(self.colours[i]).hex()

    def class_tiles(self, identity: int) -> Iterator[Tile]:
        """The images that show most of a class, and those that show a usual amount; all else is left as it is."""
        for split, index in self.parts:
            for i in _typical(index, identity)[: SHOWN // 2]:
                yield from self.tile(split, i, (identity,))

    def stem_tiles(self, stems: Sequence[str]) -> Iterator[Tile]:
        """Images by their names, with all their classes."""
        for stem in stems[:SHOWN]:
            if stem in self.places:
                yield from self.tile(*self.places[stem], tuple(self.names))

    def tile(self, split: Split, i: int, shown: Sequence[int]) -> Iterator[Tile]:
        """An image with those ids coloured; nothing where it cannot be read."""
        try:
            image, mask = split.read(i)
        except UserError:
            return
        names = tuple(self.names[int(v)] for v in np.unique(mask) if int(v) in self.names)
        yield Tile(split.stems[i], _webp(self.drawn(as_shown(image), mask, shown)), names)

    def drawn(self, image: Bytes, mask: Bytes, shown: Sequence[int]) -> Image.Image:
        """The small picture."""
        scale = min(1.0, SIDE / max(mask.shape))
        size = tuple(max(1, round(side * scale)) for side in mask.shape[::-1])
        small = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, reducing_gap=2))
        ids = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
        there = np.isin(ids, [v for v in shown if v or len(shown) == 1])
        painted = np.where(there[..., None], 0.45 * small + 0.55 * self.colours[ids], small)
        edge = np.zeros(ids.shape, bool)
        edge[1:] |= there[1:] != there[:-1]
        edge[:, 1:] |= there[:, 1:] != there[:, :-1]
        painted[edge] = 255
        picture = Image.fromarray(painted.round().astype(np.uint8))
        if len(shown) == 1 and there.mean() < 0.02:  # too small to be seen: framed
            rows, columns = (np.nonzero((mask == shown[0]).any(axis))[0] * scale for axis in (1, 0))
            frame = (columns[0] - 3, rows[0] - 3, columns[-1] + 3, rows[-1] + 3)
            ImageDraw.Draw(picture).rectangle(frame, outline=tuple(map(int, self.colours[shown[0]])), width=2)
        return picture


def write(found: DataCheck, out: Path, progress: Progress) -> None:
    """The page about a data set that was looked at."""
    sheet = _Sheet(found)
    suspicious = tuple(
        Section(finding.what, finding.remedy, "", tuple(sheet.stem_tiles(finding.stems)))
        for finding in (*found.findings, *found.suspicions)
    )
    progress.start("drawing the contact sheet", len(sheet.names))
    classes = []
    for i, name in sheet.names.items():
        tiles = tuple(sheet.class_tiles(i))
        count = sum(int((_amount(index, i) > 0).sum()) for _, index in sheet.parts)
        if tiles or i != IGNORE:
            classes.append(Section(f"{name} (id {i})", f"in {count} images", sheet.colour(i), tiles))
        progress.advance()
    progress.finish()
    page = Template(files("fiss.reports").joinpath("sheet.html").read_text(encoding="utf-8"), autoescape=True)
    legend = [(name, sheet.colour(i)) for i, name in sheet.names.items()]
    text = page.render(
        name=found.dataset.name, parts=sheet.parts, legend=legend, suspicious=suspicious, classes=classes
    )
    write_atomically(out, text.encode())


def _amount(index: Index, identity: int) -> np.ndarray:
    """Pixels of an id by image."""
    return index.summary.ignored if identity == IGNORE else index.pixels[:, identity]


def _typical(index: Index, identity: int) -> list[int]:
    """The image that shows most of it, and the one in the middle of those that show it."""
    amount = _amount(index, identity)
    order = [int(i) for i in np.argsort(-amount, kind="stable") if amount[i]]
    return list(dict.fromkeys((order[0], order[len(order) // 2]))) if order else []


def _webp(picture: Image.Image) -> str:
    data = io.BytesIO()
    picture.save(data, "WEBP", quality=70)
    return base64.b64encode(data.getvalue()).decode()
