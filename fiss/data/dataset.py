"""What a data set is: class names and two lists of images with masks, read one at a time as plain arrays."""

import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from fiss.errors import UserError

Bytes = NDArray[np.uint8]

MASK_MODES = ("L", "P", "1")
"""Pillow modes whose pixels are class ids of one byte."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How a file is turned to be shown, by the orientation in its EXIF data."""


class Split(Protocol):
    """A list of images with masks."""

    @property
    def name(self) -> str:
        """`train` or `val`."""
        ...

    @property
    def stems(self) -> Sequence[str]:
        """One name per image, in a fixed order."""
        ...

    def read(self, i: int) -> tuple[Bytes, Bytes]:
        """Image (H, W, 3) and mask (H, W) of class ids; a `UserError` says what is wrong with the files."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever an image or a mask changes."""
        ...


@dataclass(frozen=True)
class FileSplit:
    """Images and masks on disk."""

    name: str
    stems: tuple[str, ...]
    images: Sequence[Path]
    masks: Sequence[Path]

    def read(self, i: int) -> tuple[Bytes, Bytes]:
        """Decode image and mask, as they are shown."""
        image, mask = _decode(self.images[i], "image"), _decode(self.masks[i], "mask")
        if mask.mode not in MASK_MODES:
            depth = "16-bit or wider" if mask.mode.startswith(("I", "F")) else f"{mask.mode} colour"
            raise UserError(f"{self.masks[i]}: {depth} mask; save it as an 8-bit file whose pixels are class ids.")
        _check_depth(self.images[i], image)
        if image.size != mask.size:
            with Image.open(self.images[i]) as stored:
                fits = stored.size == mask.size
            raise UserError(
                f"{self.masks[i]}: mask is {mask.width}x{mask.height}, its image {image.width}x{image.height}."
                + " The image's EXIF data turn it: draw the mask on it as it is shown, or remove those data." * fits
            )
        return np.asarray(image.convert("RGB")), np.asarray(mask).astype(np.uint8)

    def fingerprint(self) -> str:
        """Digest of every file's path, size and time of change."""
        digest = hashlib.sha256()
        for path in map(str, chain(self.images, self.masks)):
            try:
                stat = os.stat(path)  # noqa: PTH116 - of 100,000 files
                digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
            except OSError:
                digest.update(f"{path}\0missing\n".encode())
        return digest.hexdigest()


def read_image(path: Path) -> Bytes:
    """An image file as (H, W, 3), as it is shown."""
    image = _decode(path, "image")
    _check_depth(path, image)
    return np.asarray(image.convert("RGB"))


def _check_depth(path: Path, image: Image.Image) -> None:
    if image.mode.startswith(("I", "F")):
        raise UserError(f"{path}: 16-bit or wider image; save it with 8 bits per channel.")


def _decode(path: Path, kind: str) -> Image.Image:
    if not path.is_file():
        raise UserError(f"{path}: missing {kind}.")
    try:
        with Image.open(path) as file:
            file.load()
            return _turned(file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: unreadable or truncated {kind} ({error}).") from error


def _turned(image: Image.Image) -> Image.Image:
    try:
        turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error):
        return image  # EXIF data that nobody can read
    return image if turn is None else image.transpose(turn)


@dataclass(frozen=True)
class Dataset:
    """Class names and the two splits."""

    name: str
    classes: tuple[str, ...]
    """`classes[i - 1]` is the name of mask id i; id 0 is background."""
    train: Split
    val: Split
    notices: tuple[str, ...] = ()
    """What a person should know about how the files were found."""


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that hold anything, without white space around them."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: unreadable text ({error}).") from error
    return [line.strip() for line in lines if line.strip()]


def read_list(path: Path) -> list[str]:
    """Stems from a split file, one per line; `/dir/a.jpg /dir/a.png`, as some lists of VOC have it, means `a`."""
    firsts = [line.split()[0] if line.startswith("/") else line for line in read_lines(path)]
    return [Path(name).stem if Path(name).suffix.lower() in IMAGE_SUFFIXES else Path(name).name for name in firsts]


def shortened(names: Sequence[str], most: int = 10) -> str:
    """The first few, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


def files_by_stem(folder: Path) -> tuple[dict[str, Path], list[Path], list[Path]]:
    """Image files of a folder by stem, the files whose stem was taken already, and what is no image as read here."""
    found, doubles, others = names_by_stem(folder)
    return (
        {stem: folder / name for stem, name in found.items()},
        [folder / name for name in doubles],
        [folder / name for name in others],
    )


def names_by_stem(folder: Path) -> tuple[dict[str, str], list[str], list[str]]:
    """The same as names in that folder: a fifth of the time and of the memory, which tells with 100,000 files."""
    found: dict[str, str] = {}
    doubles, others = [], []
    for name in sorted(os.listdir(folder)) if folder.is_dir() else []:  # noqa: PTH208
        stem, suffix = os.path.splitext(name)  # noqa: PTH122
        if name.startswith("."):
            continue
        if suffix.lower() not in IMAGE_SUFFIXES:
            others.append(name)
        elif stem in found:
            doubles.append(name)
        else:
            found[stem] = name
    return found, doubles, others


@dataclass(frozen=True)
class Files(Sequence[Path]):
    """Files of one folder, each made a path when it is asked for."""

    folder: Path
    names: tuple[str, ...]

    @overload
    def __getitem__(self, i: int) -> Path: ...
    @overload
    def __getitem__(self, i: slice) -> "Files": ...
    def __getitem__(self, i: int | slice) -> "Path | Files":
        return Files(self.folder, self.names[i]) if isinstance(i, slice) else self.folder / self.names[i]

    def __len__(self) -> int:
        return len(self.names)
