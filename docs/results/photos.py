"""A photo model that learns five more classes, one by one: the first task of Pascal VOC's 15-1, then `fiss extend`.

python docs/results/photos.py VOCDEVKIT WEIGHTS OUT [--first N] [--each N] [--scored N] [--tiny]

No network is trained: the encoder is WEIGHTS/dinov2_vits14_reg.safetensors as it is, the classifier solved from sums.
The first model counts N training photos of the fifteen classes (--first); every later class brings N photos of its own
(--each). No photo is counted twice. It is done twice: `alone`, where the masks of those photos show the new class and
nothing else, as in the benchmark; and `drawn`, where they show the classes that the model knows too.

After every step the model is scored on the same validation photos (--scored); what it has not learnt yet is background.
OUT/photos.json and the printed table hold the scores; the folders and models stay in OUT, each extended one with its
picture. Which photos are taken depends on a hash of their names alone. --tiny: a small network without weights.
"""

import argparse
import hashlib
import json
from pathlib import Path
from time import monotonic, process_time

import numpy as np
import torch
from PIL import Image

import fiss
from fiss import metrics
from fiss.data import voc
from fiss.data.dataset import Split
from fiss.runs.provenance import commit

FIRST, LATER = voc.CLASSES[:15], voc.CLASSES[15:]
HELD_OUT = 10
"""Photos of the validation list in each folder, for the table and the picture that `fiss extend` makes."""


def ordered(split: Split) -> list[int]:
    """Its images by a hash of their names."""
    return sorted(range(len(split.stems)), key=lambda i: hashlib.sha256(split.stems[i].encode()).hexdigest())


class Taken:
    """Photos of a list, each given once."""

    def __init__(self, split: Split) -> None:
        self.split, self.left = split, ordered(split)

    def showing(self, names: tuple[str, ...], count: int) -> list[int]:
        """The next ones that show any of these classes."""
        ids, found = [voc.CLASSES.index(name) + 1 for name in names], []
        for i in self.left:
            if len(found) == count:
                break
            if np.isin(ids, np.asarray(Image.open(self.split.masks[i]))).any():
                found.append(i)
        self.left = [i for i in self.left if i not in set(found)]
        return found


def write(out: Path, names: tuple[str, ...], drawn: tuple[str, ...], parts: dict[str, tuple[Split, list[int]]]) -> Path:
    """A folder of such photos whose masks show the classes `drawn`, those of `names` first among them."""
    classes = [*names, *(name for name in drawn if name not in names)]
    table = np.zeros(256, np.uint8)
    table[[voc.CLASSES.index(name) + 1 for name in classes]] = range(1, len(classes) + 1)
    table[255] = 255
    for part in ("images", "masks"):
        (out / part).mkdir(parents=True)
    (out / "classes.txt").write_text("\n".join(classes))
    for part, (split, images) in parts.items():
        (out / f"{part}.txt").write_text("\n".join(split.stems[i] for i in images))
        for i in images:
            (out / "images" / split.images[i].name).symlink_to(split.images[i].resolve())
            Image.fromarray(table[np.asarray(Image.open(split.masks[i]))]).save(out / "masks" / f"{split.stems[i]}.png")
    return out


def scored(run: fiss.Run, split: Split, images: list[int]) -> dict[str, float | None]:
    """IoU of every class that a model knows."""
    predictor = fiss.Predictor(run)
    channels = len(predictor.names)
    table = np.zeros(256, np.uint8)
    for channel, name in enumerate(predictor.names[1:], 1):
        table[voc.CLASSES.index(name) + 1] = channel
    table[255] = 255
    total = torch.zeros(channels, channels)
    for i, seen in zip(images, predictor.many(split.images[i] for i in images), strict=True):
        truth = torch.from_numpy(table[np.asarray(Image.open(split.masks[i]))])
        total += metrics.confusion(torch.from_numpy(seen.mask)[None], truth[None], channels)
    return dict(zip(predictor.names, metrics.iou(total), strict=True))


def config(data: Path, weights: Path, tiny: bool) -> fiss.Config:
    """The first model: a pretrained encoder, nothing trained."""
    size = 28 if tiny else 252
    return (
        fiss.preset("folder")
        .replace(
            data={"root": str(data)},
            tasks={"split": ", ".join(FIRST)},
            world={"clients": 1, "joiners": 0, "per_round": 1, "rounds": 1, "class_ratio": 1.0},
            method={"name": "analytic", "trunk": "pretrained"},
            model={
                "architecture": "none",
                "encoder": "tu-test_vit" if tiny else "tu-vit_small_patch14_reg4_dinov2",
                "weights": "none" if tiny else str(weights / "dinov2_vits14_reg.safetensors"),
                "options": {},
            },
            augment={"crop": 32 if tiny else size},
            training={"workers": 0},
            evaluation={"size": 32 if tiny else size, "every": "task"},
        )
        .replace(world={"split": "client-disjoint"})
    )


def play(given: argparse.Namespace) -> dict:
    """Both ways, and all that there is to keep of them."""
    data, out = voc.load(given.data), given.out.resolve()
    train, held = Taken(data.train), Taken(data.val)
    first = write(
        out / "first",
        FIRST,
        FIRST,
        {"train": (data.train, train.showing(FIRST, given.first)), "val": (data.val, held.showing(FIRST, HELD_OUT))},
    )
    new = {
        name: {
            "train": (data.train, train.showing((name,), given.each)),
            "val": (data.val, held.showing((name,), HELD_OUT)),
        }
        for name in LATER
    }
    score = ordered(data.val)[: given.scored]
    began, worked = monotonic(), process_time()
    base = fiss.run(config(first, given.weights.resolve(), given.tiny), out=out / "model", progress=False)
    start = {
        "step": "the fifteen",
        "images": given.first,
        "seconds": round(monotonic() - began, 1),
        "processor": round(process_time() - worked, 1),
        "iou": scored(base, data.val, score),
    }
    ways = {}
    for way in ("alone", "drawn"):
        model, steps = base, [start]
        for k, name in enumerate(LATER):
            known = (*FIRST, *LATER[:k]) if way == "drawn" else ()
            folder = write(out / way / name, (name,), known, new[name])
            began, worked = monotonic(), process_time()
            done = fiss.extend(model, folder, out=out / f"{way}-{name}", names=name, progress=False)
            model = done.run
            steps.append(
                {
                    "step": name,
                    "images": len(new[name]["train"][1]),
                    "seconds": round(monotonic() - began, 1),
                    "processor": round(process_time() - worked, 1),
                    "ledger megabytes": round(done.ledger_bytes / 1e6, 1),
                    "iou": scored(model, data.val, score),
                }
            )
            print(way, name, steps[-1]["seconds"], "s", flush=True)
        ways[way] = steps
    return {
        "hardware": base.folder.origins()[-1]["device"],
        "commit": commit(),
        "command": "python docs/results/photos.py VOCDEVKIT WEIGHTS OUT"
        + "".join(f" --{key} {getattr(given, key)}" for key in ("first", "each", "scored")),
        "ways": ways,
    }


def main() -> None:
    """Play and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "weights", "out"):
        parser.add_argument(name, type=Path)
    for name, usual in (("first", 300), ("each", 60), ("scored", 200)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    record = play(given)
    (given.out / "photos.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
