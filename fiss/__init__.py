"""Federated incremental semantic segmentation: many sites, one model, classes that keep arriving.

    run = fiss.run("shapes", method="fbl", seed=1, out="runs/a")
    fiss.compare([run, fiss.open_run("runs/b")])
    fiss.Predictor(run)("photo.jpg").mask

Importing this is cheap: what a name needs is imported when it is first used. The command line calls the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiss.errors import UserError, unknown
from fiss.progress import Progress

if TYPE_CHECKING:
    from fiss.config.config import Config
    from fiss.config.listing import list_methods, list_presets
    from fiss.config.presets import preset
    from fiss.config.proposal import Proposal, propose
    from fiss.data.imports.writer import Imported
    from fiss.data.index import DataCheck
    from fiss.extension.extend import Extended
    from fiss.extension.forget import Forgotten
    from fiss.methods.analytic import Analytic
    from fiss.methods.base import Method, Step
    from fiss.methods.fbl import FBL
    from fiss.methods.finetune import Finetune
    from fiss.methods.ilt import ILT
    from fiss.methods.lwf import LwF
    from fiss.methods.mib import MiB
    from fiss.methods.plop import PLOP
    from fiss.methods.rcil import RCIL
    from fiss.models.output import Output
    from fiss.predict.export import Export
    from fiss.predict.predictor import Prediction, Predictor
    from fiss.reports.checks import check_data, evaluate, import_data
    from fiss.reports.comparison import Comparison, compare
    from fiss.reports.document import Document, picture, report
    from fiss.reports.exported import export
    from fiss.reports.extended import extend, forget, verify
    from fiss.reports.swept import sweep
    from fiss.runs.run import Run
    from fiss.simulation.sweep import Sweep

__version__: str
"""Of the installed package; it stands in pyproject.toml."""

_HOMES = {
    "config.config": "Config",
    "config.listing": "list_methods list_presets",
    "config.presets": "preset",
    "config.proposal": "Proposal propose",
    "data.imports.writer": "Imported",
    "data.index": "DataCheck",
    "extension.extend": "Extended",
    "extension.forget": "Forgotten",
    "methods.analytic": "Analytic",
    "methods.base": "Method Step",
    "methods.fbl": "FBL",
    "methods.finetune": "Finetune",
    "methods.ilt": "ILT",
    "methods.lwf": "LwF",
    "methods.mib": "MiB",
    "methods.plop": "PLOP",
    "methods.rcil": "RCIL",
    "models.output": "Output",
    "predict.export": "Export",
    "predict.predictor": "Prediction Predictor",
    "reports.comparison": "Comparison compare",
    "reports.checks": "check_data evaluate import_data",
    "reports.document": "Document picture report",
    "reports.exported": "export",
    "reports.extended": "extend forget verify",
    "reports.swept": "sweep",
    "runs.run": "Run",
    "simulation.sweep": "Sweep",
}
"""Rooms, and what is imported from them when it is first used."""

__all__ = [
    "FBL", "ILT", "PLOP", "RCIL", "Analytic", "Comparison", "Config", "DataCheck", "Document", "Export", "Extended",
    "Finetune", "Forgotten", "Imported", "LwF", "Method", "MiB", "Output", "Prediction", "Predictor", "Progress",
    "Proposal", "Run", "Step", "Sweep", "UserError", "check_data", "compare", "evaluate", "export", "extend", "forget",
    "import_data", "list_methods", "list_presets", "open_run", "picture", "preset", "propose", "report", "resume",
    "run", "sweep", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for room, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"fiss.{room}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("fiss")
    raise AttributeError(f"module 'fiss' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def run(
    what: str | Path | Config,
    *,
    method: str | Method = "",
    seed: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    ablate: Sequence[str] = (),
    monitor: str = "",
    base: Run | str | Path | None = None,
    joint: bool = False,
    engine: str = "in-process",
    workers: int = 2,
    track: str = "",
    progress: Progress | bool | None = None,
) -> Run:
    """Run an experiment: a federation that learns class after class.

    Args:
        what: A preset (`fiss.list_presets()`), a config file that ends in .toml, or a config.
        method: How not to forget: a name (`fiss.list_methods()`), package.module:Class, or a method with its fields.
        seed: Of everything random.
        out: The run folder, which must not hold a run. Default: runs/NAME, numbered.
        settings: Keys of the config and their values, such as {"world.rounds": 2}.
        ablate: Parts of the method to take out.
        monitor: How sites notice classes; told: they are announced.
        base: A run whose model after the first task is taken over.
        joint: The upper bound: one site, all images and labels.
        engine: in-process, or flare: on NVIDIA FLARE's simulator.
        workers: Clients at a time on FLARE's simulator.
        track: tensorboard, mlflow or wandb: losses and scores go there too.
        progress: True: bars and lines as on the command line; False: silence; None: bars and lines on a terminal and
            in a notebook; or an object of yours that hears of everything.

    Returns:
        The run. Its folder holds all of it, report.html included; `fiss.resume` goes on with it after a crash.

    Example:
        >>> run = fiss.run("shapes", method="fbl", seed=1, settings={"world.rounds": 2})
        >>> fiss.run(fiss.preset("shapes").replace(method=fiss.FBL(pod_logits=0), training={"epochs": 1}))
    """
    from fiss.config.presets import choose, label
    from fiss.reports.display import shown
    from fiss.runs.run import free_path, path_of
    from fiss.runs.tracking import tracked

    first = path_of(base) if base else None
    config = choose(what, method, ablate, settings or {}, seed, first, joint, monitor)
    if engine not in ("in-process", "flare"):
        raise unknown("engine", engine, ("in-process", "flare"))
    path = Path(out) if out else free_path(Path("runs") / f"{config.name}-{label(config)}-seed{config.seed}")
    inside = "" if engine == "flare" else track  # FLARE's own receivers are in its server's process
    with shown(progress) as display, tracked(display, inside, path) as observer, _resumable(path):
        if engine == "flare":
            from fiss.simulation import on_flare

            on_flare.simulate(config, path, workers, observer, track)
        else:
            from fiss.simulation import experiment

            experiment.start(config, path, observer)
        return _reported(path, observer)


def resume(run: Run | str | Path, progress: Progress | bool | None = None, track: str = "") -> Run:
    """Go on with a run that was stopped; the result is the same as if it had not been.

    Args:
        run: A run or its folder.
        progress: As for `fiss.run`.
        track: As for `fiss.run`.

    Returns:
        The finished run.

    Example:
        >>> fiss.resume("runs/demo/fbl")
    """
    from fiss.reports.display import shown
    from fiss.runs.run import path_of
    from fiss.runs.tracking import tracked
    from fiss.simulation import experiment

    path = path_of(run)
    with shown(progress) as display, tracked(display, track, path) as observer, _resumable(path):
        experiment.resume(path, observer)
        return _reported(path, observer)


def open_run(path: str | Path) -> Run:
    """A run that is there already.

    Args:
        path: Its folder; that of a real federation too.

    Returns:
        The run: its config, scores, rounds, splits and models.

    Example:
        >>> fiss.open_run("runs/demo/fbl").scores
    """
    from fiss.runs.run import Run

    found = Run(Path(path))
    assert found.folder
    return found


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Whoever stops it is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        there = f"`fiss resume {path}` goes on from the last finished round."
        raise KeyboardInterrupt(there if path.exists() else "Nothing was written yet.") from None


def _reported(path: Path, progress: Progress) -> Run:
    from fiss.reports.swept import write_page
    from fiss.runs.run import Run

    write_page([path], path / "report.html", progress)
    return Run(path)
