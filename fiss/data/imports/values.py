"""Masks whose pixels have values that stand for classes; images of 8 or more bits, or float."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fiss.data.imports.parts import Parts, group_of
from fiss.data.imports.source import (
    Array,
    Dropped,
    Item,
    Options,
    Pair,
    Source,
    Values,
    folders,
    image_of,
    pairs,
    values_of,
)


def read(root: Path, options: Options) -> Source:
    """Images and masks of the same names in two folders, whatever is below them."""
    values = Values.of(options)
    return Source(values.classes, items(root, options, lambda path: values.ids(values_of(path), path)))


def items(
    root: Path, options: Options, mask_of: Callable[[Path], Array], group: Callable[[str], str] = str
) -> Iterator[Item | Dropped]:
    """Pairs of files as items."""

    def pair(image: Path, mask: Path) -> Pair:
        return Pair(image_of(image, options), mask_of(mask))

    parts = Parts(root)
    for name, image, mask in pairs(*folders(root, options)):
        if mask is None:
            yield Dropped(name, "no mask")
        else:
            yield Item(name, group_of(name, options, group(name)), partial(pair, image, mask), parts.of(name))
