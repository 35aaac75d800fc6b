"""Taking a contribution, or images of it, out of a model; and the certificate that says so.

The certificate names four files with their digests: ledger and model, before and after. Checking it looks at every
byte of those that are there, solves the remaining ledger again, and compares the ledgers contribution by contribution.
The two files from before hold what was to be forgotten, so they may be deleted; the certificate says then that this
part was not checked.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fiss.data.dataset import read_list
from fiss.errors import UserError, unknown
from fiss.extension.count import count, of_name
from fiss.extension.model import Extendable, classifier, open_extendable
from fiss.extension.writing import file_digest, new_folder, refuse_existing
from fiss.progress import Progress
from fiss.runs.extension import LEDGER, Contributed, is_extended
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.provenance import commit
from fiss.runs.run import Run, Where, free_path, path_of
from fiss.statistics.ledger import Ledger

CERTIFICATE = "certificate.json"
CLOSE = 1e-9
"""How far a classifier may be from the one that the ledger gives, as a part of its largest number."""


@dataclass(frozen=True)
class Forgotten:
    """What forgetting came to.

    Args:
        run: The new folder, with `certificate.json` in it.
        certificate: What stands in that file.

    Example:
        >>> forgotten = fiss.forget("runs/extended", site="practice-3")
        >>> forgotten.certificate["removed"]
    """

    run: Run
    certificate: dict[str, Any]


def forget(
    where: Where, site: str, images: Path | None, data: Path | None, out: Path | None, device: str, progress: Progress
) -> Forgotten:
    """Leave a contribution out, or count it again without some images; solve, write, check."""
    path = path_of(where)
    if (images is None) != (data is None):
        raise UserError("--images LIST and --data FOLDER go together: which images, and where the site's folder is.")
    if not path.is_dir():
        raise UserError(f"{path}: forgetting needs the folder with model and ledger, not a model file alone.")
    out = out or free_path(path.with_name(f"{path.name}-forgot"))
    refuse_existing(out)
    model = open_extendable(path, device)
    name = _known(model, site)
    ledger, extension = model.ledger, model.extension
    for own in of_name(ledger, name):
        ledger = ledger.without(own)
    counted = next((one for one in extension.contributed if one.name == name), None)
    gone: tuple[str, ...] = counted.counted if counted else ()
    others = tuple(one for one in extension.contributed if one.name != name)
    if images is not None and data is not None:
        if counted is None:
            raise UserError(
                f"{site} contributed within the federation of {path}, and only it can repeat its pass: it removes the "
                "images from its folder there. Here its whole contribution can be taken out: leave --images away."
            )
        gone = _listed(images, counted)
        left = replace(
            counted,
            folder=str(data.resolve()),
            counted=tuple(s for s in counted.counted if s not in gone),
            held_out=tuple(s for s in counted.held_out if s not in gone),
        )
        if left.counted:
            for own, sums in count(model, left, model.space, progress).items():
                ledger = ledger.replaced(own, sums, ledger.made_with)
            others = tuple(left if one.name == name else one for one in extension.contributed)
    space = model.left(ledger)
    solved, _ = model.solved(ledger, space)
    with new_folder(out, model.config) as making:
        given = replace(extension, model=str(path), contributed=others)
        making.write(ledger, given, model.first, [replace(solved, name="task-0")])
        part = making.folder.path
        certificate = _certificate(model, name, gone, images is not None, ledger, part, out)
        write_atomically(part / CERTIFICATE, (json.dumps(certificate, indent=1) + "\n").encode())
    check(out / CERTIFICATE, progress)
    return Forgotten(Run(out), certificate)


def _known(model: Extendable, site: str) -> str:
    """The name in the ledger: as given, or of a client by its number or a site by its name."""
    names = sorted({name.split("/")[0] for name in model.ledger.contributions})
    file = model.path / "sites.json"
    sites: list[str] = json.loads(file.read_bytes()) if file.is_file() else []
    numbers = [f"{int(site):05d}"] if site.isdecimal() else [f"{sites.index(site):05d}"] if site in sites else []
    if known := [name for name in (site, *numbers) if name in names]:
        return known[0]
    if not names:
        raise UserError(f"{model.path}: nothing has contributed to its ledger, so there is nothing to take out.")
    raise unknown("site", site, [sites[int(n)] if n.isdecimal() and int(n) < len(sites) else n for n in names])


def _listed(path: Path, counted: Contributed) -> tuple[str, ...]:
    """The images on a list, all of them known."""
    stems = read_list(path)
    if not stems:
        raise UserError(f"{path}: names no image; one name per line.")
    for stem in stems:
        if stem not in counted.counted and stem not in counted.held_out:
            raise unknown(f"image of {counted.name}", stem, (*counted.counted, *counted.held_out))
    return tuple(sorted(set(stems)))


def _certificate(
    model: Extendable, name: str, gone: Sequence[str], repeated: bool, ledger: Ledger, part: Path, out: Path
) -> dict[str, Any]:
    """What was done, for people and for `check`; the files of `part` are going to lie in `out`."""
    folder = RunFolder(model.path)
    state = json.loads((model.path / "state.json").read_bytes())
    ledger_before = model.path / (LEDGER if is_extended(folder) else state["collected"]["ledger"])
    before = model.path / "weights" / f"{state['weights']}.safetensors"
    after = part / "weights" / "task-0.safetensors"
    removed = [own for own in of_name(model.ledger, name) if own not in of_name(ledger, name)]
    trained = name in model.extension.trained
    names = {one.name for one in model.extension.contributed}
    if name in names:
        trunk = "The network below the classifier was not trained on these images when they were added."
    elif trained:
        trunk = "The network below the classifier was trained on images of this site, and is as it was. Not undone."
    else:
        trunk = "The network below the classifier did not see this site's images in training."
    found: dict[str, Any] = {
        "what": "Certificate of forgetting",
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "program": f"fiss {commit()}".strip(),
        "removed": {
            "site": name,
            "contributions": removed if not repeated else of_name(model.ledger, name),
            "replaced": of_name(ledger, name),
            "images": list(gone),
            "cells": sum(model.ledger.contributions[own].cells for own in of_name(model.ledger, name))
            - sum(ledger.contributions[own].cells for own in of_name(ledger, name)),
            "classes": [c for c in model.space.names if c not in model.left(ledger).names],
        },
        "files": {
            "ledger_before": _file(ledger_before, ledger_before),
            "model_before": _file(before, before),
            "ledger_after": _file(part / LEDGER, out / LEDGER),
            "model_after": _file(after, out / "weights" / after.name),
        },
        "claims": [
            "The ledger after holds every other contribution of the ledger before, unchanged, and nothing else"
            + (" but what the site counted again without these images." if repeated and of_name(ledger, name) else "."),
            "Solving the ledger after gives the classifier after: it is the one of a model that never had the rest.",
        ],
        "not_undone": [
            trunk,
            "Copies of the earlier model and ledger, and what they were used for. Delete them where that is wanted.",
        ],
    }
    return found | {"digest": _own_digest(found)}


def _file(there: Path, named: Path) -> dict[str, str]:
    return {"path": str(named.resolve()), "sha256": file_digest(there)}


def _own_digest(certificate: Mapping[str, Any]) -> str:
    body = {key: value for key, value in certificate.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check(path: Path, progress: Progress) -> dict[str, Any]:
    """Check all that a certificate says; gives what stands in it."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        files = {key: (Path(file["path"]), str(file["sha256"])) for key, file in found["files"].items()}
        removed = {*found["removed"]["contributions"], *found["removed"]["replaced"]}
        own = found["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: missing, damaged or no certificate ({error}).") from error
    if own != _own_digest(found):
        raise UserError(f"{path}: the certificate itself was changed after it was written.")
    for key, (file, digest) in files.items():
        if not file.is_file():
            if key.endswith("_after"):
                raise UserError(f"{file}: the file that the certificate speaks of is gone.")
            progress.notice(f"{file} is not there any more, so nothing was compared with it.")
        elif file_digest(file) != digest:
            raise UserError(f"{file}: changed after the certificate was written (SHA-256 is not {digest[:16]}...).")
    after = Ledger.load(files["ledger_after"][0])
    if files["ledger_before"][0].is_file():
        before = Ledger.load(files["ledger_before"][0])
        _same(before, after, removed, set(found["removed"]["replaced"]))
    model = open_extendable(files["model_after"][0].parent.parent, "cpu")
    solved, _ = model.solved(after, model.space)
    for one, other in zip(classifier(solved), model.rows, strict=True):
        if float((one.double() - other.double()).abs().max()) > CLOSE * float(other.double().abs().max()):
            raise UserError(f"{files['model_after'][0]}: its classifier is not the one that the ledger gives.")
    return found


def _same(before: Ledger, after: Ledger, removed: set[str], replaced: set[str]) -> None:
    """All that is left is as it was."""
    left = set(before.contributions) - removed
    if before.made_with != after.made_with or left != set(after.contributions) - replaced:
        raise UserError("The two ledgers differ in more than what the certificate says was removed.")
    for name in sorted(left):
        pairs = zip(
            before.contributions[name].tensors().values(), after.contributions[name].tensors().values(), strict=True
        )
        if not all(torch.equal(one, other) for one, other in pairs):
            raise UserError(f"The contribution of {name} is not the same in both ledgers.")
