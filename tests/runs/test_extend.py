"""Adding classes to models that are there, and taking contributions out again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pretrained import saved
from typer.testing import CliRunner
from worlds import picture, save

import fiss
from fiss.cli.main import app
from fiss.data import shapes
from fiss.errors import UserError
from fiss.extension import forget
from fiss.extension.model import classifier
from fiss.extension.writing import file_digest
from fiss.methods import find
from fiss.predict.predictor import Predictor
from fiss.progress import Progress
from fiss.runs.extension import LEDGER
from fiss.runs.run import Run
from fiss.statistics.ledger import Ledger
from fiss.statistics.solve import lda


def drawn(root, classes, images=range(100, 112), hold=3):
    """Shapes of another seed than a run's, as a folder whose masks show those classes alone, by their names there."""
    data = shapes.load(200, 1, 32, 3)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    stems = []
    for i in images:
        picture, mask = data.train.read(i)
        table = np.zeros(256, np.uint8)
        table[255] = 255
        for k, name in enumerate(classes.values(), 1):
            if name:
                table[data.classes.index(name) + 1] = k
        stems.append(f"img{i}")
        Image.fromarray(picture).save(root / "images" / f"img{i}.png")
        Image.fromarray(table[mask]).save(root / "masks" / f"img{i}.png")
    (root / "classes.txt").write_text("\n".join(classes))
    (root / "val.txt").write_text("\n".join(stems[:hold]))
    (root / "train.txt").write_text("\n".join(stems[hold:]))
    return root


@pytest.fixture
def told(tiny):
    """Two tasks; what is added are classes that the second has, under names of its own, and more of old ones."""
    return replace(tiny, evaluation=replace(tiny.evaluation, views=("published",)))


@pytest.fixture(params=["sums", "no sums"])
def model(request, told, finished):
    """A run with sums, and one without."""
    return finished(replace(told, method=find("analytic")) if request.param == "sums" else told)


@pytest.fixture
def summed(told, finished):
    return finished(replace(told, method=find("analytic")))


@pytest.fixture
def plain(told, finished):
    return finished(told)


def rows(folder):
    return classifier(Run(folder).snapshot())


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_classes_are_added_and_nothing_else_changes(model, tmp_path):
    was, data = contents(model), drawn(tmp_path / "blobs", {"disc": "disc", "blob": "ell", "dart": "arrow"})
    done = fiss.extend(model, data, out=tmp_path / "x", progress=False)
    assert contents(model) == was
    assert done.new == ("blob", "dart")
    before, after = Run(model).snapshot(), done.run.snapshot()
    assert after.label_space.groups == (*before.label_space.groups, ("blob", "dart"))
    for name, tensor in before.weights.items():
        assert name.startswith(("classifier", "head")) or torch.equal(tensor, after.weights[name]), name
    assert rows(tmp_path / "x")[0].shape[0] == 12
    records = fiss.evaluate(done.run, "published", progress=False)
    assert records == done.run.scores == (done.before, done.after)
    assert done.before.images == 3
    assert done.after.iou["ring"] is None  # nobody labelled it, so nobody can score it
    assert {"disc", "blob", "dart"} >= {name for name, iou in done.after.iou.items() if iou is not None} - {
        "background"
    }
    assert done.kept.keys() == set(before.label_space.names)
    assert Predictor(done.run, "cpu")(np.zeros((40, 50, 3), np.uint8)).mask.shape == (40, 50)
    assert Predictor(done.run, "cpu").names[-2:] == ("blob", "dart")
    assert (tmp_path / "x" / "picture.png").stat().st_size > 5000
    assert (tmp_path / "x" / "classes.txt").read_text().split()[-1] == "dart"
    assert fiss.picture([done.run], tmp_path / "p.png", progress=False).path.is_file()
    with pytest.raises(UserError, match="nothing to go on with"):
        fiss.resume(done.run, progress=False)


def test_with_sums_it_is_the_classifier_of_all_that_was_ever_counted(summed, tmp_path):
    done = fiss.extend(summed, drawn(tmp_path / "blobs", {"blob": "ell"}), out=tmp_path / "x", progress=False)
    ledger, (file,) = Ledger.load(tmp_path / "x" / LEDGER), summed.glob("ledger-*")
    first = Ledger.load(file)
    assert set(ledger.contributions) == {*first.contributions, "blobs"}
    assert ledger.contributions["blobs"].images == 9
    method = done.run.config.method
    wanted = lda(first.total(11) + ledger.contributions["blobs"], method.shrinkage, method.prior)
    for one, other in zip(rows(tmp_path / "x"), wanted, strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-6, atol=1e-6 * float(other.abs().max()))


def test_without_sums_classes_that_are_not_labelled_stay(plain, tmp_path):
    data = drawn(tmp_path / "blobs", {"disc": "disc", "blob": "ell"})
    done = fiss.extend(plain, data, out=tmp_path / "x", progress=False)
    disc = done.run.snapshot().label_space.channel("disc")
    for was, now in zip(rows(plain), rows(tmp_path / "x"), strict=True):
        for channel in range(10):
            assert torch.equal(was[channel], now[channel]) == (channel != disc)
        assert not torch.equal(now[10], was[0])
    assert done.strength is not None


def test_extended_again_from_either_order(model, tmp_path):
    """The second time nothing of the first is lost; two folders at once give the classifier of one after the other."""
    a, b = drawn(tmp_path / "a", {"blob": "ell"}), drawn(tmp_path / "b", {"dart": "arrow"}, range(120, 130))
    fiss.extend(model, a, out=tmp_path / "xa", progress=False)
    twice = fiss.extend(tmp_path / "xa", b, out=tmp_path / "xab", progress=False)
    fiss.extend(model, [a, b], out=tmp_path / "both", progress=False)
    assert twice.new == ("dart",)
    assert twice.after.images == 6
    for one, other in zip(rows(tmp_path / "xab"), rows(tmp_path / "both"), strict=True):
        assert torch.equal(one, other)


def test_what_was_added_and_forgotten_was_never_there(model, tmp_path):
    data = drawn(tmp_path / "blobs", {"disc": "disc", "blob": "ell"})
    fiss.extend(model, data, out=tmp_path / "x", progress=False)
    done = fiss.forget(tmp_path / "x", "blobs", out=tmp_path / "y", progress=False)
    for one, other in zip(rows(tmp_path / "y"), rows(model), strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 1e-9 * other.abs().max()
    assert done.run.snapshot().label_space == Run(model).snapshot().label_space
    removed = done.certificate["removed"]
    assert (removed["classes"], len(removed["images"])) == (["blob"], 9)
    assert Predictor(done.run, "cpu").names == Predictor(model, "cpu").names
    assert "was not trained" in done.certificate["not_undone"][0]
    assert fiss.extend(done.run, data, out=tmp_path / "z", progress=False).new == ("blob",)
    for one, other in zip(rows(tmp_path / "z"), rows(tmp_path / "x"), strict=True):
        assert torch.equal(one, other)


def test_a_few_images_are_forgotten_as_if_they_had_never_been(model, tmp_path):
    data = drawn(tmp_path / "blobs", {"disc": "disc", "blob": "ell"})
    fiss.extend(model, data, out=tmp_path / "x", progress=False)
    (tmp_path / "list.txt").write_text("img104\nimg107.png\n")
    done = fiss.forget(
        tmp_path / "x", "blobs", images=tmp_path / "list.txt", data=data, out=tmp_path / "y", progress=False
    )
    assert done.certificate["removed"]["images"] == ["img104", "img107"]
    train = (data / "train.txt").read_text().split()
    (data / "train.txt").write_text("\n".join(s for s in train if s not in ("img104", "img107")))
    fiss.extend(model, data, out=tmp_path / "z", progress=False)
    for one, other in zip(rows(tmp_path / "y"), rows(tmp_path / "z"), strict=True):
        assert torch.equal(one, other)
    assert len(fiss.evaluate(done.run, "published", progress=False)) == 1
    (tmp_path / "list.txt").write_text("img1040\n")
    with pytest.raises(UserError, match=r"Unknown image of blobs 'img1040'.*'img104'"):
        fiss.forget(
            tmp_path / "x", "blobs", images=tmp_path / "list.txt", data=data, out=tmp_path / "q", progress=False
        )


def test_a_site_of_a_run_is_forgotten(summed, tmp_path):
    done = fiss.forget(summed, "1", out=tmp_path / "y", progress=False)
    left = Ledger.load(tmp_path / "y" / LEDGER)
    assert all(not name.startswith("00001") for name in left.contributions)
    method, total = done.run.config.method, left.total(done.run.snapshot().label_space.channels)
    assert torch.equal(rows(tmp_path / "y")[0], lda(total, method.shrinkage, method.prior)[0].float())
    took_part = json.loads((summed / "state.json").read_text())["collected"]["took_part"]
    assert ("Not undone" in done.certificate["not_undone"][0]) == (1 in took_part)
    with pytest.raises(UserError, match="None of the folders"):
        fiss.evaluate(done.run, progress=False)
    with pytest.raises(UserError, match="Unknown site '7'"):
        fiss.forget(summed, "7", out=tmp_path / "z", progress=False)


def test_the_certificate_fails_if_a_byte_is_changed(summed, tmp_path):
    model = shutil.copytree(summed, tmp_path / "m")
    done = fiss.forget(model, "0", out=tmp_path / "y", progress=False)
    path = done.run.path / "certificate.json"
    files = [Path(file["path"]) for file in done.certificate["files"].values()]
    for file in [*files, path]:
        whole = file.read_bytes()
        at = len(whole) // 2 if file != path else whole.index(b'"cells": ') + 9
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match="changed after"):
            fiss.verify(path, progress=False)
        file.write_bytes(whole)
    assert fiss.verify(path, progress=False) == done.certificate
    shutil.rmtree(model)  # what was to be forgotten may be deleted
    assert fiss.verify(path, progress=False) == done.certificate
    files[3].unlink()
    with pytest.raises(UserError, match="is gone"):
        fiss.verify(path, progress=False)


def test_a_certificate_that_was_written_anew_does_not_hold_for_another_ledger(summed, tmp_path):
    done = fiss.forget(summed, "0", out=tmp_path / "y", progress=False)
    path, ledger = done.run.path / "certificate.json", Ledger.load(done.run.path / LEDGER)
    name = sorted(ledger.contributions)[0]
    ledger.without(name).save(done.run.path / LEDGER)
    forged = json.loads(path.read_text())
    forged["files"]["ledger_after"]["sha256"] = file_digest(done.run.path / LEDGER)
    forged["digest"] = forget._own_digest(forged)
    path.write_text(json.dumps(forged))
    with pytest.raises(UserError, match="differ in more than"):
        fiss.verify(path, progress=False)


def test_a_certificate_does_not_hold_for_a_model_that_its_ledger_does_not_give(summed, tmp_path):
    """Another classifier, with every digest written anew."""
    done = fiss.forget(summed, "0", out=tmp_path / "y", progress=False)
    path, folder, model = done.run.path / "certificate.json", done.run.folder, done.run.snapshot()
    weights = model.weights | {"head.weight": model.weights["head.weight"] * (1 + 1e-6)}
    digest = folder.write_weights("task-0", model.label_space, weights)
    state, forged = json.loads((folder.path / "state.json").read_text()), json.loads(path.read_text())
    state |= {"sha256": digest, "digests": {"task-0": digest}}
    (folder.path / "state.json").write_text(json.dumps(state))
    forged["files"]["model_after"]["sha256"] = digest
    path.write_text(json.dumps(forged | {"digest": forget._own_digest(forged)}))
    with pytest.raises(UserError, match="not the one that the ledger gives"):
        fiss.verify(path, progress=False)


def test_bad_input_is_one_line_and_nothing_is_lost(summed, tmp_path):
    was = contents(summed)
    data = drawn(tmp_path / "blobs", {"disc": "disc", "blob": "ell"})

    def refused(match, folder=data, out=tmp_path / "x", where=summed, **more):
        with pytest.raises(UserError, match=match) as error:
            fiss.extend(where, folder, out=out, progress=False, **more)
        assert "\n" not in str(error.value)
        assert contents(summed) == was
        assert not (tmp_path / "x").exists()
        assert not list(tmp_path.glob("*.part"))

    refused("there is no such folder", tmp_path / "none")
    half = save(tmp_path / "half" / "images" / "a.png", picture()).parents[1]
    refused("masks .a folder of masks. is not there", half)
    unnamed = drawn(tmp_path / "unnamed", {"disc": "disc", "blob": "ell"})
    (unnamed / "classes.txt").write_text("disc")
    refused(r"masks/img\d+.png: mask ids outside 0 to 1 .255 is ignored.: 2", unnamed)
    refused("nothing new: no mask shows a class", drawn(tmp_path / "nothing", {"blob": None}))
    both = drawn(tmp_path / "both", {"blob": "ell"})
    (both / "val.txt").write_text("img100\nimg103\n")
    refused("in train.txt and in val.txt: img103. Leave each in one", both)
    refused("2 names for 1", names=["a", "b"])
    refused("without strokes", names=["a/b"])
    refused("00000 has contributed to this model already", names=["00000"])
    refused("Two folders would contribute as blobs", [data, data])
    refused("not written over", out=summed)
    other = shutil.copytree(summed, tmp_path / "other")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace('maps = ["decoder", "stages"]', 'maps = ["decoder"]'))
    refused("does not fit the network of this config", where=other)
    (other / "config.toml").write_text(config.replace("random = 0", "random = 40").replace("seed = 5", "seed = 6"))
    refused("does not fit the network of this config", where=other)


def test_a_ledger_of_another_model_is_refused(summed, plain, tmp_path):
    data = drawn(tmp_path / "blobs", {"blob": "ell"})
    for name, model in (("s", summed), ("p", plain)):
        fiss.extend(model, data, out=tmp_path / name, progress=False)
    shutil.copy(tmp_path / "s" / LEDGER, tmp_path / "p" / LEDGER)
    for where in (fiss.extend, fiss.forget):
        with pytest.raises(UserError, match="the ledger does not belong to this model"):
            where(tmp_path / "p", "x" if where is fiss.forget else data, out=tmp_path / "q", progress=False)
    fiss.extend(summed, drawn(tmp_path / "darts", {"dart": "arrow"}), out=tmp_path / "t", progress=False)
    shutil.copy(tmp_path / "t" / LEDGER, tmp_path / "s" / LEDGER)  # of the same network, and of other images
    with pytest.raises(UserError, match="the ledger does not belong to this model"):
        fiss.forget(tmp_path / "s", "darts", out=tmp_path / "q", progress=False)
    (tmp_path / "p" / LEDGER).unlink()
    with pytest.raises(UserError, match=r"ledger\.safetensors: missing, damaged or no ledger"):
        fiss.extend(tmp_path / "p", data, out=tmp_path / "q", names="again", progress=False)


def test_a_folder_that_contributed_is_not_counted_twice(plain, tmp_path):
    data = drawn(tmp_path / "blobs", {"blob": "ell"})
    fiss.extend(plain, data, out=tmp_path / "x", progress=False)
    with pytest.raises(UserError, match="blobs has contributed to this model already"):
        fiss.extend(tmp_path / "x", data, out=tmp_path / "y", progress=False)
    with pytest.raises(UserError, match="9 of its images were counted already, as blobs"):
        fiss.extend(tmp_path / "x", data, out=tmp_path / "y", names="again", progress=False)
    assert not (tmp_path / "y").exists()


def test_more_images_of_old_classes_are_welcome(summed, tmp_path):
    said = []

    class Listening(Progress):
        def notice(self, text):
            said.append(text)

    data = drawn(tmp_path / "more", {"disc": "disc", "ring": "ring"})
    done = fiss.extend(summed, data, out=tmp_path / "x", progress=Listening())
    assert done.new == ()
    assert any("no new class; 9 more images of disc, ring" in text for text in said)
    assert fiss.evaluate(done.run, "published", progress=False) == (done.before, done.after)
    assert not any("no picture" in text for text in said)


def test_a_network_of_the_library_is_extended(tmp_path):
    """Its images are looked at as they are, and its classes get their names."""
    saved(tmp_path / "m", "unet")
    (tmp_path / "names.txt").write_text("disc\nb\nc\n")
    data, was = drawn(tmp_path / "blobs", {"disc": "disc", "blob": "ell"}), contents(tmp_path / "m")
    done = fiss.extend(tmp_path / "m", data, out=tmp_path / "x", classes=tmp_path / "names.txt", progress=False)
    assert done.run.snapshot().label_space.groups == (("disc", "b", "c"), ("blob",))
    assert fiss.evaluate(done.run, progress=False) == (done.before, done.after)
    assert Predictor(done.run, "cpu")(np.zeros((40, 50, 3), np.uint8)).mask.shape == (40, 50)
    assert (tmp_path / "x" / "picture.png").is_file()
    assert contents(tmp_path / "m") == was
    with pytest.raises(UserError, match="these have names"):
        fiss.extend(done.run, data, out=tmp_path / "y", classes=tmp_path / "names.txt", names="b", progress=False)


def test_the_commands(plain, tmp_path):
    data = drawn(tmp_path / "blobs", {"disc": "disc", "blob": "ell"})

    def does(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    said = does("extend", plain, data, "--out", tmp_path / "x", "--name", "practice")
    assert all(word in said for word in ("blob", "kept", "ledger.safetensors", "MB", "fiss predict"))
    assert "blob" in does("eval", tmp_path / "x")
    assert "practice" in does("forget", tmp_path / "x", "--site", "practice", "--out", tmp_path / "y")
    assert "as the certificate says" in does("verify", tmp_path / "y" / "certificate.json")
