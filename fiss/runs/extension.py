"""What the folder of an extended model holds besides a run's files, and the images it is scored on.

extension.json        which folders were counted, under which names, which images were held out
ledger.safetensors    the sums by contribution
weights/              task-0: the model before, task-1: the model after; first: the classifier that was there
                      first, where there was no ledger
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fiss.data import folder
from fiss.data.dataset import FileSplit
from fiss.data.label_maps import Table
from fiss.data.reading import Bytes, Picture
from fiss.errors import UserError
from fiss.labels import BACKGROUND, IGNORE, LabelSpace
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.records import from_json, to_json

LEDGER = "ledger.safetensors"
FILE = "extension.json"


@dataclass(frozen=True, kw_only=True)
class Contributed:
    """A folder whose images were counted."""

    name: str
    """Its name in the ledger."""
    folder: str
    classes: tuple[str, ...]
    """Names of its mask ids, from 1."""
    labelled: tuple[str, ...]
    """Those of them that its masks show; the others are taken for not labelled."""
    counted: tuple[str, ...]
    """Images in the classifier."""
    held_out: tuple[str, ...]
    """Images it is scored on."""

    def table(self, space: LabelSpace) -> Table:
        """Lookup table from mask ids to channels, for images that are counted: what is not labelled is background."""
        table = np.full(256, BACKGROUND, np.uint8)
        for i, name in enumerate(self.classes, 1):
            if name in self.labelled:
                table[i] = space.channel(name)
        table[IGNORE] = IGNORE
        return table

    def split(self, held_out: bool) -> FileSplit:
        """Its images with their masks."""
        dataset = folder.load(Path(self.folder))
        found = {
            stem: (image, mask)
            for split in (dataset.train, dataset.val)
            if isinstance(split, FileSplit)
            for stem, image, mask in zip(split.stems, split.images, split.masks, strict=True)
        }
        stems = self.held_out if held_out else self.counted
        if gone := [stem for stem in stems if stem not in found]:
            raise UserError(f"{self.folder}: {gone[0]} was {'held out' if held_out else 'counted'} and is gone.")
        images, masks = ([found[stem][k] for stem in stems] for k in (0, 1))
        return FileSplit("val" if held_out else "train", tuple(stems), tuple(images), tuple(masks))


@dataclass(frozen=True, kw_only=True)
class Extension:
    """How an extended model came to be."""

    model: str
    """The one that was extended, or that something was taken out of."""
    trained: tuple[str, ...] = ()
    """Names in the ledger of those who trained the network, as far as that is known."""
    contributed: tuple[Contributed, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Extension":
        """Read the extension record of a folder."""
        try:
            found: Extension = from_json(cls, json.loads((path / FILE).read_bytes()), str(path / FILE))
            return found
        except (OSError, ValueError) as error:
            raise UserError(f"{path / FILE}: missing, damaged or foreign ({error}).") from error

    def write(self, path: Path) -> None:
        """Into a folder that is being made."""
        (path / FILE).write_text(json.dumps(to_json(self), indent=1), encoding="utf-8")


@dataclass(frozen=True)
class HeldOut:
    """The held-out images of several folders, the ids in their masks being the model's channels."""

    folders: tuple[tuple[FileSplit, Table], ...]
    name: str = "held out"

    @property
    def stems(self) -> Sequence[str]:
        """Numbered by folder: two may have images of one name."""
        return [f"{n}/{stem}" for n, (split, _) in enumerate(self.folders) for stem in split.stems]

    def read(self, i: int) -> tuple[Picture, Bytes]:
        """Image and mask of channels."""
        for split, table in self.folders:
            if i < len(split.stems):
                image, mask = split.read(i)
                return image, table[mask]
            i -= len(split.stems)
        raise IndexError(i)

    def fingerprint(self) -> str:
        """Digest of the files and of what their ids mean."""
        digest = hashlib.sha256()
        for split, table in self.folders:
            digest.update(split.fingerprint().encode() + table.tobytes())
        return digest.hexdigest()


Labelled = tuple[tuple[tuple[int, ...], frozenset[int]], ...]
"""Images that belong together, and the channels that are labelled in them."""


def held_out(extension: Extension, space: LabelSpace, progress: Progress) -> tuple[HeldOut, Labelled]:
    """The held-out images, as far as their folders are there."""
    folders, labelled, begin = [], [], 0
    for one in extension.contributed:
        try:
            split = one.split(True)
        except UserError as error:
            progress.notice(f"not scored on {one.name}: {error}")
            continue
        table = one.table(space)
        for i, name in enumerate(one.classes, 1):
            table[i] = table[i] if name in one.labelled else IGNORE
        folders.append((split, table))
        images = tuple(range(begin, begin + len(split.stems)))
        labelled.append((images, frozenset({BACKGROUND, *(space.channel(name) for name in one.labelled)})))
        begin += len(images)
    if not begin:
        raise UserError("None of the folders that extended this model has held-out images that are still there.")
    return HeldOut(tuple(folders)), tuple(labelled)


def is_extended(folder: RunFolder) -> bool:
    """Whether it is the folder of an extended model."""
    return (folder.path / FILE).is_file()
