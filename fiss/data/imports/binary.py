"""Binary masks of 0 and 255 (or 1), a folder for each class; where classes overlap, the smaller object is on top."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fiss.data.imports.parts import Parts, group_of
from fiss.data.imports.source import (
    BadFileError,
    Dropped,
    Item,
    Options,
    Pair,
    Source,
    checked_classes,
    files,
    flat,
    folders,
    image_of,
    opened,
)
from fiss.data.reading import Bytes
from fiss.errors import UserError

OVERLAP = "objects overlap: the smaller one is on top"


def read(root: Path, options: Options) -> Source:
    """images/NAME and masks/CLASS/NAME."""
    images, masks = folders(root, options)
    classes = sorted(path.name for path in masks.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise UserError(f"{masks}: expected a folder for each class in it, and there is none.")
    by_class, parts = [dict(files(masks / name)) for name in classes], Parts(root)

    def items() -> list[Item | Dropped]:
        found: list[Item | Dropped] = []
        for name, image in files(images):
            own = [(i, there[name]) for i, there in enumerate(by_class, 1) if name in there]
            item = Item(name, group_of(name, options, name), partial(_pair, image, own, options), parts.of(name))
            found.append(item if own else Dropped(name, "no mask of any class"))
        return found

    return Source(checked_classes(classes), items())


def painted(objects: Sequence[tuple[int, NDArray[np.bool_]]], mask: Bytes) -> tuple[str, ...]:
    """Paint objects of class ids into a mask, the largest first; a note where two of different classes overlap."""
    covered = np.zeros(mask.shape, np.uint8)
    overlap = False
    for id_, shape in sorted(objects, key=lambda item: -int(item[1].sum())):
        overlap |= bool((covered[shape] & (mask[shape] != id_)).any())
        mask[shape], covered[shape] = id_, 1
    return (OVERLAP,) if overlap else ()


def _pair(image: Path, own: Sequence[tuple[int, Path]], options: Options) -> Pair:
    shapes = [(id_, _shape(path)) for id_, path in own]
    if len({shape.shape for _, shape in shapes}) > 1:
        raise BadFileError(image, "masks of different sizes")
    mask = np.zeros(shapes[0][1].shape, np.uint8)
    return Pair(image_of(image, options), mask, painted(shapes, mask))


def _shape(path: Path) -> NDArray[np.bool_]:
    values = flat(np.asarray(opened(path)), path)
    if path.suffix.lower() in (".jpg", ".jpeg"):
        return values >= 128
    if not set(np.unique(values).tolist()) <= {0, 255} and not set(np.unique(values).tolist()) <= {0, 1}:
        raise BadFileError(path, "a mask of other values than 0 and 255")
    return values > 0
