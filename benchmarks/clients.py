"""Ten clients against a thousand, four per round: time per round and memory must not grow with the federation, also
where nobody announces a task and the selected clients are probed. What it costs to probe everyone is shown beside it.

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

from fiss.config import presets
from fiss.federation.spec import WorldSpec
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment


def one(clients: int, probed: str, tiny: bool) -> dict[str, Any]:
    """A run with that many clients, in this process."""
    torch.set_num_threads(1)
    preset = presets.shapes()
    rounds = 1 if tiny or probed == "all" else 4
    world = WorldSpec(
        clients=clients, joiners=clients // 10, per_round=4, rounds=rounds, class_ratio=0.7, sample_ratio=0.1
    )
    data = replace(preset.data, shapes_train=90 if tiny else 600, shapes_val=4 if tiny else 40)
    training = replace(preset.training, epochs=1 if tiny else 2, device="cpu", threads=1)
    config = replace(preset, world=world, data=data, training=training)
    if probed != "nobody":
        monitor = MonitorSpec("misfit", probed=probed, sample=8)  # type: ignore[arg-type]
        config = replace(config, world=replace(world, lag=min(1, rounds - 1)), monitor=monitor)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        out = experiment.start(config, Path(folder) / "run", Progress()).path
        spent = time.perf_counter() - began
        records = RunFolder(out).rounds()
        kept = sum(path.stat().st_size for path in out.glob("*.json*"))
    images = sum(reply.samples for record in records for reply in record.replies)
    return {
        "clients": clients,
        "probed": probed,
        "ms per image": 1000 * sum(record.seconds for record in records) / images,
        "seconds per round, all in": spent / len(records),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "KiB of records": kept / 2**10,
        "images": images,
    }


def main() -> None:
    """Each size in a process of its own, so that its memory is its own; tiny ones all in this one."""
    given = common.arguments(
        __doc__ or "", lambda p: p.add_argument("--one", nargs=2, help="one run only: clients, and who is probed")
    )
    if given.one:
        print(json.dumps(one(int(given.one[0]), given.one[1], given.tiny)))
        return
    rows = []
    many = 30 if given.tiny else 1000
    for clients, probed in ((10, "nobody"), (many, "nobody"), (10, "selected"), (many, "selected"), (many, "all")):
        if given.tiny:
            rows.append(one(clients, probed, True))
            continue
        command = [sys.executable, __file__, "--one", str(clients), probed]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    columns = ("ms per image", "seconds per round, all in", "peak MiB")
    notes = {
        f"{column}, 1000 clients by 10, {rows[i]['probed']} probed": rows[i + 1][column] / rows[i][column]
        for i in (0, 2)
        for column in columns
    }
    clients_seconds = rows[4]["seconds per round, all in"] - rows[3]["seconds per round, all in"]
    notes["seconds to probe a client, 8 images"] = clients_seconds / (many - 4)
    common.report("clients", "python benchmarks/clients.py", given, rows, notes)


if __name__ == "__main__":
    main()
