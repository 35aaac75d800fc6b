"""Runs side by side: mean and deviation over seeds, one row per method.

Runs share a row only if their configs agree in everything but the seed and where they were computed; rows of one
method that differ say in what.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from csv import writer
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fiss.config.config import Config
from fiss.config.identity import SAME_ROW, decided, differences, row_key
from fiss.config.presets import label
from fiss.errors import UserError
from fiss.monitors.accuracy import by_client, replay, total
from fiss.monitors.rules import RULES
from fiss.runs.folder import RunFolder
from fiss.runs.records import Records, RoundRecord, ScoreRecord, pandas, probed
from fiss.runs.run import Where, html_table, path_of


@dataclass(frozen=True)
class Comparison:
    """A table of strings: what the runs share, a heading, rows, and what to know about them.

    Args:
        title: What it is about.
        head: The names of its columns.
        rows: Its cells.
        notes: What to know about it.

    Example:
        >>> fiss.compare([run, other]).to_pandas()
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n".join([table, *(f"\n{note}" for note in self.notes)])

    def csv(self) -> str:
        """The table as comma-separated values, the title first."""
        text = StringIO()
        writer(text, lineterminator="\n").writerows([(self.title,), self.head, *self.rows])
        return text.getvalue()

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame, where pandas is installed."""
        return pandas().DataFrame(self.rows, columns=self.head)

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<p><b>{escape(self.title)}</b>, percent</p>{html_table(self.head, self.rows)}{notes}"


def compare(runs: Iterable[Where], view: str = "published") -> Comparison:
    """Runs side by side: mean and deviation over seeds.

    Args:
        runs: Runs or their folders.
        view: published or full.

    Returns:
        A table that shows itself in a notebook; `.markdown()`, `.csv()` and `.to_pandas()` give it elsewhere.

    Example:
        >>> print(fiss.compare(["runs/demo/finetune", "runs/demo/fbl"]).markdown())
    """
    groups: dict[tuple[tuple[str, str], ...], dict[int, tuple[RunFolder, Records[ScoreRecord]]]] = defaultdict(dict)
    notes = []
    for path in map(path_of, runs):
        folder = RunFolder.open(path)
        config = folder.config()
        ends = folder.ends(view)
        if not ends:
            raise UserError(f"{path} {why_no_score(folder)}")
        if not folder.finished():
            notes.append(f"{path} is not finished; its last task is {ends[-1].task}.")
        group = groups[row_key(config)]
        if config.seed in group:
            raise UserError(f"{path}: another run with the same config has seed {config.seed} too; give each run once.")
        group[config.seed] = (folder, ends)
    tasks = max(len(ends) for group in groups.values() for _, ends in group.values())
    configs = [next(iter(group.values()))[0].config() for group in groups.values()]
    rows = []
    for name, config, group in zip(labels(configs), configs, groups.values(), strict=True):
        cells = [cell([ends[t].miou for _, ends in group.values() if t < len(ends)]) for t in range(tasks)]
        if config.joint:  # one task only, and what it reaches belongs beside the others' last
            cells = ["-"] * (tasks - 1) + cells[:1]
        last = [ends[-1] for folder, ends in group.values() if folder.finished()]
        cells += [cell([s.old for s in last]), cell([s.new for s in last]), cell([s.forgetting for s in last])]
        rows.append((name, str(len(group)), *cells))
    head = ("method", "runs", *(f"task {t}" for t in range(tasks)), "old", "new", "forgetting")
    presets = ", ".join(dict.fromkeys(config.name for config in configs))
    return Comparison(f"{presets}: mIoU after each task, view {view}", head, tuple(rows), tuple(notes))


def why_no_score(folder: RunFolder) -> str:
    """What is to be said of a run that has no evaluation after a task in some view."""
    views = ", ".join(sorted({score.view for score in folder.ends()}))
    if views:
        return f"was scored in view {views} only; --set evaluation.views=published,full scores a run in both."
    if folder.deployed:
        return (
            "was not scored: its server has no images of its own (data.root) with the sites' classes, "
            "and no site scores it (score in site.toml)."
        )
    return "has no finished task yet."


def monitors(paths: Iterable[Path]) -> list[Comparison]:
    """How every monitor would have done with what the clients of those runs measured; runs that differ in their seed
    only are taken together. Of a real federation, whose sites keep that to themselves: whose monitor fired when."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[Config, Records[RoundRecord], Mapping[int, Sequence[int]]]]]
    groups = defaultdict(list)
    found = []
    for path in paths:
        folder = RunFolder.open(path)
        config, rounds, splits = folder.config(), folder.rounds(), folder.splits()
        if splits is None:
            found.append(_fired(path, config, rounds))
        elif not probed(rounds):
            raise UserError(
                f"{path}: nobody was probed in it, since its tasks were announced. Run with --monitor oracle and --set "
                "monitor.probed=all, or in a world that is not synchronous."
            )
        else:
            groups[row_key(config)].append((config, rounds, splits.transitions or {}))
    names = labels([own[0][0] for own in groups.values()])
    head = ("monitor", "precision", "recall", "delay, probes", "delay, rounds", "true", "seen", "missed", "false",
        "not probed")  # fmt: skip
    for label_, own in zip(names, groups.values(), strict=True):
        rows = []
        for name in RULES:
            again = [(replay(replace(c.monitor, name=name), probed(log)), log, true) for c, log, true in own]
            seen = total(part for ps, log, true in again for part in by_client(true, ps, log[-1].round).values())
            shares = ("-" if share is None else f"{share:.2f}" for share in (seen.precision, seen.recall))
            delays = ("-" if d is None else f"{d:.2f}" for d in (seen.delay_probes, seen.delay_rounds))
            counts = map(str, (seen.true, seen.seen, seen.missed, seen.false, seen.unprobed))
            ran = " (as it ran)" if name == own[0][0].monitor.name else ""
            rows.append((name + ran, *shares, *delays, *counts))
        runs = f"{len(own)} run" + "s" * (len(own) > 1)
        found.append(Comparison(f"Monitors, replayed: {label_} ({runs})", head, tuple(rows), ()))
    return found


def _fired(path: Path, config: Config, rounds: Sequence[RoundRecord]) -> Comparison:
    """Whose monitor fired when."""
    probes = [(str(probe.client), record.round, probe.transition) for record in rounds for probe in record.probes or ()]
    rows = []
    for site in sorted({name for name, _, _ in probes}):
        own = [(round_, fired) for name, round_, fired in probes if name == site]
        rows.append((site, str(len(own)), ", ".join(str(round_) for round_, fired in own if fired) or "-"))
    title, head = f"{path}: monitor {config.monitor.name}", ("site", "probes", "fired in round")
    note = "What sites measure stays with them and true transitions are not known, so no other monitor can be replayed."
    return Comparison(title, head, tuple(rows), (note,))


def labels(configs: Sequence[Config]) -> list[str]:
    """Each config's method; where two have the same, the keys in which they differ."""
    plain = [label(config) for config in configs]
    found = []
    for name, config in zip(plain, configs, strict=True):
        odd = differences(*(c for c, other in zip(configs, plain, strict=True) if other == name), ignoring=SAME_ROW)
        own = decided(config, SAME_ROW)
        found.append(", ".join([name, *(f"{key} {own[key]}" for key in odd if key in own)]))
    return found


def cell(values: Sequence[float | None]) -> str:
    """Mean and, of several, deviation; a dash where there is nothing."""
    there = [v for v in values if v is not None]
    if not there:
        return "-"
    return f"{mean(there):.1f}" + (f" ± {stdev(there):.1f}" if len(there) > 1 else "")
