"""Importing data of other kinds: one file a kind, and one writer that makes our own folder of it, so that nothing else
changes."""

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiss.errors import UserError, unknown
from fiss.progress import Progress

if TYPE_CHECKING:
    from fiss.data.imports.writer import Imported

KINDS = {
    "coco": "COCO json: polygons, RLE, crowds (ignored); needs pycocotools",
    "cityscapes": "leftImg8bit/ and gtFine/: the 19 classes, or --ids all",
    "colour": "masks in colours, or with a palette; --classes FILE has a name and R G B in each line",
    "values": "masks of values: --map 128=tumour,255=ignore; images may be 16-bit or float",
    "binary": "masks/CLASS/NAME.png of 0 and 255, a folder for each class",
    "tiff": "TIFF files of many pages, masks with as many; needs tifffile",
    "dicom": "DICOM series, masks of the same names; split by patient; needs pydicom",
    "nifti": "NIfTI volumes as slices; split by volume; needs nibabel",
    "huggingface": "a Hugging Face data set on the disk, Arrow or Parquet; needs pyarrow",
    "video": "frames in images/VIDEO/ and masks/VIDEO/; a video stays in one part",
}
"""Kinds of data, each a module of this room, and what it reads."""


def import_data(kind: str, source: Path, dest: Path, settings: Mapping[str, Any], progress: Progress) -> "Imported":
    """Make our folder at `dest` of what lies at `source`."""
    from fiss.data.imports.source import Options
    from fiss.data.imports.writer import write

    if kind not in KINDS:
        raise unknown("kind of data", kind, KINDS)
    source, dest = source.expanduser(), dest.expanduser()
    if not source.exists():
        raise UserError(f"{source}: there is no such file or folder.")
    if dest.resolve() == source.resolve() or (source.is_dir() and source.resolve() in dest.resolve().parents):
        raise UserError(f"{dest} is in {source} itself; choose a place outside.")
    for name in settings:
        if name not in (known := [f.name for f in fields(Options)]):
            raise unknown("option of an import", name, known)
    options = Options(**{key: value for key, value in settings.items() if value is not None})
    found = import_module(f"fiss.data.imports.{kind}").read(source, options)
    about = {"kind": kind, "source": str(source.resolve()), **options.stated()}
    return write(found, about, dest, options.validation, progress)
