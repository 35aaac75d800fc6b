"""Frames of videos, a folder for each: those of one video stay in one part, and every n-th is taken."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fiss.data.imports import values
from fiss.data.imports.source import Dropped, Item, Options, Source, Values, values_of


def read(root: Path, options: Options) -> Source:
    """images/VIDEO/FRAME and masks/VIDEO/FRAME."""
    meant = Values.of(options)
    found = values.items(root, options, lambda path: meant.ids(values_of(path), path), lambda name: video(name))
    return Source(meant.classes, _every(found, options.every))


def video(name: str) -> str:
    """The folder of a frame."""
    return name.rpartition("/")[0]


def _every(found: Iterator[Item | Dropped], every: int) -> Iterator[Item | Dropped]:
    seen: Counter[str] = Counter()
    for item in found:
        seen[video(item.name)] += 1
        if (seen[video(item.name)] - 1) % every == 0:
            yield item
