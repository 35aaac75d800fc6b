"""One HTML page about runs: which method forgot what, and how it came to that. page.html says what stands where.

Plots are matplotlib's, embedded as SVG; pictures are PNG. Whatever is missing, damaged or different between runs is
said at the top, and the rest is shown.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import mean

from jinja2 import Template
from markupsafe import Markup

from fiss.config.config import Config, to_toml
from fiss.config.identity import SAME_ROW, differences, row_key
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.reports.comparison import cell, compare, labels, why_no_score
from fiss.reports.figures import figure, finish, grid, style, svg, table, tiles
from fiss.reports.pictures import pseudo_label_tiles, segmentation_tiles
from fiss.reports.timeline import accepted, calendar, losses, monitored
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.records import Client, Records, RoundRecord, ScoreRecord, Splits, probed

Labelled = Mapping[str, Sequence["Run"]]
"""Runs by the label of their row."""


@dataclass(frozen=True)
class Run:
    """What a run folder says."""

    path: Path
    config: Config
    label: str
    ends: Records[ScoreRecord]
    """The evaluations after each task, in the first view."""
    rounds: Records[RoundRecord]
    splits: Splits | None
    finished: bool


def write(paths: Sequence[Path], out: Path, progress: Progress) -> None:
    """The page about those runs."""
    runs, notes = read(paths)
    if not runs:
        raise UserError("No run to report: " + " ".join(notes))
    by_label = _by_label(runs)
    scored = _by_label(run for run in runs if run.ends)
    done = _by_label(run for run in runs if run.ends and run.finished)
    firsts = [several[0] for several in by_label.values()]
    pictures, pseudo = _pictures(firsts, progress, notes)
    page = Template(files("fiss.reports").joinpath("page.html").read_text(encoding="utf-8"), autoescape=True)
    text = page.render(
        labels=by_label,
        notes=notes,
        scored=scored,
        ranked=_ranked(done),
        forgetting=_forgetting(done),
        curves=_curves(scored) + _comparison(scored) if scored else "",
        trade=_trade(done),
        classes=_heat(scored),
        background=_background(done),
        pictures=pictures,
        pseudo_labels=Markup().join(accepted(run.label, run.rounds) for run in firsts) + pseudo,
        losses=losses({run.label: run.rounds for run in firsts}) + _time(by_label),
        clients=_clients(firsts[0]) + _timeline(firsts),
        runs=[(run, to_toml(without_secrets(run.config)), _origins(run)) for run in firsts],
    )
    write_atomically(out, text.encode())


def _by_label(runs: Iterable[Run]) -> Labelled:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.label].append(run)
    return found


def read(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and everything to be said about them."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in paths:
        try:
            folder = RunFolder.open(path)
            config = folder.config()
            ends = folder.ends(config.evaluation.views[0])
            run = Run(path, config, "", ends, folder.rounds(), folder.splits(), folder.finished())
        except (UserError, OSError) as error:
            notes.append(f"{path} cannot be read and is left out ({error}).")
            continue
        if not run.ends and not (folder.deployed and run.rounds):
            notes.append(f"{path} has not finished a task yet and is left out.")
            continue
        if not run.ends:
            notes.append(f"{path} {why_no_score(folder)}")
        notes += [f"{path}: {text}" for record in folder.origins() for text in record.get("notices", ())]
        if not run.finished:
            notes.append(f"{path} is not finished; it is shown as far as it got.")
        runs.append(run)
    rows = {row_key(run.config): run.config for run in runs}
    names = dict(zip(rows, labels(list(rows.values())), strict=True))
    runs = [replace(run, label=names[row_key(run.config)]) for run in runs]
    if odd := differences(*(run.config for run in runs), ignoring=(*SAME_ROW, "method", "joint", "name")):
        notes.append(f"These runs differ in more than their method: {', '.join(odd)}.")
    return runs, notes


def _mean(values: Iterable[float | None]) -> float | None:
    return mean(there) if (there := [v for v in values if v is not None]) else None


def _means(runs: Sequence[Run], value: Callable[[ScoreRecord], float | None]) -> list[float | None]:
    """By task, the mean over seeds."""
    tasks = range(max(len(run.ends) for run in runs))
    return [_mean(value(run.ends[t]) for run in runs if t < len(run.ends)) for t in tasks]


def _classes(by_label: Labelled) -> list[str]:
    """All classes, the background first; none without runs."""
    return max((list(run.ends[-1].iou) for runs in by_label.values() for run in runs), key=len, default=[])


def _forgetting(by_label: Labelled) -> Markup:
    """Final IoU minus the best after an earlier task, by method and class."""
    names = [name for name in _classes(by_label) if name != "background"]

    def lost(run: Run, name: str) -> float | None:
        past = [v for record in run.ends[:-1] if (v := record.iou.get(name)) is not None]
        now = run.ends[-1].iou.get(name)
        return now - max(past) if past and now is not None else None

    rows, shown = [], []
    for label, runs in by_label.items():
        values = [_mean(lost(run, name) for run in runs) for name in names]
        if any(value is not None for value in values):
            rows.append(values)
            shown.append(label)
    kept = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    if not kept:
        return Markup()
    title = "points of IoU lost (orange) or gained (purple) since a class was known best"
    return grid(shown, [names[i] for i in kept], [[row[i] for i in kept] for row in rows], title, (-80, 80), "PuOr")


def _ranked(by_label: Labelled) -> list[tuple[str, list[float | None]]]:
    """Methods, the best first: mIoU after the last task, what was forgotten, mIoU of the newest classes."""
    keys = ("miou", "forgetting", "new")
    found = {label: [_mean(getattr(run.ends[-1], k) for run in runs) for k in keys] for label, runs in by_label.items()}
    return sorted(found.items(), key=lambda row: -(row[1][0] or 0))


def _curves(by_label: Labelled) -> Markup:
    drawn = figure(9, 3.8)
    left, right = drawn.subplots(1, 2)
    for axes, key, title in ((left, "miou", "all classes"), (right, "old", "old classes (task 0: the first)")):
        for number, (label, runs) in enumerate(by_label.items()):
            if key == "old" and runs[0].config.joint:
                continue  # it learns everything at once
            values = _means(runs, lambda r, key=key: r.base if (v := getattr(r, key)) is None else v)  # type: ignore[misc]
            shift = 0 if not runs[0].config.joint else max(len(run.ends) for rs in by_label.values() for run in rs) - 1
            shown = [(shift + t, value) for t, value in enumerate(values) if value is not None]
            axes.plot(*zip(*shown, strict=True), label=label, **style(number))
        finish(axes, title, False, xlabel="task", ylabel="mIoU, %", ylim=(0, 100))
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return svg(drawn, "mIoU after each task")


def _comparison(by_label: Labelled) -> Markup:
    runs = [run for several in by_label.values() for run in several]
    try:
        made = compare([run.path for run in runs], runs[0].config.evaluation.views[0])
    except UserError as error:
        return Markup("<p>{}</p>").format(error)
    return table(made.head, made.rows)


def _trade(by_label: Labelled) -> Markup:
    drawn = figure(6, 4.2)
    axes = drawn.subplots()
    for number, (label, runs) in enumerate(by_label.items()):
        both = [(run.ends[-1].old, run.ends[-1].new) for run in runs]
        pairs = [pair for pair in both if None not in pair]
        if pairs:
            axes.plot(*zip(*pairs, strict=True), label=label, **(style(number) | {"linestyle": "none"}))
    if not axes.lines:
        return Markup()
    axes.set(xlabel="old classes after the last task, mIoU %", ylabel="newest classes, mIoU %")
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(drawn, "old against new classes")


def _heat(by_label: Labelled) -> Markup:
    names = _classes(by_label)
    parts = []
    for label, runs in by_label.items():
        tasks = max(len(run.ends) for run in runs)
        values = [_means(runs, lambda r, n=name: r.iou.get(n)) for name in names]  # type: ignore[misc]
        rows = [[column[t] for column in values] for t in range(tasks)]
        parts.append(grid([f"task {t}" for t in range(tasks)], names, rows, f"{label}: IoU, %", (0, 100), "cividis"))
    return Markup().join(parts)


def _background(by_label: Labelled) -> Markup:
    names = [name for name in _classes(by_label) if name != "background"]
    titles = {
        "to_background": "share of a class's pixels that the last model calls background, %",
        "from_background": "share of the background's pixels that the last model calls a class, %",
    }
    parts = []
    for key, title in titles.items():
        rows = []
        for runs in by_label.values():
            shares = [getattr(run.ends[-1], key) for run in runs]
            rows.append([_mean(share.get(name) for share in shares) for name in names])
        if any(v is not None for row in rows for v in row):
            parts.append(grid(list(by_label), names, rows, title, (0, 100), "cividis"))
    return Markup().join(parts)


def _time(by_label: Labelled) -> Markup:
    """The first task may have been taken over from another run, so it is not counted where there are others."""
    later = any(record.task for runs in by_label.values() for run in runs for record in run.rounds)
    rows = []
    for label, runs in by_label.items():
        counted = [[r for r in run.rounds if r.task or run.config.joint or not later] for run in runs]
        seconds = [sum(r.seconds for r in rounds) for rounds in counted]
        replies = [reply for rounds in counted for r in rounds for reply in r.replies if reply.images]
        rate = f"{sum(reply.samples for reply in replies) / sum(seconds):.0f}" if sum(seconds) else "-"
        files = [f.stat().st_size for run in runs for f in (run.path / "weights").glob("*.safetensors")]
        size, updates = max(files, default=0), len(replies) / len(runs)
        traffic = f"{updates * size / 1e9:.2f}"
        rows.append((label, str(len(runs)), cell(seconds), rate, f"{size / 1e6:.1f}", f"{updates:.0f}", traffic))
    spent = "seconds of training, later tasks" if later else "seconds of training"
    return table(("method", "runs", spent, "images/s", "MB of a model", "updates", "GB each way"), rows)


def _clients(run: Run) -> Markup:
    """How many images each client held in each task, as planned or, in a real federation, as it last said."""
    if run.splits is not None:
        held: dict[tuple[int, Client], int] = {
            (task, c): len(h.images) for task, one in enumerate(run.splits.tasks) for c, h in one.clients.items()
        }
        tasks = len(run.splits.tasks)
    else:
        held = {(record.task, reply.client): reply.images for record in run.rounds for reply in record.replies}
        tasks = max((task for task, _ in held), default=0) + 1
    if not held:
        return Markup()
    clients = sorted({client for _, client in held})
    rows = [[held.get((task, client)) for task in range(tasks)] for client in clients]
    names = [f"client {client}" if isinstance(client, int) else client for client in clients]
    shown = f"images held by each client that took part ({run.label}, seed {run.config.seed})"
    return grid(names, [f"task {t}" for t in range(tasks)], rows, shown, (0, max(*held.values(), 1)), "cividis")


def _timeline(runs: Sequence[Run]) -> Markup:
    """Who trained when; and where tasks are not display, what the clients measured and what their monitors saw."""
    longest = max(runs, key=lambda run: len(run.rounds))
    if not longest.rounds:
        return Markup()
    drawn = [calendar(longest.label, longest.rounds)]
    for run in runs:
        if run.splits is not None and run.splits.transitions is not None and probed(run.rounds):
            drawn.append(monitored(run.label, run.rounds, run.splits.transitions))
    return Markup().join(drawn)


def without_secrets(config: Config) -> Config:
    """Without what only the sites may know."""
    hidden = "(not shown)" if config.federation.private_names else ""
    return replace(config, federation=replace(config.federation, private_names=hidden))


def _origins(run: Run) -> Markup:
    records = RunFolder(run.path).origins()
    keys = [key for key in dict.fromkeys(key for record in records for key in record) if key != "notices"]
    return table(keys, [[str(record.get(key, "")) for key in keys] for record in records]) if records else Markup()


def _pictures(runs: Sequence[Run], progress: Progress, notes: list[str]) -> tuple[Markup, Markup]:
    """What each run sees in a few images after every task, and its pseudo labels, each beside the truth."""
    seen, pseudo = Markup(), Markup()
    progress.start("drawing runs", len(runs))
    for run in runs:
        try:
            folder = RunFolder.open(run.path)
            rows = segmentation_tiles(folder, Progress())  # its notices were given when it ran
            seen += Markup("<h3>{}</h3>").format(run.label) + tiles(*rows, f"segmentations of {run.label}")
            if (given := pseudo_label_tiles(folder)) is not None:
                alt = f"pseudo labels of {run.label} beside the truth"
                title = Markup("<h3>{}: pseudo labels beside the truth</h3>").format(run.label)
                pseudo += title + tiles(*given, alt)
        except (UserError, OSError, RuntimeError) as error:
            notes.append(f"{run.path}: no pictures ({error})")
        progress.advance()
    progress.finish()
    return seen, pseudo
