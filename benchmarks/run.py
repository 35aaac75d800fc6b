"""A whole task by `fiss run`, with loading, thresholds, aggregation, scoring and checkpoints, against the method's own
step.

    python benchmarks/run.py --data /data/VOCdevkit   # two tasks of ten classes, the published network
    python benchmarks/run.py                          # shapes, as the preset has it
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
from step import Sizes, our_steps

from fiss.config import presets
from fiss.config.config import Config, method_for
from fiss.data.sources import recognise
from fiss.federation.spec import TaskSpec, WorldSpec
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment


class Clock(Progress):
    """Notes when each round begins."""

    def __init__(self) -> None:
        self.began: list[float] = []

    def round(self, task: int, round: int, clients: int) -> None:
        """A round begins."""
        self.began.append(time.perf_counter())


def config(given: common.Arguments) -> Config:
    """Two tasks; with --data as published but for the number of rounds and epochs."""
    if not given.data:
        world = WorldSpec(clients=2, joiners=0, per_round=2, rounds=1, class_ratio=1.0, sample_ratio=0.3)
        tiny = replace(presets.shapes(), world=world) if given.tiny else presets.shapes()
        if given.tiny:
            tiny = replace(tiny, data=replace(tiny.data, shapes_train=40, shapes_val=8))
        return replace(tiny, training=replace(tiny.training, epochs=1 if given.tiny else 2))
    found = recognise(Path(given.data))
    world = WorldSpec(clients=4, joiners=0, per_round=4, rounds=given.rounds, class_ratio=1.0, sample_ratio=1.0)
    made = replace(presets.voc_4_4(), data=found, tasks=TaskSpec("10-10"), world=world)
    return replace(
        made,
        model=replace(made.model, weights="none"),
        training=replace(made.training, epochs=given.epochs, workers=given.workers),
    )


def main() -> None:
    """Finetune first; the others begin from its first task."""
    given = common.arguments(__doc__ or "", lambda p: _options(p))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "finetune"
        whole: dict[str, float] = {}
        for name in ("finetune", "fbl"):
            start, out = config(given), Path(folder) / name
            start = replace(
                start,
                method=method_for(start.data.name, name),
                training=replace(start.training, compile=given.compile),
                base=str(base) if name != "finetune" and given.data else "",
            )
            clock, began = Clock(), time.perf_counter()
            experiment.start(start, out, clock)
            clock.began.append(time.perf_counter())
            whole[name] = clock.began[-1] - began
            records = RunFolder(out).rounds()
            skipped = len(clock.began) - 1 - sum(r.task > 0 for r in records)
            later = [r for r in records if r.task > 0]
            images = sum(reply.samples for r in later for reply in r.replies)
            spent = clock.began[-1] - clock.began[skipped]
            training = sum(r.seconds for r in later)
            row = {"run": name, "images/s": images / spent, "images/s, training": images / training}
            row |= {"seconds of later tasks": spent, "seconds in all": whole[name]}
            if given.data or given.tiny:
                sizes = Sizes(given.tiny)
                steps, _, _ = our_steps(sizes, name, "compiled" if given.compile else "eager", 5)
                rate = 5 * sizes.batch / common.seconds(steps, given.tiny)
                row |= {"images/s, step alone": rate, "x step alone": images / spent / rate}
            if name != "finetune":
                row["seconds in all x finetune"] = None if given.data else whole[name] / whole["finetune"]
                row["later tasks x finetune"] = spent / rows[0]["seconds of later tasks"]
            rows.append(row)
            how = "compiled" if given.compile else "eager"
            what = f"{'a task' if given.data else 'shapes'} end to end"
            command = "python benchmarks/run.py"
            if given.data:
                command += f" --data VOC --rounds {given.rounds} --epochs {given.epochs} --workers {given.workers}"
            command += " --compile" if given.compile else ""
            common.report(f"{what}, {how}" if given.data else what, command, given, rows, {})


def _options(parser: Any) -> None:
    parser.add_argument("--data", default="", help="folder of a data set of twenty classes; empty: shapes")
    parser.add_argument("--compile", action="store_true", help="compile the network")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8)


if __name__ == "__main__":
    main()
