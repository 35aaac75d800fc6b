"""NIfTI volumes as 2-D slices: images/ and masks/ (or imagesTr/ and labelsTr/), split by patient.

The files themselves name nobody, so a patient is what --group says, else a number in the name (sub-01, patient001),
else the folder, else the file.
"""

from collections.abc import Iterator, Sequence
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
    Source,
    Values,
    files,
    folders,
    library,
    reading,
    to_bytes,
    whole,
)
from fiss.data.imports.volumes import Last, Volume, slices

ENDINGS = (".nii", ".nii.gz")
EACH = "each volume stands for a patient of its own; if some have several, --group says what in their names tells them"


def read(root: Path, options: Options) -> Source:
    """Every volume that has a mask; a channel's number in the image's name, NAME_0000, is not in the mask's."""
    library("nibabel", "nifti")
    usual = ("imagesTr", "labelsTr") if (root / "imagesTr").is_dir() else ("images", "masks")
    images, masks = folders(root, options, *usual)
    values = Values.of(options)
    found = [(name, path, name.removesuffix("_0000")) for name, path in files(images, ENDINGS)]
    patients = {case: group_of(case, options, _folder(case) or case) for _, _, case in found}
    notes = () if len(set(patients.values())) < len(patients) or options.group else (EACH,)
    volumes = [(name, path, case, patients[case]) for name, path, case in found]
    return Source(values.classes, _items(volumes, masks, values, options, Parts(root)), False, notes)


def _folder(case: str) -> str:
    return case.rpartition("/")[0]


def _items(
    volumes: Sequence[tuple[str, Path, str, str]], masks: Path, values: Values, options: Options, parts: Parts
) -> Iterator[Item | Dropped]:
    import nibabel

    last, by_name = Last(), dict(files(masks, ENDINGS))
    for name, image, case, patient in volumes:
        mask = by_name.get(name) or by_name.get(case)
        if mask is None:
            yield Dropped(name, "no mask")
            continue
        try:
            with reading(image):
                shape = nibabel.as_closest_canonical(nibabel.load(image)).shape
        except BadFileError as bad:
            yield Dropped(bad.name, bad.reason)
            continue
        if len(shape) != 3:
            yield Dropped(str(image), "not a volume of three axes")
            continue
        load = partial(_load, image, mask, values, options)
        yield from slices(name, patient, parts.of(case), shape, options.axis, options.every, load, last)


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

    with reading(path):
        file = nibabel.as_closest_canonical(nibabel.load(path))
        values = np.asanyarray(file.dataobj)
    if values.ndim != 3 or values.dtype.kind not in "uifb":
        raise BadFileError(path, "not a volume of three axes with one number in each place")
    x, y, z = (float(step) for step in file.header.get_zooms()[:3])
    return values[::-1, ::-1], (x, y, z), np.asarray(file.affine)
