"""One pass over a folder's images: what a model's classifier is solved from."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from fiss.data import folder
from fiss.data.dataset import FileSplit, shortened
from fiss.data.index import Index, build
from fiss.data.transforms import ScoredImages, normalise
from fiss.errors import UserError
from fiss.extension.model import CHOICE, Extendable
from fiss.labels import LabelSpace
from fiss.models.segmenter import pad
from fiss.progress import Progress
from fiss.runs.extension import Contributed
from fiss.statistics.ledger import Ledger
from fiss.statistics.sums import Accumulator, Sums, cell_shares
from fiss.statistics.towards import ROWS_EACH, corrections
from fiss.training.batches import Reader
from fiss.training.device import autocast

BATCH = 8
PARTS = 5
"""Every fifth of the counted images, by a hash of its name, chooses lambda where there is one to choose."""


def examine(path: Path, name: str, model: Extendable, progress: Progress) -> Contributed:
    """Check a folder, before anything is counted."""
    if not name or not re.fullmatch(r"[^/\x00-\x1f]+", name):
        raise UserError(f"--name {name!r}: a contribution needs a name, without strokes.")
    if of_name(model.ledger, name):
        raise UserError(
            f"{name} has contributed to this model already: --name gives this folder another name, and "
            f"`fiss forget {model.path} --site {name}` takes the earlier contribution out."
        )
    if not path.is_dir():
        raise UserError(f"{path}: there is no such folder.")
    dataset = folder.load(path)
    for notice in dataset.notices:
        progress.notice(notice)
    if both := sorted(set(dataset.train.stems) & set(dataset.val.stems)):
        raise UserError(f"{path}: in train.txt and in val.txt: {shortened(both)}. Leave each in one of them.")
    known = {c.casefold(): c for c in model.space.names}
    for one in dataset.classes:
        if one not in model.space.names and one.casefold() in known:
            progress.notice(f"{path}: {one} is a new class; the model's {known[one.casefold()]} is written otherwise.")
    indices: list[Index] = []
    for split in (dataset.train, dataset.val):
        empty = not split.stems
        indices.append(build(split, dataset.classes, None if empty else progress))
        if problems := () if empty else indices[-1].problems:
            more = f" (and {len(problems) - 1} more; `fiss data check {path}` lists all)" if problems[1:] else ""
            raise UserError(f"{problems[0]}{more} Nothing was counted.")
    if not dataset.train.stems:
        raise UserError(f"{path}: no image to learn from ({len(dataset.val.stems)} held out). Add images.")
    shown = indices[0].pixels.sum(0)
    labelled = tuple(c for i, c in enumerate(dataset.classes, 1) if shown[i] > 0)
    if not labelled:
        raise UserError(f"{path}: nothing new: no mask shows a class, only background. Draw what is to be learnt.")
    if absent := [c for c in dataset.classes if c not in labelled]:
        progress.notice(f"{path}: in no image to learn from, so taken for not labelled: {shortened(absent)}.")
    if not any(c not in model.space.names for c in labelled):
        progress.notice(f"{path}: no new class; {len(dataset.train.stems)} more images of {shortened(labelled)}.")
    if not dataset.val.stems:
        progress.notice(f"{path}: so few images that none is held out; give train.txt and val.txt to score on some.")
    root = str(path.resolve())
    for earlier in model.extension.contributed:
        if earlier.folder == root and (again := set(earlier.counted) & set(dataset.train.stems)):
            raise UserError(
                f"{path}: {len(again)} of its images were counted already, as {earlier.name}. Move the new ones into a "
                f"folder of their own, or first `fiss forget {model.path} --site {earlier.name}`."
            )
    return Contributed(
        name=name,
        folder=root,
        classes=dataset.classes,
        labelled=labelled,
        counted=tuple(sorted(dataset.train.stems)),
        held_out=tuple(sorted(dataset.val.stems)),
    )


def of_name(ledger: Ledger, name: str) -> list[str]:
    """The contributions of one name: a site may have several, a contribution two parts."""
    return [own for own in sorted(ledger.contributions) if own == name or own.startswith(f"{name}/")]


@torch.inference_mode()
def count(model: Extendable, one: Contributed, space: LabelSpace, progress: Progress) -> Mapping[str, Sums]:
    """What a folder contributes, by the names in the ledger."""
    split = one.split(False)
    if model.first is None:
        return {one.name: _sums(model, one, split, range(len(split.stems)), space, progress)}
    choosing = {i for i, stem in enumerate(split.stems) if _hash(f"{CHOICE} {stem}") % PARTS == 0}
    rest = [i for i in range(len(split.stems)) if i not in choosing]
    parts = {one.name: rest, f"{one.name}/{CHOICE}": sorted(choosing)} if rest else {one.name: sorted(choosing)}
    return {name: _sums(model, one, split, part, space, progress) for name, part in parts.items() if part}


def _sums(
    model: Extendable, one: Contributed, split: FileSplit, images: Iterable[int], space: LabelSpace, progress: Progress
) -> Sums:
    chosen = list(images)
    device, training = next(model.network.parameters()).device, model.config.training
    channels = space.channels * (1 if model.first is None else ROWS_EACH)
    accumulator = Accumulator(channels, model.ledger.features, device)
    table = torch.from_numpy(one.table(space)).to(device)
    reader = Reader(ScoredImages(split, model.config.augment.crop), 0, False)
    labelled = [space.channel(name) for name in one.labelled]
    size = BATCH if model.view == "published" else 1  # else they are of many sizes
    batches: Sequence[list[int]] = [chosen[a : a + size] for a in range(0, len(chosen), size)]
    progress.start(f"counting {one.name}", len(chosen))
    for pictures, masks in reader.read([(i, model.view) for i in batch] for batch in batches):
        images_BCHW, labels = pad(pictures.to(device), table[masks.to(device).int()], model.network.divisor)
        with autocast(training, device):
            features = model.features(normalise(images_BCHW))
        shares = cell_shares(labels, space.channels, (features.shape[2], features.shape[3]))
        if model.first is None:
            accumulator.add_images(features, shares)
        else:
            present = model.first.weights["weight"], model.first.weights["bias"]
            accumulator.add_images(*corrections(features, shares, present, labelled))
        progress.advance(len(pictures))
    progress.finish()
    return accumulator.sums()


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)
