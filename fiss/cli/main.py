"""The command line. Heavy libraries are imported inside the commands, so that --help answers at once."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fiss.cli import federation
from fiss.errors import UserError, unknown

if TYPE_CHECKING:
    from fiss.cli.display import Display

app = typer.Typer(
    help="Federated incremental semantic segmentation: many sites, one model, classes that keep arriving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Data sets.", no_args_is_help=True)
app.add_typer(data, name="data")
app.add_typer(federation.app, name="federation")

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


@app.command("run")
def run_(
    what: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset (see `fiss presets`) or a config file.")
    ],
    method: Annotated[str, typer.Option(help="How not to forget (see `fiss methods`), or package.module:Class.")] = "",
    ablate: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Take a part of the method out; repeatable.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key; repeatable.")
    ] = None,
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
    out: Annotated[
        Path | None, typer.Option(help="The run folder; must not hold a run. Default: runs/NAME, numbered.")
    ] = None,
) -> None:
    """Run an experiment: a federation that learns class after class."""
    from fiss.config.presets import choose, label
    from fiss.simulation import experiment

    config = choose(what, method, ablate or [], setting or [], seed, base, joint, monitor)

    if engine not in ("in-process", "flare"):
        raise unknown("engine", engine, ("in-process", "flare"))
    out = out or _free(Path("runs") / f"{config.name}-{label(config)}-seed{config.seed}")
    with _display() as display:
        if engine == "flare":
            from fiss.simulation import on_flare

            _with_hint(lambda: on_flare.simulate(config, out, workers, display), out)
        else:
            _with_hint(lambda: experiment.start(config, out, display), out)
        _report([out], out / "report.html", display)
    _closing(out)


@app.command()
def resume(run: RunPath) -> None:
    """Go on with a run that was stopped; the result is the same as if it had not been."""
    from fiss.simulation import experiment

    with _display() as display:
        _with_hint(lambda: experiment.resume(run, display), run)
        _report([run], run / "report.html", display)
    _closing(run)


@app.command("eval")
def eval_(
    run: RunPath,
    view: Annotated[list[str] | None, typer.Option(help="published, full; repeatable. Default: both.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line instead of a table.")] = False,
) -> None:
    """Score again the models after every task of a run."""
    from json import dumps

    from fiss.cli.display import score_table
    from fiss.runs.records import to_json
    from fiss.runs.scoring import rescore

    chosen = tuple(view or ("published", "full"))
    for name in chosen:
        if name not in ("published", "full"):
            raise unknown("view", name, ["published", "full"])
    with _display(to_stderr=json) as display:
        records = list(rescore(run, chosen, display))  # type: ignore[arg-type]
        if json:
            for record in records:
                print(dumps(to_json(record)))
        else:
            display.console.print(score_table(records, str(run)))


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
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key of all runs; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run folders go; give it again to go on.")] = Path("runs/sweep"),
) -> None:
    """Many runs with one command: methods times seeds, the first task shared, what is done skipped."""
    from contextlib import nullcontext

    from rich.console import Console
    from rich.live import Live

    from fiss.cli.display import sweep_table
    from fiss.config.presets import choose
    from fiss.simulation import sweep as sweeping

    for pair in setting or []:
        if pair.startswith("method."):
            raise UserError(
                f"--set {pair}: a sweep has many methods; put this one into a config file and name the file."
            )
    presets = [choose(one, settings=setting or []) for one in what]
    names = sweeping.contenders([word.strip() for word in methods_.split(",") if word.strip()])
    plans = [sweeping.plan(preset, names, sweeping.numbers(seeds) or [preset.seed], out, share) for preset in presets]
    plan = [job for one in plans for job in one]
    sweeping.check(plan)
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():

        def tell(board: Sequence[sweeping.JobStatus]) -> None:
            if live:
                live.update(sweep_table(board), refresh=True)

        ended = []
        for progress in sweeping.play(plan, jobs, tell):
            ended.append(progress)
            if not live:
                scores = "  ".join("-" if v is None else f"{v:.1f}" for v in progress.miou)
                print(f"{progress.state}: {progress.job.folder.name}  {scores}  {progress.detail}", flush=True)
    for preset, own in zip(presets, plans, strict=True):
        good = [job.folder for job in own if sweeping.has_scores(job)]
        if good:
            compare(good, preset.evaluation.views[0], False)
            with _display() as display:
                _report(good, out / f"{preset.name}.html", display)
    failed = [p for p in ended if p.state == "failed"]
    if failed:
        raise UserError(f"{len(failed)} of {len(plan)} runs failed: {failed[0].job.folder.name}: {failed[0].detail}")


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where its two runs go. Default: runs/demo, numbered.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key; repeatable.")
    ] = None,
) -> None:
    """Finetuning and FBL side by side on the built-in data set, with a picture at the end."""
    out = out or _free(Path("runs") / "demo")
    setting = ["world.sample_ratio=0.55", *(setting or [])]  # two runs of the preset, made a little shorter
    base = None
    for method in ("finetune", "fbl"):
        print(f"\n{method}" + (" (from the first task of finetune)" if base else ""), flush=True)
        run_("shapes", method, setting=setting, base=base, out=out / method)
        base = out / "finetune"
    compare([out / "finetune", out / "fbl"], "published", False)
    picture([out / "finetune", out / "fbl"], out / "demo.png")
    report([out / "finetune", out / "fbl"], out / "report.html")


@app.command()
def picture(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders with the same images.")],
    out: Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")] = Path("picture.png"),
) -> None:
    """Images, truth, and what each run sees after its last task; and how its old classes fared."""
    from rich.markup import escape

    from fiss.reports import pictures

    with _display() as display:
        pictures.draw(runs, out, display)
        display.console.print(f"{escape(str(out))}  [dim]the same images, segmented by each run[/]", highlight=False)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    view: Annotated[str, typer.Option(help="published or full.")] = "published",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Runs side by side: mean and deviation over seeds."""
    from fiss.cli.display import CAPTION, show
    from fiss.reports import comparison

    compared = comparison.compare(runs, view)
    if markdown:
        print(compared.markdown())
        return
    show(compared, CAPTION)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A run folder, or a model file with the run's config.toml.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Where masks/, overlays/ and classes.txt go.")] = Path("predictions"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    classes: Annotated[Path | None, typer.Option(help="Class names, where the model's are private.")] = None,
) -> None:
    """Segment new images: masks, and overlays with the classes' names."""
    from fiss import predict as predicting
    from fiss.cli.display import prediction_table
    from fiss.data.dataset import files_by_stem

    found = [file for path in images for file in (files_by_stem(path)[0].values() if path.is_dir() else [path])]
    with _display() as display:
        records = predicting.write(predicting.load(model, device, classes), found, out, display)
        display.console.print(prediction_table(records, str(out)))


@app.command()
def monitors(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders in which clients were probed.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """How every monitor would have done with what the clients of these runs measured."""
    from fiss.cli.display import show
    from fiss.reports import comparison

    for found in comparison.monitors(runs):
        if markdown:
            print(f"\n{found.title}\n\n{found.markdown()}")
        else:
            show(found, "true: transitions of clients that were probed after them; delays of those seen")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """One HTML page about runs: which method forgot what, curves, heat maps, pictures."""
    from rich.markup import escape

    from fiss.reports import report as reporting

    with _display() as display:
        reporting.write(runs, out, display)
        size = out.stat().st_size / 1e6
        display.console.print(f"{escape(str(out))}  [dim]{size:.1f} MB, opens in any browser[/]", highlight=False)


@app.command()
def table(
    preset: Annotated[str, typer.Argument(help="voc-15-1, voc-4-4, voc-8-2 or ade-100-10, also with -small.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN...]", help="Run folders; none: as published.")
    ] = None,
    view: Annotated[str, typer.Option(help="published or full.")] = "published",
    form: Annotated[str, typer.Option("--format", help="terminal, markdown or csv.")] = "terminal",
) -> None:
    """The paper's tables, our numbers beside the published ones."""
    from fiss.cli.display import show
    from fiss.reports import paper

    forms = ("terminal", "markdown", "csv")
    if form not in forms:
        raise unknown("format", form, forms)
    for comparison in paper.tables(preset, runs or [], view):
        if form == "terminal":
            show(comparison, "percent; ours / published")
        else:
            print(f"\n{comparison.title}\n\n{comparison.markdown()}" if form == "markdown" else comparison.csv())


@app.command()
def presets(name: Annotated[str, typer.Argument(help="Show this one in full, as TOML.")] = "") -> None:
    """List the presets, or show one as TOML."""
    from fiss.cli.listings import preset_table
    from fiss.config import presets as known
    from fiss.config.config import to_toml

    if name:
        print(to_toml(known.find(name)), end="")
    else:
        _print(preset_table())


@app.command()
def methods() -> None:
    """List the methods and their fields."""
    from fiss.cli.listings import method_table

    _print(method_table())


@data.command("check")
def data_check(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A data set: VOC 2012, ADE20k, or images/, masks/, classes.txt; or `shapes`."
        ),
    ],
) -> None:
    """Validate a data set: a table of what is in it, and every problem with its file."""
    from fiss.cli.listings import check_data

    with _display() as display:
        problems = check_data(path, display)
    if problems:
        raise UserError(f"{problems} problem(s) in {path}.")
    display.console.print("no problems", style="green")


def _free(path: Path) -> Path:
    """`path`, or path-2, path-3, ...: the first that is not there."""
    numbered = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000)))
    return next(p for p in numbered if not p.exists())


def _display(to_stderr: bool = False) -> "Display":
    from rich.console import Console

    from fiss.cli.display import Display

    return Display(Console(stderr=to_stderr))


def _with_hint(work: Callable[[], object], out: Path) -> None:
    try:
        work()
    except KeyboardInterrupt:
        there = f"`fiss resume {out}` goes on from the last finished round."
        hint = f" {there}" if out.exists() else " Nothing was written yet."
        print(f"\nStopped.{hint}", file=sys.stderr)
        raise typer.Exit(130) from None


def _report(runs: list[Path], out: Path, display: "Display") -> None:
    """The page at the end of a run; a run is not lost because its page cannot be drawn."""
    from fiss.reports import report as reporting

    try:
        reporting.write(runs, out, display)
    except Exception as error:  # whatever it is, the run itself is done and safe
        display.notice(f"no report: {type(error).__name__}: {error}")


def _closing(out: Path) -> None:
    from fiss.cli.listings import closing

    for line in closing(out):
        _print(line)


def _print(what: object) -> None:
    from rich.console import Console

    Console().print(what, highlight=False, soft_wrap=isinstance(what, str))


def main() -> None:
    """Run the command line; what a user can put right is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
