"""TIFF files of many pages, 8 to 16 bits or float; the mask of each has as many pages."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fiss.data.imports.parts import Parts, group_of
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
    reading,
    to_bytes,
)

ENDINGS = (".tif", ".tiff")


def read(root: Path, options: Options) -> Source:
    """Every page with its mask; pages of one file stay in one part, and their values share a window."""
    library("tifffile", "tiff")
    values = Values.of(options)
    return Source(values.classes, _items(root, values, options), parallel=False)


def _items(root: Path, values: Values, options: Options) -> Iterator[Item | Dropped]:
    kept: dict[Path, tuple[Array, Array]] = {}

    def pair(image: Path, mask: Path, page: int) -> Pair:
        if image not in kept:
            kept.clear()  # one file at a time
            kept[image] = to_bytes(_pages(image), options), _pages(mask)
        pictures, labels = kept[image]
        return Pair(pictures[page], values.ids(flat(labels[page], mask), mask))

    parts = Parts(root)
    for name, image, mask in pairs(*folders(root, options), ENDINGS):
        if mask is None:
            yield Dropped(name, "no mask")
            continue
        try:
            pages, others = _shape(image)[0], _shape(mask)[0]
        except BadFileError as bad:
            yield Dropped(bad.name, bad.reason)
            continue
        if pages != others:
            yield Dropped(f"{image} and {mask}", "image and mask of different numbers of pages: is one cut short?")
            continue
        for page in range(0, pages, options.every):
            item = partial(pair, image, mask, page)
            yield Item(f"{name}_{page:04d}", group_of(name, options, name), item, parts.of(name))


def _shape(path: Path) -> tuple[int, ...]:
    """Pages, rows, columns, and colours where there are three."""
    import tifffile

    with reading(path), tifffile.TiffFile(path) as file:
        if not file.pages:
            raise BadFileError(path, "unreadable or truncated", "no pages")
        if len({(one.axes, one.shape, one.dtype) for one in file.series}) > 1:
            raise BadFileError(path, "pages of different sizes or kinds")
        series = file.series[0]
        sides = dict(zip(series.axes, series.shape, strict=True))
        colours, rows, columns = sides.pop("S", 1), sides.pop("Y"), sides.pop("X")
        if colours not in (1, 3) or sides.pop("C", 1) != 1 or series.dtype is None or series.dtype.kind not in "uifb":
            raise BadFileError(path, "pages that are neither grey nor of three colours")
        if colours == 3 and not series.axes.endswith("S"):
            raise BadFileError(path, "colours that are stored one after another")
        pages = len(file.series) * int(np.prod([1, *sides.values()]))
        return pages, rows, columns, *([3] if colours == 3 else [])


def _pages(path: Path) -> Array:
    import tifffile

    shape = _shape(path)
    with reading(path), tifffile.TiffFile(path) as file:
        return np.stack([one.asarray() for one in file.series]).reshape(shape)
