"""Segmenting new images with a run's model."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import ExifTags, Image
from typer.testing import CliRunner
from worlds import picture, save

from fiss.cli.main import app
from fiss.data.sources import open_dataset, recognise
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.federation.spec import FederationSpec
from fiss.methods import find
from fiss.predict import export
from fiss.predict import predictor as predictor_module
from fiss.predict.palette import class_colours, colours_of, draw_legend, legend_of, paint
from fiss.predict.pictures import write
from fiss.predict.predictor import Predictor
from fiss.predict.tiles import strips
from fiss.progress import Progress
from fiss.reports import pictures
from fiss.reports.figures import tiles
from fiss.runs.folder import RunFolder


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


def test_only_channels_that_can_win_are_enlarged():
    """The mask is that of all channels, and most of many are left out."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.nn.functional.interpolate(torch.randn(1, 60, 4, 5, generator=draw), (24, 30), mode="bicubic")[0]
    for logits in (coarse, coarse + torch.arange(60)[:, None, None] / 30, torch.randn(7, 9, 9, generator=draw)):
        for size in ((100, 131), (24, 30), (1, 70), (11, 13)):
            channels = predictor_module._may_win(logits)
            found = torch.nn.functional.interpolate(logits[None], size, mode="bilinear")[0].argmax(0)
            assert set(found.unique().tolist()) <= set(channels.tolist())
    assert len(predictor_module._may_win(coarse + 3 * torch.eye(60)[0][:, None, None])) < 30
    assert predictor_module._may_win(torch.zeros(3, 1, 1)).tolist() == [0, 1, 2]


def test_many_are_as_one_at_a_time_and_in_their_order(run):
    predictor = Predictor(run, "cpu")
    images = [picture(height, width, seed) for seed, (height, width) in enumerate([(32, 48), (50, 40), (32, 48)] * 2)]
    together = list(predictor.many(iter(images), 4))
    assert [seen.mask.shape for seen in together] == [image.shape[:2] for image in images]
    for image, seen in zip(images, together, strict=True):
        assert np.array_equal(predictor(image).mask, seen.mask)
        assert np.allclose(predictor(image).probabilities, seen.probabilities, atol=1e-5)


def test_where_it_is_unsure(run):
    seen = Predictor(run, "cpu")(picture(50, 70))
    assert np.allclose(seen.confidence, seen.probabilities.max(0), atol=1e-6)
    assert np.array_equal(seen.unsure(0.4), seen.probabilities.max(0) < 0.4)
    assert not seen.unsure(0.1).any()  # of ten channels one has at least a tenth


def test_tiles_of_a_network_that_sees_little_are_the_whole_image():
    """Neither seams nor a shift, whatever does not divide; and no more than a tile is looked at, or a strip kept."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 5, 3, padding=1)]
    network = torch.nn.Sequential(*layers)
    for height, width, tile, grid in ((150, 201, 64, 8), (97, 64, 64, 16), (40, 300, 48, 4), (20, 20, 64, 8)):
        image = torch.randn(3, height, width)
        asked = []

        def look(rows, columns, image=image, asked=asked):
            asked.append((rows, columns))
            return network(image[None, :, rows, columns])[0]

        with torch.no_grad():
            whole = network(image[None])[0]
            found = list(strips(look, (height, width), tile, grid))
        assert torch.allclose(torch.cat(found, 1), whole, atol=1e-5)
        for one in (place for places in asked for place in places):
            assert one.start % grid == 0
            assert one.stop - one.start <= tile
        assert max(strip.shape[1] for strip in found) <= tile
    assert len(asked) == 1


def test_seams_between_tiles_that_disagree_are_blended():
    """Each tile says its own number; between them it goes over evenly, and never jumps."""
    numbers = iter(range(100))
    (strip,) = strips(
        lambda rows, columns: torch.full((1, 64, columns.stop - columns.start), float(next(numbers))), (64, 300), 64, 8
    )
    assert torch.allclose(strip, strip[:, :1].expand_as(strip))
    assert strip.min() == 0
    assert 0 <= strip[0, 0].diff().min() <= strip[0, 0].diff().max() < 0.2


def test_an_image_in_tiles(run):
    """At its own size, and what is asked for later is the same."""
    image = picture(70, 90)
    whole, tiles = Predictor(run, "cpu"), Predictor(run, "cpu", tile=64)
    seen = tiles(image)
    assert seen.mask.shape == (70, 90)
    assert np.array_equal(seen.probabilities.argmax(0), seen.mask)
    assert np.allclose(seen.confidence, seen.probabilities.max(0), atol=1e-6)
    whole.size = 0
    one = Predictor(run, "cpu", tile=96)(image)  # larger than the image
    assert np.array_equal(whole(image).mask, one.mask)
    assert (whole(image).mask == seen.mask).mean() > 0.5  # this network looks at the whole image
    with pytest.raises(UserError, match="--tile 8: at least 32 pixels"):
        Predictor(run, "cpu", tile=8)


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
    assert data.classes == Predictor(run, "cpu").ids  # all of the data set, under their ids there


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
    done = CliRunner().invoke(app, [*words, "--unsure", "0.6", "--probabilities"])
    assert done.exit_code == 0, done.output
    assert "two.jpg" in done.output
    assert "unsure" in done.output
    seen = Predictor(run, "cpu")(tmp_path / "new" / "one.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "unsure" / "one.png")) > 0, seen.unsure(0.6))
    assert np.allclose(np.load(tmp_path / "out" / "probabilities" / "two.npy").sum(0), 1, atol=0.01)
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
    with pytest.raises(UserError, match=r"masks is there already .* --out .* --overwrite"):
        write(predictor, [image], tmp_path, Progress())
    assert (tmp_path / "masks" / "one.png").read_bytes() == drawn
    assert not (tmp_path / "classes.txt").exists()
    write(predictor, [image], tmp_path, Progress(), overwrite=True)
    assert (tmp_path / "masks" / "one.png").read_bytes() != drawn
    (tmp_path / "classes.txt").write_text("other\n")
    with pytest.raises(UserError, match="names other classes than the model's"):
        write(predictor, [image], tmp_path, Progress(), overwrite=True)


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
    with pytest.raises(UserError, match="there is no such folder or file"):
        Predictor(tmp_path / "gone", "cpu")


def test_masks_have_the_ids_of_the_data_or_of_the_model(tiny, finished, tmp_path, monkeypatch):
    """Tasks in another order than classes.txt: channel 1 is the class of id 9."""
    run = finished(replace(tiny, tasks=replace(tiny.tasks, split="ell, arrow, crescent; disc")))
    predictor, image = Predictor(run, "cpu"), save(tmp_path / "a.png", picture())
    seen = predictor(image).mask
    for ids, names in (("data", predictor.ids), ("model", predictor.names[1:])):
        write(predictor, [image], tmp_path / ids, Progress(), ids=ids)
        drawn = Image.open(tmp_path / ids / "masks" / "a.png")
        by_name = np.array(["background", *names])[np.asarray(drawn)]
        assert (by_name == np.array(predictor.names)[seen]).all()
        assert (tmp_path / ids / "classes.txt").read_text().split() == list(names)
        colours = colours_of(13)[[0, 9, 8, 7, 1]][seen]  # those of the truth in reports
        assert (np.asarray(drawn.convert("RGB")) == colours).all()
    assert predictor.ids[8] == "ell"
    about = export._about(predictor, None, "onnx")  # whose masks have the model's ids
    assert dict(zip(about["names"], about["palette"], strict=True))["ell"] == colours_of(13)[9].tolist()
    models, strip = RunFolder.open(run).last_models(), pictures.Strip.of(RunFolder.open(run), Progress())
    rows = strip.rows(models.values())
    legend = legend_of(strip.validation.classes, [tile for row in rows for tile in row[1:]])
    named = {
        f"#{bytes(colour).hex()}": name
        for name, colour in zip(("background", *predictor.ids), colours_of(13), strict=True)
    }
    assert {colour: name for name, colour in legend}.items() <= (named | {"#ffffff": "ignored"}).items()
    shown = {tuple(c) for row in rows for tile in row[1:] for c in tile.reshape(-1, 3).tolist()}
    assert {tuple(bytes.fromhex(colour[1:])) for _, colour in legend} == shown
    drawn = []
    monkeypatch.setattr(pictures, "draw_legend", lambda figure, legend: drawn.append(legend))
    pictures.draw([run], tmp_path / "p.png", Progress())
    pictures.draw_tasks(run, tmp_path / "t.png", ["1", "2", "3", "4"][: len(models)], Progress())
    assert all(
        {colour: name for name, colour in legend}.items() <= (named | {"#ffffff": "ignored"}).items()
        for legend in drawn
    )
    assert len(drawn) == 2


def test_pictures_show_what_predict_shows(tiny, finished, monkeypatch):
    """A network looks at an image at the size at which it is scored, whatever size the image has."""
    folder, predictor = RunFolder.open(finished(tiny)), Predictor(finished(tiny), "cpu")
    strip, last = pictures.Strip.of(folder, Progress()), list(folder.last_models().values())[-1:]
    config = strip.validation.config.replace(evaluation={"size": 16})  # of images of 32
    smaller = replace(strip, validation=replace(strip.validation, config=config))
    predictor.size, sizes = 16, []
    real = pictures.channels_of
    monkeypatch.setattr(
        pictures, "channels_of", lambda logits, size: sizes.append((*logits.shape[1:], *size)) or real(logits, size)
    )
    for i, row in zip(strip.images, smaller.rows(last), strict=True):
        seen = next(predictor.segment([strip.validation.split.read(i)[0]]))
        assert (row[2] == class_colours(predictor)[seen.mask]).all()
    assert set(sizes) == {(16, 16, 32, 32)}


def test_colours_differ_and_a_figure_has_their_legend():
    colours = {tuple(colour) for colour in colours_of(256).tolist()}
    assert len(colours) == 256
    assert (255, 255, 255) not in colours
    assert (colours_of(256)[:20] == colours_of(20)).all()  # a class keeps its own
    tile = paint(np.array([[0, 2], [255, 2]]), colours_of(3))
    legend = legend_of(("cat", "dog"), [tile])
    assert legend == [("background", "#1e1e1e"), ("dog", "#56b4e9"), ("ignored", "#ffffff")]
    figure = Figure(figsize=(4, 2), layout="constrained")
    draw_legend(figure, legend)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["background", "dog", "ignored"]
    assert figure.get_figheight() > 2
    text = tiles(["a"], [[tile]], [("<dog>", "#56b4e9")], "alt")
    assert '<i style="background: #56b4e9"></i>&lt;dog&gt;' in text
