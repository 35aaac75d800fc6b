"""Which kind of data a folder may hold, and the command that would import it: said where a folder is none of ours."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from fiss.data.dataset import IMAGE_SUFFIXES
from fiss.data.reading import has_pages
from fiss.labels import IGNORE

IMAGES = ("images", "image", "imgs", "img", "jpegimages", "photos", "frames", "imagestr", "input", "data", "raw")
MASKS = (
    "masks", "mask", "labels", "label", "labelstr", "annotations", "annotation", "gt", "groundtruth", "ground_truth",
    "segmentationclass", "segmentation", "segmentations", "seg", "targets",
)  # fmt: skip
MOST_FILES = 5000
"""Files that are looked at for their names."""
SAMPLE = 64
"""Masks that are opened."""
HELP = "`fiss data import --help` says what else can be read."


def suggestion(root: Path) -> str:
    """What to do about a folder that is no data set of ours."""
    command, seen = _command(root)
    if not command:
        return HELP
    return f"It looks like {seen}: `{command}` makes a data set of it. {HELP}"


def _command(root: Path) -> tuple[str, str]:
    names = list(islice(_names(root), MOST_FILES))
    endings = [name.lower() for name in names]
    images, masks = _folders(root)
    where = [] if images is None or images.name == "images" else ["--images", str(images)]
    where += [] if masks is None or masks.name == "masks" else ["--masks", str(masks)]

    def command(kind: str, *options: str) -> str:
        return shlex.join(["fiss", "data", "import", kind, str(root), f"{root.resolve()}-fiss", *options])

    def some(*wanted: str) -> bool:
        return any(name.endswith(wanted) for name in endings)

    if (root / "leftImg8bit").is_dir() and (root / "gtFine").is_dir():
        return command("cityscapes"), "Cityscapes"
    if any(name.endswith(".json") and _is_coco(root / name) for name in names):
        return command("coco"), "COCO"
    if some(".arrow", ".parquet"):
        names_ = () if (root / "id2label.json").is_file() else ("--map", "1=class1")
        return command("huggingface", *names_), "a Hugging Face data set"
    if some(".nii", ".nii.gz"):
        usual = {"imagestr", "labelstr"} <= {name.name.lower() for name in (images, masks) if name}
        return command("nifti", *([] if usual else where), *_map(masks, ".nii", ".nii.gz")), "NIfTI volumes"
    if some(".dcm", ".dicom", ".ima") or any(_is_dicom(root / name) for name in names[:SAMPLE]):
        return command("dicom", *where, *_map(masks)), "DICOM series"
    if images is None or masks is None:
        return "", ""
    return _of_masks(images, masks, where, command)


def _of_masks(images: Path, masks: Path, where: Sequence[str], command: Callable[..., str]) -> tuple[str, str]:
    """What kind of data it is, from what lies in the folder of the masks."""
    ours, theirs = _below(images), _below(masks)
    if theirs and not theirs & ours and not theirs & {"train", "val", "valid", "test"}:
        return command("binary", *where), f"masks in a folder for each class ({', '.join(sorted(theirs)[:3])})"
    modes: set[str] = set()
    for path in _files(masks):
        with suppress(OSError, SyntaxError, ValueError), Image.open(path) as file:
            modes.add("pages" if has_pages(file, path) else file.mode)
    if "pages" in modes:
        return command("tiff", *where, *_map(masks)), "TIFF files of several pages"
    if modes & {"RGB", "RGBA"}:
        return command("colour", *where, "--classes", "colours.txt"), (
            "masks in colours; write colours.txt with a name and R G B in each line"
        )
    if not modes:
        return "", ""
    kind = "video" if ours and ours == theirs and not ours & {"train", "val", "valid", "test"} else "values"
    return command(kind, *where, *_map(masks)), "frames of videos" if kind == "video" else "images and masks of values"


def _map(masks: Path | None, *volumes: str) -> tuple[str, str]:
    """Names for the values of some masks; what they mean only the user knows."""
    values: set[int] = set()
    for path in _files(masks) if masks is not None and not volumes else ():
        with suppress(OSError, SyntaxError, ValueError), Image.open(path) as file:
            if file.mode in ("L", "P", "1", "I;16", "I"):
                values |= {int(v) for v in np.unique(np.asarray(file))}
    values -= {0}
    names = {v: "ignore" if v == IGNORE and len(values) > 1 else f"class{v}" for v in sorted(values or {1})}
    return "--map", ",".join(f"{v}={name}" for v, name in names.items())


def _folders(root: Path) -> tuple[Path | None, Path | None]:
    """The folders of images and of masks, whatever they are called."""
    with suppress(OSError):
        below = {entry.name.lower(): Path(entry.path) for entry in os.scandir(root) if entry.is_dir()}
        images, masks = (next((below[word] for word in words if word in below), None) for words in (IMAGES, MASKS))
        return images, masks
    return None, None


def _below(folder: Path) -> set[str]:
    with suppress(OSError):
        return {entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")}
    return set()


def _names(root: Path) -> Iterator[str]:
    for folder, below, files in os.walk(root):
        below.sort()
        yield from (os.path.relpath(os.path.join(folder, name), root) for name in files)  # noqa: PTH118


def _files(folder: Path) -> list[Path]:
    names = [name for name in islice(_names(folder), MOST_FILES) if name.lower().endswith(IMAGE_SUFFIXES)]
    return [folder / name for name in names[:: max(1, len(names) // SAMPLE)]]


def _is_coco(path: Path) -> bool:
    """Whether a file is COCO's, from its beginning and its end: such files are large."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(0, path.stat().st_size - 2**16))
        text = head + file.read()
        return b'"categories"' in text and (b'"annotations"' in text or b'"images"' in text)
    return False


def _is_dicom(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"
    return False
