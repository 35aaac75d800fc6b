"""What a site holds: a folder of images and masks that is looked at again in every round.

New files, and new classes, simply appear. A file that is half written, or has no partner yet, is left for the next
round.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import tomlkit
import torch
from numpy.typing import NDArray

from fiss.config.section import build
from fiss.data.dataset import FileSplit, files_by_stem, read_list
from fiss.data.folder import read_classes
from fiss.data.transforms import AugmentSpec, ScoredImages, TrainingImages
from fiss.errors import UserError, unknown
from fiss.labels import IGNORE
from fiss.progress import Progress
from fiss.training.batches import Reader
from fiss.training.device import pick_device


@dataclass(frozen=True)
class SiteSpec:
    """site.toml: what a site has and where."""

    data: str
    """A folder with images/, masks/ and classes.txt (one name per line; the first is mask id 1)."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1."""
    batch: int = 0
    """Images per step; 0: as the federation says."""
    workers: int = 0
    """Processes that read images ahead; 0: none, images are read between steps."""
    weights: str = ""
    """A local .safetensors file of the encoder, to compare new images with; empty: as the federation says."""
    key: str = ""
    """A secret that the sites share and the server does not know: class names then travel as keyed hashes."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the federation calls a class, where the site calls it something else."""


TEMPLATE = """\
# This site: what it has and where. Nothing of it is sent.
data = "DATA"      # a folder with images/, masks/ and classes.txt (one name per line; the first is mask id 1)
device = "auto"    # or cpu, cuda, cuda:1
batch = 0          # images per step; 0: as the federation says
workers = 0        # processes that read images ahead; where there is a GPU, a few keep it busy
key = ""           # a secret that the sites share and the server does not know: class names then travel as hashes
weights = ""       # a local .safetensors file of the encoder, to compare new images with

[names]            # what the federation calls a class, where this site calls it something else
# "Leber" = "liver"
"""


def read_site(path: Path) -> SiteSpec:
    """A site file, checked."""
    spec = _parsed(path)
    if not spec.data:
        raise UserError(f"{path}: data is missing: the folder with images/, masks/ and classes.txt.")
    for name in spec.names.values():
        if name.strip().lower() in ("", "background"):
            raise UserError(f"{path}: [names] calls a class {name!r}; the background and nothing are no classes.")
    if spec.batch < 0 or spec.batch == 1:
        raise UserError(f"{path}: batch = {spec.batch}: must be 2 or more, or 0.")
    if spec.workers < 0:
        raise UserError(f"{path}: workers = {spec.workers}: must be 0 or more.")
    root = Path(spec.data).expanduser()
    root = root if root.is_absolute() else path.parent / root
    for needed in ("images", "masks", "classes.txt"):
        if not (root / needed).exists():
            raise UserError(f"{path}: data = {spec.data}: {root / needed} is not there.")
    own = read_classes(root / "classes.txt")
    for name in spec.names:
        if name not in own:
            raise unknown(f"class under [names] of {path.name}, where classes.txt is meant,", name, own)
    return replace(spec, data=str(root))


def _parsed(path: Path) -> SiteSpec:
    """The site file with every key checked, nothing looked at."""
    try:
        return build(SiteSpec(""), tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path}: the site file is not there ({error}).") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, UserError) as error:
        raise UserError(f"{path}: {error}.") from error


def write_site(kit: Path, data: Path, device: str, batch: int, workers: int = 0) -> SiteSpec:
    """A kit's site file, checked; names that were given before stay."""
    path = kit / "site.toml"
    if not path.is_file():
        raise UserError(f"{kit}: not a site's start-up kit (it has no site.toml).")
    root = data.expanduser().absolute()
    for needed in ("images", "masks", "classes.txt"):
        if not (root / needed).exists():
            raise UserError(f"--data {data}: {root / needed} is not there.")
    _parsed(path)
    pick_device(device)
    document = tomlkit.parse(path.read_text(encoding="utf-8"))  # keeps comments, and what else was written
    document.update(data=str(root), device=device, batch=batch, workers=workers)
    part = path.with_name("site.toml.part")
    part.write_text(tomlkit.dumps(document), encoding="utf-8")
    spec = read_site(part)
    part.replace(path)
    return spec


def describe(spec: SiteSpec, progress: Progress) -> list[str]:
    """What the federation would see of a folder, in words."""
    held = SiteFolder(spec, AugmentSpec(), torch.device("cpu"), progress).rescan()
    names = [held.classes[i - 1] for i in held.labelled]
    if not held.images:
        raise UserError(f"{spec.data}: no image with a mask that can be read.")
    renamed = [f"{own} is called {name}" for own, name in spec.names.items()]
    return [f"{len(held.images)} images with masks", f"labelled in them: {', '.join(names) or 'nothing'}", *renamed]


@dataclass(frozen=True)
class FolderContents:
    """What is in the folder now."""

    classes: tuple[str, ...]
    """By mask id - 1, as the federation calls them."""
    images: range
    labelled: tuple[int, ...]
    """Ids that some mask shows."""
    mark: int
    """Checksum of the files."""


class SiteFolder:
    """The folder, each file decoded once when it appears."""

    def __init__(self, spec: SiteSpec, augment: AugmentSpec, device: torch.device, progress: Progress) -> None:
        self.spec, self.augment, self.device, self.progress = spec, augment, device, progress
        self.root = Path(spec.data)
        self._seen: dict[tuple[str, int, int, int, int], tuple[NDArray[np.bool_], int]] = {}
        self._told: set[str] = set()
        self._mark: int | None = None
        self.readers = self._readers(FileSplit("train", (), (), ()))

    def rescan(self) -> FolderContents:
        """What can be read now."""
        classes = read_classes(self.root / "classes.txt")
        images, masks = (files_by_stem(self.root / name)[0] for name in ("images", "masks"))
        listed = self.root / "train.txt"
        stems = [s for s in (read_list(listed) if listed.is_file() else sorted(images)) if s in images and s in masks]
        good, shown, sums = [], np.zeros(256, bool), []
        for stem in stems:
            found = self._check_file(stem, images[stem], masks[stem], len(classes))
            if found is not None:
                shown |= found[0]
                good.append(stem)
                sums.append(found[1])
        mark = crc32("\n".join(f"{stem} {one}" for stem, one in zip(good, sums, strict=True)).encode())
        if mark != self._mark:
            split = FileSplit("train", tuple(good), tuple(images[s] for s in good), tuple(masks[s] for s in good))
            self.readers, self._mark = self._readers(split), mark
        names = tuple(self.spec.names.get(name, name) for name in classes)
        labelled = tuple(i for i in range(1, len(classes) + 1) if shown[i])
        return FolderContents(names, range(len(good)), labelled, mark)

    def _check_file(self, stem: str, image: Path, mask: Path, classes: int) -> tuple[NDArray[np.bool_], int] | None:
        """Which ids a mask shows, and a checksum of both files; None if they cannot be read yet."""
        try:
            stats = image.stat(), mask.stat()
            key = (stem, stats[0].st_size, stats[0].st_mtime_ns, stats[1].st_size, stats[1].st_mtime_ns)
            if key not in self._seen:
                _, ids = FileSplit("train", (stem,), (image,), (mask,)).read(0)
                shown = np.bincount(ids.ravel(), minlength=256) > 0
                if wrong := [int(i) for i in np.nonzero(shown)[0] if classes < i < IGNORE]:
                    raise UserError(f"{mask}: mask ids {wrong} are not in classes.txt, which has {classes} names.")
                self._seen[key] = shown, crc32(mask.read_bytes(), crc32(image.read_bytes()))
        except (UserError, OSError) as error:
            if str(error) not in self._told:
                self.progress.notice(f"left for the next round: {error}")
                self._told.add(str(error))
            return None
        return self._seen[key]

    def _readers(self, split: FileSplit) -> tuple[Reader, Reader]:
        pin = self.device.type == "cuda"
        crop = self.augment.crop
        trained, looked_at = TrainingImages(split, self.augment), ScoredImages(split, crop)
        workers = self.spec.workers  # spawned: FLARE has threads
        return Reader(trained, workers, pin, "spawn"), Reader(looked_at, workers, pin, "spawn")
