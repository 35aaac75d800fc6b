"""The commands about runs that are there: side by side, as pictures, pages and the paper's tables."""

from pathlib import Path
from typing import Annotated

import typer

import fiss
from fiss.errors import unknown

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]
View = Annotated[str, typer.Option(help="published or full.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]


def picture(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders with the same images.")],
    out: Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")] = Path("picture.png"),
) -> None:
    """Images, truth, and what each run sees after its last task; and how its old classes fared."""
    _written(fiss.picture(runs, out, progress=True).path, "the same images, segmented by each run")


def compare(runs: RunPaths, view: View = "published", markdown: Markdown = False) -> None:
    """Runs side by side: mean and deviation over seeds."""
    from fiss.cli.tables import show_comparison

    compared = fiss.compare(runs, view)
    if markdown:
        print(compared.markdown())
    else:
        show_comparison(compared, "percent; mIoU and old count the background; new and forgetting do not")


def monitors(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN...]", help="Run folders in which clients were probed; none: which monitors there are."
        ),
    ] = None,
    markdown: Markdown = False,
) -> None:
    """How every monitor would have done with what the clients of these runs measured; without runs, a list of them."""
    from fiss.cli.tables import monitor_table, show_comparison

    if not runs:
        show(monitor_table())
        return
    from fiss.reports import comparison

    for found in comparison.monitors(runs):
        if markdown:
            print(f"\n{found.title}\n\n{found.markdown()}")
        else:
            show_comparison(found, "true: transitions of clients that were probed after them; delays of those seen")


def report(
    runs: RunPaths,
    out: Annotated[Path, typer.Option(help="The page; one that is there is replaced.")] = Path("report.html"),
) -> None:
    """One HTML page about runs: who won, who forgot what, curves, classes, pictures."""
    replaced = ", in place of the page that was there" if out.is_file() else ""
    written = fiss.report(runs, out, progress=True).path
    _written(written, f"{written.stat().st_size / 1e6:.1f} MB{replaced}, opens in any browser")


def table(
    preset: Annotated[str, typer.Argument(help="voc-15-1, voc-4-4, voc-8-2 or ade-100-10, also with -small.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN...]", help="Run folders; none: as published.")
    ] = None,
    view: View = "published",
    form: Annotated[str, typer.Option("--format", help="terminal, markdown or csv.")] = "terminal",
) -> None:
    """The paper's tables, our numbers beside the published ones."""
    from fiss.cli.tables import show_comparison
    from fiss.reports import paper

    forms = ("terminal", "markdown", "csv")
    if form not in forms:
        raise unknown("format", form, forms)
    for comparison in paper.tables(preset, runs or [], view):
        if form == "terminal":
            show_comparison(comparison, "percent; ours / published")
        else:
            print(f"\n{comparison.title}\n\n{comparison.markdown()}" if form == "markdown" else comparison.csv())


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


def _written(path: Path, what: str) -> None:
    from rich.markup import escape

    show(f"{escape(str(path))}  [dim]{what}[/]")


def show(*lines: object) -> None:
    """Print tables or lines."""
    from rich.console import Console

    for line in lines:
        Console().print(line, highlight=False, soft_wrap=isinstance(line, str))
