"""Lists that people read at the command line: presets, methods, a data set and its problems, what a run leaves."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fiss.cli.display import Display, data_table, score_table
from fiss.config.config import meanings
from fiss.config.presets import PRESETS
from fiss.data.index import all_problems, build, missing_classes
from fiss.data.sources import DataSpec, open_dataset, recognise
from fiss.methods import METHODS
from fiss.runs.folder import RunFolder


def preset_table() -> Table:
    """What can be run."""
    table = Table(title="fiss run PRESET", title_justify="left")
    for head in ("preset", "what it is"):
        table.add_column(head)
    for key, make in PRESETS.items():
        table.add_row(key, " ".join((make.__doc__ or "").split()))
    return table


def method_table() -> Table:
    """How not to forget, and what can be set about it."""
    table = Table(title="fiss run PRESET --method METHOD", title_justify="left", show_lines=True)
    for head in ("method", "what it is", "fields (--set method.FIELD=VALUE)"):
        table.add_column(head)
    for key, make in METHODS.items():
        method = make()
        texts, plain = meanings(type(method)), method if key == method.name else METHODS[method.name]()
        own = [f.name for f in fields(method) if method is plain or getattr(method, f.name) != getattr(plain, f.name)]
        shown = "\n".join(f"{name} = {getattr(method, name)}: {texts.get(name, '')}" for name in own)
        parts = f"\n--ablate {', '.join(method.ablations)}" if method.ablations and method is plain else ""
        table.add_row(key, " ".join((make.__doc__ or "").split()), shown + parts)
    return table


def check_data(path: str, display: Display) -> int:
    """Print what is in a data set and what is wrong with it; gives the number of problems."""
    dataset = open_dataset(DataSpec() if path == "shapes" else recognise(Path(path).expanduser()))
    for notice in dataset.notices:
        display.notice(notice)
    train, val = (build(split, dataset.classes, display) for split in (dataset.train, dataset.val))
    for notice in missing_classes(dataset, train, val):
        display.notice(notice)
    display.console.print(data_table(dataset, train, val))
    problems = all_problems(dataset, train, val)
    for problem in problems:
        display.console.print(f"[red]problem:[/] {escape(problem)}", highlight=False, soft_wrap=True)
    return len(problems)


def closing(out: Path) -> Iterator[Table | str]:
    """The scores of a run, and what stands in its folder."""
    yield score_table(RunFolder.open(out).ends(), out.name)
    for name, what in (
        ("config.toml", "the complete config, for `fiss run`"),
        ("scores.jsonl", "every evaluation"),
        ("rounds.jsonl", "every round: clients, losses, time"),
        ("splits.json", "who held which images"),
        ("state.json", "where the run stands, and the clients' memories"),
        ("origin.json", "which program on which machine, each time it was begun or gone on with"),
        ("weights", "models after each task and the last rounds"),
        ("report.html", "all of it on one page, for a browser"),
    ):
        yield f"{escape(str(out / name))}  [dim]{what}[/]"


def federation_table(known: dict[str, Any]) -> Table:
    """Where a federation stands."""
    last, job, there = known["last"], known["job"], known["there"]
    table = Table(title=str(known["folder"]), show_header=False, title_justify="left")
    stopping = ", ending after this round" if known["stopping"] else ""
    table.add_row("rounds finished", f"{known['rounds']}{stopping}")
    table.add_row("classes", escape(", ".join(last.class_names or ()) if last else "") or "none yet")
    for name in known["sites"]:
        parts = ["not reached" if there is None else "connected" if name in there else "not connected"]
        parts += ["in the present job" if name in job.get("sites", ()) and name not in job["missing"] else ""]
        took = [r.round + 1 for r in known["records"] if name in [reply.client for reply in r.replies]]
        parts += [f"last took part in round {took[-1]}" if took else "has not taken part"]
        table.add_row(name, ", ".join(part for part in parts if part))
    moved = [(r.round + 1, r.transitions) for r in known["records"] if r.transitions]
    table.add_row("last transition", f"round {moved[-1][0]}: {', '.join(moved[-1][1])}" if moved else "none yet")
    if last:
        from fiss.deployment.supervisor import line

        table.add_row("last round", escape(line(last)))
    for score in known["scores"]:
        best = [f"{name} {value:.1f}" for name, value in score.iou.items() if value is not None]
        miou = "-" if score.miou is None else f"{score.miou:.1f}"
        table.add_row(f"mIoU after round {score.round + 1}", escape(f"{miou}: {', '.join(best)}"))
    if there is None:
        table.add_row("server", f"{known['server']}:{known['port']} does not answer")
    return table
