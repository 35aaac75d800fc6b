"""Small worlds for the tests: everything on one CPU thread, caches in a temporary folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fiss import presets
from fiss.config import Config
from fiss.data.sources import DataSpec
from fiss.data.transforms import AugmentSpec
from fiss.data.world import TaskSpec, WorldSpec
from fiss.methods import find
from fiss.methods.monitors import MonitorSpec
from fiss.models.segmenter import ModelSpec
from fiss.training.evaluate import EvaluationSpec
from fiss.training.fit import TrainingSpec

torch.set_num_threads(1)

TINY_NETWORK = ModelSpec(
    "deeplabv3plus",
    "resnet18",
    "none",
    {
        "encoder_depth": 3,
        "encoder_output_stride": 16,
        "decoder_channels": 16,
        "decoder_atrous_rates": (1, 2, 3),
        "decoder_aspp_separable": False,
        "decoder_aspp_dropout": 0.0,
    },
)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FISS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def tiny() -> Config:
    """Two clients of three, two tasks of two rounds, a step takes milliseconds."""
    return replace(
        presets.shapes(),
        name="tiny",
        seed=5,
        data=DataSpec("shapes", shapes_train=24, shapes_val=6, shapes_size=32),
        tasks=TaskSpec("disc, ring, square, triangle, star, cross; crescent, arrow, ell"),
        world=WorldSpec(clients=3, joiners=1, per_round=2, rounds=2, class_ratio=0.5, sample_ratio=0.5),
        model=TINY_NETWORK,
        augment=AugmentSpec(crop=32),
        training=TrainingSpec(epochs=1, batch=4, first_rate=0.05, later_rate=0.01, threads=1, device="cpu"),
        evaluation=EvaluationSpec(("published", "full"), size=32, batch=6),
    )


@pytest.fixture
def untold(tiny):
    world = WorldSpec(
        clients=4, joiners=1, per_round=2, rounds=3, class_ratio=0.5, sample_ratio=0.5, lag=1, stay=0.2, join="any",
        away=0.1, refresh=0.1,
    )  # fmt: skip
    monitor = MonitorSpec("images", probed="all", sample=6)
    return replace(tiny, world=world, monitor=monitor, method=find("fbl"), keep=1)


def voc_presence(split: str) -> np.ndarray:
    """Which classes each image of VOC 2012 holds (N, 21), from the stored bits; column 0 is background."""
    with np.load(Path(__file__).parent / "voc_index.npz") as file:
        bits = np.unpackbits(file[split], axis=1)[:, :20].astype(bool)
    return np.concatenate([np.ones((len(bits), 1), bool), bits], 1)


def save(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def picture(height: int = 40, width: int = 48, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def mask(*ids: int, height: int = 40, width: int = 48) -> np.ndarray:
    """Vertical bands of these ids."""
    return np.asarray(ids, np.uint8)[np.arange(width) * len(ids) // width][None].repeat(height, 0)


def make_folder(root: Path, count: int = 10, classes: int = 3) -> Path:
    """A small data set of the `folder` layout: image k holds class 1 + k mod classes."""
    for k in range(count):
        save(root / "images" / f"p{k}.png", picture(seed=k))
        save(root / "masks" / f"p{k}.png", mask(0, 1 + k % classes, 255))
    (root / "classes.txt").write_text("\n".join(f"thing{c}" for c in range(1, classes + 1)))
    (root / "train.txt").write_text("\n".join(f"p{k}" for k in range(count - 3)))
    (root / "val.txt").write_text("\n".join(f"p{k}" for k in range(count - 3, count)))
    return root


def make_voc(root: Path, aug: bool = True) -> Path:
    """A tiny tree of the genuine VOC 2012 layout."""
    voc = root / "VOCdevkit" / "VOC2012"
    for k in range(6):
        save(voc / "JPEGImages" / f"2007_{k:06d}.jpg", picture(seed=k))
        image = Image.fromarray(mask(0, 1 + k, 255)).convert("P")
        image.putdata(mask(0, 1 + k, 255).ravel().tolist())
        (voc / "SegmentationClass").mkdir(parents=True, exist_ok=True)
        image.save(voc / "SegmentationClass" / f"2007_{k:06d}.png")
        if aug:
            save(voc / "SegmentationClassAug" / f"2007_{k:06d}.png", mask(0, 1 + k))
    lists = voc / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    stems = [f"2007_{k:06d}" for k in range(6)]
    (lists / "train.txt").write_text("\n".join(stems[:2]) + "\n")
    (lists / "val.txt").write_text("\n".join(stems[4:]) + "\n")
    if aug:
        pairs = (f"/JPEGImages/{s}.jpg /SegmentationClassAug/{s}.png" for s in stems[:4])
        (lists / "train_aug.txt").write_text("\n".join(pairs) + "\n")
    return root


def make_ade(root: Path) -> Path:
    """A tiny tree of the genuine ADEChallengeData2016 layout."""
    ade = root / "ADEChallengeData2016"
    for folder, name, count in (("training", "train", 4), ("validation", "val", 2)):
        for k in range(count):
            save(ade / "images" / folder / f"ADE_{name}_{k:08d}.jpg", picture(seed=k))
            save(ade / "annotations" / folder / f"ADE_{name}_{k:08d}.png", mask(0, 1 + k, 150))
    return root
