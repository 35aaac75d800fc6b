"""Lists that people read at the command line: presets, methods, and what a run has left behind."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from fiss.checkpoint import RunFolder
from fiss.config import meanings
from fiss.display import score_table
from fiss.methods import METHODS
from fiss.presets import PRESETS


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


def closing(out: Path) -> Iterator[Table | str]:
    """The scores of a run, and what stands in its folder."""
    ends = [r for r in RunFolder.open(out).records("scores.jsonl") if r["ends_task"]]
    yield score_table(ends, out.name)
    for name, what in (
        ("config.toml", "the complete config, for `fiss run`"),
        ("scores.jsonl", "every evaluation"),
        ("rounds.jsonl", "every round: clients, losses, time"),
        ("splits.json", "who held which images"),
        ("state.json", "where the run stands, and the clients' memories"),
        ("weights", "models after each task and the last rounds"),
        ("report.html", "all of it on one page, for a browser"),
    ):
        yield f"{escape(str(out / name))}  [dim]{what}[/]"
