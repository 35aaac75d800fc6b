"""Networks that segmentation_models_pytorch saved by its own save_pretrained."""

import json

import numpy as np
import pytest
import torch
from pretrained import TINY, saved
from typer.testing import CliRunner
from worlds import picture, save

from fiss.cli.main import app
from fiss.config.config import from_toml, to_toml
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.models.segmenter import build
from fiss.predict.predictor import Predictor
from fiss.runs.pretrained import read_pretrained
from fiss.runs.run import load_model, open_model


@pytest.mark.parametrize("architecture", TINY)
def test_its_logits_are_the_librarys_own(tmp_path, architecture):
    network = saved(tmp_path / "m", architecture)
    config, snapshot, file = open_model(tmp_path / "m")
    model = load_model(config, snapshot, file, torch.device("cpu"))
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        ours, own = model(images).logits_BCHW, network(images)
        exact, wanted = model.double()(images.double()).logits_BCHW, network.double()(images.double())
    assert own.std() > 0.01
    assert (ours - own).abs().max() <= 1e-5 * max(1, own.abs().max())
    assert (exact - wanted).abs().max() <= 1e-12
    config = from_toml(to_toml(config))  # what is kept in a config.toml is the same network
    again = build(config.model, (4,), 1)
    again.load(snapshot.weights, (4,))
    with torch.no_grad():
        assert torch.allclose(again.double().eval()(images.double()).logits_BCHW, exact, atol=1e-12)


def test_one_channel_is_a_class_before_the_background(tmp_path):
    network = saved(tmp_path / "m", "unet", classes=1, activation="sigmoid")
    names = tmp_path / "names.txt"
    names.write_text("tooth\n")
    predictor = Predictor(tmp_path / "m", "cpu", names)
    assert predictor.names == ("background", "tooth")
    image = picture(32, 48)
    with torch.no_grad():
        own = network(normalise(torch.tensor(image).permute(2, 0, 1)[None]))[0, 0] > 0.5
    seen = predictor(image)
    assert 0 < own.sum() < own.numel()
    assert np.array_equal(seen.mask, own.numpy().astype(np.uint8))


def test_the_command_names_the_classes(tmp_path):
    saved(tmp_path / "m")
    names, image = tmp_path / "names.txt", save(tmp_path / "one.png", picture())
    words = ["predict", str(tmp_path / "m"), str(image), "--out", str(tmp_path / "out")]
    for lines, out in (("background\na\nb\nc", "a\nb\nc\n"), (None, "class 1\nclass 2\nclass 3\n")):
        names.write_text(lines or "")
        own = [*words[:-1], str(tmp_path / ("named" if lines else "plain"))]
        done = CliRunner().invoke(app, [*own, "--classes", str(names)] if lines else own)
        assert done.exit_code == 0, done.output
        assert (tmp_path / own[-1] / "classes.txt").read_text() == out


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"in_channels": 1}, "images here are RGB"),
        ({"activation": "sigmoid"}, "a pixel has to have one class"),
        ({"decoder_merge_policy": {"a": 1}}, "can be kept"),
        ({"decoder_width": 3}, "Unknown option of fpn 'decoder_width'"),
        ({"_model_class": "DPT"}, "Unknown architecture 'DPT'"),
        ({"encoder_name": "resnet34"}, "does not fit the network"),
        ({"_model_class": None}, "Unknown architecture"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path, change, why):
    saved(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=why):
        Predictor(tmp_path / "m", "cpu")


def test_a_pickle_is_never_opened(tmp_path):
    saved(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin may be a pickle, .* save the model again"):
        read_pretrained(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="damaged or no safetensors"):
        read_pretrained(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="neither a run folder nor"):
        open_model(tmp_path / "m")


def test_names_that_do_not_fit(tmp_path):
    saved(tmp_path / "m")
    (tmp_path / "names.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"2 names, and .* has 3 classes besides the background"):
        read_pretrained(tmp_path / "m", tmp_path / "names.txt")
