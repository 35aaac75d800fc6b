"""COCO: objects of a json file, drawn into masks.

Outlines are polygons or run lengths; crowds are ignored; where objects overlap the smaller one is on top.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiss.data.dataset import shortened
from fiss.data.imports.binary import painted
from fiss.data.imports.parts import group_of
from fiss.data.imports.source import (
    BadFileError,
    Dropped,
    Item,
    Options,
    Pair,
    Source,
    checked_classes,
    image_of,
    library,
    within,
)
from fiss.errors import UserError
from fiss.labels import IGNORE

NEEDED: dict[str, dict[str, Any]] = {
    "categories": {"id": int, "name": str},
    "images": {"id": int | str, "file_name": str, "height": int, "width": int},
    "annotations": {"image_id": int | str, "category_id": int},
}
"""What each record of a json file must have."""


def read(root: Path, options: Options) -> Source:
    """One json file of objects, or all in a folder or in its annotations/."""
    library("pycocotools.mask", "coco")
    found = {path: content for path in _texts(root) if (content := _content(path))}
    if not found:
        raise UserError(f"{root}: no json file with images, annotations and categories in it or in annotations/.")
    names: dict[int, str] = {}
    for path, content in found.items():
        for category in content["categories"]:
            if names.setdefault(category["id"], category["name"]) != category["name"]:
                raise UserError(f"{path}: category {category['id']} has another name than in the other json files.")
    foreground = list(dict.fromkeys(names[i] for i in sorted(names) if names[i].lower() != "background"))
    ids = {i: foreground.index(name) + 1 if name.lower() != "background" else 0 for i, name in names.items()}
    items = [item for path, content in found.items() for item in _items(path, content, ids, root, options)]
    return Source(checked_classes(foreground), items)


def _texts(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    return sorted({*root.glob("*.json"), *root.glob("annotations/*.json"), *root.glob("*/_annotations.coco.json")})


def _content(path: Path) -> dict[str, Any] | None:
    """The file's content, if it is one of objects: captions and key points lie beside it."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: no json ({error}).") from error
    there = isinstance(content, dict) and all(
        isinstance(content.get(k), list) for k in ("images", "annotations", "categories")
    )
    if not there or path.name.startswith(("person_keypoints", "captions")):
        return None
    for key, needed in NEEDED.items():
        for number, record in enumerate(content[key]):
            if lacking := _lacking(record, needed):
                raise UserError(f"{path}: {key}[{number}] has no {lacking}; found {str(record)[:80]}.")
    return content


def _lacking(record: Any, needed: Mapping[str, Any]) -> str:
    """What a record does not have."""
    there = record if isinstance(record, dict) else {}
    return next((key for key, type_ in needed.items() if not isinstance(there.get(key), type_)), "")


def _items(
    path: Path, content: Mapping[str, Any], ids: Mapping[int, int], root: Path, options: Options
) -> Iterator[Item | Dropped]:
    objects: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in content["annotations"]:
        objects[one["image_id"]].append(one)
    below = path.stem.removeprefix("instances_")
    base = root if root.is_dir() else path.parent
    bases = (base, base.parent) if base.name == "annotations" else (base,)
    places = [Path(options.images).expanduser()] if options.images else [path.parent]
    places += [b / inside for b in bases for inside in ("", "images", below, f"images/{below}")]
    label = (path.parent.name if path.stem.startswith("_") else path.stem).lower().replace("trainval", "train")
    part = next((word for word in ("val", "test", "train") if word in label), "")
    for image in content["images"]:
        name = image["file_name"]
        try:
            files = [within(place, name) for place in places]
        except BadFileError as bad:
            yield Dropped(bad.name, bad.reason)
            continue
        file = next((f for f in files if f.is_file()), files[0])
        read_pair = partial(_pair, file, image, objects[image["id"]], ids, options)
        yield Item(name.rsplit(".", 1)[0], group_of(name, options, name), read_pair, part)


def _pair(
    file: Path, image: Mapping[str, Any], objects: Sequence[Mapping[str, Any]], ids: Mapping[int, int], options: Options
) -> Pair:
    if not file.is_file():
        raise BadFileError(file, "missing")
    shape, crowd, shapes = (image["height"], image["width"]), None, []
    if min(shape) < 1:
        raise BadFileError(file, "an image without a size in the json file", f"{shape[1]}x{shape[0]}")
    for one in objects:
        if one["category_id"] not in ids:
            raise BadFileError(file, "an object of a category that the file does not list", str(one["category_id"]))
        drawn = _drawn(one, shape, file)
        if one.get("iscrowd"):
            crowd = drawn if crowd is None else crowd | drawn
        else:
            shapes.append((ids[one["category_id"]], drawn))
    mask = np.zeros(shape, np.uint8)
    if crowd is not None:
        mask[crowd] = IGNORE
    notes = painted(shapes, mask)
    notes += () if crowd is None else ("crowds: ignored where no object is",)
    notes += () if objects else ("no object: background throughout",)
    notes += () if all(drawn.any() for _, drawn in shapes) else ("an object that covers no pixel",)
    return Pair(image_of(file, options), mask, notes)


def _drawn(one: Mapping[str, Any], shape: tuple[int, int], file: Path) -> NDArray[np.bool_]:
    from pycocotools import mask as coco

    outline = one.get("segmentation")
    if not outline:
        raise BadFileError(file, "an object without an outline, of which only the box is known")
    try:
        if isinstance(outline, dict):
            if list(outline["size"]) != list(shape):
                raise BadFileError(
                    file, "an outline of another size than its image", shortened(list(map(str, outline["size"])))
                )
            listed = isinstance(outline["counts"], list)
            if listed and (min(outline["counts"]) < 0 or sum(outline["counts"]) != shape[0] * shape[1]):
                raise BadFileError(file, "an outline whose runs do not fill its image")
            runs = coco.frPyObjects(outline, *shape) if listed else outline
        else:
            if not all(np.isfinite(polygon).all() for polygon in outline):
                raise BadFileError(file, "an outline with coordinates that are no numbers")
            runs = coco.merge(coco.frPyObjects(outline, *shape))
        return np.asarray(coco.decode(runs)).astype(bool)
    except BadFileError:
        raise
    except Exception as error:  # the library raises whatever it likes
        raise BadFileError(file, "an outline that cannot be drawn", str(error)) from error
