"""Commands that make a first run or several: `fiss start`, `fiss demo`, `fiss sweep`; and what all that run share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import fiss
from fiss.cli.reports import compare, picture, report, show
from fiss.errors import UserError

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key, of all runs; repeatable.")
]


def start(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A data set, as for `fiss data check`.")],
    run: Annotated[bool, typer.Option("--run", help="Run it at once.")] = False,
    out: Annotated[Path | None, typer.Option(help="The config file. Default: FOLDER's name and .toml, here.")] = None,
    minutes: Annotated[float, typer.Option(min=1, help="How long the run may take.")] = 4.0,
    weights: Annotated[
        str, typer.Option(help="Pretrained weights: a .safetensors file, or a name that the hub knows, as imagenet.")
    ] = "",
    window: Annotated[
        str, typer.Option(help="data.window, for images beyond 8 bits: low,high. Default: percentiles, if needed.")
    ] = "",
    channels: Annotated[int, typer.Option(min=0, help="model.channels. Default: those of the images.")] = 0,
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
        made = fiss.propose(folder, minutes, weights, display, window, channels)
    write_atomically(out, to_toml(made.config, made.reasons).encode())
    show(*proposal_lines(made, out, run))
    if run:
        with stoppable():
            done = fiss.run(made.config, progress=True)
        show(*closing(done))


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
        with stoppable():
            run = fiss.run(
                "shapes", method=method, settings=settings_of(setting), base=base, out=out / method, progress=True
            )
        close(run)
        base = out / "finetune"
    compare(runs, "published", False)
    picture(runs, out / "demo.png")
    report(runs, out / "report.html")
    show(*in_words(runs))


def in_words(runs: list[Path]) -> Iterator[str]:
    """What the demo showed, in plain words."""
    from fiss.reports.headline import headline
    from fiss.reports.report import read, standing

    found = standing(read(runs)[0])
    ways = {
        "finetune": "simply goes on training",
        "fbl": "also learns from what the model before knew (the method of the paper)",
        "analytic": "keeps the network as it was after the first task and computes the classifier from sums",
    }
    yield "[bold]What was seen[/]"
    yield "New classes came, and the images of the old ones were gone."
    for one in found:
        yield f"- {one.label} {ways.get(one.label, 'learns')}. {one.words()}"
    yield headline(found)


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
    done = fiss.sweep(
        what, names, numbers, jobs=jobs, share=share, settings=settings_of(setting), out=out, progress=True
    )
    for name, own in done.by_preset.items():
        compare([run.path for run in own], own[0].config.evaluation.views[0], False)
        show(f"{out / name}.html  [dim]all of it on one page, for a browser[/]")
    if failed := done.failed:
        first = f"{failed[0].job.folder.name}: {failed[0].detail}"
        raise UserError(f"{len(failed)} of {len(done.jobs)} runs failed: {first}")


def settings_of(pairs: list[str] | None) -> dict[str, str]:
    """The keys of `--set` and their values."""
    from fiss.config.config import parse_settings

    return parse_settings(pairs or [])


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends a run without a traceback, and says how to go on."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        print(f"\nStopped. {stopped}", file=sys.stderr)
        raise typer.Exit(130) from None


def close(run: "fiss.Run") -> None:
    """What a run came to, and what to do next."""
    from fiss.cli.tables import closing

    show(*closing(run))
