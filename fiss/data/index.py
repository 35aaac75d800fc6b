"""One pass over a split: which classes each image holds, how many pixels, and everything that is wrong with the
files.

The pass decodes every file once, shows its progress, and is kept in a cache under a digest of all files' names, sizes
and times, so it is made again only when a file changes.
"""

import os
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fiss.data.dataset import Dataset, FileSplit, Split, names_by_stem, shortened
from fiss.errors import UserError
from fiss.labels import IGNORE
from fiss.progress import Progress

AHEAD = 512
"""Images that wait to be read, at most."""
Presence = NDArray[np.bool_]
"""Which images show which classes, (N, K + 1)."""


@dataclass(frozen=True)
class Index:
    """What one split holds."""

    pixels: NDArray[np.int64]
    """Pixels by image and mask id, (N, K + 1); ignored pixels are not counted."""
    sizes: NDArray[np.int64]
    """Height and width by image, (N, 2)."""
    problems: tuple[str, ...]

    @property
    def presence(self) -> NDArray[np.bool_]:
        """Whether an image holds a class, (N, K + 1); column 0 is background."""
        return self.pixels > 0


def build(split: Split, classes: tuple[str, ...], progress: Progress | None = None) -> Index:
    """The index of a split, from the cache where nothing changed."""
    progress = progress or Progress()
    key = sha256(f"2\0{split.name}\0{len(classes)}\0{split.fingerprint()}".encode()).hexdigest()
    path = cache_folder() / f"index-{key[:32]}.npz"
    listing = _listing_problems(split)
    if not listing and (cached := _load(path)) is not None:
        return cached
    count = len(split.stems)
    pixels, sizes = np.zeros((count, len(classes) + 1), np.int64), np.zeros((count, 2), np.int64)
    problems = listing

    def look(i: int) -> str | None:
        try:
            _, mask = split.read(i)
        except UserError as error:
            return str(error)
        counts = np.bincount(mask.ravel(), minlength=256)
        pixels[i], sizes[i] = counts[: len(classes) + 1], mask.shape
        wrong = [int(v) for v in np.nonzero(counts)[0] if len(classes) < v < IGNORE]
        if wrong:
            where = split.masks[i] if isinstance(split, FileSplit) else split.stems[i]
            return f"{where}: mask ids {wrong} are outside 0 to {len(classes)} (255 is ignored)."
        return None

    progress.start(f"reading {split.name}", count)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for first in range(0, count, AHEAD):  # not all at once: what waits in a pool takes memory
            for problem in pool.map(look, range(first, min(first + AHEAD, count))):
                problems += [problem] if problem else []
                progress.advance()
    progress.finish()
    index = Index(pixels, sizes, tuple(problems))
    if not problems:  # a data set with problems is read again until they are put right
        _save(path, index)
    return index


@dataclass(frozen=True)
class DataCheck:
    """What is in a data set and what is wrong with it.

    Args:
        dataset: Its classes and splits.
        train: Pixels of every class in every training image.
        val: The same of the validation images.
        notices: What is good to know.
        problems: What is wrong, with file names.

    Example:
        >>> fiss.check_data("/data/mine").problems
    """

    dataset: Dataset
    train: Index
    val: Index
    notices: tuple[str, ...]
    problems: tuple[str, ...]


def inspect(dataset: Dataset, progress: Progress | None = None) -> DataCheck:
    """Read every file of a data set."""
    train, val = (build(split, dataset.classes, progress) for split in (dataset.train, dataset.val))
    notices = (*dataset.notices, *missing_classes(dataset, train, val))
    return DataCheck(dataset, train, val, notices, all_problems(dataset, train, val))


def check(dataset: Dataset, progress: Progress | None = None) -> tuple[Index, Index]:
    """Both indices, or one error that lists what is wrong with the data set."""
    found = inspect(dataset, progress)
    if problems := found.problems:
        shown = "\n  ".join(problems[:20])
        more = f"\n  ... and {len(problems) - 20} more; `fiss data check` lists all" if len(problems) > 20 else ""
        raise UserError(f"The data set has {len(problems)} problem(s); nothing was started.\n  {shown}{more}")
    return found.train, found.val


def all_problems(dataset: Dataset, train: Index, val: Index) -> tuple[str, ...]:
    """The problems of both splits, and images that are in both."""
    both = sorted(set(dataset.train.stems) & set(dataset.val.stems))
    return (
        train.problems + val.problems + tuple(f"{stem}: in the training and in the validation list." for stem in both)
    )


def missing_classes(dataset: Dataset, train: Index, val: Index) -> list[str]:
    """A line for each split that shows no pixel of some classes: nothing wrong, and good to know."""
    notes = []
    for index, name, so in ((train, "training", "cannot be learnt"), (val, "validation", "will not be scored")):
        absent = [c for i, c in enumerate(dataset.classes, 1) if not index.pixels[:, i].any()]
        if absent:
            notes.append(f"in no {name} image, so {so}: {shortened(absent)}.")
    return notes


def cache_folder() -> Path:
    """$FISS_CACHE, or fiss/ in the user's cache folder."""
    return Path(
        os.environ.get("FISS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fiss"
    ).expanduser()


def _listing_problems(split: Split) -> list[str]:
    if not split.stems:
        return [f"{split.name}: empty split."]
    problems = [
        f"{split.name}: {s}: listed {n} times (duplicate stem)." for s, n in Counter(split.stems).items() if n > 1
    ]
    if isinstance(split, FileSplit):
        stems = set(split.stems)
        for folder in sorted({os.path.dirname(path) for path in chain(split.images, split.masks)}):  # noqa: PTH120
            doubles = [Path(folder, name) for name in names_by_stem(Path(folder))[1]]
            problems += [
                f"{path}: duplicate stem, another file beside it has the same."
                for path in doubles
                if path.stem in stems
            ]
    return problems


def _load(path: Path) -> Index | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            return Index(file["pixels"], file["sizes"], ())
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, NotImplementedError):
        return None  # not there, or half written by a killed run: made again


def _save(path: Path, index: Index) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez_compressed(file, pixels=index.pixels, sizes=index.sizes)
        part.replace(path)
