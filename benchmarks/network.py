"""What a round costs beyond training in a real federation: one server and four sites on this machine, mutual TLS.

python benchmarks/network.py             # a model of 60 million parameters
"""

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
from PIL import Image

from fiss.config import presets
from fiss.config.config import Config
from fiss.deployment import provisioning
from fiss.deployment.site import SiteClient
from fiss.deployment.site_config import read_site
from fiss.deployment.supervisor import finished_rounds
from fiss.federation import wire
from fiss.federation.messages import Order
from fiss.labels import LabelSpace
from fiss.models.segmenter import build
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.runs.folder import RunFolder

SITES = ("a", "b", "c", "d")


def main() -> None:
    """Four rounds of sites that train one step of two small images each."""
    given = common.arguments(__doc__ or "", lambda p: p.add_argument("--port", type=int, default=28400))
    rows: list[dict[str, Any]] = []
    size = 0
    for transfer in ("float32",) if given.tiny else ("float32", "bfloat16"):
        with TemporaryDirectory(prefix="fiss-network-") as place:
            size, seconds, alone = _measure(Path(place), given.tiny, transfer, given.port)
        training = alone * math.ceil(len(SITES) / (os.cpu_count() or 1))
        rows.append(
            {
                "transfer": transfer,
                "s per round": float(np.median(seconds)),
                "a site's training alone, s": alone,
                "beyond training, s": float(np.median(seconds)) - training,
                "MB each way and site": size * (4 if transfer == "float32" else 2) / 1e6,
            }
        )
        common.report("a round over the network", "python benchmarks/network.py", given, rows, {"parameters": size})


def _measure(place: Path, tiny: bool, transfer: str, port: int) -> tuple[int, list[float], float]:
    plain = presets.preset("shapes")
    network = replace(presets.SMALL_NETWORK if tiny else presets.PUBLISHED_NETWORK, weights="none")
    config = replace(
        plain,
        model=network,
        augment=replace(plain.augment, crop=32),
        training=replace(plain.training, epochs=1, batch=2, threads=1),
        monitor=MonitorSpec("never", probed="selected"),
        world=replace(plain.world, per_round=4),
        federation=replace(plain.federation, transfer=transfer),  # type: ignore[arg-type]
    )
    size = sum(p.numel() for p in build(network, (2,), 0).parameters())
    folder = place / "fed"
    provisioning.init(folder, config, "localhost", SITES, port)
    draw = np.random.default_rng(0)
    for name in SITES:
        for kind in ("images", "masks"):
            (place / name / kind).mkdir(parents=True)
        (place / name / "classes.txt").write_text("thing\n")
        for i in range(2):
            Image.fromarray(draw.integers(0, 255, (32, 32, 3), np.uint8)).save(place / name / "images" / f"{i}.png")
            Image.fromarray(draw.integers(0, 2, (32, 32), np.uint8)).save(place / name / "masks" / f"{i}.png")
        (folder / "kits" / name / "site.toml").write_text(f'data = "{place / name}"\ndevice = "cpu"\n')
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    try:
        for name in ("localhost", *SITES):
            log = (place / f"{name}.log").open("wb")
            script = ["bash", str(folder / "kits" / name / "startup" / "sub_start.sh"), "--once"]
            subprocess.Popen(script, stdout=log, stderr=log, env=environment)
        rounds = "2" if tiny else "5"
        words = ["-m", "fiss", "federation", "run", str(folder), "--rounds", rounds, "--sites", str(len(SITES))]
        began = time.monotonic()
        subprocess.run([sys.executable, *words], check=True, env=environment)
        print(f"{time.monotonic() - began:.0f} s in all, {finished_rounds(RunFolder(folder / 'run'))} rounds")
    finally:
        _kill(folder)
    records = RunFolder(folder / "run").rounds()[1:]  # the first also loads everything
    return size, [record.seconds for record in records], _alone(folder, config)


def _alone(folder: Path, config: Config) -> float:
    """Seconds in which a site trains for a round, with nothing else on the machine; reading and writing its message is
    in it."""
    kit = folder / "kits" / SITES[0]
    client = SiteClient(folder / "alone", config, read_site(kit / "site.toml"), Progress())
    space = LabelSpace(((), ("thing",)))
    weights = build(config.model, space.sizes, 0).weights()
    message = wire.from_order(Order(0, 0, space, weights, None), transfer=config.federation.transfer)
    client(message)
    began = time.monotonic()
    client(message)
    return time.monotonic() - began


def _kill(folder: Path) -> None:
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if f"{folder}/" in (process / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                os.kill(int(process.name), signal.SIGKILL)


if __name__ == "__main__":
    main()
