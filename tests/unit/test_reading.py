"""Images beyond 8-bit RGB: what is read, what is refused, and that training and prediction see the same."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from worlds import TINY_NETWORK, make_folder, mask, picture, save

import fiss
from fiss.config.config import Config, from_toml, to_toml
from fiss.config.identity import config_digest
from fiss.data.cache import Decoded
from fiss.data.index import build, inspect
from fiss.data.reading import FileError, Reading, as_shown
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import AugmentSpec, ScoredImages, TrainingImages, normalise
from fiss.errors import UserError
from fiss.models.segmenter import ModelSpec
from fiss.models.segmenter import build as build_network

RAMP = np.linspace(0, 4000, 40 * 48).reshape(40, 48)


def test_a_window_in_the_images_own_values(tmp_path):
    path = save(tmp_path / "a.png", RAMP.astype(np.uint16))
    seen = Reading("1000,3000").read(path)
    expected = np.clip((np.floor(RAMP) - 1000) / 2000, 0, 1) * 255
    assert (seen.dtype, seen.shape) == (np.float32, (40, 48, 3))
    for channel in range(3):
        np.testing.assert_allclose(seen[..., channel], expected, atol=1e-3)
    assert (as_shown(seen)[..., 0] == np.round(expected)).mean() > 0.99


def test_percentiles_of_each_image_and_channel():
    values = np.stack([RAMP, 5 * RAMP + 100], -1)
    seen = Reading("10%,90%", 2).take(values)
    low, high = np.percentile(RAMP.astype(np.float32), (10, 90))
    expected = np.clip((RAMP - low) / (high - low), 0, 1) * 255
    for channel in range(2):
        np.testing.assert_allclose(seen[..., channel], expected, atol=1e-2)
    assert not Reading("1%,99%").take(np.full((4, 5), 7, np.uint16)).any()


def test_a_range_for_each_channel():
    seen = Reading("0,10;0,20", 2).take(np.full((3, 4, 2), 5.0))
    assert seen[0, 0].tolist() == [127.5, 63.75]


def test_all_sixteen_bits_of_a_colour_image(tmp_path):
    """Pillow keeps the high eight."""
    values = np.random.default_rng(0).integers(0, 65536, (40, 48, 3), dtype=np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb")
    np.testing.assert_allclose(Reading("0,65535").read(tmp_path / "a.tif"), values / 65535 * 255, atol=1e-3)


def wide_png(path, values):
    """A PNG of 16 bits per colour, which Pillow does not write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def test_a_colour_png_of_sixteen_bits_is_said_and_refused_with_a_window(tmp_path):
    root = make_folder(tmp_path)
    wide_png(root / "images" / "p2.png", np.random.default_rng(0).integers(0, 65536, (40, 48, 3), dtype=np.uint16))
    lines = map(str, inspect(open_dataset(DataSpec("folder", str(root)))).suspicions)
    assert any("1 images have 16 bits per colour, and only the high eight are used (p2)" in line for line in lines)
    with pytest.raises(UserError, match="of 16 bits, of which eight can be read; save it as TIFF"):
        Reading("0,65535").read(root / "images" / "p2.png")


def test_floats_and_many_channels_from_tiff(tmp_path):
    values = np.random.default_rng(0).normal(size=(5, 40, 48)).astype(np.float32)
    tifffile.imwrite(tmp_path / "planes.tif", values)
    tifffile.imwrite(
        tmp_path / "pixels.tif", np.moveaxis(values, 0, -1), planarconfig="contig", photometric="minisblack"
    )
    how = Reading("-1,1", 5)
    planes, pixels = (how.read(tmp_path / f"{name}.tif") for name in ("planes", "pixels"))
    assert planes.shape == (40, 48, 5)
    assert (planes == pixels).all()
    np.testing.assert_allclose(planes, np.clip((np.moveaxis(values, 0, -1) + 1) / 2, 0, 1) * 255, atol=1e-3)
    with pytest.raises(UserError, match=r"no image of rows and columns, but \(5, 40, 48, 1\)|channels instead of 3"):
        Reading("-1,1").read(tmp_path / "planes.tif")


@pytest.mark.parametrize(
    ("values", "how", "says"),
    [
        (
            np.array([[3, 700]], np.uint16),
            Reading(),
            r"16-bit or wider image, values from 3 to 700; .* data\.window = low,",
        ),
        (np.array([[0.5, np.nan]]), Reading("0,1"), r"values that are no numbers \(1 NaN or infinite\)"),
        (picture(), Reading("", 4), "3 channels instead of 4; set model.channels = 3"),
        (np.zeros((2, 3, 4, 5)), Reading("0,1"), "no image of rows and columns, but"),
        (np.zeros((0, 3)), Reading("0,1"), "no image of rows and columns"),
    ],
)
def test_what_cannot_be_is_refused_clearly(values, how, says):
    with pytest.raises(UserError, match=says):
        how.take(values)


@pytest.mark.parametrize("window", ["high", "5,1", "0,1%", "-1%,50%", "0%,101%", "0,1;0,2"])
def test_windows_that_are_none(window):
    with pytest.raises(UserError, match=r"data\.window"):
        Config(data=DataSpec(window=window))


def test_bytes_in_rgb_are_what_pillow_gives(tmp_path):
    grey = picture()[..., 0]
    for name, array in (("rgb.png", picture()), ("grey.png", grey), ("rgb.jpg", picture())):
        path = save(tmp_path / name, array)
        seen = Reading().read(path)
        assert seen.dtype == np.uint8
        assert (seen == np.asarray(Image.open(path).convert("RGB"))).all()
    assert (Reading("", 1).read(tmp_path / "grey.png")[..., 0] == grey).all()


def test_the_config_says_how_and_older_ones_are_the_same_run():
    config = Config(data=DataSpec("folder", "d", window="0,4095"), model=ModelSpec(channels=1))
    again = from_toml(to_toml(config))
    assert again.reading == Reading("0,4095", 1)
    assert config_digest(again) != config_digest(Config(data=DataSpec("folder", "d")))
    with pytest.raises(UserError, match="drawn in RGB"):
        open_dataset(DataSpec("shapes"), Reading("", 1))


def wide_folder(root, channels=1):
    """Images of 16 bits, or floats in several channels."""
    make_folder(root)
    rng = np.random.default_rng(0)
    for path in (root / "images").iterdir():
        path.unlink()
        values = rng.integers(0, 4096, (40, 48, channels), dtype=np.uint16)
        tifffile.imwrite(path.with_suffix(".tif"), values if channels > 1 else values[..., 0], photometric="minisblack")
    return root


def test_index_cache_and_readers_keep_the_type(tmp_path):
    root = wide_folder(tmp_path, 2)
    how = Reading("0,4095", 2)
    data = open_dataset(DataSpec("folder", str(root)), how)
    index = build(data.train, data.classes)
    assert index.problems == ()
    decoded = Decoded(data.train, index.sizes, 10**7, how)
    plain, _ = data.train.read(1)
    for _ in range(2):
        image, labels = decoded.read(1)
        assert (image.dtype, image.shape) == (np.float32, (40, 48, 2))
        assert (image == plain).all()
        assert (labels == mask(0, 2, 255)).all()
    sample, _ = TrainingImages(decoded, AugmentSpec(crop=32))[1, 5]
    assert (sample.dtype, sample.shape) == (torch.float32, (2, 32, 32))
    assert not (sample == sample.round()).all()
    batch = normalise(sample[None])
    assert torch.allclose(batch, (sample[None] - 0.449 * 255) / (0.226 * 255), atol=1e-4)


def test_all_wide_images_in_one_line_with_their_range(tmp_path):
    (finding,) = inspect(open_dataset(DataSpec("folder", str(wide_folder(tmp_path))))).findings
    assert str(finding).startswith("10 files: 16-bit or wider image (p0.tif, p1.tif, p2.tif and 7 more), values from ")
    assert "data.window = low,high" in str(finding)


@pytest.mark.parametrize(("window", "channels"), [("", 3), ("0,4095", 3), ("1%,99%", 2)])
def test_prediction_sees_what_scoring_and_training_see(tiny, finished, tmp_path, window, channels):
    """The very tensors that go into the network."""
    root = tmp_path / "data"
    make_folder(root) if not window else wide_folder(root, 1 if channels == 3 else channels)
    config = replace(
        tiny,
        data=DataSpec("folder", str(root), window=window),
        tasks=replace(tiny.tasks, split="2-1"),
        model=replace(TINY_NETWORK, channels=channels),
        world=replace(tiny.world, rounds=1),
    )
    predictor = fiss.Predictor(finished(config), "cpu")
    seen = []
    predictor.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    split = open_dataset(config.data, config.reading).train
    predictor.size = 0
    predictor(split.images[2])
    whole, _ = ScoredImages(split, 32)[2, "full"]
    assert torch.equal(seen[-1][..., :40, :48], normalise(whole[None]))
    predictor.size = 32
    predictor(split.images[2])
    published, _ = ScoredImages(split, 32)[2, "published"]
    level = 1e-4 if window else 1.01 / 255 / 0.224  # bytes are rounded by the library in another way
    assert torch.allclose(seen[-1][..., :32, 3:35], normalise(published[None]), atol=level)


def test_weights_of_rgb_are_spread_over_other_channels(tmp_path):
    from safetensors.torch import save_file

    rgb = build_network(TINY_NETWORK, (2,), 0)
    save_file({k: v.contiguous() for k, v in rgb.encoder.state_dict().items()}, tmp_path / "w.safetensors")
    for channels in (1, 5):
        own = replace(TINY_NETWORK, channels=channels, weights=str(tmp_path / "w.safetensors"))
        model = build_network(own, (2,), 0).eval()
        found, given = model.encoder.conv1.weight, rgb.encoder.conv1.weight
        for i in range(channels):
            assert torch.allclose(found[:, i], given[:, i % 3] * 3 / channels)
        assert model(torch.zeros(1, channels, 32, 32)).logits_BCHW.shape == (1, 2, 32, 32)


def test_a_tiff_of_many_channels_says_what_to_do(tmp_path):
    tifffile.imwrite(
        tmp_path / "a.tif", np.zeros((8, 8, 5), np.uint16), photometric="minisblack", planarconfig="contig"
    )
    with pytest.raises(FileError, match=r"three: `fiss start FOLDER` sets model\.channels"):
        Reading().read(tmp_path / "a.tif")
    (tmp_path / "a.png").write_bytes(b"none")
    with pytest.raises(FileError) as found:
        Reading().read(tmp_path / "a.png")
    assert "fiss start" not in str(found.value)
