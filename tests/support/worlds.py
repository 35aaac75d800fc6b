"""Small networks, images and data sets for the tests."""

from pathlib import Path

import numpy as np
from PIL import Image

from fiss.models.segmenter import ModelSpec

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
TINY_TRANSFORMER = ModelSpec("none", "tu-test_vit", "none", {"encoder_output_indices": (1, 5)})


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
