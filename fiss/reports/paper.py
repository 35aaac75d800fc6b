"""The paper's tables with our numbers beside the published ones.

Published numbers are data (published.json): what the paper prints and what the authors' logs say, with every known
disagreement. A cell is "ours / published"; ours is the mean over seeds. What has not been run is shown as missing.
Methods that the paper does not have, ours and those of users, stand beside them with nothing published.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from fiss import methods
from fiss.config.identity import SAME_ROW, differences
from fiss.config.presets import PRESETS, exact_label
from fiss.data import ade20k, voc
from fiss.errors import UserError, unknown
from fiss.methods.base import Method
from fiss.reports.comparison import Comparison, cell
from fiss.runs.folder import RunFolder
from fiss.runs.records import ScoreRecord

Runs = dict[str, list[list[ScoreRecord]]]
"""By method: the scores after each task, of each run."""


@cache
def published() -> dict[str, Any]:
    """Everything published, by preset."""
    found: dict[str, Any] = json.loads(files("fiss.reports").joinpath("published.json").read_text(encoding="utf-8"))
    return found


def tables(preset: str, paths: Iterable[Path], view: str) -> list[Comparison]:
    """Every table the paper has for a setting, filled from those runs."""
    name = preset.removesuffix("-small")
    known = [key for key in published() if key != "about"]
    if name not in known:
        raise unknown("preset with published tables", preset, [*known, *(f"{key}-small" for key in known)])
    record = published()[name]
    runs, users, notes = _runs(preset, paths, view)
    makers: dict[str, Callable[[Mapping[str, Any], Runs], Comparison]] = {
        "final": _groups if name.startswith("ade") else _classes,
        "task_wise_miou": _tasks,
        "ablation_final": _parts,
        "ablation_task_wise_miou": _tasks,
    }
    own = [m for m in runs if m in methods.METHODS and methods.find(m).collection is not None]
    runs = {(f"{m} (ours)" if m in own else m): scores for m, scores in runs.items()}
    more = [*(f"{m} (ours)" for m in own), *users]
    made = [
        makers[kind](table if kind.startswith("ablation") else _with_more(table, more), runs)
        for kind, table in record["paper"].items()
    ]
    if record["logs"]:
        wise = {method: log["task_wise_miou"] for method, log in record["logs"].items()}
        table = {"table": "The authors' logs: mIoU after each task", "methods": wise}
        made.append(_tasks(_with_more(table, more), runs))
    notes += [f"published: {note}" for note in record["notes"]]
    return [replace(made[0], notes=tuple(notes)), *made[1:]]


def _with_more(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The table with methods that the paper does not have, nothing published beside them."""
    blank = _without_numbers(next(iter(table["methods"].values())))
    return {**table, "methods": {**table["methods"], **dict.fromkeys(names, blank)}}


def _without_numbers(row: Any) -> Any:
    if isinstance(row, Mapping):
        return {key: _without_numbers(value) for key, value in row.items()}
    return [_without_numbers(value) for value in row] if isinstance(row, list) else None


def _users(method: Method) -> str | None:
    """What to call a method of a user's own: its name, and the fields that differ from their defaults. None for a
    method of the package."""
    if ":" not in (where := methods.name_of(method)):
        return None
    plain = type(method)()
    changed = [f.name for f in fields(method) if getattr(method, f.name) != getattr(plain, f.name)]
    name = where if method.name in methods.METHODS else method.name
    return ", ".join([name, *(f"{key} {getattr(method, key)}" for key in changed)])


def _runs(preset: str, paths: Iterable[Path], view: str) -> tuple[Runs, list[str], list[str]]:
    """The runs by method, which of these are users' own, and what is to be said about them."""
    wanted, runs, notes = PRESETS[preset](), defaultdict(list), []
    users: dict[str, type[Method]] = {}
    seeds: set[tuple[str, int]] = set()
    for path in paths:
        try:
            folder = RunFolder.open(path)
            config = folder.config()
            ends = list(folder.ends(view))
        except UserError as error:
            notes.append(f"left out: {error}")
            continue
        own, kind = _users(config.method), type(config.method)
        label = exact_label(config) or own
        odd = differences(wanted, config, ignoring=(*SAME_ROW, "method", "name", "joint", "evaluation.views"))
        if odd:
            other = config.name != preset and config.name.removesuffix("-small") in published()
            hint = f" `fiss table {config.name} {path}` is for it." if other else ""
            notes.append(f"left out: {path} differs from {preset} in {', '.join(odd)}.{hint}")
        elif label is None:
            notes.append(f"left out: the method of {path} has fields that no published row stands for.")
        elif not folder.finished():
            notes.append(f"left out: {path} is not finished.")
        elif (label, config.seed) in seeds:
            notes.append(f"left out: {path}, another run of {label} with seed {config.seed}.")
        elif not ends:
            notes.append(f"left out: {path} was not scored in view {view}.")
        elif label == own and users.setdefault(label, kind) is not kind:
            notes.append(f"left out: {path}, its method is called {label} as another one is.")
        else:
            seeds.add((label, config.seed))
            runs[label].append(ends)
    return dict(runs), list(users), notes


def _made(table: Mapping[str, Any], what: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Comparison:
    return Comparison(f"{table['table']}: {what}, ours / published", tuple(head), tuple(map(tuple, rows)), ())


def _pair(ours: Sequence[float | None], theirs: float | None) -> str:
    return f"{cell(ours)} / {cell([theirs])}"


def _last(runs: Runs, method: str, name: str = "") -> list[float | None]:
    """For each run's last model: the IoU of a class, the mean of classes such as "0-16", or that of all."""
    ends = [scores[-1] for scores in runs.get(method, [])]
    if not name:
        return [end.miou for end in ends]
    return [_mean_of(end, name) if name[0].isdigit() else end.iou.get(name) for end in ends]


def _mean_of(record: ScoreRecord, ids: str) -> float | None:
    """Mean IoU of the classes whose ids are "0-16" in the data set; 0 is the background."""
    first, last = map(int, ids.split("-"))
    names = ("background", *(voc.CLASSES if len(record.iou) <= 21 else ade20k.CLASSES))[first : last + 1]
    values = [v for name in names if (v := record.iou.get(name)) is not None]
    return mean(values) if values else None


def _closing(runs: Runs, method: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """mIoU, and how much FBL is ahead, of the means over seeds."""
    ours, other = ([v for v in _last(runs, m) if v is not None] for m in ("fbl", method))
    lead = [mean(ours) - mean(other)] if ours and other and method != "fbl" else []
    return _pair(_last(runs, method), row["miou"]), _pair(lead, row["fbl_improvement"])


def _columns(table: Mapping[str, Any], runs: Runs, what: str, names: Sequence[str], key: str) -> Comparison:
    """A column for each method, a row for each of those names; mIoU and FBL's lead below."""
    columns = [("classes" if key == "miou_per_group" else "", *names, "mIoU", "Imp.")]
    for method, row in table["methods"].items():
        theirs = row[key].values() if isinstance(row[key], Mapping) else row[key]
        cells = [_pair(_last(runs, method, name), value) for name, value in zip(names, theirs, strict=True)]
        columns.append((method, *cells, *_closing(runs, method, row)))
    head, *rows = zip(*columns, strict=True)
    return _made(table, what, head, rows)


def _classes(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Tables 1 to 3: IoU of every class."""
    return _columns(table, runs, "IoU", ("background", *voc.CLASSES), "iou_per_class")


def _groups(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Table 4: mIoU of ten classes at a time."""
    names = list(next(iter(table["methods"].values()))["miou_per_group"])
    return _columns(table, runs, "mIoU", names, "miou_per_group")


def _parts(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Table 5: ablations, old and new classes as the paper divides them."""
    printed = table["methods"]
    parts = [key.removeprefix("miou_") for key in next(iter(printed.values())) if key.startswith("miou_")]
    rows = [
        (m, *(_pair(_last(runs, m, part), row[f"miou_{part}"]) for part in parts), *_closing(runs, m, row))
        for m, row in printed.items()
    ]
    return _made(table, "mIoU", ("", *parts, "mIoU", "Imp."), rows)


def _tasks(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Tables 6 and 7: mIoU after each task."""
    rows = [
        (
            m,
            *(
                _pair([ends[t].miou for ends in runs.get(m, []) if t < len(ends)], miou)
                for t, miou in enumerate(theirs)
            ),
        )
        for m, theirs in table["methods"].items()
    ]
    return _made(table, "mIoU", ("", *(f"task {t}" for t in range(len(rows[0]) - 1))), rows)
