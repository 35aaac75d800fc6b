"""Pictures of runs: the same images segmented by each run's last model beside the truth, and how old classes fared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fiss.config.presets import label
from fiss.data.label_maps import evaluation_table, training_table
from fiss.data.transforms import TrainingImages, normalise, stack
from fiss.errors import UserError
from fiss.labels import LabelSpace
from fiss.methods.base import Step
from fiss.methods.pseudo_labels import PseudoLabelled
from fiss.models.segmenter import Segmenter, pad
from fiss.predict import FIRST, colours_of, logits_of, paint
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.run import load_model
from fiss.simulation.scenario import Scenario, open_scenario

SHOWN = 4
"""Images in a picture."""
Labels = NDArray[np.int64]


def draw(paths: Sequence[Path], out: Path, progress: Progress) -> None:
    """One row per image: the image, the truth, and what each run sees after its last task; below, old classes over
    tasks."""
    from matplotlib.figure import Figure

    kinds = Figure().canvas.get_supported_filetypes()
    if out.suffix and out.suffix[1:].lower() not in kinds:
        raise UserError(f"--out {out}: no picture ends so; known are {', '.join(sorted(kinds))}.")
    folders = [RunFolder.open(path) for path in paths]
    scenarios = [open_scenario(folder.config(), progress) for folder in folders]
    if len({scenario.data_digest for scenario in scenarios}) > 1:
        raise UserError("These runs have different images, so one picture cannot show them side by side.")
    names = [label(scenario.config) for scenario in scenarios]
    images = _chosen(scenarios[0])
    seen = [_predictions(scenario, folder, images) for scenario, folder in zip(scenarios, folders, strict=True)]
    curves = [_old_classes(folder) for folder in folders]

    columns = 2 + len(folders)
    figure = Figure(figsize=(2.1 * columns, 2.1 * len(images) + 2.6), dpi=100, layout="constrained")
    grid = figure.add_gridspec(len(images) + 1, columns, height_ratios=[2.1] * len(images) + [2.6])
    colours = colours_of(len(scenarios[0].dataset.classes) + 1)
    for row, i in enumerate(images):
        picture, mask = scenarios[0].dataset.val.read(i)
        tiles = [picture, paint(mask.astype(np.int64), colours), *(paint(s[row], colours) for s in seen)]
        for column, (tile, title) in enumerate(zip(tiles, ["image", "truth", *names], strict=True)):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(tile, interpolation="nearest")
            axes.set_axis_off()
            if row == 0:
                axes.set_title(title, fontsize=11)
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
    figure.savefig(out)


def _chosen(scenario: Scenario) -> list[int]:
    """The validation images that show most classes of different tasks; of equal ones the first."""
    tasks = np.stack([scenario.val.presence[:, list(ids)].any(1) for ids in scenario.tasks.tasks]).sum(0)
    return sorted(int(i) for i in np.argsort(-tasks, kind="stable")[:SHOWN])


def _model(scenario: Scenario, folder: RunFolder, task: int) -> tuple[Segmenter, LabelSpace]:
    """The model after a task, ready to look at images."""
    snapshot = folder.read_weights(f"task-{task}")
    model = load_model(scenario.config, snapshot, folder.path, scenario.device)
    return model, scenario.readable(snapshot.label_space)


def _ids(scenario: Scenario, space: LabelSpace) -> Labels:
    """Data-set id of each channel."""
    table = evaluation_table(scenario.dataset.classes, space)
    ids = np.zeros(space.channels, np.int64)
    ids[table[1 : len(scenario.dataset.classes) + 1]] = np.arange(1, len(scenario.dataset.classes) + 1)
    ids[0] = 0
    return ids


def _predictions(scenario: Scenario, folder: RunFolder, images: Sequence[int], task: int | None = None) -> list[Labels]:
    """Data-set ids that the model after a task, else the last one, sees in each image."""
    model, space = _model(scenario, folder, folder.tasks_done()[-1] if task is None else task)
    ids, found = _ids(scenario, space), []
    with torch.inference_mode():
        for i in images:
            picture, _ = scenario.dataset.val.read(i)
            found.append(ids[logits_of(model, picture).argmax(0).cpu().numpy()])
    return found


def segmentation_tiles(folder: RunFolder, scenario: Scenario) -> tuple[list[str], list[list[Any]]]:
    """For a few images: the image, the truth, and what a run sees after every task; headings and rows of tiles."""
    images, tasks = _chosen(scenario)[:3], folder.tasks_done()
    seen = [_predictions(scenario, folder, images, task) for task in tasks]
    colours = colours_of(len(scenario.dataset.classes) + 1)
    rows = []
    for row, i in enumerate(images):
        picture, mask = scenario.dataset.val.read(i)
        rows.append([picture, paint(mask.astype(np.int64), colours), *(paint(s[row], colours) for s in seen)])
    return ["image", "truth", *(f"task {task}" for task in tasks)], rows


def pseudo_label_tiles(folder: RunFolder, scenario: Scenario) -> tuple[list[str], list[list[Any]]] | None:
    """Pseudo labels beside the truth, in the last task: the image, the truth, what a client has labels for, and what it
    learns from in its last epoch (white: ignored). Thresholds come from these images alone. None where the method makes
    no pseudo labels, or there was no second task."""
    config, tasks = scenario.config, folder.tasks_done()
    method = config.method
    if not isinstance(method, PseudoLabelled) or len(tasks) < 2:
        return None
    task = tasks[-1]
    model, known = _model(scenario, folder, task - 1)
    space = scenario.readable(folder.read_weights(f"task-{task}").label_space)
    holding = next((held for (t, _), held in scenario.plan.holdings.items() if t == task and held.images), None)
    if holding is None:
        return None
    labelled = holding.classes if config.world.own_labels else scenario.tasks.tasks[task]
    table = torch.from_numpy(training_table(scenario.dataset.classes, space, labelled)).to(scenario.device)
    data = TrainingImages(scenario.dataset.train, config.augment)
    ids = np.append(_ids(scenario, space), np.full(256 - space.channels, 255))
    colours, rows = colours_of(len(scenario.dataset.classes) + 1), []
    pictures, masks = stack([data[i, i] for i in holding.images[:8]])
    with torch.no_grad():
        images, labels = pad(pictures.to(scenario.device), table[masks.to(scenario.device).int()], model.divisor)
        output = model(normalise(images))
        rounds = config.world.rounds * config.training.epochs_in(task == 0)
        step = Step(labels, output, output, space, known.channels, rounds - 1, {})
        if method.needs_preview:
            method.preview(step)
        given, _ = method.relabel(step)
    side = config.augment.crop
    for row in range(min(3, len(pictures))):
        maps = (masks[row].numpy(), *(ids[m[row, :side, :side].cpu().numpy()] for m in (labels, given)))
        rows.append([pictures[row].permute(1, 2, 0).numpy(), *(paint(m.astype(np.int64), colours) for m in maps)])
    return ["image", "truth", "labels of the client", "with pseudo labels"], rows


def _old_classes(folder: RunFolder) -> list[float]:
    ends: list[dict[str, Any]] = [r for r in folder.records("scores.jsonl") if r["ends_task"]]
    ends = [r for r in ends if r["view"] == ends[0]["view"]]
    return [r["old_foreground"] if r["old_foreground"] is not None else r["base_foreground"] for r in ends]
