"""How often the monitor `features` fires: rows of level.json, from which `make.py` makes level.md.

python docs/results/level.py FOLDER VOC WEIGHTS [--only ROWS] [--device cuda:0] [--add docs/results/level.json]

False alarms and what is seen, by the images of a folder before and after, the share of the latter that show new
classes, network and data; beside each the rule before, Welch's test with Bonferroni's correction, on the same features.
FOLDER keeps the features, which take longest; VOC is the data set's folder, WEIGHTS an ImageNet ResNet-50. ROWS are
some of shapes-untrained, shapes-pretrained, voc-untrained, voc-pretrained and lognormal.

Folders are drawn from 540 images that show old classes and 280 others that show new ones (shapes: 1 to 6 and 7 to 9,
96 px; VOC: 1 to 5 and 6 to 10, 256 px); labelled are the old ones in the former and the new ones in the latter.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from fiss.config.presets import PUBLISHED_NETWORK, SMALL_NETWORK
from fiss.data.dataset import Split
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import ScoredImages
from fiss.models.segmenter import build
from fiss.monitors.features import Rows, compare, remembered
from fiss.rng import address
from fiss.training.batches import Reader
from fiss.training.device import place
from fiss.training.probe import ImagePass, features
from fiss.training.spec import TrainingSpec

OLD, NEW, LEVEL = 540, 280, 0.01
SIZES = ((8, 8), (12, 16), (16, 16), (32, 32), (64, 64), (256, 16), (20, 256), (256, 256))
SHARES = {0.0: 400, 0.1: 100, 0.3: 100, 0.5: 100, 1.0: 100}
"""Of new images, and how many folders are drawn."""


def showing(split: Split, size: int, classes: range, among: Iterator[int], count: int) -> list[int]:
    """The next images in which 1 % or more of the pixels that are scored show one of the classes."""
    images = ScoredImages(split, size)
    masks = ((i, images[i, "published"][1]) for i in among)
    wanted = torch.tensor(list(classes), dtype=torch.uint8)
    return list(islice((i for i, mask in masks if torch.isin(mask, wanted).float().mean() >= 0.01), count))


def measure(data: str, voc: str, weights: str, device: str) -> tuple[Rows, Rows]:
    """Features of images with old and with new classes."""
    if data == "voc":
        split, size, old, new = open_dataset(DataSpec("voc", root=voc)).train, 256, range(1, 6), range(6, 11)
    else:
        drawn = open_dataset(DataSpec("shapes", shapes_train=3000))
        split, size, old, new = drawn.train, 96, range(1, 7), range(7, 10)
    pretrained = replace(PUBLISHED_NETWORK, encoder="resnet50", weights=weights)
    model = place(build(pretrained if weights else SMALL_NETWORK, (1,), address(1, "model")), torch.device(device))
    reader, rows = Reader(ScoredImages(split, size), 0, False), []
    order = iter(np.random.default_rng(0).permutation(len(split.stems)).tolist())
    for classes, count in ((old, OLD), (new, NEW)):
        table = np.zeros(256, np.int16)
        table[list(classes)], table[255] = 1, 255
        images = showing(split, size, classes, order, count)
        rows.append(features(ImagePass(model, reader, images, table, TrainingSpec(batch=16))))
    return rows[0], rows[1]


def lognormal() -> tuple[Rows, Rows]:
    """Skewed features without any meaning; half of the new ones are larger by half."""
    rows = np.exp(np.random.default_rng(0).normal(size=(OLD + NEW, 160)))
    rows[OLD:, ::2] *= 1.5
    return rows[:OLD], rows[OLD:]


def welch(old: Rows, new: Rows) -> float:
    """The rule before."""
    if min(len(old), len(new)) < 10:
        return 1.0
    error = np.sqrt(np.maximum(old.var(0, ddof=1) / len(old) + new.var(0, ddof=1) / len(new), 1e-12))
    t, freedom = (new.mean(0) - old.mean(0)) / error, min(len(old), len(new)) - 1
    normal = np.sqrt(freedom * np.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return min(1.0, len(t) * math.erfc(float(normal.max()) / math.sqrt(2)))


def fired(known: Rows, unknown: Rows, sizes: tuple[int, int], share: float, times: int) -> list[float]:
    """The share of so many pairs of folders in which it fires, and in which the rule before does."""
    found = np.zeros(2)
    for number in range(times):
        draws = np.random.default_rng(address(0, "level", *sizes, str(share), number))
        count = round(share * sizes[1])
        same = known[draws.permutation(len(known))[: sum(sizes) - count]]
        before, after = (
            same[: sizes[0]],
            np.concatenate([same[sizes[0] :], unknown[draws.permutation(len(unknown))[:count]]]),
        )
        found += compare(remembered(before), after, LEVEL, draws)[0] <= LEVEL, welch(before, after) <= LEVEL
    return [round(float(part), 2 if share else 3) for part in found / times]


def add(path: Path, row: dict[str, object]) -> None:
    """Write a row into the record, in place of one of the same data and sizes."""
    record = json.loads(path.read_text())
    rows = {(one["data"], one["before"], one["after"]): one for one in record["rows"]}
    rows[row["data"], row["before"], row["after"]] = row
    text = json.dumps(record | {"rows": list(rows.values())}, indent=1)
    path.write_text(re.sub(r"\[\s+([\d.]+),\s+([\d.]+)\s+\]", r"[\1, \2]", text) + "\n")


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("voc")
    parser.add_argument("weights")
    parser.add_argument("--only", nargs="+", help="some of the rows")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--add", type=Path, metavar="level.json", help="the record to write the rows into")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = {
        f"{d}-{n}": (d, w) for d in ("shapes", "voc") for n, w in (("untrained", ""), ("pretrained", given.weights))
    }
    rows["lognormal"] = ("lognormal", "")
    for name in given.only or rows:
        data, network = rows[name]
        kept = given.folder / f"{name}.npz"
        if data == "lognormal":
            known, unknown = lognormal()
        else:
            if not kept.is_file():
                np.savez(kept, *measure(data, given.voc, network, given.device))
            with np.load(kept) as features_of:
                known, unknown = features_of["arr_0"], features_of["arr_1"]
        for before, after in SIZES:
            row = {"data": name.replace("-", ", "), "before": before, "after": after}
            row["fired"] = [fired(known, unknown, (before, after), share, times) for share, times in SHARES.items()]
            print(json.dumps(row), flush=True)
            if given.add is not None:
                add(given.add, row)


if __name__ == "__main__":
    main()
