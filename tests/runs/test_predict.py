"""Segmenting new images with a run's model."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from typer.testing import CliRunner
from worlds import picture, save

from fiss.cli.main import app
from fiss.data.sources import open_dataset, recognise
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.federation.spec import FederationSpec
from fiss.methods import find
from fiss.predict import predictor as predictor_module
from fiss.predict.pictures import write
from fiss.predict.predictor import Predictor
from fiss.progress import Progress


@pytest.fixture
def run(tiny, finished):
    return finished(tiny)


def test_a_mask_is_the_models_own_answer(run):
    """At the size the model is scored at nothing is resized: argmax of its logits."""
    predictor = Predictor(run, "cpu")
    image = picture(32, 48)
    with torch.inference_mode():
        logits = predictor.model(normalise(torch.tensor(image).permute(2, 0, 1)[None])).logits_BCHW
    assert np.array_equal(predictor(image).mask, logits.argmax(1)[0].numpy())
    assert len(predictor.names) == 10


def test_many_channels_are_enlarged_in_parts(run, monkeypatch):
    predictor, image = Predictor(run, "cpu"), picture(50, 70)
    whole = predictor(image).mask
    assert whole.shape == (50, 70)
    monkeypatch.setattr(predictor_module, "AT_ONCE", 3)
    assert np.array_equal(predictor(image).mask, whole)


def test_what_is_written_is_a_data_set(run, tmp_path):
    images = [save(tmp_path / "images" / f"{name}.png", picture(40 + i, 60, i)) for i, name in enumerate("abc")]
    records = write(Predictor(run, "cpu"), images, tmp_path, Progress())
    assert [sum(record["shares"].values()) for record in records] == pytest.approx([1, 1, 1])
    mask = Image.open(tmp_path / "masks" / "b.png")
    assert mask.mode == "P"
    assert mask.size == (60, 41)
    overlay = Image.open(tmp_path / "overlays" / "b.png")
    assert overlay.width == 60
    assert overlay.height > 41  # the legend
    shutil.copy(tmp_path / "classes.txt", tmp_path / "names.txt")
    data = open_dataset(recognise(tmp_path))
    assert data.classes == Predictor(run, "cpu").names[1:]


def test_the_mask_of_a_photo_that_is_shown_turned_has_the_size_that_people_see(run, tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(picture(40, 60)).save(tmp_path / "photo.jpg", exif=exif)
    predictor = Predictor(run, "cpu")
    write(predictor, [tmp_path / "photo.jpg"], tmp_path / "out", Progress())
    assert predictor(tmp_path / "photo.jpg").mask.shape == (60, 40)
    for folder in ("masks", "overlays"):
        assert Image.open(tmp_path / "out" / folder / "photo.png").width == 40


def test_a_mask_on_a_full_disk_is_named(run, tmp_path):
    photo = save(tmp_path / "photo.png", picture(40, 60))
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays" / "photo.png").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*/overlays/photo\.png"):
        write(Predictor(run, "cpu"), [photo], tmp_path, Progress())


def test_a_model_file_needs_its_config(run, tmp_path):
    file = shutil.copy(run / "weights" / "task-0.safetensors", tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"config\.toml"):
        Predictor(file, "cpu")
    shutil.copy(run / "config.toml", tmp_path)
    assert len(Predictor(file, "cpu").names) == 7
    assert len(Predictor(run / "weights" / "task-1.safetensors", "cpu").names) == 10


def test_a_network_with_branches(tiny, finished):
    run = finished(replace(tiny, method=find("rcil")))
    assert Predictor(run, "cpu")(picture()).mask.shape == (40, 48)


def test_private_names_need_a_list(tiny, finished, tmp_path):
    run = finished(replace(tiny, federation=FederationSpec(private_names="k")))
    with pytest.raises(UserError, match="--classes"):
        Predictor(run, "cpu")
    names = tmp_path / "names.txt"
    names.write_text("disc\nring\n")
    with pytest.raises(UserError, match="7 of the model's 9"):
        Predictor(run, "cpu", names)
    names.write_text("ell\narrow\ncrescent\ncross\nstar\ntriangle\nsquare\nring\ndisc\n")
    assert Predictor(run, "cpu", names).names[1] == "disc"


def test_the_command(run, tmp_path):
    save(tmp_path / "new" / "one.png", picture())
    other = save(tmp_path / "two.jpg", picture(seed=1))
    words = ["predict", str(run), str(tmp_path / "new"), str(other), "--out", str(tmp_path / "out"), "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "two.jpg" in done.output
    assert sorted(p.name for p in (tmp_path / "out" / "masks").iterdir()) == ["one.png", "two.png"]


@pytest.mark.parametrize(
    ("images", "why"), [(["gone.png"], "missing image"), (["a/x.png", "b/x.png"], "called x"), ([], "No image")]
)
def test_what_cannot_be_segmented(run, tmp_path, images, why):
    for name in images[:2] if "gone" not in str(images) else []:
        save(tmp_path / name, picture())
    with pytest.raises(UserError, match=why):
        write(Predictor(run, "cpu"), [tmp_path / name for name in images], tmp_path / "out", Progress())


def test_masks_that_are_there_are_not_written_over(run, tmp_path):
    image = save(tmp_path / "images" / "one.png", picture())
    drawn = save(tmp_path / "masks" / "one.png", picture()).read_bytes()
    predictor = Predictor(run, "cpu")
    with pytest.raises(UserError, match="masks is there already"):
        write(predictor, [image], tmp_path, Progress())
    assert (tmp_path / "masks" / "one.png").read_bytes() == drawn
    assert not (tmp_path / "classes.txt").exists()


def test_an_image_that_cannot_be_read_is_named_and_the_others_are_segmented(run, tmp_path):
    images = [save(tmp_path / f"{name}.png", picture()) for name in "abc"]
    images[1].write_bytes(b"no image")
    progress = Progress()
    said = []
    progress.notice = said.append
    records = write(Predictor(run, "cpu"), images, tmp_path / "out", progress)
    assert [Path(record["image"]).stem for record in records] == ["a", "c"]
    assert len(said) == 1
    assert "b.png" in said[0]


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        Predictor(tmp_path, "cpu")
