"""The command line: parses, calls the API, prints. What is heavy is imported inside the commands, so that --help
answers at once."""

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

import fiss
from fiss.cli import federation, imports
from fiss.cli.extension import extend, forget, verify
from fiss.cli.lists import data_check, methods, presets
from fiss.cli.models import export, predict
from fiss.cli.names import Commands, complete_methods, complete_presets
from fiss.cli.reports import RunPath, compare, eval_, monitors, picture, report, table
from fiss.cli.several import Settings, close, demo, settings_of, start, stoppable, sweep
from fiss.cli.web import web
from fiss.errors import UserError

app = typer.Typer(
    cls=Commands,
    help="Federated incremental semantic segmentation: many sites, one model, classes that keep arriving.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(cls=Commands, help="Data sets.", no_args_is_help=True)
app.add_typer(data, name="data")
app.add_typer(federation.app, name="federation")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        print(f"fiss {fiss.__version__}")
        raise typer.Exit


Track = Annotated[str, typer.Option(help="Losses and scores also to tensorboard, mlflow or wandb.")]


@app.command("run")
def run_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE.toml",
            help="A preset (see `fiss presets`) or a config file.",
            autocompletion=complete_presets,
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="How not to forget (see `fiss methods`), or package.module:Class.", autocompletion=complete_methods
        ),
    ] = "",
    ablate: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Take a part of the method out; repeatable.")
    ] = None,
    setting: Settings = None,
    monitor: Annotated[
        str,
        typer.Option(
            help="How sites notice classes: told, oracle, names, entropy, reference, images, misfit, features, never."
        ),
    ] = "",
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    base: Annotated[Path | None, typer.Option(help="Take the first task over from this run folder.")] = None,
    joint: Annotated[bool, typer.Option("--joint", help="Upper bound: one site, all images and labels.")] = False,
    engine: Annotated[
        str, typer.Option(help="in-process, or flare: on NVIDIA FLARE's simulator, several clients at a time.")
    ] = "in-process",
    workers: Annotated[int, typer.Option(min=1, help="Clients at a time with --engine flare.")] = 2,
    track: Track = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N. Default: the config's.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="The run folder; must not hold a run. Default: runs/NAME, numbered.")
    ] = None,
) -> None:
    """Run an experiment: a federation that learns class after class."""
    with stoppable():
        run = fiss.run(
            what,
            method=method,
            seed=seed,
            out=out,
            settings=settings_of(setting) | ({"training.device": device} if device else {}),
            ablate=ablate or [],
            monitor=monitor,
            base=base,
            joint=joint,
            engine=engine,
            workers=workers,
            track=track,
            progress=True,
        )
    close(run)


@app.command()
def resume(run: RunPath, track: Track = "") -> None:
    """Go on with a run that was stopped; the result is the same as if it had not been."""
    with stoppable():
        close(fiss.resume(run, progress=True, track=track))


app.command("eval")(eval_)
COMMANDS = (
    sweep, start, demo, predict, extend, forget, verify, export, picture, compare, monitors, report, table, web,
    presets, methods,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
data.command("check")(data_check)
data.command("import", help=imports.HELP)(imports.import_)


def main() -> None:
    """Run the command line; what a user can put right is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error}{_going_on(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def _going_on(error: OSError) -> str:
    """What to do about a run that met a full disk."""
    from fiss.runs.folder import RunFolder

    folders = Path(error.filename or "").parents if error.errno in (errno.ENOSPC, errno.EDQUOT) else ()
    run = next((folder for folder in folders if (folder / "config.toml").is_file()), None)
    if run is None or RunFolder(run).finished():
        return ""
    if RunFolder(run).deployed:
        return f". No finished round is lost: make room, then `fiss federation run {run.parent} ...` goes on."
    return f". No finished round is lost: make room, then `fiss resume {run}` goes on."
