"""A model that can be extended: its network, its classifier, the sums it came from where there are any.

With sums (a run of a method that adds up features, or what was extended from one) the classifier is solved from all
that was ever counted. Without, new rows are fitted beside the classifier that is there (fiss/statistics/towards.py),
and what is counted for that is kept in a ledger of its own.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fiss.config.config import Config
from fiss.data.reading import RGB
from fiss.data.transforms import View
from fiss.errors import UserError
from fiss.extension.writing import file_digest
from fiss.federation.collection import made_with
from fiss.federation.messages import Snapshot
from fiss.labels import LabelSpace
from fiss.models.classifier import PREFIX, Weights
from fiss.models.segmenter import Segmenter
from fiss.runs.extension import LEDGER, Extension, is_extended
from fiss.runs.folder import RunFolder
from fiss.runs.pretrained import is_pretrained
from fiss.runs.run import Where, load_model, open_model, path_of
from fiss.statistics.features import FeatureSpec, FixedLayers, digest
from fiss.statistics.head import BUFFERS, SolvedHead
from fiss.statistics.ledger import Ledger
from fiss.statistics.solve import lda
from fiss.statistics.sums import LEAST
from fiss.statistics.towards import ROWS_EACH, Rows, towards
from fiss.training.device import pick_device

CHOICE = "choice"
"""What the part of a contribution that chooses lambda is called, after its name and a stroke."""

GIVE = "Give the folder in which model and ledger were written together."


@dataclass(frozen=True, eq=False)
class Extendable:
    """A model, and what its classifier comes from."""

    path: Path
    """Its folder or file."""
    config: Config
    snapshot: Snapshot
    network: Segmenter
    extension: Extension
    ledger: Ledger
    first: Snapshot | None
    """The classifier that was there first, where there are no sums of its making."""

    @property
    def space(self) -> LabelSpace:
        """Its classes."""
        return self.snapshot.label_space

    @property
    def view(self) -> View:
        """How images are looked at: at the size the model was scored at; where that is not known, as they are."""
        return "published" if self.config.evaluation.size else "full"

    @property
    def rows(self) -> Rows:
        """Its classifier."""
        return classifier(self.snapshot)

    @property
    def first_groups(self) -> int:
        """Groups of classes that it had before anything was added."""
        return len(self.first.label_space.groups) if self.first else 1

    def features(self, pictures: Tensor) -> Tensor:
        """What its classifier sees of normalised images."""
        maps = self.network.runs_with(pictures)
        head = self.network.head
        if isinstance(head, SolvedHead) and len(head.weight):
            return head.map(*maps, (pictures.shape[-2], pictures.shape[-1]))
        return maps[0].float()

    def solved(self, ledger: Ledger, space: LabelSpace) -> tuple[Snapshot, float | None]:
        """The model with the classifier that comes of such a ledger, and lambda where there is one."""
        strength = None
        if self.first is None:
            collection = self.config.method.collection
            assert collection is not None
            rows = lda(ledger.total(space.channels), collection.shrinkage, collection.prior)
        else:
            kept = {name: ledger.contributions[name] for name in sorted(ledger.contributions)}
            choosing = [sums for name, sums in kept.items() if name.endswith(f"/{CHOICE}")]
            fitting = [sums for name, sums in kept.items() if not name.endswith(f"/{CHOICE}")]
            present = self.first.weights["weight"], self.first.weights["bias"]
            rows, strength = towards(present, space.channels, fitting, choosing)
        return replace(self.snapshot, label_space=space, weights=self._with(rows, space)), strength

    def _with(self, rows: Rows, space: LabelSpace) -> Weights:
        """The weights with another classifier."""
        old = self.snapshot.weights
        kept = {name: tensor for name, tensor in old.items() if not name.startswith(PREFIX)}
        solved, begin = _is_solved(old), 0
        for group, size in enumerate(space.sizes):
            for kind, part in zip(("weight", "bias"), rows, strict=True):
                name, own = f"{PREFIX}.{group}.{kind}", part[begin : begin + size]
                if solved:  # the trained classifier is not used any more; there has to be one of that size
                    like = old[f"{PREFIX}.0.{kind}"]
                    kept[name] = old[name] if name in old else like.new_zeros(size, *like.shape[1:])
                else:
                    kept[name] = (own[:, :, None, None] if kind == "weight" else own).to(old[f"{PREFIX}.0.{kind}"])
            begin += size
        if solved:
            kept |= {name: part.to(old[name]) for name, part in zip(BUFFERS, rows, strict=True)}
        return kept

    def loaded(self, snapshot: Snapshot) -> Segmenter:
        """A network with other weights."""
        return load_model(self.config, snapshot, self.path, next(self.network.parameters()).device)

    def left(self, ledger: Ledger) -> LabelSpace:
        """The classes that are left with such a ledger: groups at the end that nothing is counted of are gone."""
        groups = list(self.space.groups)
        each = ROWS_EACH if self.first else 1
        while len(groups) > self.first_groups:
            channels = LabelSpace(tuple(groups)).group_channels(len(groups) - 1)
            if any(
                each * c < sums.channels and sums.counts_C[each * c] > LEAST
                for sums in ledger.contributions.values()
                for c in channels
            ):
                break
            groups.pop()
        return LabelSpace(tuple(groups))


def open_extendable(where: Where, device: str, classes: Path | None = None) -> Extendable:
    """A run, an extended model's folder, a model file with the run's config.toml beside or above it, or a folder
    written by segmentation_models_pytorch's `save_pretrained`, whose classes' names that file has."""
    path = path_of(where)
    if classes is not None and not is_pretrained(path):
        raise UserError("--classes is for models whose classes have no names; these have names.")
    config, snapshot, file = open_model(path, classes)
    if config.reading != RGB:
        raise UserError(f"{path}: it has data.window or model.channels; only models of 8-bit RGB images are extended.")
    if config.federation.private_names:
        raise UserError(f"{path}: the class names of this model are private, so those of a folder cannot be matched.")
    network = load_model(config, snapshot, file, pick_device(device))
    folder = RunFolder(path if path.is_dir() else file.parent.parent)
    newest = path.is_dir()
    extension = Extension(model=str(path))
    if is_extended(folder) and newest:
        extension = Extension.read(path)
        ledger = Ledger.load(path / LEDGER)
        written = json.loads((path / "state.json").read_bytes()).get("ledger_sha256")
        if written != file_digest(path / LEDGER):
            raise UserError(
                f"{path}: the ledger does not belong to this model: {LEDGER} was written with another. {GIVE}"
            )
        first = folder.read_weights("first") if (path / "weights" / "first.safetensors").is_file() else None
        found = Extendable(path, config, snapshot, network, extension, ledger, first)
    else:
        of_run, trained = _ledger_of_run(folder) if newest else (None, ())
        extension = replace(extension, trained=trained)
        first = None
        if of_run is None:
            first = Snapshot("first", snapshot.label_space, dict(zip(("weight", "bias"), _rows(snapshot), strict=True)))
        elif config.method.collection is None:
            raise UserError(f"{path}: it has a ledger, and its method ({config.method.name}) uses none.")
        ledger = of_run or Ledger("", len(_rows(snapshot)[0][0]) + 1)
        found = Extendable(path, config, snapshot, network, extension, ledger, first)
    made = _made_with(found)
    if not found.ledger.contributions:
        return replace(found, ledger=Ledger(made, found.ledger.features))
    if found.ledger.made_with != made:
        raise UserError(
            f"{path}: the ledger does not belong to this model: it was counted with {found.ledger.made_with[:16]}, the "
            f"model's features are {made[:16]}. {GIVE}"
        )
    return found


def _ledger_of_run(folder: RunFolder) -> tuple[Ledger | None, tuple[str, ...]]:
    """The sums of a run, where it has any, and who trained its network."""
    try:
        record = json.loads((folder.path / "state.json").read_bytes()).get("collected", {})
    except (OSError, ValueError):
        return None, ()
    if "ledger" not in record:
        return None, ()
    file = folder.path / str(record["ledger"])
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != record["sha256"]:
        raise UserError(f"{file}: damaged, its digest is not the one in state.json; restore it from a copy.")
    return Ledger.load(file), tuple(f"{client:05d}" for client in record["took_part"])


def classifier(snapshot: Snapshot) -> Rows:
    """The linear classifier of a model: (C, D) weights and (C,) bias."""
    return _rows(snapshot)


def _rows(snapshot: Snapshot) -> Rows:
    weights, groups = snapshot.weights, range(len(snapshot.label_space.groups))
    if _is_solved(weights):
        return weights[BUFFERS[0]], weights[BUFFERS[1]]
    parts: list[Sequence[Tensor]] = [[weights[f"{PREFIX}.{g}.{kind}"] for g in groups] for kind in ("weight", "bias")]
    return torch.cat([part.flatten(1) for part in parts[0]]), torch.cat(list(parts[1]))


def _is_solved(weights: Weights) -> bool:
    return BUFFERS[0] in weights and len(weights[BUFFERS[0]]) > 0


def _made_with(model: Extendable) -> str:
    """The digest of what its sums are made with."""
    weights, head, collection = model.snapshot.weights, model.network.head, model.config.method.collection
    if model.first is None and collection is not None and isinstance(head, SolvedHead):
        return made_with(collection, weights, head.layers)
    trunk = {k: v for k, v in weights.items() if not k.startswith(PREFIX) and k not in BUFFERS}
    solved = isinstance(head, SolvedHead) and _is_solved(weights)
    spec, layers = (head.spec, head.layers) if solved and isinstance(head, SolvedHead) else (None, FixedLayers())
    first = {} if model.first is None else {f"first.{name}": t for name, t in model.first.weights.items()}
    return digest(spec or FeatureSpec(("decoder",), 0), layers, trunk | first)
