"""How a model is scored: the one answer for a simulation, for a real federation's server, and for runs looked at again.

A real federation has no tasks: each group of classes that entered its label space together stands for one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from fiss.config.config import Config
from fiss.data.dataset import Split
from fiss.data.folder import load
from fiss.data.index import Index, build
from fiss.data.label_maps import evaluation_table
from fiss.data.sources import open_dataset
from fiss.data.transforms import ScoredImages, View
from fiss.errors import UserError
from fiss.federation.messages import SiteScore
from fiss.federation.private_names import private
from fiss.labels import LabelSpace, TaskStream
from fiss.metrics import from_background, iou, summary, to_background
from fiss.models.segmenter import Segmenter
from fiss.progress import Progress
from fiss.runs.extension import Extension, Labelled, held_out, is_extended
from fiss.runs.folder import RunFolder
from fiss.runs.records import ScoreRecord
from fiss.runs.run import load_model
from fiss.training.batches import Reader
from fiss.training.device import pick_device, use_device
from fiss.training.evaluate import evaluate, scored_images


@dataclass(frozen=True)
class Validation:
    """The validation images of a run, and what is needed to score a model on them."""

    config: Config
    classes: tuple[str, ...]
    """All class names of the data set."""
    split: Split
    index: Index
    tasks: tuple[tuple[str, ...], ...] | None
    """The classes of each task; None in a real federation."""
    workers: int = 0
    labelled: Labelled = ()
    """Where not every image has labels of every class: images, and the channels labelled in them. Any other that a
    model sees there counts as background."""

    @classmethod
    def of_simulation(cls, config: Config, progress: Progress) -> "Validation":
        """The validation images of a simulation's data set."""
        dataset = open_dataset(config.data, config.reading)
        stream = TaskStream.parse(config.tasks.split, dataset.classes, config.tasks.order)
        tasks = tuple(stream.names(task) for task in range(len(stream.tasks)))
        tasks = (tuple(name for task in tasks for name in task),) if config.joint else tasks
        index = _checked(build(dataset.val, dataset.classes, progress), config)
        return cls(config, dataset.classes, dataset.val, index, tasks, config.training.workers)

    @classmethod
    def of_server(cls, config: Config, progress: Progress, by_sites: bool = False) -> "Validation":
        """Images that the server of a real federation has of its own; `by_sites`: whether there are scores of sites."""
        if not config.data.root:
            raise UserError(
                "The server of this federation has no images of its own (data.root in its federation.toml), so it has "
                "nothing to draw, "
                + (
                    "and nothing to score again: sites score the model on their own images."
                    if by_sites
                    else "and nothing to score a model on."
                )
            )
        dataset = load(Path(config.data.root).expanduser()).read_as(config.reading)
        index = _checked(build(dataset.val, dataset.classes, progress), config)
        return cls(config, dataset.classes, dataset.val, index, None)

    @classmethod
    def of_extension(
        cls, config: Config, extension: Extension, before: LabelSpace, space: LabelSpace, progress: Progress
    ) -> "Validation":
        """The held-out images of the folders that extended a model, from one label space to another."""
        split, labelled = held_out(extension, space, progress)
        index = _checked(build(split, space.names, progress), config)
        tasks = tuple(filter(None, (before.names, space.names[len(before.names) :])))
        return cls(config, space.names, split, index, tasks, labelled=labelled)

    @classmethod
    def of_run(cls, folder: RunFolder, progress: Progress) -> "Validation":
        """What the models of a run folder are scored on."""
        config = folder.config()
        use_device(config.training)
        if is_extended(folder):
            models = list(folder.last_models().values())
            before, after = (folder.read_weights(name).label_space for name in (models[0], models[-1]))
            return cls.of_extension(config, Extension.read(folder.path), before, after, progress)
        if folder.deployed:
            return cls.of_server(config, progress, bool(folder.scores()))
        return cls.of_simulation(config, progress)

    @cached_property
    def device(self) -> torch.device:
        """Where the networks live."""
        return pick_device(self.config.training.device)

    @cached_property
    def reader(self) -> Reader:
        """Reads the images to score."""
        images = ScoredImages(self.split, self.config.evaluation.size)
        return Reader(images, self.workers, self.device.type == "cuda")

    @cached_property
    def digest(self) -> str:
        """Digest of the images' names and labels."""
        return sha256("\0".join(self.split.stems).encode() + self.index.pixels.tobytes()).hexdigest()

    def model(self, folder: RunFolder, name: str) -> tuple[Segmenter, LabelSpace]:
        """A model of a run, and its label space."""
        snapshot = folder.read_weights(name)
        return load_model(self.config, snapshot, folder.path, self.device), snapshot.label_space

    def readable(self, label_space: LabelSpace) -> LabelSpace:
        """A label space with the classes' own names, where they travel as hashes."""
        key = self.config.federation.private_names
        own = {private(name, key) if key else name: name for name in self.classes}
        if lost := [name for name in label_space.names if name not in own]:
            raise UserError(
                f"The data set has no class {lost[0]!r}, which the model knows: restore its classes' names."
            )
        return LabelSpace(tuple(tuple(own[name] for name in group) for group in label_space.groups))

    def tasks_of(self, label_space: LabelSpace) -> tuple[tuple[str, ...], ...]:
        """The classes of each task, or of each group that has entered so far."""
        return self.tasks or groups(label_space)

    def score(
        self,
        model: Segmenter,
        label_space: LabelSpace,
        view: View,
        past: Iterable[ScoreRecord],
        progress: Progress,
        *,
        round_: int,
        task: int,
        ends_task: bool | None = None,
    ) -> ScoreRecord:
        """IoU of every class and their means in one view; `past` are the run's scores so far."""
        space = self.readable(label_space)
        every = "full" if self.labelled else view  # a model before and after: the same images
        images = scored_images(every, self.classes, space, self.index.presence)
        table = evaluation_table(self.classes, space)
        spec, training = self.config.evaluation, self.config.training
        matrix = torch.zeros((), dtype=torch.long)
        parts: Iterable[tuple[Sequence[int], frozenset[int] | None]] = self.labelled or ((images, None),)
        for own, labelled in parts:
            part = evaluate(model, self.reader, own, self.index.sizes, table, view, spec, training, progress)
            matrix = matrix.to(part.device) + (_among(part, labelled) if labelled else part)
        record = _record(iou(matrix), space, self.tasks_of(space), view, past, round_, task, len(images))
        return replace(
            record,
            ends_task=ends_task,
            to_background=dict(zip(space.names, to_background(matrix)[1:], strict=True)),
            from_background=dict(zip(space.names, from_background(matrix)[1:], strict=True)),
        )


def score_of_sites(
    site_scores: Iterable[SiteScore], space: LabelSpace, past: Iterable[ScoreRecord], round_: int
) -> ScoreRecord | None:
    """What sites say of one model, each of the images it keeps from training, added up; None where none does."""
    scores, names = list(site_scores), ("background", *space.names)
    both, either = ([sum(one.pixels.get(name, (0, 0))[k] for one in scores) for name in names] for k in (0, 1))
    ious = [100 * b / e if e else None for b, e in zip(both, either, strict=True)]
    task, images = len(groups(space)) - 1, sum(one.images for one in scores)
    return _record(ious, space, groups(space), "published", past, round_, task, images) if images else None


def _record(
    ious: Sequence[float | None],
    space: LabelSpace,
    tasks: Sequence[Sequence[str]],
    view: View,
    past: Iterable[ScoreRecord],
    round_: int,
    task: int,
    images: int,
) -> ScoreRecord:
    """IoU by channel and their means, which need the best of earlier tasks."""
    best: dict[str, float] = {}
    for earlier in past:
        if earlier.ends_task and earlier.view == view and earlier.task < task:
            for name, value in earlier.iou.items():
                if name != "background" and value is not None:
                    best[name] = max(best.get(name, 0.0), value)
    means: dict[str, Any] = {**summary(ious, space.names, tasks[: task + 1], best)}
    named = dict(zip(("background", *space.names), ious, strict=True))
    return ScoreRecord(round=round_, task=task, view=view, images=images, **means, iou=named)


def rescore(path: Path, views: tuple[View, ...], progress: Progress) -> Iterator[ScoreRecord]:
    """Score again the models after every task of a run; nothing in the run folder changes."""
    folder = RunFolder.open(path)
    models, rounds, extended = folder.last_models(), folder.rounds(), is_extended(folder)
    validation = Validation.of_run(folder, progress)
    first = validation.config.world.rounds  # of a first task that was taken over
    past: list[ScoreRecord] = []
    if not validation.config.evaluation.size:  # nobody knows at which size
        views = ("full",)
    for task, name in models.items():
        model, space = validation.model(folder, name)
        last = max((record.round for record in rounds if record.task == task), default=task + 1 if extended else first)
        for view in views:
            past.append(validation.score(model, space, view, past, progress, round_=last, task=task, ends_task=True))
            yield past[-1]


def _among(matrix_CC: torch.Tensor, labelled: frozenset[int]) -> torch.Tensor:
    """Predictions of channels that are not labelled there count as background."""
    other = [c for c in range(len(matrix_CC)) if c not in labelled]
    matrix_CC = matrix_CC.clone()
    matrix_CC[:, 0] += matrix_CC[:, other].sum(1)
    matrix_CC[:, other] = 0
    return matrix_CC


def groups(label_space: LabelSpace) -> tuple[tuple[str, ...], ...]:
    """The tasks of a label space that nobody announced: groups of classes that entered together, the first at least."""
    return tuple(group for group in label_space.groups if group) or ((),)


def _checked(index: Index, config: Config) -> Index:
    if index.problems:
        raise UserError(f"data.root = {config.data.root}: {index.problems[0]}")
    return index
