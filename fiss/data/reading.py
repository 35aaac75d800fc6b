"""Image and mask files as arrays: decoded, turned as they are shown, and checked.

Images of 8 bits are given as they are. What has more bits, or is measured in units of its own, is brought to the scale
of bytes by a window that the config states; nobody can guess which values of an X-ray matter.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from fiss.errors import UserError

Bytes = NDArray[np.uint8]
Picture = NDArray[np.uint8 | np.float32]
"""(H, W, channels): bytes, or floats on the scale of bytes where a window was stated."""

MASK_MODES = ("L", "P", "1")
"""Pillow modes whose pixels are class ids of one byte."""
RANGE = re.compile(r"\s*(-?[\d.]+(?:e[-+]?\d+)?)(%?)\s*,\s*(-?[\d.]+(?:e[-+]?\d+)?)(%?)\s*", re.IGNORECASE)


WIDE_IMAGE = "16-bit or wider image"
"""The kind of problem that a window mends."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file."""

    file: str
    kind: str
    """In words that many files share."""
    detail: str = ""
    remedy: str = ""
    span: tuple[float, float] | None = None
    """The values that were met, where it is about them."""

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}{self.detail}" + (f"; {self.remedy}." if self.remedy else ".")


class FileError(UserError):
    """Problems of an image and its mask."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return " ".join(map(str, self.problems))


@dataclass(frozen=True)
class Reading:
    """How an image becomes what a network is given: the same in training, scoring and prediction.

    `window` is `low,high` in the image's own values, or `1%,99%`: percentiles of each image; one for each channel may
    be given, separated by semicolons. Empty: images have 8 bits and are taken as they are.
    """

    window: str = ""
    channels: int = 3
    """How many the network takes; grey images are repeated where it takes 3. 0: whatever a file has."""

    def __post_init__(self) -> None:
        for low, high, percent in self.ranges:
            if not low < high or (percent and not 0 <= low < high <= 100):
                raise UserError(f"data.window = {self.window}: must be two numbers, low < high; of percent, 0 to 100.")
        if len(self.ranges) > 1 and len(self.ranges) != self.channels:
            raise UserError(f"data.window has {len(self.ranges)} ranges, and model.channels is {self.channels}.")

    @property
    def ranges(self) -> list[tuple[float, float, bool]]:
        """Low, high, and whether they are percentiles."""
        found = []
        for part in self.window.split(";") if self.window.strip() else []:
            match = RANGE.fullmatch(part)
            if match is None or match[2] != match[4]:
                raise UserError(
                    f"data.window = {self.window}: expected `low,high` in the images' own values, or percentiles of "
                    "each image such as `1%,99%`."
                )
            found.append((float(match[1]), float(match[3]), bool(match[2])))
        return found

    @property
    def dtype(self) -> type[np.uint8] | type[np.float32]:
        """Type of the arrays that are read."""
        return np.float32 if self.window else np.uint8

    def read(self, path: Path) -> Picture:
        """An image file as (H, W, channels), as it is shown."""
        with _Decoding(path, "image"):
            values = _with_tifffile(path) if self._is_for_tifffile(path) else None
            if values is None:
                values = self._decoded(path)
        return self.take(values, str(path))

    def take(self, values: NDArray[Any], name: str = "the image") -> Picture:
        """An array (H, W) or (H, W, C) as a network is given it."""
        if values.ndim == 2:
            values = values[..., None]
        if values.ndim == 3 and values.shape[0] == self.channels != values.shape[-1]:
            values = np.moveaxis(values, 0, -1)  # channels stored one after another
        if values.ndim != 3 or not values.size:
            remedy = "save it as (height, width) or (height, width, channels)"
            raise FileError(Problem(name, "no image of rows and columns", f", but {values.shape}", remedy))
        if self.window and not np.isfinite(values).all():
            count = int((~np.isfinite(values)).sum())
            remedy = "fill these pixels with a value before they are read"
            raise FileError(
                Problem(name, "image with values that are no numbers", f" ({count} NaN or infinite)", remedy)
            )
        if values.shape[-1] == 1 and self.channels == 3:
            values = values.repeat(3, -1)
        if values.shape[-1] != (self.channels or values.shape[-1]):
            remedy = f"set model.channels = {values.shape[-1]}, or give every image {self.channels}"
            raise FileError(Problem(name, f"{values.shape[-1]} channels instead of {self.channels}", "", remedy))
        if values.dtype == bool:
            values = values * np.uint8(255)
        if not self.window:
            if values.dtype != np.uint8:
                span = float(np.nanmin(values)), float(np.nanmax(values))
                detail = f", values from {span[0]:g} to {span[1]:g}"
                remedy = "say which values matter: data.window = low,high in these values, or 1%,99% of each image"
                raise FileError(Problem(name, WIDE_IMAGE, detail, remedy, span))
            return values
        return self._windowed(values.astype(np.float32))

    def _windowed(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        ranges = self.ranges * (values.shape[-1] if len(self.ranges) == 1 else 1)
        for channel, (low, high, percent) in enumerate(ranges):
            part = values[..., channel]
            if percent:
                low, high = (float(v) for v in np.percentile(part, (low, high)))
            scale = 255 / (high - low) if high > low else 0.0
            values[..., channel] = ((part - low) * scale).clip(0, 255)
        return values

    def _is_for_tifffile(self, path: Path) -> bool:
        """Whether Pillow would take only a part of it: high bytes, three channels, a first page."""
        return path.suffix.lower() in (".tif", ".tiff") and bool(self.window or self.channels != 3)

    def _decoded(self, path: Path) -> NDArray[Any]:
        with Image.open(path) as file:
            wide = is_wide(file)
            _check_pages(file, path)
            file.load()
            turn = _orientation(file)  # Pillow itself turns a TIFF when it loads it
            if wide and self.window:
                remedy = "save it as TIFF, or read it without data.window"
                raise FileError(Problem(str(path), "colour image of 16 bits, of which eight can be read", "", remedy))
            if self.channels == 3 and not file.mode.startswith(("I", "F")):
                return _turned(np.asarray(file.convert("RGB")), turn)
            return _turned(np.asarray(file.convert("RGB") if file.mode == "P" else file), turn)


RGB = Reading()
"""Bytes in three channels, as most images are."""


def read_mask(path: Path) -> Bytes:
    """A mask file as (H, W) of class ids, as it is shown."""
    with _Decoding(path, "mask"), Image.open(path) as file:
        _check_pages(file, path)
        file.load()
        turn = _orientation(file)
        if file.mode not in MASK_MODES:
            wide = file.mode.startswith(("I", "F"))
            kind = "16-bit or wider mask" if wide else f"{file.mode} colour mask"
            remedy = "save it as an 8-bit file whose pixels are class ids"
            raise FileError(Problem(str(path), kind, "", remedy))
        return _turned(np.asarray(file), turn).astype(np.uint8)


def has_pages(file: Image.Image, path: Path) -> bool:
    """Whether a file just opened is a TIFF with a second page of the same size, which is no preview of the first."""
    if file.format != "TIFF":
        return False
    try:
        with Image.open(path) as other:
            other.seek(1)
            return other.size == file.size
    except (OSError, EOFError, SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return False  # no second page, or none that anybody can read


def _check_pages(file: Image.Image, path: Path) -> None:
    if has_pages(file, path):
        remedy = "save each page as a file of its own"
        raise FileError(Problem(str(path), "TIFF of several pages, of which the first would be read", "", remedy))


def shown_size(path: Path) -> tuple[tuple[int, int], bool]:
    """Height and width of an image file as it is stored, and whether its EXIF data turn it to be shown."""
    with Image.open(path) as file:
        return (file.height, file.width), _orientation(file) > 4


def is_wide(file: Image.Image) -> bool:
    """Whether a file just opened has 16 bits or more per channel of colour, of which Pillow keeps the high eight."""
    tiles: Any = getattr(file, "tile", None)
    arguments = tiles[0][3] if tiles else ""
    raw = arguments if isinstance(arguments, str) else next(iter(arguments or ()), "")
    return file.mode.startswith(("RGB", "LA", "CMYK")) and isinstance(raw, str) and ";16" in raw


def as_shown(picture: Picture) -> Bytes:
    """RGB bytes (H, W, 3) for the eyes: the first three channels, or the first as grey."""
    part = picture[..., :3] if picture.shape[-1] >= 3 else picture[..., :1].repeat(3, -1)
    return part.round().astype(np.uint8)  # round leaves bytes as they are


class _Decoding:
    """What a decoder raises becomes a problem of the file."""

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what = path, what

    def __enter__(self) -> None:
        if not self.path.is_file():
            raise FileError(Problem(str(self.path), f"missing {self.what}"))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, SyntaxError, ValueError, Image.DecompressionBombError, RuntimeError)):
            many = isinstance(error, UnidentifiedImageError) and self.path.suffix.lower() in (".tif", ".tiff")
            remedy = "if it has other channels than three: `fiss start FOLDER` sets model.channels" if many else ""
            problem = Problem(str(self.path), f"unreadable or truncated {self.what}", f" ({error})", remedy)
            raise FileError(problem) from error


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error):
        return 1  # EXIF data that nobody can read


def _turned(stored: NDArray[Any], orientation: int) -> NDArray[Any]:
    """The image as it is shown, turned by the orientation in its EXIF data."""
    if orientation in (5, 6, 7, 8):
        stored = stored.swapaxes(0, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return np.ascontiguousarray(stored[:: -1 if down else 1, :: -1 if across else 1])


def _with_tifffile(path: Path) -> NDArray[Any] | None:
    """All bits, channels and pages of a TIFF; None where the library is not installed."""
    try:
        from tifffile import TiffFile
    except ImportError:
        return None
    with TiffFile(path) as file:
        tag = file.pages.first.tags.get(int(ExifTags.Base.Orientation))
        values: NDArray[Any] = file.series[0].asarray()
    return _turned(values, int(tag.value) if tag is not None else 1)
