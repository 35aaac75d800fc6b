"""Run folders out of the record, so that `fiss table`, `fiss compare` and `fiss report` read it without a GPU.

python docs/results/folders.py docs/results/voc.json OUT

They hold configs and scores by class (to two places) of its `runs`, no models, rounds or clients.
"""

import json
import sys
from pathlib import Path

import heldout

from fiss.config.config import Config, parse_settings, with_settings
from fiss.config.presets import preset
from fiss.metrics import summary
from fiss.runs.folder import RunFolder
from fiss.runs.records import ScoreRecord, Splits
from fiss.simulation import sweep


def config(record: dict, out: Path) -> Config:
    """That of a recorded run."""
    jobs = sweep.plan(preset(record["preset"]), [record["method"]], [record["seed"]], out, share=True)
    job = next(job for job in jobs if job.name == record["method"])
    changed = {**record["changed"], "training.compile": record["compiled"]}
    return with_settings(job.config, parse_settings(heldout.settings(changed)))


def scores(record: dict, view: str) -> list[ScoreRecord]:
    """One line after each task, as a run writes them."""
    lines, tasks, best = [], [], {}
    ends = zip(record["miou"], record["iou"], record["background taken for"], strict=True)
    for task, (miou, iou, called) in enumerate(ends):
        names = [name for name in iou if name != "background"]
        tasks.append([name for name in names if not any(name in known for known in tasks)])
        means = {**summary(list(iou.values()), names, tasks, best), "miou": miou}
        line = {"round": task + 1, "task": task, "ends_task": True, "view": view, **means, "iou": iou}
        lines.append(ScoreRecord(**line, from_background=called or {}))
        best |= {n: max(best.get(n, 0.0), iou[n]) for n in names if iou[n] is not None}
    return lines


def write(record: dict, out: Path) -> Path:
    """The folder of one run, named as a sweep would and after what was changed."""
    own = config(record, out)
    variant = heldout.name((record["method"], record["changed"]))
    path = out / f"{record['preset']}-{variant}-seed{record['seed']}"
    folder = RunFolder.create(path, own)
    for line in scores(record, own.evaluation.views[0]):
        folder.append("scores.jsonl", line)
    folder.write_splits(Splits(data="", tasks=()))
    (path / "state.json").write_text(json.dumps({"finished": record["finished"]}))
    return path


if __name__ == "__main__":
    for one in json.loads(Path(sys.argv[1]).read_text())["runs"]:
        print(write(one, Path(sys.argv[2])))
