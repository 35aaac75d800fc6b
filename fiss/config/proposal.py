"""A config for a data set that nobody has run yet, and a reason for everything that was chosen.

It is meant for the first run: small enough to end in minutes on the machine at hand, sound enough that its number
means something. How long it takes is measured, not guessed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from fiss.config.config import Config
from fiss.config.presets import folder_small
from fiss.data.cache import free_bytes
from fiss.data.dataset import Dataset, FileSplit, Split, shortened
from fiss.data.index import DataCheck, inspect
from fiss.data.reading import FileError, Reading
from fiss.data.sources import open_dataset, recognise
from fiss.labels import IGNORE, TaskStream
from fiss.methods.finetune import Finetune
from fiss.models.encoders import recognise_encoder
from fiss.models.segmenter import check_weights
from fiss.progress import Progress
from fiss.training.speed import Speed, measure

SIDES = (64, 96, 128, 160, 192, 224, 256, 320, 384)
PASSES = 12
"""Passes over the images of the first task that a network from random weights should have before its crops grow."""
MOST_PASSES = 32
SIDED = 40
"""Masks that are looked at for classes that lie on one side."""
TRAINING = 0.6
"""Share of the time that training may take: how long it takes is known the least."""
OVERHEAD = 30.0
"""Seconds for starting, the validation images' first reading, and the report."""


@dataclass(frozen=True)
class Machine:
    """What there is to compute with."""

    cores: int
    memory: float
    """Free, in GiB."""
    gpu: str = ""
    """Its name; empty: none."""
    load: float = 0.0
    """Processes that want to compute, mean of the last minute."""

    @classmethod
    def here(cls) -> "Machine":
        """This one."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
        return cls(cores, free_bytes() / 2**30, gpu, os.getloadavg()[0])

    def __str__(self) -> str:
        return f"{self.gpu or 'no GPU'}, {self.cores} cores, {self.memory:.0f} GiB of memory free"


@dataclass(frozen=True)
class Proposal:
    """A config to begin with.

    Args:
        config: For `fiss.run`.
        reasons: By key of the config, why it is so.
        seconds: How long the run will take on this machine, from a few timed steps.
        machine: What it was made for.

    Example:
        >>> proposal = fiss.propose("/data/mine")
        >>> fiss.run(proposal.config)
    """

    config: Config
    reasons: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    machine: str = ""


def propose(
    path: str | Path,
    minutes: float = 4.0,
    weights: str | Path = "",
    progress: Progress | None = None,
    window: str = "",
    channels: int = 0,
) -> Proposal:
    """Look at a data set and at this machine, and propose a first run.

    Args:
        path: A data set, as for `fiss.check_data`.
        minutes: How long the run may take.
        weights: A file of pretrained weights (.safetensors), or a name that the hub knows, such as imagenet.
        progress: Hears how the data set is read.
        window: data.window, for images beyond 8 bits; empty: percentiles where the first image has more.
        channels: model.channels; 0: as many as the first image has.

    Returns:
        A config with a reason for every choice, and how long it takes, from a few timed steps.

    Example:
        >>> fiss.run(fiss.propose("/data/mine").config)
    """
    root = Path(path).expanduser()
    base = folder_small()
    model = replace(base.model, weights=str(weights) or "none")
    check_weights(model)  # before anything that takes time
    if model.weights.endswith(".safetensors"):
        recognise_encoder(Path(weights).expanduser())
    reasons: dict[str, str] = {}
    dataset = open_dataset(recognise(root))
    how = _reading(dataset, Reading(window, channels or 3), reasons)
    found = inspect(dataset.read_as(how), progress)
    for notice in (*found.notices, *map(str, found.suspicions)):
        (progress or Progress()).notice(notice)
    found.refuse()
    machine = Machine.here()
    if machine.load > machine.cores + 1 and not machine.gpu:
        busy = f"This machine is busy (load {machine.load:.0f} on {machine.cores} cores)"
        (progress or Progress()).notice(f"{busy}, so less is proposed than it can do when it is not.")
    data = replace(recognise(root), window=how.window)
    config = replace(base, name=root.resolve().name or "start", data=data).replace(model={"channels": how.channels})
    config = _network(_tasks(config, found, reasons), str(weights), reasons)
    first, later = _images(config, found)
    config = _sites(config, first, reasons)
    if sided := _sided(found.dataset.train, found.dataset.classes):
        config = config.replace(augment={"flip": 0.0})
        reasons["augment.flip"] = (
            f"mirrored images would contradict classes that lie on one side: {shortened(sided, 3)}"
        )
    side = min(_fitting(config, found), 128)
    config = _with_side(config, side)
    speed = measure(config, found.dataset.train, len(found.dataset.classes))
    config = _within(config, found, speed, first, later, minutes * 60, reasons)
    seconds = _expected(config, found, speed, side, first, later)
    return Proposal(config, reasons, seconds, str(machine))


def _reading(dataset: Dataset, how: Reading, reasons: dict[str, str]) -> Reading:
    """How the images are to be read, by the first one: an 8-bit RGB or grey image as it is."""
    if not isinstance(dataset.train, FileSplit) or not dataset.train.stems:
        return how
    given, first = how, dataset.train.images[0]
    for _ in range(4):  # beyond 8 bits, and of other channels than three
        try:
            image = how.read(first)
            break
        except FileError as error:
            kind = error.problems[0].kind
        if kind.startswith("16-bit") and not how.window:
            how = replace(how, window="1%,99%")
        elif how.channels and ("channels instead of" in kind or kind.startswith("unreadable")):
            how = replace(how, channels=0)
        else:
            return given  # the check says what is wrong
    if not how.channels:
        how = replace(how, channels=image.shape[-1] if image.shape[-1] > 1 else 3)
    if how.window != given.window:
        reasons["data.window"] = (
            "images have more than 8 bits, so each is stretched between its own percentiles; where values are "
            "measured, as in CT, a range is better: --window LOW,HIGH"
        )
    if how.channels != given.channels:
        reasons["model.channels"] = "so many are in the images"
    return how


def _tasks(config: Config, found: DataCheck, reasons: dict[str, str]) -> Config:
    """About half of the classes first, the others in two later tasks."""
    shown = found.train.presence[:, 1:].sum(0)
    ids = [i for i, images in enumerate(shown, 1) if images]
    later = len(ids) // 4 or min(1, len(ids) - 1)
    first = len(ids) - later * (2 if len(ids) >= 4 else 1)
    cuts = [0, first, *([first + later] if len(ids) >= 4 else [])]
    parts = [ids[a:b] for a, b in zip(cuts, [*cuts[1:], None], strict=True)]
    if len(ids) == 1:
        reasons["tasks.split"] = "there is one class, so one task: nothing can be forgotten"
        reasons["method.name"] = "with one task there is nothing to forget"
        return config.replace(tasks={"split": "all"}, method=Finetune())
    whole = len(ids) == len(shown)
    split = f"{first}-{later}" if whole else "; ".join(", ".join(map(str, part)) for part in parts)
    if not whole:
        lost = [name for name, images in zip(found.dataset.classes, shown, strict=True) if not images]
        reasons["tasks.split"] = f"no training image shows {shortened(lost)}"
    else:
        reasons["tasks.split"] = f"{first} of {len(ids)} classes first, so that the network has enough to learn from"
    reasons["method.name"] = "learning by sums: later classes are added without training, and nothing is forgotten"
    return config.replace(tasks={"split": split})


def _network(config: Config, weights: str, reasons: dict[str, str]) -> Config:
    """A small one from random weights, or a pretrained one that stays as it is."""
    if not weights:
        reasons["model.encoder"] = "small enough to be trained from random weights; nothing is downloaded"
        reasons["model.weights"] = "pretrained weights score better: `fiss start FOLDER --weights FILE.safetensors`"
        return config
    if not weights.endswith(".safetensors"):
        reasons["model.weights"] = "pretrained weights were asked for; the network is trained from them"
        return config.replace(model={"weights": weights}, training={"first_rate": 0.02, "later_rate": 0.002})
    encoder = recognise_encoder(Path(weights).expanduser())
    reasons["model.encoder"] = "that of the file"
    reasons["model.weights"] = "as given"
    model = {"architecture": "none", "encoder": encoder, "weights": weights, "options": {}}
    if isinstance(config.method, Finetune):
        return config.replace(model={**model, "architecture": "deeplabv3plus"}, training={"first_rate": 0.01})
    reasons["method.trunk"] = "the pretrained encoder stays as it is, so nothing has to be trained"
    reasons["method.projection"] = "the features of all stages are many; a random projection keeps their sums small"
    method = {"trunk": "pretrained", "maps": ("stages",), "projection": 384}
    return config.replace(model=model, method=method)


def _images(config: Config, found: DataCheck) -> tuple[int, int]:
    """Training images of the first task, and of all later ones together."""
    tasks = TaskStream.parse(config.tasks.split, found.dataset.classes).tasks
    shown = [int(found.train.presence[:, list(ids)].any(1).sum()) for ids in tasks]
    return shown[0], sum(shown[1:])


def _sites(config: Config, images: int, reasons: dict[str, str]) -> Config:
    """How many sites: so many that each has some batches of images."""
    sites = min(5, max(2, images // 100))
    batch = 8 if images >= 16 * sites else max(2, images // (2 * sites))
    reasons["world.clients"] = f"each has about {images // sites} of the {images} images of the first task"
    reasons["world.split"] = "an image lies at one site only, as in hospitals"
    return config.replace(world={"clients": sites, "per_round": sites}, training={"batch": batch})


def _fitting(config: Config, found: DataCheck) -> int:
    """The largest side that is no larger than most images."""
    shorter = int(np.median(found.train.sizes.min(1)))
    return max((side for side in SIDES if side <= shorter), default=SIDES[0])


def _with_side(config: Config, side: int) -> Config:
    return config.replace(augment={"crop": side}, evaluation={"size": side})


def _within(
    config: Config, found: DataCheck, speed: Speed, first: int, later: int, seconds: float, reasons: dict[str, str]
) -> Config:
    """Crops, epochs and images that fit into the time, what is scored and counted included."""
    measured, rounds, whole = config.augment.crop, config.world.rounds, seconds - OVERHEAD
    most = max(20.0, TRAINING * whole)

    def cost(side: int) -> Work:
        return _work(_with_side(config, side).replace(training={"epochs": 1}), found, speed, measured, first, later)

    def passes(side: int) -> float:
        own = cost(side)
        return min(most, whole - own.scored - own.counted) / own.trained * rounds

    fitting = _fitting(config, found)
    sides = [side for side in SIDES if 96 <= side <= (fitting if speed.train else min(224, fitting))] or [measured]
    quick = [side for side in sides if cost(side).scored <= whole / 2] or sides[:1]
    side = max((side for side in quick if not speed.train or passes(side) >= PASSES), default=sides[0])
    own, minutes = cost(side), seconds / 60
    reasons["augment.crop"] = f"larger ones would leave no time for {PASSES} passes over the images"
    if side == sides[-1]:
        reasons["augment.crop"] = f"the images have {np.median(found.train.sizes.min(1)):.0f} pixels"
    elif side == quick[-1]:
        reasons["augment.crop"] = "scoring larger ones would take more than half of the time"
    if own.scored > whole / 2:
        reasons["evaluation.size"] = (
            f"scoring {len(found.val.presence)} validation images takes {own.scored / 60:.0f} of the minutes at the "
            "smallest size too; fewer of them make it shorter"
        )
    config = _with_side(config, side)
    epochs = int(min(passes(side), MOST_PASSES) / rounds) if speed.train else 0
    if epochs > 0:
        reasons["training.epochs"] = f"so many in each of {rounds} rounds fit into {minutes:.0f} minutes"
        return config.replace(training={"epochs": epochs})
    config = config.replace(training={"epochs": 1} if speed.train else {}, world={} if speed.train else {"rounds": 1})
    left = max(20.0, whole - own.scored)
    share = min(left / (own.trained + own.counted), most / own.trained if own.trained else 1.0)
    if share >= 1:
        return config
    reasons["world.sample_ratio"] = (
        f"there are {len(found.train.presence)} images, too many for {minutes:.0f} minutes: a part of them"
    )
    reasons["world.split"] = "each site draws a part of the images"
    share = round(max(0.01, share) / config.world.clients, 4)
    return config.replace(world={"split": "published", "sample_ratio": share, "single_ratio": share})


@dataclass(frozen=True)
class Work:
    """Seconds of a run."""

    trained: float
    counted: float
    """For features to be added up."""
    scored: float


def _work(config: Config, found: DataCheck, speed: Speed, measured: int, first: int, later: int) -> Work:
    """What this config takes; `measured`: the side of the crops that were timed."""
    larger = (config.augment.crop / measured) ** 2
    drawn = 1.0 if config.world.split != "published" else min(1.0, config.world.sample_ratio * config.world.clients)
    trains, counts = bool(speed.train), config.method.collection is not None
    trained = drawn * (first if counts else first + later) * config.world.rounds * config.training.epochs * trains
    tasks = TaskStream.parse(config.tasks.split, found.dataset.classes).tasks
    seen = [[i for ids in tasks[: task + 1] for i in ids] for task in range(len(tasks))]
    scored = sum(int(found.val.presence[:, ids].any(1).sum()) for ids in seen)
    return Work(
        trained * (larger * speed.train + speed.read),
        drawn * (first + later) * (larger * speed.count + speed.read) * counts,
        scored * (larger * speed.score + speed.read),
    )


def _expected(config: Config, found: DataCheck, speed: Speed, measured: int, first: int, later: int) -> float:
    """Seconds of the whole run."""
    work = _work(config, found, speed, measured, first, later)
    return OVERHEAD + work.trained + work.counted + work.scored


def _sided(split: Split, classes: tuple[str, ...]) -> list[str]:
    """Classes whose pixels lie in the same half of nearly every image, if they are a quarter of all classes or more."""
    sides: dict[int, list[bool]] = {}
    for i in range(0, len(split.stems), -(-len(split.stems) // SIDED) or 1):
        mask = split.read(i)[1]
        left, right = (np.bincount(half.ravel(), minlength=256) for half in np.array_split(mask, 2, axis=1))
        for id_ in np.nonzero(left + right)[0]:
            if 0 < id_ < IGNORE:
                sides.setdefault(int(id_), []).append(bool(left[id_] > right[id_]))
    found = [i for i, own in sides.items() if len(own) >= 10 and not 0.05 < sum(own) / len(own) < 0.95]
    return [classes[i - 1] for i in sorted(found)] if 4 * len(found) >= len(classes) and len(found) > 1 else []
