"""Bring your own: a folder with images/, masks/ and classes.txt.

classes.txt has one name per line; the first line is mask id 1, the second id 2, and so on (a first line `background`
is id 0). Mask pixels are class ids, 255 is ignored. train.txt and val.txt (one stem per line) make the split; without
them every fifth image, by a hash of its name, is for validation, so that adding files never moves others across.
"""

import hashlib
from pathlib import Path

from fiss.data.dataset import IMAGE_SUFFIXES, Dataset, Files, FileSplit, names_by_stem, read_lines, read_list, shortened
from fiss.data.imports.detect import suggestion
from fiss.errors import UserError
from fiss.labels import MOST_CLASSES


def load(root: Path) -> Dataset:
    """The folder's two splits."""
    for needed, what in (
        ("images", "a folder of images"),
        ("masks", "a folder of masks"),
        ("classes.txt", "the names"),
    ):
        if not (root / needed).exists():
            raise UserError(
                f"No data set at {root}: {needed} ({what}) is not there. Set data.root to the right folder. "
                f"{suggestion(root)}"
            )
    classes = read_classes(root / "classes.txt")
    images, _, no_images = names_by_stem(root / "images")
    masks, _, no_masks = names_by_stem(root / "masks")
    notices = [
        f"{root / folder}: of no kind that is read ({', '.join(IMAGE_SUFFIXES)}), so left out: {shortened(others)}."
        for folder, others in (("images", no_images), ("masks", no_masks))
        if others
    ]
    listed = {name: root / f"{name}.txt" for name in ("train", "val") if (root / f"{name}.txt").is_file()}
    if len(listed) == 1:
        raise UserError(
            f"{root}: {next(iter(listed))}.txt is there and the other split file is not; give both or neither."
        )
    if listed:
        stems = {name: read_list(path) for name, path in listed.items()}
    else:
        held_out = {stem for stem in images if int(hashlib.sha256(stem.encode()).hexdigest(), 16) % 5 == 0}
        stems = {"train": [s for s in images if s not in held_out], "val": [s for s in images if s in held_out]}
        notices.append(
            f"{root}: no train.txt and val.txt, so about a fifth of the images, by a hash of their names, is for "
            f"validation: {len(held_out)} of {len(images)}. For few images, give both files."
        )
        if alone := [masks[stem] for stem in masks if stem not in images]:
            notices.append(f"{root / 'masks'}: without an image, so left out: {shortened(alone)}.")

    def split(name: str) -> FileSplit:
        names = tuple(stems[name])
        return FileSplit(
            name,
            names,
            Files(root / "images", tuple(images.get(s, f"{s}.jpg") for s in names)),
            Files(root / "masks", tuple(masks.get(s, f"{s}.png") for s in names)),
        )

    return Dataset("folder", classes, split("train"), split("val"), tuple(notices))


def read_classes(path: Path) -> tuple[str, ...]:
    """The names in a classes.txt, without the background."""
    names = read_lines(path)
    if names and names[0].lower() == "background":
        names = names[1:]
    if not names or len(names) > MOST_CLASSES or len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        found = f"{', '.join(twice)} stands there twice" if twice else f"found {len(names)}"
        raise UserError(f"{path}: needs 1 to {MOST_CLASSES} different class names, one per line; {found}.")
    if any(name.lower() == "background" for name in names):
        raise UserError(f"{path}: background can only be the first line; it is mask id 0.")
    return tuple(names)
