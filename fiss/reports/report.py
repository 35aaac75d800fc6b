"""One HTML page about runs: which method forgot what, and how it came to that. No network, no scripts.

Plots are matplotlib's, embedded as SVG; pictures are PNG. Whatever is missing, damaged or different between runs is
said at the top, and the rest is shown.
"""

import html
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from fiss.config.config import Config, to_toml
from fiss.config.identity import SAME_ROW, differences, row_key
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.reports.comparison import cell, compare, labels
from fiss.reports.figures import figure, grid, page, style, svg, table, tiles
from fiss.reports.pictures import pseudo_label_tiles, segmentation_tiles
from fiss.reports.timeline import calendar, monitored
from fiss.runs.folder import RunFolder, write_atomically
from fiss.simulation.scenario import open_scenario


@dataclass(frozen=True)
class Run:
    """What a run folder says."""

    path: Path
    config: Config
    label: str
    scores: list[dict[str, Any]]
    """Every evaluation in the first view."""
    rounds: list[dict[str, Any]]
    splits: dict[str, Any]
    finished: bool

    @property
    def ends(self) -> list[dict[str, Any]]:
        """The evaluations after each task."""
        return [record for record in self.scores if record["ends_task"]]


def write(paths: Sequence[Path], out: Path, progress: Progress) -> None:
    """The page about those runs."""
    runs, notes = read(paths)
    if not runs:
        raise UserError("No run to report: " + " ".join(notes))
    by_label: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_label[run.label].append(run)
    done = {label: own for label, all_ in by_label.items() if (own := [run for run in all_ if run.finished])}
    firsts = [several[0] for several in by_label.values()]
    pictures, pseudo = _pictures(firsts, progress, notes)
    sections = [
        ("Which method forgot what", [_forgetting(done), _words(done)] if done else ["<p>No run is finished yet.</p>"]),
        ("Task by task", [_curves(by_label), _comparison(runs)]),
        ("Old against new", [_trade(done)]),
        ("IoU of every class after every task", [_heat(by_label)]),
        ("Classes and background taken for each other", [_background(done)]),
        ("Pictures", pictures),
        ("Pseudo labels", [*_accepted(by_label), *pseudo]),
        ("Losses, time, traffic", [_losses(by_label), _time(by_label)]),
        ("Clients and their data", [_clients(firsts), _timeline(firsts)]),
        ("Configs", [_configs(firsts)]),
    ]
    body = [f"<h1>{html.escape(', '.join(by_label))}</h1>"]
    if notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        body.append(f'<section class="notes"><h2>Please note</h2><ul>{items}</ul></section>')
    for title, parts in sections:
        shown = [part for part in parts if part]
        if shown:
            body.append(f"<section><h2>{html.escape(title)}</h2>{''.join(shown)}</section>")
    write_atomically(out, page("\n".join(body)).encode())


def read(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and everything to be said about them."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in paths:
        try:
            folder = RunFolder.open(path)
            config = folder.config()
            view = config.evaluation.views[0]
            scores = [r for r in folder.records("scores.jsonl") if r["view"] == view]
            rounds = folder.records("rounds.jsonl")
            splits = json.loads((path / "splits.json").read_bytes())
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:
            notes.append(f"{path} cannot be read and is left out ({error}).")
            continue
        run = Run(path, config, "", scores, rounds, splits, folder.finished())
        if not run.ends:
            notes.append(f"{path} has not finished a task yet and is left out.")
            continue
        if not run.finished:
            notes.append(f"{path} is not finished; it is shown as far as it got.")
        runs.append(run)
    rows = {row_key(run.config): run.config for run in runs}
    names = dict(zip(rows, labels(list(rows.values())), strict=True))
    runs = [replace(run, label=names[row_key(run.config)]) for run in runs]
    if odd := differences(*(run.config for run in runs), ignoring=(*SAME_ROW, "method", "joint", "name")):
        notes.append(f"These runs differ in more than their method: {', '.join(odd)}.")
    return runs, notes


def _means(runs: Sequence[Run], value: Callable[[dict[str, Any]], float | None]) -> list[float | None]:
    """By task, the mean over seeds."""
    columns = ([value(r.ends[t]) for r in runs if t < len(r.ends)] for t in range(max(len(r.ends) for r in runs)))
    return [mean(there) if (there := [v for v in column if v is not None]) else None for column in columns]


def _last(runs: Sequence[Run], key: str) -> float | None:
    return mean(there) if (there := [v for run in runs if (v := run.ends[-1].get(key)) is not None]) else None


def _classes(by_label: dict[str, list[Run]]) -> list[str]:
    return max((list(run.ends[-1]["iou"]) for runs in by_label.values() for run in runs), key=len)


def _forgetting(by_label: dict[str, list[Run]]) -> str:
    """Final IoU minus the best after an earlier task, by method and class."""
    names = [name for name in _classes(by_label) if name != "background"]

    def lost(run: Run, name: str) -> float | None:
        past = [v for record in run.ends[:-1] if (v := record["iou"].get(name)) is not None]
        now = run.ends[-1]["iou"].get(name)
        return now - max(past) if past and now is not None else None

    rows, shown = [], []
    for label, runs in by_label.items():
        values = [[v for run in runs if (v := lost(run, name)) is not None] for name in names]
        if any(values):
            rows.append([mean(v) if v else None for v in values])
            shown.append(label)
    kept = [i for i in range(len(names)) if any(row[i] is not None for row in rows)]
    if not kept:
        return "<p>Nothing to forget yet: only one task was learnt.</p>"
    title = "points of IoU lost (orange) or gained (purple) since a class was known best"
    return grid(shown, [names[i] for i in kept], [[row[i] for i in kept] for row in rows], title, (-80, 80), "PuOr")


def _words(by_label: dict[str, list[Run]]) -> str:
    """The same in words."""
    items = []
    ranked = sorted(by_label.items(), key=lambda pair: -(_last(pair[1], "miou") or 0))
    for label, runs in ranked:
        miou, lost, new = (_last(runs, key) for key in ("miou", "forgetting", "new"))
        text = (
            f"<b>{html.escape(label)}</b>: {miou:.1f} mIoU after its last task"
            if miou is not None
            else html.escape(label)
        )
        if lost is not None and new is not None:
            word = f"forgot {lost:.1f} points of the old classes" if lost > 0.5 else "forgot next to nothing"
            text += f"; it {word} and learnt the newest ones to {new:.1f}"
        items.append(f"<li>{text}.</li>")
    return f"<ol>{''.join(items)}</ol>"


def _curves(by_label: dict[str, list[Run]]) -> str:
    drawn = figure(9, 3.8)
    left, right = drawn.subplots(1, 2)
    for axes, key, title in ((left, "miou", "all classes"), (right, "old", "old classes (task 0: the first)")):
        for number, (label, runs) in enumerate(by_label.items()):
            if key == "old" and runs[0].config.joint:
                continue  # it learns everything at once
            values = _means(runs, lambda r, key=key: r[key] if r[key] is not None else r["base"])  # type: ignore[misc]
            shift = 0 if not runs[0].config.joint else max(len(run.ends) for rs in by_label.values() for run in rs) - 1
            axes.plot([shift + t for t in range(len(values))], values, label=label, **style(number))
        axes.set_title(title, loc="left", fontsize=11)
        axes.set(xlabel="task", ylabel="mIoU, %", ylim=(0, 100))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return svg(drawn, "mIoU after each task")


def _comparison(runs: Sequence[Run]) -> str:
    try:
        made = compare([run.path for run in runs], runs[0].config.evaluation.views[0])
    except UserError as error:
        return f"<p>{html.escape(str(error))}</p>"
    return table(made.head, made.rows)


def _trade(by_label: dict[str, list[Run]]) -> str:
    drawn = figure(6, 4.2)
    axes = drawn.subplots()
    for number, (label, runs) in enumerate(by_label.items()):
        both = [(run.ends[-1]["old"], run.ends[-1]["new"]) for run in runs]
        pairs = [pair for pair in both if None not in pair]
        if pairs:
            axes.plot(*zip(*pairs, strict=True), label=label, **(style(number) | {"linestyle": "none"}))
    if not axes.lines:
        return ""
    axes.set(xlabel="old classes after the last task, mIoU %", ylabel="newest classes, mIoU %")
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(drawn, "old against new classes") + "<p>Up and to the right is better.</p>"


def _heat(by_label: dict[str, list[Run]]) -> str:
    names = _classes(by_label)
    parts = []
    for label, runs in by_label.items():
        tasks = max(len(run.ends) for run in runs)
        values = [_means(runs, lambda r, n=name: r["iou"].get(n)) for name in names]  # type: ignore[misc]
        rows = [[column[t] for column in values] for t in range(tasks)]
        parts.append(grid([f"task {t}" for t in range(tasks)], names, rows, f"{label}: IoU, %", (0, 100), "cividis"))
    return "".join(parts)


def _background(by_label: dict[str, list[Run]]) -> str:
    names = [name for name in _classes(by_label) if name != "background"] if by_label else []
    titles = {
        "to_background": "share of a class's pixels that the last model calls background, %",
        "from_background": "share of the background's pixels that the last model calls a class, %",
    }
    parts = []
    for key, title in titles.items():
        rows = []
        for runs in by_label.values():
            records = [run.ends[-1].get(key) or {} for run in runs]
            columns = [[v for record in records if (v := record.get(name)) is not None] for name in names]
            rows.append([mean(v) if v else None for v in columns])
        if any(v is not None for row in rows for v in row):
            parts.append(grid(list(by_label), names, rows, title, (0, 100), "cividis"))
    return "".join(parts)


def _accepted(by_label: dict[str, list[Run]]) -> list[str]:
    """Accepted share of offered pixels by local epoch, all clients of a task together."""
    parts = []
    for label, runs in by_label.items():
        asked: dict[int, dict[int, float]] = defaultdict(dict)
        counts: dict[int, dict[str, dict[int, list[int]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(lambda: [0, 0]))
        )
        for record in runs[0].rounds:
            for reply in record["replies"]:
                for line in reply["report"].get("pseudo_labels", []):
                    asked[record["task"]][line["epoch"]] = line["asked"]
                    for name, offered in line["offered"].items():
                        cell = counts[record["task"]][name][line["epoch"]]
                        cell[0] += offered
                        cell[1] += line["accepted"].get(name, 0)
        if not counts:
            continue
        drawn = figure(4.2 * len(counts), 3.4)
        for axes, (task, by_class) in zip(
            drawn.subplots(1, len(counts), squeeze=False)[0], counts.items(), strict=True
        ):
            often = sorted(by_class, key=lambda n: -sum(o for o, _ in by_class[n].values()))[:10]
            for number, name in enumerate(often):
                by_epoch = by_class[name]
                there = {epoch: 100 * a / o for epoch, (o, a) in sorted(by_epoch.items()) if o}
                axes.plot(list(there), list(there.values()), label=name, **style(number), markersize=4, linewidth=1)
            steps = sorted(asked[task])
            axes.plot(
                steps, [100 * asked[task][e] for e in steps], color="#888888", linewidth=4, alpha=0.4, label="asked for"
            )
            axes.set_title(f"task {task}", loc="left", fontsize=11)
            axes.set(xlabel="local epoch", ylabel="accepted, %", ylim=(0, 105))
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7, frameon=False, ncols=2)
        parts.append(
            f"<h3>{html.escape(label)}: accepted of the offered pixels</h3>" + svg(drawn, "accepted pseudo labels")
        )
    return parts


def _losses(by_label: dict[str, list[Run]]) -> str:
    drawn = figure(9, 2.6 * ((len(by_label) + 2) // 3))
    places = drawn.subplots((len(by_label) + 2) // 3, 3, squeeze=False).flatten()
    for axes in places[len(by_label) :]:
        axes.set_axis_off()
    for axes, (label, runs) in zip(places, by_label.items(), strict=False):
        terms: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for record in runs[0].rounds:
            for name in {n for reply in record["replies"] for n in reply["losses"]}:
                values = [r["losses"][name] for r in record["replies"] if r["losses"].get(name) is not None]
                if values:
                    terms[name].append((record["round"], mean(values)))
        for number, (name, points) in enumerate(terms.items()):
            axes.plot(*zip(*points, strict=True), label=name, **style(number), markersize=3)
        axes.set_title(label, loc="left", fontsize=10)
        axes.set(xlabel="round")
        axes.grid(alpha=0.3)
        if terms:
            axes.legend(fontsize=7, frameon=False)
    return svg(drawn, "losses by round")


def _time(by_label: dict[str, list[Run]]) -> str:
    """The first task may have been taken over from another run, so it is not counted where there are others."""
    later = any(record["task"] for runs in by_label.values() for run in runs for record in run.rounds)
    rows = []
    for label, runs in by_label.items():
        counted = [[r for r in run.rounds if r["task"] or run.config.joint or not later] for run in runs]
        seconds = [sum(r["seconds"] for r in rounds) for rounds in counted]
        replies = [reply for rounds in counted for r in rounds for reply in r["replies"] if reply["images"]]
        rate = f"{sum(reply['samples'] for reply in replies) / sum(seconds):.0f}" if sum(seconds) else "-"
        files = [f.stat().st_size for run in runs for f in (run.path / "weights").glob("*.safetensors")]
        size, updates = max(files, default=0), len(replies) / len(runs)
        traffic = f"{updates * size / 1e9:.2f}"
        rows.append((label, str(len(runs)), cell(seconds), rate, f"{size / 1e6:.1f}", f"{updates:.0f}", traffic))
    spent = "seconds of training, later tasks" if later else "seconds of training"
    return table(("method", "runs", spent, "images/s", "MB of a model", "updates", "GB each way"), rows)


def _clients(runs: Sequence[Run]) -> str:
    run = runs[0]
    tasks = run.splits["tasks"]
    clients = sorted({int(c) for task in tasks for c in task["clients"]})
    if not clients:
        return ""
    rows = [
        [len(task["clients"][str(c)]["images"]) if str(c) in task["clients"] else None for task in tasks]
        for c in clients
    ]
    most = max(v for row in rows for v in row if v is not None)
    names = [f"task {t}" for t in range(len(tasks))]
    shown = f"images held by each client that took part ({html.escape(run.label)}, seed {run.config.seed})"
    return grid([f"client {c}" for c in clients], names, rows, shown, (0, max(most, 1)), "cividis")


def _timeline(runs: Sequence[Run]) -> str:
    """Who trained when; and where tasks are not told, what the clients measured and what their monitors saw."""
    longest = max(runs, key=lambda run: len(run.rounds))
    if not longest.rounds:
        return ""
    drawn = [calendar(longest.label, longest.rounds)]
    for run in runs:
        if "transitions" in run.splits and any(record.get("probes") for record in run.rounds):
            true = {int(client): rounds for client, rounds in run.splits["transitions"].items()}
            drawn.append(monitored(run.label, run.rounds, true))
    return "".join(drawn)


def _shown(config: Config) -> Config:
    """Without what only the sites may know."""
    hidden = "(not shown)" if config.federation.private_names else ""
    return replace(config, federation=replace(config.federation, private_names=hidden))


def _configs(runs: Sequence[Run]) -> str:
    return "".join(
        f"<details><summary>{html.escape(run.label)}: {html.escape(str(run.path))}</summary>"
        f"{_origins(run)}<pre>{html.escape(to_toml(_shown(run.config)))}</pre></details>"
        for run in runs
    )


def _origins(run: Run) -> str:
    records = RunFolder(run.path).origins()
    keys = list(dict.fromkeys(key for record in records for key in record))
    return table(keys, [[str(record.get(key, "")) for key in keys] for record in records]) if records else ""


def _pictures(runs: Sequence[Run], progress: Progress, notes: list[str]) -> tuple[list[str], list[str]]:
    """What each run sees in a few images after every task, and its pseudo labels, each beside the truth."""
    seen, pseudo = [], []
    progress.start("drawing runs", len(runs))
    for run in runs:
        name = html.escape(run.label)
        try:
            folder, scenario = (
                RunFolder.open(run.path),
                open_scenario(run.config, Progress()),
            )  # its notices were given when it ran
            rows = segmentation_tiles(folder, scenario)
            seen.append(f"<h3>{name}</h3>" + tiles(*rows, f"segmentations of {run.label}"))
            if (given := pseudo_label_tiles(folder, scenario)) is not None:
                alt = f"pseudo labels of {run.label} beside the truth"
                pseudo.append(f"<h3>{name}: pseudo labels beside the truth</h3>" + tiles(*given, alt))
        except (UserError, OSError, RuntimeError) as error:
            notes.append(f"{run.path}: no pictures ({error})")
        progress.advance()
    progress.finish()
    return seen, pseudo
