"""Ten clients against a thousand, four per round: time per round and memory must not grow with the federation.

python benchmarks/clients.py
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
import torch

from fiss import experiment, presets
from fiss.checkpoint import RunFolder
from fiss.data.world import WorldSpec
from fiss.watch import Watcher


def one(clients: int, tiny: bool) -> dict[str, Any]:
    """A run with that many clients, in this process."""
    torch.set_num_threads(1)
    preset = presets.shapes()
    world = WorldSpec(
        clients=clients, joiners=clients // 10, per_round=4, rounds=1 if tiny else 4, class_ratio=0.7, sample_ratio=0.1
    )
    data = replace(preset.data, shapes_train=90 if tiny else 600, shapes_val=4 if tiny else 40)
    training = replace(preset.training, epochs=1 if tiny else 2, device="cpu", threads=1)
    config = replace(preset, world=world, data=data, training=training)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        out = experiment.start(config, Path(folder) / "run", Watcher()).path
        spent = time.perf_counter() - began
        records = RunFolder(out).records("rounds.jsonl")
        kept = sum(path.stat().st_size for path in out.glob("*.json*"))
    images = sum(reply["samples"] for record in records for reply in record["replies"])
    return {
        "clients": clients,
        "ms per image": 1000 * sum(record["seconds"] for record in records) / images,
        "seconds per round, all in": spent / len(records),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "KiB of records": kept / 2**10,
        "images": images,
    }


def main() -> None:
    """Each size in a process of its own."""
    given = common.arguments(__doc__ or "", lambda p: p.add_argument("--one", type=int, help="run with so many only"))
    if given.one:
        print(json.dumps(one(given.one, given.tiny)))
        return
    rows = []
    for clients in (10, 1000):
        command = [sys.executable, __file__, "--one", str(clients)] + ["--tiny"] * given.tiny
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    columns = ("ms per image", "seconds per round, all in", "peak MiB")
    notes = {f"{column}, 1000 clients by 10": rows[1][column] / rows[0][column] for column in columns}
    common.report("clients", "python benchmarks/clients.py", given, rows, notes)


if __name__ == "__main__":
    main()
