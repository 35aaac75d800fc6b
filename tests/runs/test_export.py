"""Models as files that run without fiss: they say what our predictions say."""

import importlib.util
import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from pretrained import saved
from typer.testing import CliRunner
from worlds import picture, save

import fiss
from fiss.cli.main import app
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.methods import find
from fiss.predict import export
from fiss.progress import Progress


class Listening(Progress):
    def __init__(self):
        self.said = []

    def notice(self, text):
        self.said.append(text)


def smooth(height, width, seed):
    """An image with more than noise in it."""
    coarse = torch.tensor(picture(5, 6, seed)).permute(2, 0, 1)[None].float()
    large = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255)
    return large[0].permute(1, 2, 0).to(torch.uint8).numpy()


def props(path):
    return {prop.key: prop.value for prop in onnx.load(path).metadata_props}


@pytest.mark.parametrize("method", ["finetune", "analytic"])
def test_it_says_what_our_predictions_say(tiny, finished, tmp_path, method):
    """Trained and in closed form, on twenty images of ten sizes, and nothing is written over."""
    run = finished(replace(tiny, method=find(method), evaluation=replace(tiny.evaluation, views=("published",))))
    out, progress = tmp_path / "model.onnx", Listening()
    photo = save(tmp_path / "photo.jpg", picture(60, 40))
    done = fiss.export(run, out, progress=progress)
    assert progress.said == ["writing onnx for images of any size"]
    assert "any height and width" in done.takes
    predictor = fiss.Predictor(run, "cpu")
    session = onnxruntime.InferenceSession(out)
    same = []
    for seed in range(20):  # the shorter side as the model wants it, so that nothing is resized before
        image = smooth(*[(32, 32 + seed % 10 * 3), (32 + seed % 10 * 5, 32)][seed % 2], seed)
        mask, logits = session.run(None, {"image": image.transpose(2, 0, 1)[None]})
        assert np.array_equal(logits.argmax(1).astype(np.uint8), mask)
        same.append(np.mean(mask[0] == predictor(image).mask))
    assert np.mean(same) > 0.999
    about = props(out)
    assert json.loads(about["names"]) == ["background", *fiss.open_run(run).snapshot().label_space.names]
    assert json.loads(about["mean"]) == [0.485, 0.456, 0.406]
    assert about["size"] == "32"
    assert about["fiss"] == fiss.__version__
    assert len(json.loads(about["palette"])) == 10
    assert [i.version for i in onnx.load(out).opset_import if not i.domain] == [export.OPSET]
    card = done.card.read_text()
    last = fiss.open_run(run).folder.ends("published")[-1]
    assert f"| 1 | disc | {last.iou['disc']:.1f} |" in card
    assert f"| method | {method} |" in card
    assert "| licence of the weights | not known |" in card
    assert "Make its shorter side 32 px first" in card
    code = card.split("```python")[1].split("```")[0].replace("photo.jpg", str(photo)).replace("model.onnx", str(out))
    found = {}
    exec(code, found)  # what the card says works, on a photo of another size
    assert found["mask"].shape == (1, 48, 32)
    with pytest.raises(UserError, match=r"model.onnx is there already"):
        fiss.export(run, out)
    out.unlink()
    with pytest.raises(UserError, match=r"model.md is there already"):
        fiss.export(run, out)


def test_a_model_of_151_classes(tmp_path):
    """Of the library's own, whose head looks at 3x3 cells."""
    network = saved(tmp_path / "m", "unet", classes=151)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "m"), "--out", str(tmp_path / "large.onnx")])
    assert done.exit_code == 0, done.output
    assert "any height and width" in " ".join(done.output.split())
    image = smooth(40, 72, 0)
    mask, logits = onnxruntime.InferenceSession(tmp_path / "large.onnx").run(
        None, {"image": image.transpose(2, 0, 1)[None]}
    )
    with torch.no_grad():
        own = network(normalise(torch.tensor(image).permute(2, 0, 1)[None]))
    assert logits.shape == (1, 151, 40, 72)
    assert np.allclose(logits, own, atol=1e-4)
    assert np.mean(mask == own.argmax(1).numpy()) > 0.999
    assert "| data | not known |" in (tmp_path / "large.md").read_text()


def test_a_program_of_torch(tiny, finished, tmp_path):
    done = fiss.export(finished(tiny), tmp_path / "model.pt2", size="32x48", format="pt2")
    about = {"fiss.json": ""}
    program = torch.export.load(done.path, extra_files=about).module()
    image = smooth(32, 48, 1)
    mask, _ = program(torch.tensor(image).permute(2, 0, 1)[None])
    assert np.array_equal(mask[0].numpy(), fiss.Predictor(finished(tiny), "cpu")(image).mask)
    assert json.loads(about["fiss.json"])["names"][1] == "disc"
    assert "height 32 and width 48" in done.takes


@pytest.mark.long
def test_a_network_that_does_not_take_any_size_takes_one(tiny, finished, tmp_path):
    """Cells of 16 pixels, where sides are multiples of 8: the last cells' windows depend on the size."""
    told = replace(tiny, method=find("analytic"), evaluation=replace(tiny.evaluation, views=("published",)))
    run = shutil.copytree(finished(told), tmp_path / "r")
    text = (run / "config.toml").read_text()
    assert "stride = 0" in text
    (run / "config.toml").write_text(text.replace("stride = 0", "stride = 16"))
    progress = Listening()
    done = fiss.export(run, tmp_path / "model.onnx", progress=progress)
    assert "height 32 and width 32" in done.takes
    assert "not for images of any size, so for 32x32 only" in progress.said[1]
    shape = onnxruntime.InferenceSession(done.path).get_inputs()[0].shape
    assert shape == ["batch", 3, 32, 32]


def test_what_cannot_be_exported_is_said(tiny, finished, tmp_path, monkeypatch):
    run, find_spec = finished(tiny), importlib.util.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    with pytest.raises(UserError, match=r"onnxscript not installed: pip install 'fiss\[export\]'"):
        fiss.export(run, tmp_path / "m.onnx")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"Unknown format 'tflite'"):
        fiss.export(run, tmp_path / "m.tflite", format="tflite")
    for size in ("large", "3x4x5", "0x5", "x"):
        with pytest.raises(UserError, match=r"expected HEIGHTxWIDTH"):
            fiss.export(run, tmp_path / "m.onnx", size=size)
    monkeypatch.setattr(export, "_agreement", lambda *_: 0.5)
    monkeypatch.setattr(export, "_written", lambda *_: (b"", None))
    with pytest.raises(UserError, match=r"cannot be written as onnx .agrees with the model in 50.0 %"):
        fiss.export(run, tmp_path / "m.onnx")
    assert not list(tmp_path.glob("m.*"))
