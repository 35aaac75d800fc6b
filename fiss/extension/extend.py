"""A model and folders with masks of new classes give a new model, in a folder of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.extension.count import count, examine
from fiss.extension.model import Extendable, open_extendable
from fiss.extension.writing import new_folder, refuse_existing
from fiss.models.segmenter import Segmenter, pad
from fiss.progress import Progress
from fiss.runs.extension import LEDGER
from fiss.runs.records import ScoreRecord
from fiss.runs.run import Run, Where, free_path, path_of
from fiss.runs.scoring import Validation


@dataclass(frozen=True)
class Extended:
    """What extending came to.

    Args:
        run: The new folder, which `fiss.Predictor`, `fiss.evaluate`, `fiss.picture` and `fiss.extend` take.
        new: The classes that were added.
        before: The scores of the model before, on the held-out images; None where there are none.
        after: Those of the new one.
        kept: By old class, the part of the held-out pixels that were called it, and have no label of their own, that
            still are, in percent; it needs no masks of old classes.
        ledger_bytes: How large the ledger is.
        strength: lambda of the ridge, where there was no ledger.

    Example:
        >>> extended = fiss.extend("runs/demo/fbl", "new-images")
        >>> extended.after.iou["crane"], extended.run.path
    """

    run: Run
    new: tuple[str, ...]
    before: ScoreRecord | None
    after: ScoreRecord | None
    kept: dict[str, float | None]
    ledger_bytes: int
    strength: float | None


def extend(
    where: Where,
    folders: Sequence[Path],
    out: Path | None,
    names: Sequence[str],
    classes: Path | None,
    device: str,
    progress: Progress,
) -> Extended:
    """Look at everything, count, solve, score, write."""
    path = path_of(where)
    if not folders:
        raise UserError("No folder to learn from: name one or more with images/, masks/ and classes.txt.")
    if names and len(names) != len(folders):
        raise UserError(f"{len(names)} names for {len(folders)} folders: give --name once for each, in their order.")
    out = out or free_path(path.with_name(f"{path.stem}-extended"))
    refuse_existing(out)
    model = open_extendable(path, device, classes)
    own = names or [folder.resolve().name for folder in folders]
    if twice := sorted({name for name in own if own.count(name) > 1}):
        raise UserError(f"Two folders would contribute as {twice[0]}: --name gives each its own.")
    given = [examine(folder, name, model, progress) for folder, name in zip(folders, own, strict=True)]
    space, ledger = model.space, model.ledger
    for one in given:  # a group of its own for each folder: what it brought can be taken out again
        new = [name for name in one.labelled if name not in space.names]
        space = space.grow(new) if new else space
    for one in given:
        for name, sums in count(model, one, space, progress).items():
            ledger = ledger.added(name, sums, model.ledger.made_with)
    after, strength = model.solved(ledger, space)
    extension = replace(model.extension, model=str(path), contributed=(*model.extension.contributed, *given))
    before = replace(model.snapshot, name="task-0")
    after = replace(after, name="task-1")
    scores: list[ScoreRecord] = []
    kept: dict[str, float | None] = {}
    if any(one.held_out for one in extension.contributed):
        validation = Validation.of_extension(model.config, extension, model.space, space, progress)
        networks = {0: (model.network, model.space), 1: (model.loaded(after), space)}
        for task, (network, own_space) in networks.items():
            scored = validation.score(
                network, own_space, model.view, scores, progress, round_=task + 1, task=task, ends_task=True
            )
            scores.append(scored)
        kept = _kept(model, networks[1][0], validation, progress)
    with new_folder(out, model.config) as making:
        making.write(ledger, extension, model.first, [before, after], scores)
    size = (out / LEDGER).stat().st_size
    first, last = scores or (None, None)
    return Extended(Run(out), space.names[len(model.space.names) :], first, last, kept, size, strength)


@torch.inference_mode()
def _kept(model: Extendable, after: Segmenter, validation: Validation, progress: Progress) -> dict[str, float | None]:
    """For each old class, how many of the unlabelled pixels that were called it still are, in percent."""
    device, channels = validation.device, model.space.channels
    was = torch.zeros(channels, dtype=torch.long, device=device)
    stayed = torch.zeros_like(was)
    images = range(len(validation.split.stems))
    progress.start("what old classes keep", len(images))
    for pictures, masks in validation.reader.read([[(i, model.view)] for i in images]):
        images_BCHW, labels = pad(pictures.to(device), masks.to(device), after.divisor)
        shown = normalise(images_BCHW)
        old, now = (net(shown).logits_BCHW.argmax(1) for net in (model.network, after))
        free = labels == 0
        was += torch.bincount(old[free], minlength=channels)
        stayed += torch.bincount(old[free & (old == now)], minlength=channels)
        progress.advance()
    progress.finish()
    shares = (100 * stayed.double() / was).tolist()
    return {n: s if k else None for n, s, k in zip(model.space.names, shares[1:], was.tolist()[1:], strict=True)}
