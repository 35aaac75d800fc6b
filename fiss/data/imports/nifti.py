"""NIfTI volumes as 2-D slices: images/ and masks/ (or imagesTr/ and labelsTr/), one file for each patient."""

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
    Source,
    Values,
    files,
    folders,
    library,
    to_bytes,
    whole,
)
from fiss.data.imports.volumes import Last, Volume, slices

ENDINGS = (".nii", ".nii.gz")


def read(root: Path, options: Options) -> Source:
    """Every volume that has a mask; a channel's number in the image's name, NAME_0000, is not in the mask's."""
    library("nibabel", "nifti")
    usual = ("imagesTr", "labelsTr") if (root / "imagesTr").is_dir() else ("images", "masks")
    images, masks = folders(root, options, *usual)
    values = Values.of(options)
    return Source(values.classes, _items(images, masks, values, options), parallel=False)


def _items(images: Path, masks: Path, values: Values, options: Options) -> Iterator[Item | Dropped]:
    import nibabel

    last, by_name = Last(), dict(files(masks, ENDINGS))
    for name, image in files(images, ENDINGS):
        patient = name.removesuffix("_0000")
        mask = by_name.get(name) or by_name.get(patient)
        if mask is None:
            yield Dropped(name, "no mask")
            continue
        try:
            shape = nibabel.as_closest_canonical(nibabel.load(image)).shape
        except Exception as error:  # a file that nobody can read raises whatever it likes
            yield Dropped(str(image), f"unreadable ({type(error).__name__})")
            continue
        if len(shape) != 3:
            yield Dropped(str(image), "not a volume of three axes")
            continue
        load = partial(_load, image, mask, values, options)
        yield from slices(name, patient, shape, options.axis, options.every, load, last)


def _load(image: Path, mask: Path, values: Values, options: Options) -> Volume:
    pixels, spacing, affine = _opened(image)
    labels, _, other = _opened(mask)
    if pixels.shape != labels.shape:
        raise BadFileError(mask, "a mask of another size than its volume", f"{labels.shape} and {pixels.shape}")
    if not np.allclose(affine, other, atol=1e-2):
        raise BadFileError(mask, "a mask that lies elsewhere in space than its volume")
    return Volume(to_bytes(pixels, options), values.ids(whole(labels, mask), mask), spacing)


def _opened(path: Path) -> tuple[Array, tuple[float, float, float], Array]:
    """Values (X, Y, Z), x to the left and y to the back as in DICOM; spacing; and where it lies."""
    import nibabel

    try:
        file = nibabel.as_closest_canonical(nibabel.load(path))
        values = np.asanyarray(file.dataobj)
    except Exception as error:  # a file that nobody can read raises whatever it likes
        raise BadFileError(path, "unreadable or truncated", type(error).__name__) from error
    if values.ndim != 3:
        raise BadFileError(path, "not a volume of three axes")
    x, y, z = (float(step) for step in file.header.get_zooms()[:3])
    return values[::-1, ::-1], (x, y, z), np.asarray(file.affine)
