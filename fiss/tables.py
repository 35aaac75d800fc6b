"""Runs side by side: mean and deviation over seeds, one row per method."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fiss.checkpoint import RunFolder
from fiss.errors import UserError
from fiss.methods import METHODS, label_of
from fiss.methods.base import Method


@dataclass(frozen=True)
class Comparison:
    """A table of strings: what the runs share, a heading, rows."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """As a Markdown table."""
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def compare(paths: Iterable[Path], view: str) -> Comparison:
    """mIoU after each task, then old, new and forgetting after the last, of every method and preset."""
    runs: dict[tuple[str, str], list[list[dict[str, Any]]]] = defaultdict(list)
    for path in paths:
        folder = RunFolder.open(path)
        config = folder.config()
        ends = [r for r in folder.records("scores.jsonl") if r["ends_task"] and r["view"] == view]
        if not ends:
            raise UserError(f"{path}: no task is finished and scored in view '{view}' yet.")
        runs[config.name, "joint" if config.joint else _label(config.method)].append(ends)
    tasks = max(len(ends) for group in runs.values() for ends in group)
    several = len({name for name, _ in runs}) > 1
    head = ("method", "runs", *(f"task {t}" for t in range(tasks)), "old", "new", "forgetting")
    rows = []
    for (name, label), group in runs.items():
        cells = [_cell([ends[t]["miou"] for ends in group if t < len(ends)]) for t in range(tasks)]
        if label == "joint":  # one task only, and what it reaches belongs beside the others' last
            cells = ["-"] * (tasks - 1) + cells[:1]
        cells += [_cell([ends[-1][key] for ends in group]) for key in ("old", "new", "forgetting")]
        rows.append((f"{name} {label}" if several else label, str(len(group)), *cells))
    title = f"{'several presets' if several else next(iter(runs))[0]}: mIoU after each task, view {view}"
    return Comparison(title, head, tuple(rows))


def _label(method: Method) -> str:
    """Its name, and the fields in which it differs from what that name stands for."""
    label = label_of(method)
    if label not in METHODS or METHODS[label]() == method:
        return label
    plain = METHODS[label]()
    changed = (f.name for f in fields(method) if getattr(method, f.name) != getattr(plain, f.name))
    return f"{label}, {', '.join(f'{name} {getattr(method, name)}' for name in changed)}"


def _cell(values: Sequence[float | None]) -> str:
    there = [v for v in values if v is not None]
    if not there:
        return "-"
    return f"{mean(there):.1f}" + (f" ± {stdev(there):.1f}" if len(there) > 1 else "")
