"""What a kind of data is read as: class names, and items that are read one at a time; and what kinds share."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fiss.data.dataset import IMAGE_SUFFIXES, shortened
from fiss.data.folder import read_classes
from fiss.data.reading import Bytes, has_pages
from fiss.errors import UserError, check_least
from fiss.labels import IGNORE, MOST_CLASSES

Array = NDArray[Any]


class BadFileError(Exception):
    """A file that cannot be imported: which, why, and what else is to be said."""

    def __init__(self, name: str | Path, reason: str, detail: str = "") -> None:
        super().__init__(f"{name}: {reason}" + f" ({detail})" * bool(detail))
        self.name, self.reason = str(name), reason


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """A library that meets a file it cannot read raises whatever it likes: it becomes an error that names the file."""
    try:
        yield
    except (BadFileError, UserError):
        raise
    except Exception as error:
        raise BadFileError(name, "unreadable or truncated", f"{type(error).__name__}: {error}".strip(": ")) from error


@dataclass(frozen=True)
class Pair:
    """An image and its mask of class ids."""

    image: Path | Bytes
    """A file that is copied as it is, or pixels."""
    mask: Bytes
    notes: tuple[str, ...] = ()
    """What was done to it that a person should know."""


@dataclass(frozen=True)
class Item:
    """One image that can be imported, or is dropped."""

    name: str
    group: str
    """Images of one group stay in one part."""
    read: Callable[[], Pair]
    """Raises `BadFileError`."""
    part: str = ""
    """train, val or test, where the source says so."""


@dataclass(frozen=True)
class Dropped:
    """What is not imported, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Source:
    """What was found."""

    classes: tuple[str, ...]
    """`classes[i - 1]` is the name of mask id i."""
    items: Iterable[Item | Dropped]
    parallel: bool = True
    """Whether items are read side by side; those of a volume are not."""
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Options:
    """What can be said about a source; each kind takes what it needs."""

    images: str = ""
    """Folder of the images, instead of images/ in the source."""
    masks: str = ""
    """Folder of the masks, instead of masks/."""
    classes: str = ""
    """File of class names; of kind colour, with their colours."""
    map: str = ""
    """VALUE=NAME pairs, separated by commas; the names background and ignore are special."""
    window: str = ""
    """LOW,HIGH: what becomes black and white in images of more than 8 bits; or percentiles, 1%,99%."""
    axis: int = 2
    """Axis of a volume along which its slices lie."""
    every: int = 1
    """Take every n-th frame, page or slice."""
    columns: str = ""
    """IMAGE,MASK: columns of a Hugging Face data set."""
    ids: str = "train"
    """Of Cityscapes: train, the 19 classes, or all."""
    group: str = ""
    """Regular expression: images in whose names it finds the same text stay in one part."""
    validation: float | None = None
    """Share of the groups for validation; None: the source's own parts, else 0.2."""

    def __post_init__(self) -> None:
        check_least("", self, 1, "every")
        if self.axis not in (0, 1, 2):
            raise UserError(f"axis = {self.axis}: must be 0, 1 or 2.")
        if self.validation is not None and not 0 < self.validation < 1:
            raise UserError(f"validation = {self.validation}: must be between 0 and 1.")
        try:
            re.compile(self.group)
        except re.error as error:
            raise UserError(f"--group {self.group}: no regular expression ({error}).") from error
        window_of(self)

    def stated(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        return {key: value for key, value in asdict(self).items() if value != getattr(Options(), key)}


def library(name: str, extra: str) -> ModuleType:
    """A library that only some kinds need."""
    try:
        return import_module(name)
    except ImportError as error:
        pip = f'pip install "fiss[{extra}]"'
        raise UserError(f"This kind of data is read with {name.split('.')[0]}: {pip} ({error}).") from error


@dataclass(frozen=True)
class Values:
    """Which values of mask pixels stand for which classes."""

    classes: tuple[str, ...]
    table: Mapping[int, int]
    """From value to class id."""

    @classmethod
    def of(cls, options: Options) -> "Values":
        """The classes, from --map or from --classes with ids as they are."""
        if options.map:
            return cls._of_map(options.map)
        if options.classes:
            names = read_classes(Path(options.classes).expanduser())
            return cls(names, {**{i: i for i in range(len(names) + 1)}, IGNORE: IGNORE})
        raise UserError(
            "Say what the values of the masks mean: --map 128=tumour,255=ignore, or --classes FILE with a name per "
            "line, the first for value 1."
        )

    @classmethod
    def _of_map(cls, text: str) -> "Values":
        table, names = {0: 0}, list[str]()
        for pair in text.split(","):
            value, equals, name = (word.strip() for word in pair.partition("="))
            if not equals or not name or not re.fullmatch(r"-?\d+", value):
                raise UserError(f"--map {text}: '{pair}' is not VALUE=NAME; for example 128=tumour,255=ignore.")
            special = {"background": 0, "ignore": IGNORE}
            if name not in special and name not in names:
                names.append(name)
            table[int(value)] = special[name] if name in special else names.index(name) + 1
        return cls(checked_classes(names), table)

    def ids(self, values: Array, name: str | Path) -> Bytes:
        """A mask of class ids."""
        low, high = int(values.min()), int(values.max())
        if high - low > 2**16:
            raise BadFileError(name, "values that no class was given for", f"{low} to {high}")
        there = np.flatnonzero(np.bincount((values - low).ravel())) + low
        if strange := [f"{v}" for v in there.tolist() if v not in self.table]:
            raise BadFileError(name, "values that no class was given for", shortened(strange))
        ids = np.zeros(high - low + 1, np.uint8)
        ids[there - low] = [self.table[v] for v in there.tolist()]
        return np.asarray(ids[values - low])


def checked_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Names that fit into a mask and into classes.txt."""
    if not 1 <= len(names) <= MOST_CLASSES or len(set(names)) < len(names) or any("\n" in n for n in names):
        raise UserError(f"1 to {MOST_CLASSES} different classes are needed; found {len(names)}: {shortened(names)}.")
    return tuple(names)


def window_of(options: Options) -> tuple[float, float, bool] | None:
    """Low, high, and whether these are percentiles."""
    if not options.window:
        return None
    words = [word.strip() for word in options.window.split(",")]
    percent = all(word.endswith("%") for word in words)
    try:
        low, high = (float(word.removesuffix("%")) if percent else float(word) for word in words)
    except ValueError:
        low = high = 0.0
    if not low < high or (percent and not 0 <= low < high <= 100):
        raise UserError(f"--window {options.window}: must be LOW,HIGH such as -160,240, or such as 1%,99%.")
    return low, high, percent


def to_bytes(values: Array, options: Options, own: tuple[float, float] | None = None) -> Bytes:
    """Image values as 8 bits: by the given window, else by the file's own, else between percentiles 1 and 99."""
    if values.dtype == np.uint8 and not options.window:
        return values
    low, high, percent = window_of(options) or (*(own or (1.0, 99.0)), own is None)
    values = np.nan_to_num(values.astype(np.float32))
    if percent:
        low, high = (float(v) for v in np.percentile(values, (low, high)))
    scaled = (values - low) / max(high - low, 1e-12)
    return np.round(255 * scaled.clip(0, 1)).astype(np.uint8)


def as_shown(image: Image.Image) -> Image.Image:
    """An image turned as its EXIF data say, where anybody can read them."""
    try:
        return ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error):
        return image


def opened(path: Path) -> Image.Image:
    """A decoded file, as it is shown."""
    if not path.is_file():
        raise BadFileError(path, "missing")
    try:
        with Image.open(path) as file:
            if has_pages(file, path):
                raise BadFileError(path, "a TIFF file of several pages: kind tiff reads those")
            file.load()
            return as_shown(file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadFileError(path, "unreadable or truncated", type(error).__name__) from error


def image_of(path: Path, options: Options) -> Path | Bytes:
    """An image to copy where it has 8 bits, else its pixels through the window."""
    with suppress(OSError, SyntaxError, ValueError), Image.open(path) as file:
        eight = not file.mode.startswith(("I", "F")) and not (options.window and file.mode == "L")
        if eight and not has_pages(file, path) and path.suffix.lower() in IMAGE_SUFFIXES:
            return path
    image = opened(path)
    if image.mode.startswith(("I", "F")) or (options.window and image.mode == "L"):
        return to_bytes(np.asarray(image), options)
    return np.asarray(image.convert("RGB"))


def values_of(path: Path) -> Array:
    """The values of a mask's pixels, (H, W)."""
    if path.suffix.lower() in (".jpg", ".jpeg"):
        raise BadFileError(path, "a JPEG mask: its values at borders are invented; save masks as PNG")
    return flat(np.asarray(opened(path)), path)


def flat(values: Array, name: str | Path) -> Array:
    """Whole numbers in one channel; channels that are all alike count as one."""
    if values.ndim == 3 and (values[..., :3] == values[..., :1]).all():
        values = values[..., 0]
    if values.ndim != 2:
        raise BadFileError(name, "a mask in colours", "kind colour reads those")
    return whole(values, name)


def whole(values: Array, name: str | Path) -> Array:
    """Values as whole numbers."""
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.round(values)).all()):
        raise BadFileError(name, "a mask whose values are no whole numbers")
    return values.astype(np.int64)


def folders(root: Path, options: Options, images: str = "images", masks: str = "masks") -> tuple[Path, Path]:
    """Where images and masks lie."""
    given = ((options.images, root / images), (options.masks, root / masks))
    both = [Path(own).expanduser() if own else usual for own, usual in given]
    for folder, option in zip(both, ("--images", "--masks"), strict=True):
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder; say where they are with {option}.")
    return both[0], both[1]


def stem(path: Path) -> str:
    """Its name without all it ends in: a.nii.gz is a."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0] if "." in path.name else path.name


def files(
    folder: Path, suffixes: Sequence[str] = (*IMAGE_SUFFIXES, ".gif", ".ppm", ".pgm")
) -> Iterator[tuple[str, Path]]:
    """Files below a folder with what they are called in it, without their endings; in a fixed order."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and path.name.lower().endswith(tuple(suffixes)) and not path.name.startswith("."):
            yield (inside.parent / stem(path)).as_posix(), path


def pairs(images: Path, masks: Path, suffixes: Sequence[str] | None = None) -> Iterator[tuple[str, Path, Path | None]]:
    """Images below a folder, and the masks of the same names below another."""
    kinds = (suffixes,) if suffixes else ()
    by_name = dict(files(masks, *kinds))
    for name, path in files(images, *kinds):
        yield name, path, by_name.get(name)


def within(root: Path, name: str) -> Path:
    """A file named by the data; a name that leads out of the folder is refused."""
    path = root / name
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise BadFileError(name, "a name that leads out of the folder")
    return path
