"""The command line: parses, calls the API, prints. What is heavy is imported inside the commands, so that --help
answers at once."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import fiss
from fiss.cli import federation, imports
from fiss.cli.extension import extend, forget, verify
from fiss.cli.models import export, predict
from fiss.cli.names import Commands, complete_methods, complete_presets
from fiss.cli.reports import compare, monitors, picture, report, show, table
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


Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key, of all runs; repeatable.")
]
Track = Annotated[str, typer.Option(help="Losses and scores also to tensorboard, mlflow or wandb.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


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
    with _stoppable():
        run = fiss.run(
            what,
            method=method,
            seed=seed,
            out=out,
            settings=_settings(setting) | ({"training.device": device} if device else {}),
            ablate=ablate or [],
            monitor=monitor,
            base=base,
            joint=joint,
            engine=engine,
            workers=workers,
            track=track,
            progress=True,
        )
    _closing(run)


@app.command()
def resume(run: RunPath, track: Track = "") -> None:
    """Go on with a run that was stopped; the result is the same as if it had not been."""
    with _stoppable():
        _closing(fiss.resume(run, progress=True, track=track))


@app.command("eval")
def eval_(
    run: RunPath,
    view: Annotated[list[str] | None, typer.Option(help="published, full; repeatable. Default: both.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line instead of a table.")] = False,
) -> None:
    """Score again the models after every task of a run."""
    from json import dumps

    from rich.console import Console

    from fiss.cli.tables import score_table
    from fiss.reports.display import Display
    from fiss.runs.records import to_json

    with Display(Console(stderr=json)) as display:
        records = fiss.evaluate(run, view or ("published", "full"), display)
    if not json:
        show(score_table(records, str(run)))
    for record in records if json else ():
        print(dumps(to_json(record)))


@app.command()
def sweep(
    what: Annotated[list[str], typer.Argument(metavar="PRESET|FILE.toml...", help="Presets or config files.")],
    methods_: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Separated by commas: methods, ablations (fbl-without-pod), joint; or paper, ablations, all.",
        ),
    ] = "paper",
    seeds: Annotated[str, typer.Option(help="Separated by commas. Default: the preset's.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    share: Annotated[bool, typer.Option("--share", help="RCIL too takes the common first task over, split.")] = False,
    setting: Settings = None,
    out: Annotated[Path, typer.Option(help="Where the run folders go; give it again to go on.")] = Path("runs/sweep"),
) -> None:
    """Many runs with one command: methods times seeds, the first task shared, what is done skipped."""
    try:
        numbers = [int(word) for word in seeds.split(",") if word.strip()]
    except ValueError:
        raise UserError(f"--seeds {seeds}: expected whole numbers separated by commas.") from None
    names = [word.strip() for word in methods_.split(",") if word.strip()]
    done = fiss.sweep(what, names, numbers, jobs=jobs, share=share, settings=_settings(setting), out=out, progress=True)
    for name, own in done.by_preset.items():
        compare([run.path for run in own], own[0].config.evaluation.views[0], False)
        show(f"{out / name}.html  [dim]all of it on one page, for a browser[/]")
    if failed := done.failed:
        first = f"{failed[0].job.folder.name}: {failed[0].detail}"
        raise UserError(f"{len(failed)} of {len(done.jobs)} runs failed: {first}")


@app.command()
def start(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A data set, as for `fiss data check`.")],
    run: Annotated[bool, typer.Option("--run", help="Run it at once.")] = False,
    out: Annotated[Path | None, typer.Option(help="The config file. Default: FOLDER's name and .toml, here.")] = None,
    minutes: Annotated[float, typer.Option(min=1, help="How long the run may take.")] = 4.0,
    weights: Annotated[
        str, typer.Option(help="Pretrained weights: a .safetensors file, or a name that the hub knows, as imagenet.")
    ] = "",
) -> None:
    """Look at your images and at this machine, and propose a first run, with reasons."""
    from fiss.cli.tables import closing, proposal_lines
    from fiss.config.config import to_toml
    from fiss.reports.display import shown
    from fiss.runs.folder import write_atomically

    out = out or Path(f"{folder.resolve().name}.toml")
    if out.exists():
        raise UserError(
            f"{out} is there already and is not written over: --out names another, `fiss run {out}` runs it."
        )
    with shown(True) as display:
        made = fiss.propose(folder, minutes, weights, display)
    write_atomically(out, to_toml(made.config, made.reasons).encode())
    show(*proposal_lines(made, out, run))
    if run:
        with _stoppable():
            done = fiss.run(made.config, progress=True)
        show(*closing(done))


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where its runs go. Default: runs/demo, numbered.")] = None,
    setting: Settings = None,
) -> None:
    """Finetuning, FBL and learning by sums on the built-in data set, with a picture at the end."""
    from fiss.runs.run import free_path

    out = out or free_path(Path("runs") / "demo")
    setting = ["world.sample_ratio=0.55", *(setting or [])]  # runs of the preset, made a little shorter
    base = None
    runs = [out / method for method in ("finetune", "fbl", "analytic")]
    for method in (path.name for path in runs):
        print(f"\n{method}" + (" (from the first task of finetune)" if base else ""), flush=True)
        run_("shapes", method, setting=setting, base=base, out=out / method)
        base = out / "finetune"
    compare(runs, "published", False)
    picture(runs, out / "demo.png")
    report(runs, out / "report.html")


for command in (predict, extend, forget, verify, export, picture, compare, monitors, report, table, web):
    app.command()(command)


@app.command()
def presets(
    name: Annotated[str, typer.Argument(help="Show this one in full, as TOML.", autocompletion=complete_presets)] = "",
) -> None:
    """List the presets, or show one as TOML."""
    from fiss.cli.tables import preset_table

    if name:
        from fiss.config.config import to_toml

        print(to_toml(fiss.preset(name)), end="")
    else:
        show(preset_table())


@app.command()
def methods(
    name: Annotated[str, typer.Argument(help="Show the fields of this one.", autocompletion=complete_methods)] = "",
) -> None:
    """List the methods and say which to use, or show the fields of one."""
    from fiss.cli.tables import field_table, method_table

    show(field_table(name) if name else method_table())


@data.command("check")
def data_check(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A data set: VOC 2012, ADE20k, or images/, masks/, classes.txt; or `shapes`."
        ),
    ],
    window: Annotated[str, typer.Option(help="data.window, for images beyond 8 bits: low,high or 1%,99%.")] = "",
    channels: Annotated[int, typer.Option(min=1, help="model.channels: of the images.")] = 3,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the contact sheet: each class in small pictures.")
    ] = None,
    every: Annotated[bool, typer.Option("--every", help="Name every file of a problem, not three.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Suspicions too make the exit status 2.")] = False,
) -> None:
    """Validate a data set: what is in it, what is wrong (exit status 2), and what is suspicious."""
    from fiss.cli.tables import data_table, finding_lines

    found = fiss.check_data(path, progress=True, window=window, channels=channels)
    show(data_table(found), *finding_lines(found, every))
    if sheet is not None:
        from fiss.reports.display import shown
        from fiss.reports.sheet import write

        with shown(True) as display:
            write(found, sheet, display)
        show(f"the contact sheet: {sheet}")
    if found.problems:
        raise UserError(f"{len(found.problems)} problem(s) in {path}.")
    if found.suspicions and strict:
        raise UserError(f"{len(found.suspicions)} suspicion(s) about {path}, and --strict.")


data.command("import", help=imports.HELP)(imports.import_)


def _settings(pairs: list[str] | None) -> dict[str, str]:
    from fiss.config.config import parse_settings

    return parse_settings(pairs or [])


@contextmanager
def _stoppable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stopped:
        print(f"\nStopped. {stopped}", file=sys.stderr)
        raise typer.Exit(130) from None


def _closing(run: "fiss.Run") -> None:
    from fiss.cli.tables import closing

    show(*closing(run))


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
