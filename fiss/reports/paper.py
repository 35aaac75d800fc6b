"""The paper's tables with our numbers beside the published ones.

Published numbers are data (published.json): what the paper prints and what the authors' logs say, with every known
disagreement. A cell is "ours / published"; ours is the mean over seeds. What has not been run is shown as missing.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from fiss.config.identity import SAME_ROW, differences
from fiss.config.presets import PRESETS, exact_label
from fiss.data import ade20k, voc
from fiss.errors import UserError, unknown
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
    runs, notes = _runs(preset, paths, view)
    makers: dict[str, Callable[[Mapping[str, Any], Runs], Comparison]] = {
        "final": _groups if name.startswith("ade") else _classes,
        "task_wise_miou": _tasks,
        "ablation_final": _parts,
        "ablation_task_wise_miou": _tasks,
    }
    made = [makers[kind](table, runs) for kind, table in record["paper"].items()]
    if record["logs"]:
        wise = {method: log["task_wise_miou"] for method, log in record["logs"].items()}
        made.append(_tasks({"table": "The authors' logs: mIoU after each task", "methods": wise}, runs))
    notes += [f"published: {note}" for note in record["notes"]]
    return [replace(made[0], notes=tuple(notes)), *made[1:]]


def _runs(preset: str, paths: Iterable[Path], view: str) -> tuple[Runs, list[str]]:
    """The runs by method, and what is to be said about them."""
    wanted, runs, notes = PRESETS[preset](), defaultdict(list), []
    seeds: set[tuple[str, int]] = set()
    for path in paths:
        try:
            folder = RunFolder.open(path)
            config = folder.config()
            ends = list(folder.ends(view))
        except UserError as error:
            notes.append(f"left out: {error}")
            continue
        label = exact_label(config)
        odd = differences(wanted, config, ignoring=(*SAME_ROW, "method", "name", "joint", "evaluation.views"))
        if odd:
            hint = f" `fiss table {config.name}` is for it." if config.name in PRESETS and config.name != preset else ""
            notes.append(f"left out: {path} differs from {preset} in {', '.join(odd)}.{hint}")
        elif label is None:
            notes.append(f"left out: the method of {path} has fields that no published row stands for.")
        elif not folder.finished():
            notes.append(f"left out: {path} is not finished.")
        elif (label, config.seed) in seeds:
            notes.append(f"left out: {path}, another run of {label} with seed {config.seed}.")
        elif not ends:
            notes.append(f"left out: {path} was not scored in view {view}.")
        else:
            seeds.add((label, config.seed))
            runs[label].append(ends)
    return dict(runs), notes


def _pair(ours: Sequence[float | None], theirs: float | None) -> str:
    return f"{cell(ours)} / {cell([theirs])}"


def _last(runs: Runs, method: str, value: Callable[[ScoreRecord], float | None]) -> list[float | None]:
    return [value(ends[-1]) for ends in runs.get(method, [])]


def _difference(runs: Runs, method: str) -> list[float | None]:
    """How much FBL is ahead, of the means over seeds."""
    ours, other = ([v for v in _last(runs, m, lambda r: r.miou) if v is not None] for m in ("fbl", method))
    return [mean(ours) - mean(other)] if ours and other and method != "fbl" else []


def _classes(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Tables 1 to 3: IoU of every class, mIoU, and FBL's lead."""
    methods = table["methods"]
    rows: list[tuple[str, ...]] = []
    for i, name in enumerate(("background", *voc.CLASSES)):
        cells = (
            _pair(_last(runs, m, lambda r, name=name: r.iou.get(name)), row["iou_per_class"][i])  # type: ignore[misc]
            for m, row in methods.items()
        )
        rows.append((name, *cells))
    rows += _closing(methods, runs)
    return Comparison(f"{table['table']}: IoU, ours / published", ("", *methods), tuple(rows), ())


def _closing(methods: Mapping[str, Any], runs: Runs) -> list[tuple[str, ...]]:
    miou = (_pair(_last(runs, m, lambda r: r.miou), row["miou"]) for m, row in methods.items())
    lead = (_pair(_difference(runs, m), row["fbl_improvement"]) for m, row in methods.items())
    return [("mIoU", *miou), ("Imp.", *lead)]


def _mean_of(record: ScoreRecord, ids: str) -> float | None:
    """Mean IoU of the classes whose ids are "0-16" in the data set; 0 is the background."""
    first, last = map(int, ids.split("-"))
    names = ("background", *(voc.CLASSES if len(record.iou) <= 21 else ade20k.CLASSES))[first : last + 1]
    values = [v for name in names if (v := record.iou.get(name)) is not None]
    return mean(values) if values else None


def _groups(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Table 4: mIoU of ten classes at a time."""
    methods = table["methods"]
    rows = []
    for group in next(iter(methods.values()))["miou_per_group"]:
        cells = (
            _pair(_last(runs, m, lambda r, g=group: _mean_of(r, g)), row["miou_per_group"][group])  # type: ignore[misc]
            for m, row in methods.items()
        )
        rows.append((group, *cells))
    rows += _closing(methods, runs)
    return Comparison(f"{table['table']}: mIoU, ours / published", ("classes", *methods), tuple(rows), ())


def _parts(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Table 5: ablations, old and new classes as the paper divides them."""
    methods = table["methods"]
    parts = [key for key in next(iter(methods.values())) if key.startswith("miou_")]
    rows = []
    for method, row in methods.items():
        cells = [
            _pair(_last(runs, method, lambda r, p=part: _mean_of(r, p.removeprefix("miou_"))), row[part])  # type: ignore[misc]
            for part in parts
        ]
        cells.append(_pair(_last(runs, method, lambda r: r.miou), row["miou"]))
        cells.append(_pair(_difference(runs, method), row["fbl_improvement"]))
        rows.append((method, *cells))
    head = ("", *(part.removeprefix("miou_") for part in parts), "mIoU", "Imp.")
    return Comparison(f"{table['table']}: mIoU, ours / published", head, tuple(rows), ())


def _tasks(table: Mapping[str, Any], runs: Runs) -> Comparison:
    """Tables 6 and 7: mIoU after each task."""
    count = len(next(iter(table["methods"].values())))
    rows = []
    for method, theirs in table["methods"].items():
        ours = runs.get(method, [])
        cells = (_pair([e[t].miou for e in ours if t < len(e)], theirs[t]) for t in range(count))
        rows.append((method, *cells))
    head = ("", *(f"task {t}" for t in range(count)))
    return Comparison(f"{table['table']}: mIoU, ours / published", head, tuple(rows), ())
