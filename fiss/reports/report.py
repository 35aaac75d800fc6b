"""One HTML page about runs: who won, who forgot what, and how it came to that. page.html says what stands where.

page.js draws curves, classes and pictures from a block of JSON, so that a reader can choose among them; what is folded
away is matplotlib's, embedded as SVG. Whatever is missing, damaged or different between runs is said at the top, and
the rest is shown.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from fiss.config.config import Config, to_toml
from fiss.config.identity import SAME_ROW, differences, row_key
from fiss.errors import UserError
from fiss.predict.palette import legend_of
from fiss.progress import Progress
from fiss.reports.comparison import cell, compare, labels, why_no_score
from fiss.reports.figures import grid, shot, table, tiles
from fiss.reports.headline import Standing, headline, mean_of, standings
from fiss.reports.pictures import Strip, pseudo_label_tiles
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


def script() -> str:
    """What draws the figures of the page."""
    return files("fiss.reports").joinpath("page.js").read_text(encoding="utf-8")


def write(paths: Sequence[Path], out: Path, progress: Progress) -> None:
    """The page about those runs."""
    runs, notes = read(paths)
    if not runs:
        raise UserError("No run to report: " + " ".join(notes))
    by_label = _by_label(runs)
    scored = _by_label(run for run in runs if run.ends)
    ranked = standing(runs)
    firsts = [several[0] for several in by_label.values()]
    pictures, pseudo = _pictures(firsts, progress, notes)
    page = Template(files("fiss.reports").joinpath("page.html").read_text(encoding="utf-8"), autoescape=True)
    text = page.render(
        headline=headline(ranked) if scored else "No run was scored.",
        setting=_setting(by_label),
        notes=notes,
        scored=scored,
        ranking=_ranking(ranked),
        numbers=_comparison(scored) if scored else "",
        data=_embedded(_data(scored) | {"pictures": pictures}) if scored else "",
        script=Markup(script()),
        pseudo_labels=Markup().join(accepted(run.label, run.rounds) for run in firsts) + pseudo,
        losses=losses({run.label: run.rounds for run in firsts}) + _time(by_label),
        clients=_clients(firsts[0]) + _timeline(firsts),
        runs=[(run, to_toml(without_secrets(run.config)), _origins(run)) for run in firsts],
    )
    write_atomically(out, text.encode())


def standing(runs: Iterable[Run]) -> list[Standing]:
    """The finished among those runs, the best first."""
    done = _by_label(run for run in runs if run.ends and run.finished)
    return standings({name: (own[0].config.joint, [run.ends[-1] for run in own]) for name, own in done.items()})


def _by_label(runs: Iterable[Run]) -> Labelled:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.label].append(run)
    return found


def read(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and everything to be said about them."""
    runs: list[Run] = []
    notes: list[str] = []
    said: dict[str, list[str]] = defaultdict(list)
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
        for text in (text for record in folder.origins() for text in record.get("notices", ())):
            said[text].append(str(path))
        if not run.finished:
            notes.append(f"{path} is not finished; it is shown as far as it got.")
        runs.append(run)
    rows = {row_key(run.config): run.config for run in runs}
    names = dict(zip(rows, labels(list(rows.values())), strict=True))
    runs = [replace(run, label=names[row_key(run.config)]) for run in runs]
    if odd := differences(*(run.config for run in runs), ignoring=(*SAME_ROW, "method", "joint", "name")):
        notes.append(f"These runs differ in more than their method: {', '.join(odd)}.")
    return runs, notes + [f"{text} ({', '.join(dict.fromkeys(where))})" for text, where in said.items()]


def _means(runs: Sequence[Run], value: Callable[[ScoreRecord], float | None]) -> list[float | None]:
    """The mean over seeds, after each task."""
    tasks = range(max(len(run.ends) for run in runs))
    means = [mean_of(value(run.ends[t]) for run in runs if t < len(run.ends)) for t in tasks]
    return [None if value is None else round(value, 2) for value in means]


def _data(by_label: Labelled) -> dict[str, Any]:
    """What the figures are drawn from: every score after every task, by method. The upper bound learns everything at
    once and stands after the last task."""
    names = max((list(run.ends[-1].iou) for runs in by_label.values() for run in runs), key=len)
    tasks = max(len(run.ends) for runs in by_label.values() for run in runs)
    methods = []
    for label, runs in by_label.items():
        joint, own = runs[0].config.joint, max(len(run.ends) for run in runs)
        before = [None] * (tasks - own) if joint else []

        def over(value: Callable[[ScoreRecord], float | None], runs=runs, before=before) -> list[float | None]:  # type: ignore[no-untyped-def]
            return [*before, *_means(runs, value)]

        found: dict[str, Any] = {"label": label, "joint": joint, "tasks": own}
        found |= {key: over(lambda r, k=key: getattr(r, k)) for key in ("miou", "new", "background")}  # type: ignore[misc]
        found["old"] = over(lambda r: r.base if r.old is None and not joint else r.old)  # noqa: B023
        for key in ("iou", "to_background", "from_background"):
            found[key] = {name: over(lambda r, k=key, n=name: getattr(r, k).get(n)) for name in names}  # type: ignore[misc]
        methods.append(found)
    return {"tasks": tasks, "classes": names, "methods": methods}


def _embedded(data: Any) -> Markup:
    """JSON for a block of the page that no name in it can end."""
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def _setting(by_label: Labelled) -> str:
    """What the page is about: the worlds, the methods, the seeds."""
    runs = [run for several in by_label.values() for run in several]
    worlds, views = (", ".join(dict.fromkeys(names)) for names in (
        (run.config.name for run in runs), (run.config.evaluation.views[0] for run in runs),
    ))  # fmt: skip
    seeds = sorted({run.config.seed for run in runs})
    number = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    return f"{worlds}: {', '.join(by_label)}; {number}; scored in view {views}, in percent."


def _ranking(found: Sequence[Standing]) -> Markup:
    """Where each method ended, the best first."""
    if not found:
        return Markup()
    rows = [[one.miou, one.forgotten, one.new] for one in found]
    head = ("mIoU at the end", "forgot", "newest classes")
    return grid([one.label for one in found], head, rows, "", (100, 80, 100), 1)


def _comparison(by_label: Labelled) -> Markup:
    runs = [run for several in by_label.values() for run in several]
    try:
        made = compare([run.path for run in runs], runs[0].config.evaluation.views[0])
    except UserError as error:
        return Markup("<p>{}</p>").format(error)
    return table(made.head, made.rows)


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
    most = max(*held.values(), 1)
    return grid(names, [f"task {t}" for t in range(tasks)], rows, shown, [most] * tasks)


def _timeline(runs: Sequence[Run]) -> Markup:
    """Who trained when; and where tasks are not announced, what the clients measured and what their monitors saw."""
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


def _pictures(runs: Sequence[Run], progress: Progress, notes: list[str]) -> tuple[list[Any], Markup]:
    """What each run sees in a few images after every task: runs of the same images side by side. And its pseudo labels
    beside the truth."""
    groups: dict[str, dict[str, Any]] = {}
    pseudo = Markup()
    progress.start("drawing runs", len(runs))
    for run in runs:
        try:
            folder = RunFolder.open(run.path)
            strip = Strip.of(folder, Progress())  # its notices were given when it ran
            group = groups.setdefault(strip.validation.digest, {"images": strip.images, "rows": [], "legend": {}})
            strip = replace(strip, images=group["images"])
            models = folder.last_models()
            rows = strip.rows(models.values())
            group["legend"] |= dict(legend_of(strip.validation.classes, (tile for row in rows for tile in row[1:])))
            group["rows"] = group["rows"] or [{"image": shot(r[0]), "truth": shot(r[1]), "seen": {}} for r in rows]
            for there, (_, _, *seen) in zip(group["rows"], rows, strict=True):
                drawn = dict(zip(models, map(shot, seen), strict=True))
                there["seen"][run.label] = [drawn.get(task) for task in range(max(models) + 1)]
            if (given := pseudo_label_tiles(folder)) is not None:
                pseudo += Markup("<h3>{}</h3>").format(run.label) + tiles(*given, f"pseudo labels of {run.label}")
        except (UserError, OSError, RuntimeError) as error:
            notes.append(f"{run.path}: no pictures ({error})")
        progress.advance()
    progress.finish()
    return [{"rows": group["rows"], "legend": list(group["legend"].items())} for group in groups.values()], pseudo
