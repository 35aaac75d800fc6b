"""Finished runs as one JSON: scores by class after every task, seconds, accepted pseudo labels.

python docs/results/collect.py "HARDWARE" "COMMAND" RUN... > FILE.json
"""

import json
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

from fiss import methods
from fiss.config.config import Config, flat, method_for, to_dict
from fiss.config.identity import SAME_ROW, differences
from fiss.config.presets import exact_label, label, preset
from fiss.runs.folder import RunFolder
from fiss.runs.records import Records, RoundRecord, to_json


def accepted(rounds: Records[RoundRecord]) -> list[dict[str, float]]:
    """By task: the share of the offered pixels of each class that was accepted, all clients and epochs together."""
    counts: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for record in rounds:
        for reply in record.replies:
            for epoch in reply.report.get("pseudo_labels", ()):
                for name, offered in epoch["offered"].items():
                    pair = counts[record.task][name]
                    pair[0] += offered
                    pair[1] += epoch["accepted"][name]
    return [
        {name: round(a / o, 4) for name, (o, a) in counts[task].items() if o} for task in sorted(counts) if counts[task]
    ]


def nearest(config: Config) -> str:
    """The method of a run, or of its readings the one with the fewest other fields."""
    if exact_label(config) or methods.name_of(config.method) not in methods.METHODS:
        return label(config)
    names = [name for name in methods.METHODS if type(methods.find(name)) is type(config.method)]
    now = asdict(config.method)

    def others(name: str) -> int:
        return sum(now[key] != value for key, value in asdict(method_for(config.data.name, name)).items())

    return min(names, key=others)


def changed(config: Config) -> dict[str, object]:
    """Keys that differ from the preset of the same name with the method as it stands there."""
    own = config.method if exact_label(config) else method_for(config.data.name, nearest(config))
    plain, now = replace(preset(config.name), method=own), flat(to_dict(config))
    return {key: now[key] for key in differences(config, plain, ignoring=(*SAME_ROW, "joint")) if key in now}


def percent(values: dict[str, float | None]) -> dict[str, float | None]:
    """To two places."""
    return {name: round(value, 2) if value is not None else None for name, value in values.items()}


def one(path: Path) -> dict:
    """What there is to keep of a run."""
    folder = RunFolder.open(path)
    config, rounds = folder.config(), folder.rounds()
    scores = folder.ends()
    return {
        "preset": config.name,
        "method": nearest(config),
        "changed": changed(config),
        "seed": config.seed,
        "commits": list(dict.fromkeys(record["commit"] for record in folder.origins())),
        "compiled": config.training.compile,
        "finished": folder.finished(),
        "own first task": not config.base,
        "monitor": config.monitor.name,
        "seconds": round(sum(r.seconds for r in rounds)),
        "miou": [round(s.miou, 2) for s in scores],
        "iou": [percent(s.iou) for s in scores],
        "background taken for": [percent(s.from_background) or None for s in scores],
        "transitions": scores[-1].transitions and to_json(replace(scores[-1].transitions, clients=None)),
        "pseudo labels accepted": accepted(rounds) or None,
    }


if __name__ == "__main__":
    hardware, command, *runs = sys.argv[1:]
    record = {"hardware": hardware, "command": command, "runs": [one(Path(run)) for run in runs]}
    print(json.dumps(record, indent=1))
