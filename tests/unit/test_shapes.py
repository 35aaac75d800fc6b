import hashlib

import numpy as np
import pytest

from fiss.config.presets import preset
from fiss.data import shapes
from fiss.data.sources import DataSpec, open_dataset
from fiss.labels import TaskStream


@pytest.fixture(scope="module")
def drawn():
    data = open_dataset(DataSpec(shapes_train=400, shapes_val=100))
    splits = []
    for split in (data.train, data.val):
        pairs = [split.read(i) for i in range(len(split.stems))]
        splits.append((np.stack([image for image, _ in pairs]), np.stack([mask for _, mask in pairs])))
    return splits


def test_the_same_seed_draws_the_same_images():
    def digest(*where):
        image, mask = shapes.draw(*where)
        return hashlib.sha256(image.tobytes() + mask.tobytes()).hexdigest()

    assert digest(0, "train", 7, 96) == digest(0, "train", 7, 96)
    different = {
        digest(0, "train", 7, 96),
        digest(1, "train", 7, 96),
        digest(0, "val", 7, 96),
        digest(0, "train", 8, 96),
    }
    assert len(different) == 4


def test_there_are_twelve_classes_of_96_pixels_or_more(drawn):
    (images, masks), _ = drawn
    assert len(shapes.CLASSES) == 12
    assert images.shape[1:] == (96, 96, 3)
    per_image = np.array([len(np.unique(mask)) - 1 for mask in masks])
    assert per_image.mean() > 3  # several per image
    assert (np.bincount(masks.ravel(), minlength=13) > 0.01 * masks.size).all()


def test_background_shift_happens(drawn):
    """At least a fifth of what is labelled background in an incremental task is an object of another task."""
    (_, masks), _ = drawn
    stream = TaskStream.parse(preset("shapes").tasks.split, shapes.CLASSES)
    for ids in stream.tasks[1:]:
        present = masks[np.isin(masks, ids).any((1, 2))]
        background = ~np.isin(present, ids)
        assert (present[background] > 0).mean() >= 0.2


@pytest.mark.parametrize("balanced", [False, True])
def test_one_pixels_colour_says_little(drawn, balanced):
    """A classifier with the whole colour histogram of every class stays below 25 mIoU."""
    (images, masks), (images_val, masks_val) = drawn

    def bins(pixels):
        parts = (pixels // 16).astype(int)
        return parts[..., 0] * 256 + parts[..., 1] * 16 + parts[..., 2]

    counts = np.zeros((4096, 13))
    np.add.at(counts, (bins(images).ravel(), masks.ravel()), 1)
    scores = counts / counts.sum(0) if balanced else counts
    predicted = scores.argmax(1)[bins(images_val)]
    matrix = np.bincount(masks_val.ravel() * 13 + predicted.ravel(), minlength=169).reshape(13, 13)
    iou = matrix.diagonal() / (matrix.sum(0) + matrix.sum(1) - matrix.diagonal())
    assert 100 * iou.mean() < 25
