"""A run as a person meets it: its config, its records, its models. Made from a run folder; no data are opened."""

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fiss.config.config import Config, read_toml
from fiss.errors import UserError
from fiss.federation.messages import Snapshot
from fiss.models.segmenter import Segmenter
from fiss.runs.folder import RunFolder, read_model
from fiss.runs.pretrained import is_pretrained, read_pretrained
from fiss.runs.records import Records, RoundRecord, ScoreRecord, Splits
from fiss.training.device import pick_device
from fiss.training.trainer import build_network


@dataclass(frozen=True)
class Run:
    """A run folder, read whenever it is asked.

    Args:
        path: The folder; `fiss.open_run(path)` checks that it is one.

    Example:
        >>> run = fiss.open_run("runs/demo/fbl")
        >>> run.scores[-1].miou
    """

    path: Path

    @property
    def folder(self) -> RunFolder:
        """Its files."""
        return RunFolder.open(self.path)

    @property
    def config(self) -> Config:
        """The config that the run was started with."""
        return self.folder.config()

    @property
    def scores(self) -> Records[ScoreRecord]:
        """Every evaluation."""
        return self.folder.scores()

    @property
    def rounds(self) -> Records[RoundRecord]:
        """Every round: clients, losses, time."""
        return self.folder.rounds()

    @property
    def splits(self) -> Splits | None:
        """Who was selected, and who held which images; None in a real federation."""
        return self.folder.splits()

    @property
    def finished(self) -> bool:
        """Whether its last round has been played."""
        return self.folder.finished()

    def snapshot(self, task: int = -1) -> Snapshot:
        """The weights after a task and their label space; -1: the newest, those after the last finished round."""
        if task == -1:
            return read_model(_newest(self.path))
        return self.folder.read_weights(self.folder.last_models().get(task, f"task-{task}"))

    def model(self, task: int = -1, device: str = "auto") -> Segmenter:
        """A network of this run.

        Args:
            task: The one after this task, counted from 0; -1: the newest.
            device: auto, cpu, cuda, cuda:N.

        Returns:
            The network in evaluation mode; `fiss.Predictor` is the easier way to segment images with it.

        Example:
            >>> run.model(task=0)(images_BCHW).logits_BCHW
        """
        return load_model(self.config, self.snapshot(task), self.path, pick_device(device))

    def _repr_html_(self) -> str:
        """The scores after each task, for a notebook."""
        keys = ("miou", "old", "new", "base", "forgetting")
        found = ((end, [getattr(end, key) for key in keys]) for end in self.folder.ends())
        rows = [(str(end.task), end.view, *("-" if v is None else f"{v:.1f}" for v in means)) for end, means in found]
        state = "finished" if self.finished else "not finished"
        title = f"<p><b>{html.escape(str(self.path))}</b>, {state}; percent</p>"
        heads = ("first classes" if key == "base" else key for key in keys)
        return title + html_table(("task", "view", *heads), rows)


Where = Run | Path | str
"""A run, or its folder."""


def path_of(run: Where) -> Path:
    """The folder of a run."""
    return run.path if isinstance(run, Run) else Path(run)


def open_model(run: Where, classes: Path | str | None = None) -> tuple[Config, Snapshot, Path]:
    """The newest model of a run, a model file with the run's config.toml beside or above it, or a folder written by
    segmentation_models_pytorch's `save_pretrained`, whose classes' names that file has; and the model's file."""
    path = path_of(run)
    if is_pretrained(path):
        return read_pretrained(path, classes)
    if not path.exists():
        raise UserError(f"{path}: there is no such folder or file.")
    if path.is_dir():
        file = _newest(path)
        return read_toml(path / "config.toml"), read_model(file), file
    for folder in (path.parent, path.parent.parent):
        if (folder / "config.toml").is_file():
            return read_toml(folder / "config.toml"), read_model(path), path
    raise UserError(f"{path}: its run's config.toml, which says what network it is, is neither beside nor above it.")


def load_model(config: Config, snapshot: Snapshot, where: Path, device: torch.device) -> Segmenter:
    """The network of that config with those weights, in evaluation mode."""
    model = build_network(config, snapshot.label_space, device, "none")
    load_checked(model, snapshot, where)
    return model.eval()


def load_checked(model: Segmenter, snapshot: Snapshot, where: Path) -> None:
    """Load a snapshot that may come from elsewhere."""
    try:
        model.load(snapshot.weights, snapshot.label_space.sizes)
    except RuntimeError as error:
        first = str(error).split("\n")[1].strip() if "\n" in str(error) else str(error)
        raise UserError(f"{where}: {snapshot.name} does not fit the network of this config ({first}).") from error


def free_path(path: Path) -> Path:
    """`path`, or path-2, path-3, ...: the first that is not there."""
    numbered = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(p for p in numbered if not p.exists())


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of strings."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _newest(path: Path) -> Path:
    try:
        last = str(json.loads((path / "state.json").read_bytes())["weights"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a run folder with a finished round ({error}).") from error
    return path / "weights" / f"{last}.safetensors"
