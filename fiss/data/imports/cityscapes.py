"""Cityscapes: leftImg8bit/ and gtFine/, whose label ids become the 19 classes that are trained, or all."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fiss.data.imports.source import Dropped, Item, Options, Pair, Source, Values, image_of, values_of
from fiss.errors import UserError, unknown
from fiss.labels import IGNORE

NAMES = (
    "unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic", "ground", "road",
    "sidewalk", "parking", "rail track", "building", "wall", "fence", "guard rail", "bridge", "tunnel", "pole",
    "polegroup", "traffic light", "traffic sign", "vegetation", "terrain", "sky", "person", "rider", "car", "truck",
    "bus", "caravan", "trailer", "train", "motorcycle", "bicycle",
)  # fmt: skip
"""Names by label id."""
TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
LABELLED = tuple(range(4, 34))
"""What is not labelled at all (0 to 3) is no class."""


def read(root: Path, options: Options) -> Source:
    """leftImg8bit/PART/CITY/NAME_leftImg8bit.png and gtFine/PART/CITY/NAME_gtFine_labelIds.png."""
    if options.ids not in ("train", "all"):
        raise unknown("choice of ids", options.ids, ("train", "all"))
    if not (root / "leftImg8bit").is_dir() or not (root / "gtFine").is_dir():
        raise UserError(f"{root}: expected leftImg8bit/ and gtFine/ in it.")
    wanted = TRAINED if options.ids == "train" else LABELLED
    table = {i: wanted.index(i) + 1 if i in wanted else IGNORE for i in range(-1, len(NAMES))}
    values = Values(tuple(NAMES[i] for i in wanted), {**table, 255: IGNORE})
    return Source(values.classes, _items(root, values, options))


def _items(root: Path, values: Values, options: Options) -> Iterator[Item | Dropped]:
    def pair(image: Path, mask: Path) -> Pair:
        return Pair(image_of(image, options), values.ids(values_of(mask), mask))

    for image in sorted((root / "leftImg8bit").glob("*/*/*_leftImg8bit.*")):
        part, city = image.parts[-3:-1]
        name = image.name.split("_leftImg8bit")[0]
        mask = root / "gtFine" / part / city / f"{name}_gtFine_labelIds.png"
        if part not in ("train", "val"):
            yield Dropped(name, "of a part without labels")
        elif not mask.is_file():
            yield Dropped(name, "no mask")
        else:
            yield Item(name, city, partial(pair, image, mask), part)
