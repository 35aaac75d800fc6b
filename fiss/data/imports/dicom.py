"""DICOM series as 2-D slices; masks are image files of the same names, one for each file of a series."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
    values_of,
)
from fiss.data.imports.volumes import Last, Volume, slices
from fiss.errors import UserError
from fiss.labels import IGNORE

ENDINGS = (".dcm", ".dicom", ".ima")
NOBODY = ("", "anonymous", "anonymized", "anonymised", "anon", "unknown", "none", "n/a", "removed")
NO_PATIENT = "no patient is named in some files: a patient's number in their names stands for one, else a study"


def read(root: Path, options: Options) -> Source:
    """Every series below images/, split by patient; masks/ has the same folders and names."""
    library("pydicom", "dicom")
    values = Values.of(options)
    images, masks = folders(root, options)
    series: dict[tuple[str, str], list[tuple[float, Path, Any]]] = defaultdict(list)
    items: list[Item | Dropped] = []
    for folder, path in _found(images):
        try:
            head = _head(path)
            series[folder, str(head.SeriesInstanceUID)].append((_position(head), path, head))
        except BadFileError as bad:
            items.append(Dropped(bad.name, bad.reason))
    if not series and not items:
        raise UserError(f"{images}: no DICOM files in it.")
    parts = Parts(root)
    last, by_name, notes = Last(), dict(files(masks)), set[str]()
    several = [folder for folder, _ in series]
    for number, ((folder, uid), found) in enumerate(sorted(series.items())):
        found.sort(key=lambda one: one[:2])
        paths, head = [path for _, path, _ in found], found[0][2]
        name = folder or "series"
        name += f"_{number}" if several.count(folder) > 1 else ""
        patient = _patient(head, name, options)
        notes |= set() if patient else {NO_PATIENT}
        gaps = np.diff([position for position, _, _ in found])
        depth = (
            float(np.median(gaps)) if len(gaps) and np.median(gaps) > 0 else float(head.get("SliceThickness", 0) or 1)
        )
        down, right = (float(v) for v in head.get("PixelSpacing", (1, 1)))
        drawn = [by_name.get((path.parent.relative_to(images) / _stem(path)).as_posix()) for path in paths]
        load = partial(_load, paths, drawn, (right, down, depth), values, options)
        shape = (int(head.Columns), int(head.Rows), len(paths))
        group = patient or group_of(name, options, str(head.get("StudyInstanceUID", "") or uid))
        items += slices(name, group, parts.of(name), shape, options.axis, options.every, load, last)
    return Source(values.classes, items, False, tuple(sorted(notes)))


def _found(images: Path) -> Iterator[tuple[str, Path]]:
    """DICOM files with their folders: by how they end, else by what they begin with, since many end in nothing."""
    for path in sorted(images.rglob("*")):
        if path.is_file() and path.name != "DICOMDIR" and not path.name.startswith("."):
            if not path.name.lower().endswith(ENDINGS):
                with path.open("rb") as file:
                    if file.read(132)[128:] != b"DICM":
                        continue
            folder = path.parent.relative_to(images).as_posix()
            yield "" if folder == "." else folder, path


def _stem(path: Path) -> str:
    """Its name without an ending of DICOM files; 1.2.840 is a name and ends in nothing."""
    return path.name.rsplit(".", 1)[0] if path.name.lower().endswith(ENDINGS) else path.name


def _patient(head: Any, name: str, options: Options) -> str:
    if options.group:
        return group_of(name, options, name)
    named = str(head.get("PatientID", "") or "").strip()
    return "" if named.lower() in NOBODY else named


def _head(path: Path) -> Any:
    import pydicom

    with reading(path):
        head = pydicom.dcmread(path, stop_before_pixels=True)
        if head.get("SeriesInstanceUID") is None or head.get("Rows") is None or int(head.get("NumberOfFrames", 1)) > 1:
            raise BadFileError(path, "not an image of a series")
        if head.get("SamplesPerPixel", 1) != 1:
            raise BadFileError(path, "an image in colours")
        for key in ("Columns", "PixelSpacing", "SliceThickness"):  # what is damaged is met here and not later
            np.array(head.get(key, 1) or 1, float)
    return head


def _position(head: Any) -> float:
    """Where a slice lies along the normal of its plane, in mm; else its number."""
    where, directions = head.get("ImagePositionPatient"), head.get("ImageOrientationPatient")
    if where is None or directions is None:
        return float(head.get("InstanceNumber", 0) or 0)
    across, along = np.array(directions, float).reshape(2, 3)
    return float(np.cross(across, along) @ np.array(where, float))


def _load(
    paths: Sequence[Path],
    drawn: Sequence[Path | None],
    spacing: tuple[float, float, float],
    values: Values,
    options: Options,
) -> Volume:
    import pydicom
    from pydicom.pixels import apply_modality_lut

    planes, masks = list[Array](), list[Array]()
    own, inverted = None, False
    for path, mask in zip(paths, drawn, strict=True):
        with reading(path):
            file = pydicom.dcmread(path)
            plane = np.asarray(apply_modality_lut(file.pixel_array, file), np.float32)
        if planes and plane.shape != planes[0].shape:
            raise BadFileError(path, "of another size than the rest of its series")
        inverted = file.get("PhotometricInterpretation") == "MONOCHROME1"
        planes.append(plane)
        own = own or _own_window(file)
        ids = np.full(plane.shape, IGNORE, np.uint8) if mask is None else values.ids(values_of(mask), mask)
        if ids.shape != plane.shape:
            raise BadFileError(mask or path, "a mask of another size than its image")
        masks.append(ids)
    image = to_bytes(np.stack(planes).T, options, own)
    return Volume(255 - image if inverted else image, np.stack(masks).T, spacing)


def _own_window(file: Any) -> tuple[float, float] | None:
    """What the file itself says is black and white."""
    try:
        centre, width = (np.atleast_1d(file[key].value)[0] for key in ("WindowCenter", "WindowWidth"))
        return (float(centre) - float(width) / 2, float(centre) + float(width) / 2) if float(width) > 0 else None
    except (KeyError, ValueError, TypeError, IndexError):
        return None
