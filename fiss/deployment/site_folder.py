"""What a site holds: a folder of images and masks that is looked at again in every round.

New files, and new classes, simply appear. A file that is half written, or has no partner yet, is left for the next
round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from fiss.data.dataset import FileSplit, files_by_stem, read_list, shortened
from fiss.data.folder import read_classes
from fiss.data.reading import RGB, WIDE_IMAGE, FileError, Reading
from fiss.data.transforms import AugmentSpec, ScoredImages, TrainingImages
from fiss.deployment.site_config import SiteSpec
from fiss.errors import UserError
from fiss.federation.collection import Held
from fiss.labels import IGNORE
from fiss.progress import Progress
from fiss.training.batches import Reader

BY_THE_SERVER = "the server sets for all sites which values matter, at `init` (`--set data.window=1%,99%`)"


def describe(spec: SiteSpec, progress: Progress) -> list[str]:
    """What the federation would see of a folder, in words."""
    anything = Reading("0%,100%", 0)  # the federation's config says how images are read
    held = SiteFolder(spec, AugmentSpec(), torch.device("cpu"), progress, how=anything).rescan()
    names = [held.classes[i - 1] for i in held.labelled]
    if not held.images:
        raise UserError(f"{spec.data}: no image with a mask that can be read.")
    renamed = [f"{own} is called {name}" for own, name in spec.names.items()]
    told = [f"{len(held.images)} images with masks", f"labelled in them: {', '.join(names) or 'nothing'}", *renamed]
    if wide := _need_window(Path(spec.data)):
        told.append(
            f"{len(wide)} of more than 8 bits per channel ({shortened(wide, 3)}): as they are, they are never used "
            f"unless {BY_THE_SERVER}"
        )
    return told


def _need_window(root: Path) -> list[str]:
    """Names of images with masks that cannot be read without a window."""
    images, masks = (files_by_stem(root / name)[0] for name in ("images", "masks"))
    found = []
    for stem in sorted(images.keys() & masks.keys()):
        try:
            RGB.read(images[stem])
        except FileError as error:
            found += [images[stem].name for problem in error.problems if problem.kind == WIDE_IMAGE]
    return found


def _at_a_site(error: UserError | OSError) -> UserError | OSError:
    """The error with what a site can do: it does not set the window itself."""
    if not isinstance(error, FileError):
        return error
    remedy = f"save it with 8 bits, or {BY_THE_SERVER}"
    return FileError(*(replace(p, remedy=remedy) if p.kind == WIDE_IMAGE else p for p in error.problems))


@dataclass(frozen=True)
class FolderContents:
    """What is in the folder now."""

    classes: tuple[str, ...]
    """By mask id - 1, as the federation calls them."""
    images: range
    labelled: tuple[int, ...]
    """Ids that some mask shows."""
    checksum: int
    """Of the files."""
    held: tuple[Held, ...] = ()
    """Each image."""
    kept: range = range(0)
    """Images kept from training, to score models on; of a reader of their own."""


class SiteFolder:
    """The folder, each file decoded once when it appears."""

    def __init__(
        self,
        spec: SiteSpec,
        augment: AugmentSpec,
        device: torch.device,
        progress: Progress,
        scored_size: int = 0,
        how: Reading = RGB,
    ) -> None:
        self.spec, self.augment, self.device, self.progress = spec, augment, device, progress
        self.scored_size, self.how = scored_size, how
        self.root = Path(spec.data)
        self._checked: dict[tuple[str, int, int, int, int], tuple[NDArray[np.bool_], int]] = {}
        self._reported: set[str] = set()
        self._checksum: int | None = None
        nothing = FileSplit("train", (), (), ())
        self.readers, self.scoring_reader = self._readers(nothing), self._scoring_reader(nothing)

    def rescan(self) -> FolderContents:
        """What can be read now."""
        classes = read_classes(self.root / "classes.txt")
        images, masks = (files_by_stem(self.root / name)[0] for name in ("images", "masks"))
        listed, kept = self.root / "train.txt", self._kept(images)
        stems = [s for s in (read_list(listed) if listed.is_file() else sorted(images)) if s in images and s in masks]
        good, shown, sums, held, scored = [], np.zeros(256, bool), [], [], []
        for stem in dict.fromkeys([*stems, *(s for s in kept if s in masks)]):
            found = self._check_file(stem, images[stem], masks[stem], len(classes))
            if found is not None and stem in kept:
                scored.append(stem)
            elif found is not None:
                shown |= found[0]
                good.append(stem)
                sums.append(found[1])
                held.append(Held(stem, found[1], tuple(np.nonzero(found[0])[0].tolist())))
        checksum = crc32("\n".join(f"{stem} {one}" for stem, one in zip(good, sums, strict=True)).encode())

        def split(name: str, stems: list[str]) -> FileSplit:
            own, drawn = (tuple(found[s] for s in stems) for found in (images, masks))
            return FileSplit(name, tuple(stems), own, drawn, self.how)

        if checksum != self._checksum:
            self.readers, self._checksum = self._readers(split("train", good)), checksum
        self.scoring_reader = self._scoring_reader(split("val", scored))
        names = tuple(self.spec.names.get(name, name) for name in classes)
        labelled = tuple(i for i in range(1, len(classes) + 1) if shown[i])
        return FolderContents(names, range(len(good)), labelled, checksum, tuple(held), range(len(scored)))

    def _kept(self, images: Mapping[str, Path]) -> set[str]:
        """Images that are kept from training: those of val.txt, or a share of all by a hash of their names."""
        if not self.spec.score:
            return set()
        if (listed := self.root / "val.txt").is_file():
            return set(read_list(listed)) & images.keys()
        return {stem for stem in images if crc32(stem.encode()) < self.spec.score * 2**32}

    def _check_file(self, stem: str, image: Path, mask: Path, classes: int) -> tuple[NDArray[np.bool_], int] | None:
        """Which ids a mask shows, and a checksum of both files; None if they cannot be read yet."""
        try:
            stats = image.stat(), mask.stat()
            key = (stem, stats[0].st_size, stats[0].st_mtime_ns, stats[1].st_size, stats[1].st_mtime_ns)
            if key not in self._checked:
                _, ids = FileSplit("train", (stem,), (image,), (mask,), self.how).read(0)
                shown = np.bincount(ids.ravel(), minlength=256) > 0
                if wrong := [int(i) for i in np.nonzero(shown)[0] if classes < i < IGNORE]:
                    raise UserError(f"{mask}: mask ids {wrong} are not in classes.txt, which has {classes} names.")
                self._checked[key] = shown, crc32(mask.read_bytes(), crc32(image.read_bytes()))
        except (UserError, OSError) as error:
            if str(error) not in self._reported:
                self.progress.notice(f"left out until it changes: {_at_a_site(error)}")
                self._reported.add(str(error))
            return None
        return self._checked[key]

    def _readers(self, split: FileSplit) -> tuple[Reader, Reader]:
        pin = self.device.type == "cuda"
        crop = self.augment.crop
        trained, looked_at = TrainingImages(split, self.augment), ScoredImages(split, crop)
        workers = self.spec.workers  # spawned: FLARE has threads
        return Reader(trained, workers, pin, "spawn"), Reader(looked_at, workers, pin, "spawn")

    def _scoring_reader(self, split: FileSplit) -> Reader:
        return Reader(ScoredImages(split, self.scored_size), 0, self.device.type == "cuda")
