"""Pascal VOC 2012 in its genuine tree, with the augmented masks where they are there."""

from pathlib import Path

from fiss.data.dataset import Dataset, FileSplit, read_list
from fiss.errors import UserError

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def find(root: Path) -> Path:
    """The VOC2012 folder at, or a little below, `root`."""
    places = [root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"]
    for place in places:
        if (place / "JPEGImages").is_dir() and (place / "ImageSets" / "Segmentation").is_dir():
            return place
    raise UserError(
        f"No VOC 2012 at {root}: expected JPEGImages/ and ImageSets/Segmentation/ in it, in VOC2012/ or in "
        "VOCdevkit/VOC2012/ below it. Set data.root to that folder."
    )


def load(root: Path) -> Dataset:
    """`train_aug` with SegmentationClassAug; without them `train` with SegmentationClass, and a notice."""
    root = find(root)
    lists, augmented, plain = (
        root / "ImageSets" / "Segmentation",
        root / "SegmentationClassAug",
        root / "SegmentationClass",
    )
    notices = []
    if (lists / "train_aug.txt").is_file() and augmented.is_dir():
        train, folders = "train_aug", (augmented, plain)
    else:
        train, folders = "train", (plain, augmented)
        missing = "ImageSets/Segmentation/train_aug.txt" if augmented.is_dir() else "SegmentationClassAug/"
        notices.append(
            f"VOC: {missing} is not there, so the 1,464 images of `train` are used instead of the 10,582 of "
            "`train_aug`; results are not comparable with published ones."
        )

    def split(name: str, list_name: str) -> FileSplit:
        stems = tuple(read_list(lists / f"{list_name}.txt"))
        masks = ([f / f"{stem}.png" for f in folders] for stem in stems)
        return FileSplit(
            name,
            stems,
            tuple(root / "JPEGImages" / f"{stem}.jpg" for stem in stems),
            tuple(next((p for p in paths if p.is_file()), paths[0]) for paths in masks),
        )

    return Dataset("voc", CLASSES, split("train", train), split("val", "val"), tuple(notices))
