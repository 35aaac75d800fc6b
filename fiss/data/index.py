"""One pass over a split: which classes each image holds, how many pixels, and everything that is wrong with the
files.

The pass decodes every file once, shows its progress, and is kept in a cache under a digest of all files' names, sizes
and times, so it is made again only when a file changes.
"""

import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from fiss.data.findings import Finding, grouped, suspicions, unlabelled
from fiss.data.mending import Mending
from fiss.data.reading import FileError, Problem
from fiss.data.summary import JPEG, ImageSummary, SplitSummary, summarize
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
    problems: tuple[Problem, ...]
    summary: SplitSummary

    @property
    def presence(self) -> NDArray[np.bool_]:
        """Whether an image holds a class, (N, K + 1); column 0 is background."""
        return self.pixels > 0


def build(split: Split, classes: tuple[str, ...], progress: Progress | None = None) -> Index:
    """The index of a split, from the cache where nothing changed."""
    progress = progress or Progress()
    key = sha256(f"4\0{split.name}\0{len(classes)}\0{split.fingerprint()}".encode()).hexdigest()
    path = cache_folder() / f"index-{key[:32]}.npz"
    problems = _listing_problems(split)
    if not problems and (cached := _load(path)) is not None:
        return cached
    count = len(split.stems)
    pixels, sizes = np.zeros((count, len(classes) + 1), np.int64), np.zeros((count, 2), np.int64)
    summary = SplitSummary.of(count)
    strange: dict[int, list[int]] = {}

    def read(i: int) -> tuple[ImageSummary | None, Sequence[Problem]]:
        try:
            image, mask = split.read(i)
        except FileError as error:
            return None, error.problems
        seen = summarize(split, i, image, mask)
        pixels[i], sizes[i] = seen.counts[: len(classes) + 1], mask.shape
        return seen, ()

    progress.start(f"reading {split.name}", count)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for first in range(0, count, AHEAD):  # not all at once: what waits in a pool takes memory
            for i, (seen, wrong) in enumerate(pool.map(read, range(first, min(first + AHEAD, count))), first):
                problems += wrong
                if seen is not None:
                    summary.note(i, seen)
                    if seen.counts[len(classes) + 1 : IGNORE].any():
                        strange[i] = [int(v) for v in np.nonzero(seen.counts[:IGNORE])[0] if v > len(classes)]
                progress.advance()
    progress.finish()
    problems += _strange(split, classes, strange, summary)
    index = Index(pixels, sizes, tuple(problems), summary)
    if not problems:  # a data set with problems is read again until they are put right
        _save(path, index)
    return index


def _strange(
    split: Split, classes: tuple[str, ...], strange: Mapping[int, Sequence[int]], summary: SplitSummary
) -> Iterator[Problem]:
    """Masks with ids that no class has."""
    inside = f"outside 0 to {len(classes)} (255 is ignored)"
    for i, ids in strange.items():
        file = str(split.masks[i]) if isinstance(split, FileSplit) else split.stems[i]
        kind, remedy = f"mask ids {inside}", ""
        if summary.stored[i] & JPEG:
            kind, remedy = f"mask saved as JPEG, which invents ids {inside}", "make it again as PNG from its source"
        yield Problem(file, kind, f": {shortened(list(map(str, ids)))}", remedy)


@dataclass(frozen=True)
class DataCheck:
    """What is in a data set and what is wrong with it.

    Args:
        dataset: Its classes and splits.
        train: Pixels of every class in every training image.
        val: The same of the validation images.
        notices: What is good to know.
        problems: What is wrong, with file names.
        findings: The same, one for each kind of problem.
        suspicions: What can be read and is seldom meant.

    Example:
        >>> fiss.check_data("/data/mine").problems
    """

    dataset: Dataset
    train: Index
    val: Index
    notices: tuple[str, ...]
    problems: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    suspicions: tuple[Finding, ...] = ()

    def refuse(self) -> None:
        """Raise one error that says what is wrong, if anything is."""
        if self.problems:
            shown = "\n  ".join(map(str, self.findings))
            count = len(self.problems)
            raise UserError(f"The data set has {count} problem(s); nothing was started.\n  {shown}")


def inspect(dataset: Dataset, progress: Progress | None = None) -> DataCheck:
    """Read every file of a data set."""
    train, val = (build(split, dataset.classes, progress) for split in (dataset.train, dataset.val))
    notices = (*dataset.notices, *missing_classes(dataset, train, val))
    problems = all_problems(dataset, train, val)
    suspicious = suspicions(dataset, train.summary, val.summary, train.presence.sum(0))
    return DataCheck(dataset, train, val, notices, tuple(map(str, problems)), grouped(problems), suspicious)


def check(dataset: Dataset, progress: Progress | None = None) -> tuple[Index, Index]:
    """Both indices, or one error that says what is wrong with the data set."""
    found = inspect(dataset, progress)
    found.refuse()
    return found.train, found.val


def all_problems(dataset: Dataset, train: Index, val: Index) -> tuple[Problem, ...]:
    """The problems of both splits, images that are in both, and masks without any class; each with what mends it."""
    both = sorted(set(dataset.train.stems) & set(dataset.val.stems))
    remedy = "leave it in one of train.txt and val.txt"
    twice = [Problem(stem, "in the training and in the validation list", "", remedy) for stem in both]
    mending = Mending.of(dataset, (train.summary, val.summary))
    empty = unlabelled(dataset, train.summary, mending)
    found = map(mending.remedied, (*train.problems, *val.problems))
    return (*found, *twice, *([empty] if empty else []))


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


def _listing_problems(split: Split) -> list[Problem]:
    if not split.stems:
        return [Problem(split.name, "empty split", "", "name images in train.txt and val.txt")]
    problems = [
        Problem(s, f"listed several times in {split.name}", f" ({n} times, duplicate stem)")
        for s, n in Counter(split.stems).items()
        if n > 1
    ]
    if isinstance(split, FileSplit):
        stems = set(split.stems)
        for folder in sorted({os.path.dirname(path) for path in chain(split.images, split.masks)}):  # noqa: PTH120
            doubles = [Path(folder, name) for name in names_by_stem(Path(folder))[1]]
            kind = "duplicate stem, another file beside it has the same"
            problems += [Problem(str(path), kind) for path in doubles if path.stem in stems]
    return problems


def _load(path: Path) -> Index | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            summary = SplitSummary(*(file[name] for name in SplitSummary.of(0).arrays()))
            return Index(file["pixels"], file["sizes"], (), summary)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, NotImplementedError):
        return None  # not there, or half written by a killed run: made again


def _save(path: Path, index: Index) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez_compressed(file, pixels=index.pixels, sizes=index.sizes, **index.summary.arrays())
        part.replace(path)
