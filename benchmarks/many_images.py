"""Indexing and checking a folder of many images: images per second, peak memory, and the second time from the cache.

python benchmarks/many_images.py
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
from PIL import Image

CODE = """
import json, sys, time
import fiss.data.sources as sources
from fiss.progress import Progress
def peak():  # ru_maxrss would begin with what the process that started this one holds
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
before = peak()
began, worked = time.perf_counter(), time.process_time()
found = sources.check_data(sys.argv[1], Progress())
taken, worked = time.perf_counter() - began, time.process_time() - worked
assert not found.problems, found.problems[:3]
print(json.dumps({"seconds": taken, "worked": worked, "MiB": peak(), "MiB before": before}))
"""
"""What is measured, in a process of its own that has read nothing yet."""


def make(root: Path, count: int, side: int) -> None:
    """A folder of `count` images with masks: links to 64 different ones, since nothing here looks at what they show."""
    rng, blocks = np.random.default_rng(0), max(side // 16, 1)
    for kind in ("images", "masks", "originals"):
        (root / kind).mkdir(parents=True)
    for k in range(64):
        small = rng.integers(0, 256, (blocks, blocks, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)
        image.save(root / "originals" / f"{k}.jpg", quality=90)
        mask = Image.fromarray(rng.integers(0, 21, (blocks, blocks), dtype=np.uint8))
        mask.resize((side, side), Image.Resampling.NEAREST).save(root / "originals" / f"{k}.png")
    for i in range(count):
        for kind, ending in (("images", "jpg"), ("masks", "png")):
            os.link(root / "originals" / f"{i % 64}.{ending}", root / kind / f"photo_{i:07d}.{ending}")
    (root / "classes.txt").write_text("".join(f"class{c}\n" for c in range(1, 21)))


def measured(root: Path) -> dict[str, float]:
    """One check in a process of its own."""
    ended = subprocess.run([sys.executable, "-c", CODE, str(root)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Check folders of several sizes twice."""
    given, load = common.arguments(__doc__ or ""), os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    for count, side in ((40, 16), (80, 16)) if given.tiny else ((1_000, 64), (10_000, 64), (100_000, 64), (2_000, 512)):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FISS_CACHE"] = f"{folder}/cache"
            make(Path(folder) / "data", count, side)
            first, second = (measured(Path(folder) / "data") for _ in range(2))
        rows.append(
            {
                "images": count,
                "side": side,
                "images/s": count / first["seconds"],
                "images/s of one core": count / first["worked"],
                "MiB taken": first["MiB"] - first["MiB before"],
                "again, s": second["seconds"],
                "again, s of one core": second["worked"],
                "again, MiB taken": second["MiB"] - second["MiB before"],
            }
        )
    command = "python benchmarks/many_images.py"
    common.report("many_images", command, given, rows, {"cores": os.cpu_count(), "load at the start": load})


if __name__ == "__main__":
    main()
