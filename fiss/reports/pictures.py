"""Pictures of runs: the same images segmented by each run's last model beside the truth, and how old classes fared."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fiss.config.presets import label
from fiss.data.label_maps import evaluation_table, training_table
from fiss.data.reading import as_shown
from fiss.data.transforms import TrainingImages, normalise, stack
from fiss.errors import UserError, writing
from fiss.labels import LabelSpace
from fiss.methods.base import Step
from fiss.methods.pseudo_labels import PseudoLabelled
from fiss.models.segmenter import pad
from fiss.predict.palette import FIRST, Legend, colours_of, draw_legend, legend_of, paint
from fiss.predict.predictor import channels_of, logits_of
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.scoring import Validation
from fiss.simulation.scenario import open_scenario
from fiss.training.fit import without_trace
from fiss.training.trainer import set_training

SHOWN = 4
"""Images in a picture."""
Labels = NDArray[np.int64]
Tiles = tuple[list[str], list[list[Any]], Legend]
"""Headings, rows of tiles, and what their colours mean."""


def draw(paths: Sequence[Path], out: Path, progress: Progress) -> None:
    """One row per image: the image, the truth, and what each run sees after its last task; below, old classes over
    tasks."""
    from matplotlib.figure import Figure

    kinds = Figure().canvas.get_supported_filetypes()
    if out.suffix and out.suffix[1:].lower() not in kinds:
        raise UserError(f"--out {out}: no picture ends so; known are {', '.join(sorted(kinds))}.")
    folders = [RunFolder.open(path) for path in paths]
    opened = [Validation.of_run(folder, progress) for folder in folders]
    if len({validation.digest for validation in opened}) > 1:
        raise UserError("These runs have different images, so one picture cannot show them side by side.")
    names = [label(validation.config) for validation in opened]
    last = [list(folder.last_models().values())[-1] for folder in folders]
    images = _chosen(opened[0], folders[0], last[0])
    seen = [_predictions(*run, images) for run in zip(opened, folders, last, strict=True)]
    curves = [_old_classes(folder) for folder in folders]

    columns = 2 + len(folders)
    figure = Figure(figsize=(2.1 * columns, 2.1 * len(images) + 2.6), dpi=100, layout="constrained")
    grid = figure.add_gridspec(len(images) + 1, columns, height_ratios=[2.1] * len(images) + [2.6])
    rows = _beside(opened[0], images, seen)
    _tiled(figure, grid, rows, ["image", "truth", *names])
    axes = figure.add_subplot(grid[len(images), :])
    for number, (name, curve) in enumerate(zip(names, curves, strict=True)):
        axes.plot(range(len(curve)), curve, label=name, color=FIRST[1 + number % 7], marker="osD^v<>"[number % 7])
    tasks = max(map(len, curves))
    axes.set(
        xlabel="task", ylabel="mIoU without background, %", ylim=(0, 100), xticks=range(tasks), xlim=(-0.1, tasks - 0.9)
    )
    axes.set_title("old classes after each task (task 0: the first classes)", fontsize=11)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    draw_legend(figure, _legend(opened[0].classes, rows))
    with writing(out):
        figure.savefig(out)


def draw_tasks(path: Path, out: Path, titles: Sequence[str], progress: Progress) -> None:
    """One row per image: the image, the truth, and what the models after each task of one run see."""
    from matplotlib.figure import Figure

    folder = RunFolder.open(path)
    models, validation = list(folder.last_models().values()), Validation.of_run(folder, progress)
    rows = Strip(folder, validation, tuple(_chosen(validation, folder, models[-1]))).rows(models)
    figure = Figure(figsize=(2.1 * len(rows[0]), 2.1 * len(rows) + 0.3), dpi=100, layout="constrained")
    _tiled(figure, figure.add_gridspec(len(rows), len(rows[0])), rows, ["image", "truth", *titles])
    draw_legend(figure, _legend(validation.classes, rows))
    with writing(out):
        figure.savefig(out)


def _legend(classes: Sequence[str], rows: Iterable[Sequence[Any]]) -> Legend:
    """The legend of rows that hold an image and painted labels beside it."""
    return legend_of(classes, (tile for row in rows for tile in row[1:]))


def _tiled(figure: Any, grid: Any, rows: Sequence[Sequence[Any]], titles: Sequence[str]) -> None:
    """Tiles beside each other, under their titles."""
    for row, tiles in enumerate(rows):
        for column, (tile, title) in enumerate(zip(tiles, titles, strict=True)):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(tile, interpolation="nearest")
            axes.set_axis_off()
            if row == 0:
                axes.set_title(title, fontsize=11)


def _chosen(validation: Validation, folder: RunFolder, name: str) -> list[int]:
    """The validation images that show classes of most tasks; of those the ones with fewest classes, and then the first:
    where objects crowd, a picture says little."""
    ids = {name: i for i, name in enumerate(validation.classes, 1)}
    tasks = validation.tasks_of(validation.readable(folder.read_weights(name).label_space))
    there = validation.index.presence
    shown = np.stack([there[:, [ids[own] for own in task]].any(1) for task in tasks]).sum(0)
    crowd = there[:, [ids[own] for task in tasks for own in task]].sum(1)
    return sorted(int(i) for i in np.lexsort((crowd, -shown))[:SHOWN])


def _ids(classes: Sequence[str], space: LabelSpace) -> Labels:
    """Data-set id of each channel."""
    table = evaluation_table(classes, space)
    ids = np.zeros(space.channels, np.int64)
    ids[table[1 : len(classes) + 1]] = np.arange(1, len(classes) + 1)
    ids[0] = 0
    return ids


def _predictions(validation: Validation, folder: RunFolder, name: str, images: Sequence[int]) -> list[Labels]:
    """Data-set ids that a model of a run sees in each image, given to it as for `fiss predict`: at the size at which it
    is scored."""
    model, space = validation.model(folder, name)
    ids, found = _ids(validation.classes, validation.readable(space)), []
    with torch.inference_mode():
        for i in images:
            picture, _ = validation.split.read(i)
            logits = logits_of(model, picture, validation.config.evaluation.size)
            found.append(ids[channels_of(logits, picture.shape[:2])])
    return found


@dataclass(frozen=True)
class Strip:
    """A few images of a run, the same for each of its models."""

    folder: RunFolder
    validation: Validation
    images: tuple[int, ...]

    @classmethod
    def of(cls, folder: RunFolder, progress: Progress) -> "Strip":
        """A strip of three images that show classes of most tasks."""
        validation, models = Validation.of_run(folder, progress), folder.last_models()
        return cls(folder, validation, tuple(_chosen(validation, folder, models[max(models)])[:3]))

    def rows(self, names: Iterable[str]) -> list[list[Any]]:
        """For each image a row: the image, the truth, and what each of those models sees in it."""
        seen = [_predictions(self.validation, self.folder, name, self.images) for name in names]
        return _beside(self.validation, self.images, seen)


def _beside(validation: Validation, images: Sequence[int], seen: Sequence[list[Labels]]) -> list[list[Any]]:
    """For each image a row: the image, the truth, and what each of several models sees in it."""
    colours, rows = colours_of(len(validation.classes) + 1), []
    for i, *labels in zip(images, *seen, strict=True):
        picture, mask = validation.split.read(i)
        rows.append([as_shown(picture), *(paint(ids.astype(np.int64), colours) for ids in (mask, *labels))])
    return rows


def pseudo_label_tiles(folder: RunFolder) -> Tiles | None:
    """Pseudo labels beside the truth, in the last task: the image, the truth, what a client has labels for, and what it
    learns from in its last epoch (white: ignored), the student being the model after the task, as it trains. Thresholds
    come from these images alone. None where the method makes no pseudo labels, there was no second task, or the images
    are the sites' own."""
    config, models = folder.config(), folder.last_models()
    method = config.method
    if not isinstance(method, PseudoLabelled) or len(models) < 2 or folder.deployed:
        return None
    scenario, task = open_scenario(config, Progress()), max(models)  # its notices were given when it ran
    (teacher, known), (student, space) = (scenario.validation.model(folder, models[t]) for t in (task - 1, task))
    space = scenario.validation.readable(space)
    holding = next((held for (t, _), held in scenario.plan.holdings.items() if t == task and held.images), None)
    if holding is None:
        return None
    labelled = holding.classes if config.world.own_labels else scenario.tasks.tasks[task]
    table = torch.from_numpy(training_table(scenario.dataset.classes, space, labelled)).to(scenario.device)
    data = TrainingImages(scenario.dataset.train, config.augment)
    ids = np.append(_ids(scenario.dataset.classes, space), np.full(256 - space.channels, 255))
    colours, rows = colours_of(len(scenario.dataset.classes) + 1), []
    pictures, masks = stack([data[i, i] for i in holding.images[:8]])
    set_training(student, method, sum(map(bool, space.groups)), config.training)
    with without_trace(student):
        images, labels = pad(pictures.to(scenario.device), table[masks.to(scenario.device).int()], student.divisor)
        batch = normalise(images)
        rounds = config.world.rounds * config.training.epochs_in(task == 0)
        weights, taught = (dict(network.named_parameters()) for network in (student, teacher))
        step = Step(labels, student(batch), teacher(batch), space, known.channels, rounds - 1, {}, (), weights, taught)
        if method.needs_preview:
            method.preview(step)
        method.begin_epoch(step.state, step.epoch, known.channels, labels.device)
        given, _ = method.relabel(step)
    side = config.augment.crop
    for row in range(min(3, len(pictures))):
        maps = (masks[row].numpy(), *(ids[m[row, :side, :side].cpu().numpy()] for m in (labels, given)))
        rows.append(
            [as_shown(pictures[row].permute(1, 2, 0).numpy()), *(paint(m.astype(np.int64), colours) for m in maps)]
        )
    heads = ["image", "truth", "labels of the client", "with pseudo labels"]
    return heads, rows, _legend(scenario.dataset.classes, rows)


def _old_classes(folder: RunFolder) -> list[float]:
    ends = folder.ends(folder.config().evaluation.views[0])
    found = (end.old_foreground if end.old_foreground is not None else end.base_foreground for end in ends)
    return [math.nan if value is None else value for value in found]
