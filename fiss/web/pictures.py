"""Pictures for the page: the same images after every round, and an image of the reader's own. One at a time."""

import base64
import io
from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from fiss.data.reading import RGB
from fiss.errors import UserError
from fiss.predict.palette import class_colours
from fiss.predict.pictures import overlay
from fiss.predict.predictor import Predictor
from fiss.progress import Progress
from fiss.reports.pictures import Strip
from fiss.runs.folder import RunFolder

LARGEST_FILE, MOST_PIXELS = 20_000_000, 30_000_000
"""Bytes and pixels of an image that is dropped in."""
ACROSS, SIDE = 1600, 160
"""Pixels of a picture that is sent, and of a tile of the strip."""
KEPT = 60
"""Columns of a strip that are kept, though their models are gone."""
Tiles = list[str]
"""A column of the strip: pictures as data: addresses."""


class Strips:
    """Columns of the picture strip by run: image, truth, and what each model saw, drawn once each."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.columns: dict[Path, OrderedDict[str, Tiles]] = {}
        self.images: dict[Path, tuple[str, ...]] = {}

    def of(self, path: Path) -> list[tuple[str, Tiles]]:
        """The columns with their headings. Takes a while where there is a new model."""
        with self.lock:
            folder = RunFolder.open(path)
            wanted = {f"task {task}": name for task, name in folder.last_models().items()}
            there = (
                ()
                if folder.finished() and not folder.deployed
                else sorted((path / "weights").glob("round-*.safetensors"))
            )
            wanted |= {f"round {folder.counting.round_of(file.stem)}": file.stem for file in there}
            if folder.deployed:  # the groups' models by the round before which they were kept
                wanted = {f"round {folder.counting.round_of(name)}": name for name in wanted.values()}
            columns = self.columns.get(path, OrderedDict())
            if wanted.keys() <= columns.keys():
                return _in_order(columns)
            strip = Strip.of(folder, Progress())
            images = tuple(strip.validation.split.stems[i] for i in strip.images)
            if images != self.images.get(path):  # of more tasks than before: all again, as far as models are there
                columns = OrderedDict()
            for head, name in wanted.items():
                if head not in columns:
                    rows = strip.rows([name])
                    if not columns:
                        columns["image"] = [_address(row[0], SIDE) for row in rows]
                        columns["truth"] = [_address(row[1], SIDE) for row in rows]
                    columns[head] = [_address(row[2], SIDE) for row in rows]
            while len(columns) > KEPT:
                columns.pop(next(head for head in columns if head.startswith("round")))
            self.columns[path], self.images[path] = columns, images
            return _in_order(columns)


class Segmenting:
    """Segments an image with a model of a run; the last few models stay loaded."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.models: OrderedDict[tuple[Path, int], Predictor] = OrderedDict()

    def __call__(self, file: Path, data: bytes) -> dict[str, Any]:
        """The picture with its classes, and their shares; whoever comes while another is served waits."""
        with self.lock, TemporaryDirectory(prefix="fiss-web-") as place:
            image = _decoded(Path(place), data)
            predictor = self._predictor(file)
            seen = predictor(image)
            drawn = overlay(image, seen, class_colours(predictor))
            shares = sorted(seen.shares.items(), key=lambda item: -item[1])
            return {"picture": _address(np.asarray(drawn), ACROSS), "shares": dict(shares)}

    def _predictor(self, file: Path) -> Predictor:
        key = file, file.stat().st_mtime_ns
        if key not in self.models:
            predictor = Predictor(file)
            if predictor.how != RGB:
                raise UserError("This model reads images with data.window or model.channels: use `fiss predict`.")
            self.models[key] = predictor
            while len(self.models) > 3:
                self.models.popitem(last=False)
        return self.models[key]


def _decoded(place: Path, data: bytes) -> Any:
    """The pixels, made smaller if there are too many; refused before they are decoded if there are far too many."""
    file = place / "the image"
    file.write_bytes(data)
    try:
        with Image.open(file) as opened:
            across, down = opened.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError("This is no image that can be read.") from error
    if across * down > MOST_PIXELS:
        raise UserError(f"{across} x {down} pixels are too many; at most {MOST_PIXELS:,}.")
    image = Image.fromarray(RGB.read(file))
    image.thumbnail((ACROSS, ACROSS))
    return np.asarray(image)


def _address(pixels: Any, side: int) -> str:
    image = Image.fromarray(np.asarray(pixels).astype(np.uint8))
    image.thumbnail((side, side), Image.Resampling.NEAREST if side == SIDE else Image.Resampling.BICUBIC)
    data = io.BytesIO()
    image.save(data, "png")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def _in_order(columns: OrderedDict[str, Tiles]) -> list[tuple[str, Tiles]]:
    """Image and truth, then tasks, then rounds."""

    def place(column: tuple[str, Tiles]) -> tuple[int, int]:
        kind, _, number = column[0].partition(" ")
        return ("image", "truth", "task", "round").index(kind), int(number or 0)

    return sorted(columns.items(), key=place)
