"""What a data set is: class names and two lists of images with masks, read one at a time as plain arrays."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol, overload

from fiss.data.reading import RGB, Bytes, FileError, Picture, Problem, Reading, read_mask, shown_size
from fiss.errors import UserError


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

    def read(self, i: int) -> tuple[Picture, Bytes]:
        """Image (H, W, channels) and mask (H, W) of class ids; a `UserError` says what is wrong with the files."""
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
    how: Reading = RGB

    def read(self, i: int) -> tuple[Picture, Bytes]:
        """Decode image and mask, as they are shown."""
        try:
            image = self.how.read(self.images[i])
        except FileError as error:
            try:
                read_mask(self.masks[i])
            except FileError as other:  # both are said, so that nothing has to be looked at twice
                raise FileError(*error.problems, *other.problems) from error
            raise
        mask = read_mask(self.masks[i])
        if image.shape[:2] != mask.shape:
            (height, width), (high, wide) = mask.shape, image.shape[:2]
            stored, turned = shown_size(self.images[i])
            detail = f" ({width}x{height}, its image {wide}x{high})"
            remedy = "draw the mask on the image as it is shown, or remove its EXIF data, which turn it"
            kind = "mask is of another size than its image"
            fits = turned and stored == mask.shape
            raise FileError(Problem(str(self.masks[i]), kind, detail, remedy if fits else ""))
        return image, mask

    def fingerprint(self) -> str:
        """Digest of every file's path, size and time of change."""
        digest = hashlib.sha256(str(self.how).encode())
        for path in map(str, chain(self.images, self.masks)):
            try:
                stat = os.stat(path)  # noqa: PTH116 - of 100,000 files
                digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
            except OSError:
                digest.update(f"{path}\0missing\n".encode())
        return digest.hexdigest()


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

    def read_as(self, how: Reading) -> "Dataset":
        """The same data set, with images read in that way."""
        if how == RGB:
            return self
        if not isinstance(self.train, FileSplit) or not isinstance(self.val, FileSplit):
            raise UserError(f"data.window and model.channels are for image files; {self.name} is drawn in RGB.")
        return replace(self, train=replace(self.train, how=how), val=replace(self.val, how=how))


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
