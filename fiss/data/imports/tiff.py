"""TIFF files of many pages, 8 to 16 bits or float; the mask of each has as many pages."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fiss.data.imports.source import (
    Array,
    BadFileError,
    Dropped,
    Item,
    Options,
    Pair,
    Source,
    Values,
    flat,
    folders,
    library,
    pairs,
    to_bytes,
)

ENDINGS = (".tif", ".tiff")


def read(root: Path, options: Options) -> Source:
    """Every page with its mask; pages of one file stay in one part, and their values share a window."""
    library("tifffile", "tiff")
    values = Values.of(options)
    return Source(values.classes, _items(root, values, options), parallel=False)


def _items(root: Path, values: Values, options: Options) -> Iterator[Item | Dropped]:
    kept: dict[Path, Array] = {}

    def stack(path: Path) -> Array:
        if path not in kept:
            kept.clear()  # one file at a time
            kept[path] = to_bytes(np.stack([_page(path, k) for k in range(_pages(path))]), options)
        return kept[path]

    def pair(image: Path, mask: Path, page: int) -> Pair:
        labels = values.ids(flat(_page(mask, page), mask), mask)
        return Pair(stack(image)[page], labels)

    for name, image, mask in pairs(*folders(root, options), ENDINGS):
        if mask is None:
            yield Dropped(name, "no mask")
            continue
        try:
            pages, others = _pages(image), _pages(mask)
        except BadFileError as bad:
            yield Dropped(bad.name, bad.reason)
            continue
        if pages != others:
            yield Dropped(str(mask), "not as many pages as its image")
            continue
        for page in range(0, pages, options.every):
            yield Item(f"{name}_{page:04d}", name, partial(pair, image, mask, page))


def _pages(path: Path) -> int:
    import tifffile

    try:
        with tifffile.TiffFile(path) as file:
            count = len(file.pages)
    except Exception as error:  # a file that nobody can read raises whatever it likes
        raise BadFileError(path, "unreadable or truncated", type(error).__name__) from error
    if not count:
        raise BadFileError(path, "unreadable or truncated", "no pages")
    return count


def _page(path: Path, page: int) -> Array:
    import tifffile

    try:
        found = np.asarray(tifffile.imread(path, key=page))
    except Exception as error:  # a file that nobody can read raises whatever it likes
        raise BadFileError(path, "unreadable or truncated", type(error).__name__) from error
    if found.ndim not in (2, 3) or (found.ndim == 3 and found.shape[-1] != 3):
        raise BadFileError(path, "pages that are neither grey nor of three colours")
    return found
