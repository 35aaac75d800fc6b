import multiprocessing
import os

import numpy as np
import pytest
import torch

from fiss.data.transforms import AugmentSpec, ScoredImages, TrainingImages, normalise, stack
from fiss.errors import UserError
from fiss.training.batches import Reader, epoch_batches


class Coded:
    """Images whose red channel is their mask: whatever happens to one must happen to the other."""

    name, stems = "train", ("a", "b", "c", "d", "e")

    def read(self, i):
        mask = np.kron(np.arange(8 * 8).reshape(8, 8), np.ones((8, 10))).astype(np.uint8)
        return np.stack([mask, mask, mask], 2), mask

    def fingerprint(self):
        return "coded"


def test_image_and_mask_are_cut_alike():
    data = TrainingImages(Coded(), AugmentSpec(crop=64))
    flips = 0
    for key in range(40):
        image, mask = data[0, key]
        assert image.shape == (3, 64, 64)
        assert mask.shape == (64, 64)
        near = (image[0].float() - mask.float()).abs()
        assert near.median() <= 1.0  # bilinear against nearest: only edges differ
        flips += int(mask[32, 0] > mask[32, -1])
    assert 8 < flips < 32


def test_a_sample_depends_on_its_key_alone():
    data = TrainingImages(Coded(), AugmentSpec(crop=32))
    before = torch.get_rng_state()
    first = data[0, 5]
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = data[0, 5]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], data[0, 6][0])


def test_areas_and_aspects_are_the_published_ones():
    spec = AugmentSpec()
    assert (spec.crop, spec.scale, spec.ratio, spec.flip) == (512, (0.5, 2.0), (3 / 4, 4 / 3), 0.5)

    class Ramp(Coded):
        def read(self, i):
            y, x = np.mgrid[0:200, 0:200]
            return np.stack([y, x, x], 2).astype(np.uint8), np.zeros((200, 200), np.uint8)

    data = TrainingImages(Ramp(), AugmentSpec(crop=50, flip=0.0))
    areas, aspects = [], []
    for key in range(300):
        image, _ = data[0, key]
        height = float(image[0, -1].float().mean() - image[0, 0].float().mean()) * 50 / 49
        width = float(image[1, :, -1].float().mean() - image[1, :, 0].float().mean()) * 50 / 49
        areas.append(height * width / 200**2)
        aspects.append(width / height)
    assert 0.47 < min(areas) < 0.55
    assert 0.9 < max(areas) < 1.04
    assert 0.72 < min(aspects) < 0.8
    assert 1.25 < max(aspects) < 1.4


def test_the_published_view_is_a_centre_crop_and_the_full_one_is_not():
    image, mask = ScoredImages(Coded(), 32)[0, "published"]
    assert image.shape == (3, 32, 32)
    assert mask.shape == (32, 32)
    # 64 x 80 is resized to 32 x 40, blocks become 4 x 5, and four columns fall off at each side
    assert mask[0].tolist() == [(x + 4) // 5 for x in range(32)]
    assert mask[:, 1].tolist() == [8 * (y // 4) + 1 for y in range(32)]
    assert (image[0].float() - mask.float()).abs().median() <= 1
    full_image, full_mask = ScoredImages(Coded(), 32)[0, "full"]
    assert full_image.shape == (3, 64, 80)
    assert torch.equal(full_mask, torch.from_numpy(Coded().read(0)[1]))


def test_masks_are_resized_as_pillow_does():
    """torchvision's own way with masks is half a pixel off."""
    from PIL import Image

    class Odd(Coded):
        def read(self, i):
            mask = np.random.default_rng(0).integers(0, 20, (63, 63), dtype=np.uint8)
            return np.stack([mask] * 3, 2), mask

    for size in (32, 100):
        _, mask = ScoredImages(Odd(), size)[0, "published"]
        expected = np.asarray(Image.fromarray(Odd().read(0)[1]).resize((size, size), Image.Resampling.NEAREST))
        assert (mask.numpy() == expected).all()
    for key in range(10):  # a part of the image, cut out and resized
        whole = TrainingImages(Odd(), AugmentSpec(crop=63, flip=0.0))
        part = TrainingImages(Odd(), AugmentSpec(crop=40, flip=0.0))
        torch.default_generator.manual_seed(key)
        box = whole.part.make_params([torch.zeros(3, 63, 63)])
        cut = Odd().read(0)[1][box["top"] : box["top"] + box["height"], box["left"] : box["left"] + box["width"]]
        expected = np.asarray(Image.fromarray(cut).resize((40, 40), Image.Resampling.NEAREST))
        assert (part[0, key][1].numpy() == expected).mean() > 0.99


def test_normalise_is_imagenets():
    grey = torch.full((1, 3, 1, 1), 128, dtype=torch.uint8)
    expected = [(128 / 255 - m) / s for m, s in ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))]
    assert normalise(grey).flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_batches_are_the_same_with_workers():
    data = TrainingImages(Coded(), AugmentSpec(crop=32))
    epochs = [epoch_batches(range(5), 2, False, 0, f"epoch {e}") for e in range(4)]
    expected = [stack([data[sample] for sample in batch]) for epoch in epochs for batch in epoch]
    for workers in (0, 2):
        reader, seen = Reader(data, workers, False), []
        first, second = (reader.read(epoch) for epoch in epochs[:2])
        seen += [*first, next(iter(second))]
        third = reader.read(epochs[2])  # while the second is being read
        with pytest.raises(AssertionError, match="in the order"):
            next(iter(first))
        seen += [reader.take(3), *third]
        seen += reader.read(epochs[3])  # after all was read
        assert len(seen) == len(expected) == 8
        for (a, b), (c, d) in zip(seen, expected, strict=True):
            assert torch.equal(a, c)
            assert torch.equal(b, d)


def test_what_nobody_took_is_let_go():
    """Training that fails in the middle leaves batches behind; the next client gets its own."""
    data = TrainingImages(Coded(), AugmentSpec(crop=32))
    reader = Reader(data, 0, False)
    left, wanted = (epoch_batches(range(5), 2, False, 0, f"epoch {e}") for e in range(2))
    next(iter(reader.read(left)))
    ours = list(reader.read(wanted))
    expected = [stack([data[sample] for sample in batch]) for batch in wanted]
    assert len(ours) == len(expected)
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(ours, expected, strict=True))


def test_a_reader_starts_one_process_per_core_at_most(recwarn):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    before = len(multiprocessing.active_children())
    reader = Reader(TrainingImages(Coded(), AugmentSpec(crop=32)), 2 * cores + 1, False)
    list(reader.read([[(0, 0), (0, 1)]]))
    assert len(multiprocessing.active_children()) - before == cores
    assert not recwarn.list


def test_workers_live_as_long_as_the_reader():
    class Whose(Coded):
        def read(self, i):
            return np.full((8, 8, 3), os.getpid() % 256, np.uint8), np.full((8, 8), os.getpid() // 256 % 256, np.uint8)

    reader = Reader(TrainingImages(Whose(), AugmentSpec(crop=16)), 1, False)
    seen = set()
    for _ in range(3):
        ((images, masks),) = reader.read([[(0, 0), (0, 1)]])
        seen.add((int(images[0, 0, 0, 0]), int(masks[0, 0, 0])))
    assert len(seen) == 1
    assert seen != {(os.getpid() % 256, os.getpid() // 256 % 256)}


@pytest.mark.parametrize("changes", [{"crop": 4}, {"scale": (0.0, 1.0)}, {"ratio": (2.0, 1.0)}, {"flip": 1.5}])
def test_impossible_augmentation(changes):
    with pytest.raises(UserError, match="augment"):
        AugmentSpec(**changes)
