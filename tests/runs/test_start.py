"""A first run on data that nobody has run yet: what is proposed, and what is said before hours are lost."""

import socket
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from time import monotonic, sleep
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from command_line import fiss as command
from safetensors.torch import save_file
from worlds import make_folder, mask, save

import fiss
from fiss.config import proposal
from fiss.config.config import flat, from_toml, to_dict, to_toml
from fiss.config.presets import folder_small
from fiss.data.dataset import FileSplit
from fiss.data.index import DataCheck
from fiss.errors import UserError
from fiss.labels import TaskStream
from fiss.methods import find
from fiss.models import encoders, hub
from fiss.models.segmenter import ModelSpec, build
from fiss.progress import Progress
from fiss.simulation import advice
from fiss.simulation import sweep as sweeping
from fiss.simulation.scenario import open_scenario
from fiss.training import speed
from fiss.training.speed import Speed


class Said(Progress):
    def __init__(self):
        self.notices = []

    def notice(self, text):
        self.notices.append(text)


def on_folder(tiny, root, split, **changes):
    return tiny.replace(data={"name": "folder", "root": str(root)}, tasks={"split": split}, **changes)


def said(config):
    return "\n".join(advice.warnings(open_scenario(config, Progress())))


def test_nothing_is_said_of_a_sound_run(tiny, monkeypatch):
    monkeypatch.setattr(advice, "FEW_STEPS", 1)
    assert said(tiny.replace(training={"batch": 2}, data={"shapes_val": 40})) == ""


def test_small_sites_and_a_small_first_task(tiny):
    text = said(tiny.replace(training={"batch": 24}))
    assert "sites hold fewer images than a batch of 24" in text
    assert "The first task (6 classes) is too small to train a network from random weights: 2 steps" in text


def test_one_task_and_no_pretrained_weights(tiny, tmp_path):
    root = make_folder(tmp_path, classes=2)
    text = said(on_folder(tiny, root, "2-1", method="fbl"))
    assert "nothing to forget and fbl trains as finetune does. For several tasks: --set tasks.split=1-1." in text
    assert "7 training images are few for a network without pretrained weights" in text
    assert "nothing to forget" not in said(on_folder(tiny, root, "2-1"))
    assert "nothing to forget" not in said(on_folder(tiny, root, "1-1", method="fbl"))
    frozen = said(on_folder(tiny, root, "1-1", method={"name": "analytic", "trunk": "pretrained"}))
    assert "Nothing is trained" in frozen
    assert "are few" not in frozen


def test_warnings_come_once_and_stand_in_the_report(tiny, tmp_path):
    root = make_folder(tmp_path / "data")
    (root / "val.txt").write_text("p7\np8\n")
    config = on_folder(tiny, root, "2-1", world={"rounds": 1}, evaluation={"views": ("published",)})
    progress = Said()
    run = fiss.run(config, out=tmp_path / "run", progress=progress)
    text = "in no validation image, so will not be scored: thing1."
    assert progress.notices.count(text) == 1
    assert text in (run.path / "report.html").read_text()
    again = Said()
    fiss.resume(run, again)
    assert text not in again.notices


def test_a_hub_that_does_not_answer_is_said_in_seconds(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_: sleep(5) or nullcontext())
    began = monotonic()
    with pytest.raises(UserError, match=r"Fetch .*smp-hub/resnet50.*model\.safetensors elsewhere"):
        hub.check_fetchable("resnet50", "imagenet")
    assert monotonic() - began < 10
    monkeypatch.setattr(hub, "answers", lambda _: True)
    hub.check_fetchable("resnet50", "imagenet")


@pytest.mark.parametrize("name", ["resnet18", "tu-vit_small_patch14_reg4_dinov2"])
def test_the_encoder_of_a_file(name, tmp_path):
    if name == "resnet18":
        weights = build(ModelSpec("none", name, "none"), [2], 0).encoder.state_dict()
    else:
        shapes = {"patch_embed.proj.weight": (384, 3, 14, 14), "register_tokens": (1, 4, 384)}
        weights = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
    import torch

    save_file({key: torch.as_tensor(value) for key, value in weights.items()}, tmp_path / "a.safetensors")
    assert encoders.recognise_encoder(tmp_path / "a.safetensors") == name
    save_file({"some.weight": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(UserError, match="of no network that is recognised"):
        encoders.recognise_encoder(tmp_path / "b.safetensors")


class Data:
    """As many classes, shown by so many images each."""

    def __init__(self, *images):
        self.classes = tuple(f"thing{i}" for i in range(len(images)))
        pixels = np.zeros((max(sum(images), 1), len(images) + 1), np.int64)
        pixels[:, 0] = 9
        ends = np.cumsum([0, *images])
        for i, (a, b) in enumerate(pairwise(ends), 1):
            pixels[a:b, i] = 1
        sizes = np.full((len(pixels), 2), 300, np.int64)
        index = SimpleNamespace(pixels=pixels, sizes=sizes, presence=pixels > 0)
        self.found = DataCheck(self, index, index, (), ())


@pytest.mark.parametrize("count", range(1, 34))
def test_every_class_has_a_task(count):
    data, reasons = Data(*[1] * count), {}
    config = proposal._tasks(folder_small(), data.found, reasons)
    tasks = TaskStream.parse(config.tasks.split, data.classes).tasks
    assert sorted(i for ids in tasks for i in ids) == list(range(1, count + 1))
    assert len(tasks) == min(count, 3 if count >= 4 else 2)
    assert len(tasks[0]) * 2 >= count
    assert config.method.name == ("finetune" if count == 1 else "analytic")


def test_a_class_that_no_image_shows_has_none():
    data, reasons = Data(3, 0, 2, 1), {}
    split = proposal._tasks(folder_small(), data.found, reasons).tasks.split
    assert TaskStream.parse(split, data.classes).tasks == ((1, 3), (4,))
    assert reasons["tasks.split"] == "no training image shows thing1"


def test_what_fits_into_the_time():
    data = Data(100, 100)
    fast = proposal._within(folder_small(), data.found, Speed(0, 1e-4, 0, 0), 200, 0, 240, {})
    assert fast.augment.crop == fast.evaluation.size == 256
    assert fast.training.epochs * fast.world.rounds == proposal.MOST_PASSES
    slow = proposal._within(folder_small(), data.found, Speed(0, 0.1, 0, 0), 200, 0, 240, {})
    assert slow.augment.crop == 96
    assert slow.training.epochs == 2
    large = proposal._within(folder_small(), data.found, Speed(0, 0.1, 0, 0), 20_000, 0, 240, {})
    assert large.world.split == "published"
    assert 0 < large.world.sample_ratio < 0.02


def within(data, speed, seconds=240):
    """A proposal for two tasks with 1,000 training images each, its seconds, and its reasons."""
    reasons, config = {}, folder_small().replace(tasks={"split": "1-1"})
    config = proposal._within(config, data.found, speed, 1000, 1000, seconds, reasons)
    return config, proposal._expected(config, data.found, speed, 128, 1000, 1000), reasons


def test_scoring_is_part_of_the_time():
    """Scored: 1,000 images after task 0, 2,000 after task 1. Of 240 seconds 30 are for the start and the report.

    At 0.05 s for 128 pixels scoring takes 150 s, at 96 pixels 84.375 s, below the half of 210. There counting takes
    11.25 s, and a pass of 5.625 s leaves time for 20 of them, as 5 epochs in 4 rounds.
    """
    data = Data(1000, 1000)
    config, seconds, reasons = within(data, Speed(0, 0.01, 0.01, 0.05))
    assert (config.augment.crop, config.evaluation.size, config.training.epochs) == (96, 96, 5)
    assert seconds == pytest.approx(30 + 84.375 + 11.25 + 20 * 5.625)
    assert "scoring larger ones" in reasons["augment.crop"]
    config, seconds, reasons = within(data, Speed(0, 0.01, 0.01, 0.02))  # 60 + 20 + 12 * 10
    assert (config.augment.crop, config.training.epochs, seconds) == (128, 3, pytest.approx(230))
    assert "evaluation.size" not in reasons


def test_scoring_that_does_not_fit_is_said():
    """337.5 s for scoring at the smallest size; 20 s are left for the images, of which one epoch takes 33.75 s."""
    config, seconds, reasons = within(Data(1000, 1000), Speed(0, 0.01, 0.01, 0.2))
    assert (config.augment.crop, config.training.epochs) == (96, 1)
    assert config.world.sample_ratio * 3 == pytest.approx(20 / 33.75, abs=1e-3)
    assert seconds == pytest.approx(30 + 337.5 + 20, abs=0.1)
    assert (
        "scoring 2000 validation images takes 6 of the minutes at the smallest size too" in reasons["evaluation.size"]
    )


def test_a_pretrained_encoder_counts_a_part_where_all_is_too_much():
    """Counting 2,000 images of 224 pixels takes 3,062.5 s, scoring 3,000 of them one second."""
    config, seconds, reasons = within(Data(1000, 1000), Speed(0, 0, 0.5, 0.0001))
    assert (config.augment.crop, config.world.rounds, config.world.split) == (224, 1, "published")
    assert seconds == pytest.approx(240, abs=1)
    assert "a part of them" in reasons["world.sample_ratio"]
    config, seconds, _ = within(Data(1000, 1000), Speed(0, 0, 0.01, 0.0001))
    assert (config.world.split, seconds < 240) == ("client-disjoint", True)


def test_classes_that_lie_on_one_side(tmp_path):
    root = make_folder(tmp_path, count=15)
    for k in range(15):
        ids = mask(1, 0, 0, 2)
        ids[30:, 3 * k : 3 * k + 4] = 3
        save(root / "masks" / f"p{k}.png", ids)
    dataset = fiss.check_data(root, False).dataset
    assert proposal._sided(dataset.train, dataset.classes) == ["thing1", "thing2"]
    everywhere = fiss.check_data(make_folder(tmp_path / "other", count=15, classes=1), False).dataset
    assert proposal._sided(everywhere.train, everywhere.classes) == []


def test_start_proposes_writes_and_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = make_folder(tmp_path / "mine", count=14)
    monkeypatch.setattr(proposal, "MOST_PASSES", 4)
    command("start", root, "--minutes", 1, "--run")
    out = " ".join(capsys.readouterr().out.split())
    assert "from a few timed steps" in out
    assert "learning by sums" in out
    assert "next: fiss predict runs/mine-analytic-seed2023 IMAGE..." in out
    assert (tmp_path / "runs/mine-analytic-seed2023/report.html").is_file()
    text = (tmp_path / "mine.toml").read_text()
    assert "# Here: small enough to be trained from random weights" in text
    config = from_toml(text)
    assert config == fiss.open_run("runs/mine-analytic-seed2023").config.replace(data={"root": config.data.root})
    assert config.tasks.split == "2-1"
    command("start", root, code=2)
    assert "mine.toml is there already" in capsys.readouterr().err


def test_reasons_are_of_keys_and_leave_the_config(tmp_path):
    made = fiss.propose(make_folder(tmp_path), minutes=1)
    assert set(made.reasons) <= set(flat(to_dict(made.config)))
    assert from_toml(to_toml(made.config, made.reasons)) == made.config
    assert tomllib.loads(to_toml(made.config, made.reasons)) == tomllib.loads(to_toml(made.config))
    assert made.seconds > 0


def test_a_frozen_encoder_from_a_file(tmp_path):
    file = tmp_path / "r18.safetensors"
    save_file(build(ModelSpec("none", "resnet18", "none"), [2], 0).encoder.state_dict(), file)
    made = fiss.propose(make_folder(tmp_path / "mine"), weights=file)
    assert made.config.model.encoder == "resnet18"
    assert made.config.method == replace(find("analytic"), trunk="pretrained", maps=("stages",), projection=384)
    open_scenario(made.config, Progress(), fresh=True)


@pytest.mark.parametrize(("channels", "kind"), [(1, np.uint16), (5, np.uint8), (3, np.float32)])
def test_images_of_16_bits_and_of_several_channels(channels, kind, tmp_path):
    root = make_folder(tmp_path / "mine", count=6)
    for k in range(6):
        values = np.random.default_rng(k).integers(0, 250, (40, 48, channels)).astype(kind)
        (root / "images" / f"p{k}.png").unlink()
        how = {} if channels == 1 else {"photometric": "minisblack", "planarconfig": "contig"}
        tifffile.imwrite(root / "images" / f"p{k}.tif", values[..., 0] if channels == 1 else values, **how)
    made = fiss.propose(root, minutes=1)
    window = "" if kind == np.uint8 else "1%,99%"
    assert (made.config.data.window, made.config.model.channels) == (window, 5 if channels == 5 else 3)
    assert ("data.window" in made.reasons, "model.channels" in made.reasons) == (bool(window), channels == 5)
    open_scenario(made.config, Progress(), fresh=True)
    if kind == np.uint16:
        made = fiss.propose(root, minutes=1, window="0,250", channels=1)
        assert (made.config.data.window, made.config.model.channels) == ("0,250", 1)


def test_weights_that_are_not_there_are_refused_before_anything_is_read(tmp_path, monkeypatch):
    root = make_folder(tmp_path)
    monkeypatch.setattr(FileSplit, "read", None)
    monkeypatch.setattr(hub, "answers", lambda _: False)
    with pytest.raises(UserError, match=r"does not answer\. Fetch .*--weights model\.safetensors.*random weights"):
        fiss.propose(root, weights="imagenet")
    with pytest.raises(UserError, match=r"no such file\. Without it .* random weights"):
        fiss.propose(root, weights=tmp_path / "none.safetensors")


def test_each_file_is_read_once_for_a_proposal_and_its_run(tmp_path, monkeypatch):
    """But for the few that are timed and looked at for sides."""
    root, reads = make_folder(tmp_path / "mine", count=60), []
    real = FileSplit.read
    monkeypatch.setattr(FileSplit, "read", lambda self, i: reads.append(self.stems[i]) or real(self, i))
    made = fiss.propose(root, minutes=1)
    few = proposal.SIDED + made.config.training.batch
    assert len(reads) <= 60 + few
    fiss.propose(root, minutes=1)
    open_scenario(made.config, Progress())
    assert len(reads) <= 60 + 2 * few


def test_the_time_of_a_step_is_the_median_of_several(monkeypatch):
    ticks = iter(np.cumsum([0, 9, 0, 1, 0, 5, 0, 3, 0, 50, 0, 2]))  # the first, to warm up, is not counted
    monkeypatch.setattr(speed, "perf_counter", lambda: float(next(ticks)))
    assert speed._seconds(lambda: None, torch.device("cpu")) == 3


def test_a_sweep_says_what_its_runs_would_say(tiny, tmp_path, monkeypatch):
    root = make_folder(tmp_path / "data")
    (root / "val.txt").write_text("p7\np8\n")
    monkeypatch.setattr(sweeping, "play", lambda *_: [])
    progress, config = Said(), on_folder(tiny, root, "2-1")
    fiss.sweep(config, ["finetune", "fbl"], out=tmp_path / "out", progress=progress)
    assert progress.notices.count("in no validation image, so will not be scored: thing1.") == 1
    assert sum("are few for a network without pretrained weights" in text for text in progress.notices) == 1
    broken = on_folder(tiny, tmp_path / "nowhere", "2-1")
    fiss.sweep(broken, ["finetune"], out=tmp_path / "out", progress=progress)
    assert "finetune-seed" in progress.notices[-1]
    assert "will fail: data.root" in progress.notices[-1]


def test_a_data_set_with_problems_is_not_proposed_for(tmp_path):
    root = make_folder(tmp_path)
    (root / "masks" / "p1.png").unlink()
    with pytest.raises(UserError, match=r"1 problem.*\n.*p1\.png: missing mask"):
        fiss.propose(root)


@pytest.mark.parametrize(("cores", "said"), [(1, 1), (64, 0)])
def test_a_busy_machine_is_said(cores, said, tmp_path, monkeypatch):
    monkeypatch.setattr(proposal.os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    monkeypatch.setattr(proposal.os, "sched_getaffinity", lambda _: range(cores))
    progress = Said()
    fiss.propose(make_folder(tmp_path), minutes=1, progress=progress)
    assert sum("This machine is busy (load 9 on 1 cores)" in text for text in progress.notices) == said
