"""The closed form on Pascal VOC over networks that nobody trained, on a machine without a GPU.

python docs/results/frozen.py VOCDEVKIT WEIGHTS OUT [--trunks resnet50,vit-s] [--choose] [--seeds 2023,2024,2025]

`fiss run voc-15-1-small --method analytic --set method.trunk=pretrained` counts an image at every site that holds it,
which is 57,000 times in a run. Here every image goes through the network once, its maps are kept on the disk (OUT, up
to 22 GB for a network), and an image that three sites count in a task is added up with three times its weight: the same
sums, and so the same classifier, which a test compares. WEIGHTS has resnet50_imagenet.safetensors and
dinov2_vits14_reg.safetensors.

--choose: instead of the runs, every variant of VARIANTS on training images alone: sums over 1,500 of them, scores of
500 others, all classes in one task, and in the tasks of 4-4. The validation images are not touched.
Otherwise the chosen features in all three settings, and with all labels at once. Both write OUT/voc-frozen.json, a
record as `collect.py` makes them. Give the command again to go on where it stopped.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import monotonic

import collect
import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from torch import Tensor

from fiss.config.config import Config
from fiss.config.presets import choose
from fiss.data.dataset import Split
from fiss.data.index import Presence
from fiss.data.label_maps import evaluation_table, training_table
from fiss.data.transforms import ScoredImages, normalise, stack
from fiss.labels import LabelSpace, TaskStream
from fiss.metrics import confusion, from_background, iou, mean
from fiss.models.segmenter import enlarge
from fiss.progress import Progress
from fiss.rng import address
from fiss.runs.provenance import commit, origin
from fiss.simulation.scenario import Scenario, open_scenario
from fiss.statistics.collection import Collection
from fiss.statistics.features import FeatureSpec, FixedLayers, draw_layers, feature_map, named_maps
from fiss.statistics.solve import lda
from fiss.statistics.sums import Accumulator, cell_shares
from fiss.statistics.towards import Rows
from fiss.training.device import autocast
from fiss.training.evaluate import scored_images
from fiss.training.trainer import build_network


@dataclass(frozen=True)
class Trunk:
    """A network that stays as it is."""

    encoder: str
    file: str
    options: dict[str, object]
    size: int
    """Side of the images."""
    grid: int
    """Cells along a side."""
    maps: tuple[str, ...]
    """Those that are kept."""

    def config(self, setting: str, weights: Path, data: Path, method: dict[str, object], seed: int) -> Config:
        """What `fiss run` would be given."""
        return choose(f"voc-{setting}-small", "analytic").replace(
            seed=seed,
            data={"root": str(data)},
            model={
                "architecture": "none",
                "encoder": self.encoder,
                "weights": str(weights / self.file) if self.file else "none",
                "options": self.options,
            },
            method={"name": "analytic", "trunk": "pretrained", **method},
            augment={"crop": self.size},
            evaluation={"size": self.size, "every": "task"},
            training={"precision": "bfloat16", "workers": 0},
        )


TRUNKS = {
    "resnet50": Trunk(
        "resnet50",
        "resnet50_imagenet.safetensors",
        {"encoder_output_stride": 16},
        256,
        16,
        ("stage2", "stage3", "stage4"),
    ),
    "vit-s": Trunk(
        "tu-vit_small_patch14_reg4_dinov2",
        "dinov2_vits14_reg.safetensors",
        {"encoder_output_indices": (5, 7, 9, 11)},
        252,
        18,
        ("stage1", "stage2", "stage3", "stage4"),
    ),
}


class Maps:
    """Maps and masks of the images of a split, each made once, in float16 and on one grid, in the order given."""

    def __init__(self, folder: Path, names: Sequence[str], grid: tuple[int, int], order: Sequence[int]) -> None:
        self.folder, self.names, self.grid, self.order = folder, names, grid, order
        self.row = {int(image): row for row, image in enumerate(order)}
        self.opened: dict[str, np.memmap] = {}

    def fill(self, config: Config, split: Split, batch: int = 16) -> None:
        """Make what is not there yet."""
        done = self.folder / "done.json"
        first = json.loads(done.read_text()) if done.is_file() else 0
        if first == len(self.order):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        model = build_network(config, LabelSpace(((),))).eval()
        images, started = ScoredImages(split, config.evaluation.size), monotonic()
        for a in range(first, len(self.order), batch):
            pictures, masks = stack([images[(int(i), "published")] for i in self.order[a : a + batch]])
            with torch.inference_mode(), autocast(config.training, torch.device("cpu")):
                named = named_maps(*model.trunk(normalise(pictures)))
            self._keep("masks", a, masks.numpy())
            for name in self.names:
                cells = feature_map(named, FeatureSpec((name,)), FixedLayers(), self.grid)
                self._keep(name, a, cells.flatten(2).transpose(1, 2).half().numpy())
            if a // batch % 50 == 0:
                self._flush(a)
                rate = (a + batch - first) / (monotonic() - started)
                print(f"{self.folder}: {a} of {len(self.order)}, {rate:.1f} images/s", file=sys.stderr, flush=True)
        self._flush(len(self.order))

    def _keep(self, name: str, row: int, values: NDArray) -> None:
        if name not in self.opened:
            path, shape = self.folder / f"{name}.npy", (len(self.order), *values.shape[1:])
            there = path.is_file()
            self.opened[name] = open_memmap(path, "r+" if there else "w+", values.dtype, None if there else shape)
        self.opened[name][row : row + len(values)] = values

    def _flush(self, done: int) -> None:
        for values in self.opened.values():
            values.flush()
        (self.folder / "done.json").write_text(json.dumps(done))

    def read(self, images: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
        """The maps, (B, D, h, w) each, and the masks of ids of some images."""
        rows = [self.row[int(image)] for image in images]
        found = {}
        for name in ("masks", *self.names):
            if name not in self.opened:
                self.opened[name] = open_memmap(self.folder / f"{name}.npy", "r")
            found[name] = torch.from_numpy(self.opened[name][rows])
        masks = found.pop("masks")
        return {name: cells.transpose(1, 2).unflatten(2, self.grid) for name, cells in found.items()}, masks


Times = Sequence[Mapping[int, int]]
"""By task: how often each image counts."""


def by_sites(scenario: Scenario) -> Times:
    """As often as it lies at a site that is selected in the task, as in `fiss run`."""
    found: list[Counter[int]] = [Counter() for _ in scenario.tasks.tasks]
    for task, client in {(plan.task, client) for plan in scenario.plan.round_plans for client in plan.selected}:
        found[task].update(scenario.plan.holdings[task, client].images)
    return found


def once(stream: TaskStream, presence: Presence, images: Sequence[int]) -> Times:
    """Once in each task whose classes it shows."""
    shows = [presence[images][:, list(ids)].any(1) for ids in stream.tasks]
    return [dict.fromkeys(np.asarray(images)[shown].tolist(), 1) for shown in shows]


def classifiers(
    features: "Features", stream: TaskStream, times: Times, collection: Collection, batch: int = 64
) -> Iterator[Rows]:
    """The classifier after each task, with the channels of all classes; those to come never win."""
    space, grid = stream.label_space(len(stream.tasks) - 1), features.maps.grid
    total = None
    for ids, counts in zip(stream.tasks, times, strict=True):
        table = torch.from_numpy(training_table(stream.classes, space, ids))
        images = sorted(counts)
        for a in range(0, len(images), batch):
            part = images[a : a + batch]
            found, masks = features.read(part)
            total = total or Accumulator(space.channels, found.shape[1])
            weights = torch.tensor([counts[image] for image in part], dtype=torch.float64)[:, None, None, None]
            total.add_images(found, cell_shares(table[masks.int()], space.channels, grid) * weights)
        assert total is not None
        yield lda(total.sums(), collection.shrinkage, collection.prior)


def score(
    features: "Features", stream: TaskStream, heads: Sequence[Rows], images: Sequence[Sequence[int]], batch: int = 64
) -> list[Tensor]:
    """The confusion matrix of each task's classifier on its images."""
    spaces = [stream.label_space(task) for task in range(len(heads))]
    tables = [torch.from_numpy(evaluation_table(stream.classes, space)) for space in spaces]
    matrices = [torch.zeros(space.channels, space.channels, dtype=torch.long) for space in spaces]
    wanted = [set(own) for own in images]
    every = sorted(set().union(*wanted))
    for a in range(0, len(every), batch):
        part = every[a : a + batch]
        found, masks = features.read(part)
        for (weight_CD, bias_C), space, table, own, matrix in zip(heads, spaces, tables, wanted, matrices, strict=True):
            rows = torch.tensor([image in own for image in part])
            if not rows.any():
                continue
            scores_BhwC = found[rows].permute(0, 2, 3, 1) @ weight_CD.float().T + bias_C.float()
            small_BChw = scores_BhwC.permute(0, 3, 1, 2)[:, : space.channels]
            predicted = enlarge(small_BChw, masks.shape[1:]).max(1).indices
            matrix += confusion(predicted, table[masks[rows].int()], space.channels)
    return matrices


class Features:
    """From kept maps to the features of a run: as its network's head makes them, and what is put beside them."""

    def __init__(self, maps: Maps, config: Config, beside: str = "") -> None:
        assert config.method.collection is not None
        self.maps, self.beside, self.seed = maps, beside, config.seed
        spec = config.method.collection.features
        self.spec = replace(spec, maps=tuple(n for n in maps.names if n in spec.maps or "stages" in spec.maps))
        self.layers: FixedLayers | None = None

    def read(self, images: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Features, (B, D, h, w), and masks of ids of some images."""
        named, masks = self.maps.read(images)
        self.layers = self.layers or layers_of(self.spec, named, self.seed)
        found = feature_map(named, self.spec, self.layers, self.maps.grid)
        return (torch.cat([found, BESIDE[self.beside](found)], 1) if self.beside else found), masks


BESIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "image": lambda features: features.mean((2, 3), keepdim=True).expand_as(features),
    "around": lambda features: F.avg_pool2d(features, 3, 1, 1, count_include_pad=False),
}
"""What may be put beside the features of a cell: their mean over the image, or over the nine cells around."""


def layers_of(spec: FeatureSpec, named: dict[str, Tensor], seed: int) -> FixedLayers:
    """The fixed layers that a run of that seed draws."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(address(seed, "wire"))
        return draw_layers(spec, sum(named[name].shape[1] for name in spec.chosen(named)), torch.initial_seed())


def as_run(
    scenario: Scenario, spaces: Sequence[LabelSpace], matrices: Sequence[Tensor], trunk: str, seconds: float
) -> dict:
    """A run as `collect.py` keeps it."""
    config = scenario.config
    scores = [dict(zip(("background", *s.names), iou(m), strict=True)) for s, m in zip(spaces, matrices, strict=True)]
    taken = [dict(zip(s.names, from_background(m)[1:], strict=True)) for s, m in zip(spaces, matrices, strict=True)]
    return {
        "preset": config.name,
        "method": "analytic",
        "changed": collect.changed(config),
        "seed": config.seed,
        "commits": [commit()],
        "compiled": False,
        "finished": True,
        "own first task": True,
        "monitor": config.monitor.name,
        "network": trunk,
        "seconds": round(seconds),
        "miou": [round(mean(values.values()), 2) for values in scores],
        "iou": [collect.percent(values) for values in scores],
        "background taken for": [collect.percent(values) for values in taken],
        "transitions": None,
        "pseudo labels accepted": None,
    }


SETTINGS, CHOICE = ("15-1", "4-4", "8-2"), "choice.jsonl"
LAST = {"maps": ("stage3", "stage4")}
VARIANTS: dict[str, list[tuple[dict[str, object], str]]] = {
    "vit-s": [
        ({"maps": ("stage4",)}, ""),
        (LAST, ""),
        ({"maps": ("stages",)}, ""),
        ({**LAST, "random": 2048}, ""),
        (LAST, "image"),
        (LAST, "around"),
    ],
    "resnet50": [
        ({"maps": ("stage4",), "projection": 1024}, ""),
        ({**LAST, "projection": 1024}, ""),
        ({"maps": ("stage2", *LAST["maps"]), "projection": 1024}, ""),
    ],
}
"""By network: fields of the method, and what is put beside the features."""
CHOSEN: dict[str, dict[str, object]] = {
    "vit-s": {"maps": ("stages",)},
    "resnet50": {"maps": ("stage4",), "projection": 1024},
}
"""By the rule of the default: the smallest within a point of the best that the library offers."""


def main() -> None:
    """The choice, or the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "weights", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--trunks", default=",".join(TRUNKS))
    parser.add_argument("--seeds", default="2023")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--counted", type=int, default=1500, help="images that the choice is made with")
    parser.add_argument("--scored", type=int, default=500, help="training images that it is scored on")
    given = parser.parse_args()
    for trunk in given.trunks.split(","):
        if given.choose:
            compare(given, trunk)
        else:
            play(given, trunk)
    write(given.out, "python docs/results/frozen.py VOCDEVKIT WEIGHTS OUT")


def maps_of(given: argparse.Namespace, trunk: str, part: str, scenario: Scenario) -> Maps:
    """Kept maps of a part of the data, made if they are not there."""
    split = getattr(scenario.dataset, part)
    count = len(split.stems)
    order = np.random.default_rng(0).permutation(count) if part == "train" else np.arange(count)
    grid = TRUNKS[trunk].grid
    maps = Maps(given.out / f"{trunk}-{part}", TRUNKS[trunk].maps, (grid, grid), order.tolist())
    maps.fill(scenario.config, split)
    return maps


def opened(given: argparse.Namespace, trunk: str, setting: str, fields: dict[str, object], seed: int) -> Scenario:
    """What `fiss run` would open."""
    return open_scenario(TRUNKS[trunk].config(setting, given.weights, given.data, fields, seed), Progress())


def compare(given: argparse.Namespace, trunk: str) -> None:
    """Every variant of a network, on training images."""
    for fields, beside in VARIANTS[trunk]:
        scenario = opened(given, trunk, "8-2", fields, 2023)
        maps, classes = maps_of(given, trunk, "train", scenario), scenario.dataset.classes
        held, seen = maps.order[: given.scored], maps.order[given.scored : given.scored + given.counted]
        features, collection = Features(maps, scenario.config, beside), scenario.config.method.collection
        for split in ("all", "4-4"):
            stream, began = TaskStream.parse(split, classes), monotonic()
            heads = list(classifiers(features, stream, once(stream, scenario.train.presence, seen), collection))
            matrix = score(features, stream, heads, [*[()] * (len(heads) - 1), held])[-1]
            found = {"network": trunk, **fields, "beside": beside, "tasks": split, "features": heads[0][0].shape[1]}
            keep(
                given.out / CHOICE,
                {**found, "miou": round(mean(iou(matrix)), 2), "seconds": round(monotonic() - began)},
            )


def play(given: argparse.Namespace, trunk: str) -> None:
    """All settings and seeds with what was chosen; a line of OUT/TRUNK.jsonl each."""
    rows = given.out / f"{trunk}.jsonl"
    there = kept(rows)
    for setting, seed in [*product(SETTINGS, map(int, given.seeds.split(","))), ("all", 2023)]:
        if any((run["setting"], run["seed"]) == (setting, seed) for run in there):
            continue
        began, fields = monotonic(), dict(CHOSEN[trunk])
        scenario = opened(given, trunk, setting if setting != "all" else SETTINGS[0], fields, seed)
        seen, validated = (maps_of(given, trunk, part, scenario) for part in ("train", "val"))
        stream = TaskStream.parse(setting, scenario.dataset.classes)
        times = once(stream, scenario.train.presence, seen.order) if setting == "all" else by_sites(scenario)
        collection = scenario.config.method.collection
        heads = list(classifiers(Features(seen, scenario.config), stream, times, collection))
        spaces = [stream.label_space(task) for task in range(len(heads))]
        shown = [scored_images("published", stream.classes, space, scenario.val.presence) for space in spaces]
        matrices = score(Features(validated, scenario.config), stream, heads, shown)
        keep(rows, {"setting": setting, **as_run(scenario, spaces, matrices, trunk, monotonic() - began)})


def kept(path: Path) -> list[dict]:
    """The rows that an earlier start wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def keep(path: Path, row: dict) -> None:
    """Write one more."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print({key: value for key, value in row.items() if key not in ("iou", "background taken for")}, flush=True)


def write(out: Path, command: str) -> None:
    """All that is there as one record."""
    runs = [run for trunk in TRUNKS for run in kept(out / f"{trunk}.jsonl")]
    record = {
        "hardware": origin(torch.device("cpu"))["device"],
        "command": command,
        "runs": [{k: v for k, v in run.items() if k != "setting"} for run in runs if run["setting"] != "all"],
        "all labels at once": {run["network"]: run["miou"][0] for run in runs if run["setting"] == "all"},
        "choice": kept(out / CHOICE),
    }
    (out / "voc-frozen.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
