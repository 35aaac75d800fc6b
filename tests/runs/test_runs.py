"""Whole runs: what they leave behind, and that being killed changes nothing."""

import errno
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from killing import KillAtStep, die_in_fsync, killed, result
from worlds import make_ade, make_folder, make_voc, mask, save

from fiss.cli.main import main
from fiss.config.config import read_toml, to_toml
from fiss.data.sources import DataSpec
from fiss.errors import UserError
from fiss.federation.spec import TaskSpec, WorldSpec
from fiss.methods import find
from fiss.models.segmenter import build
from fiss.predict.predictor import Predictor
from fiss.progress import Progress
from fiss.runs.folder import RunFolder, read_model
from fiss.runs.records import RoundRecord
from fiss.runs.run import Run
from fiss.runs.scoring import rescore
from fiss.simulation import experiment
from fiss.simulation.scenario import open_scenario


@pytest.fixture
def whole(tiny, finished):
    """An uninterrupted run."""
    return finished(tiny)


def test_a_run_folder(whole, tiny):
    assert sorted(p.name for p in whole.iterdir()) == [
        "config.toml", "origin.json", "rounds.jsonl", "scores.jsonl", "splits.json", "state.json", "weights",
    ]  # fmt: skip
    names = sorted(p.name for p in (whole / "weights").iterdir())
    assert names == ["round-0001.safetensors", "round-0003.safetensors", "task-0.safetensors", "task-1.safetensors"]
    folder = RunFolder.open(whole)
    assert folder.config() == tiny
    rounds, scores = folder.records("rounds.jsonl"), folder.records("scores.jsonl")
    assert [r["round"] for r in rounds] == [1, 2, 3, 4]
    assert [(s["round"], s["task"], s["ends_task"], s["view"]) for s in scores] == [
        (r + 1, r // 2, r % 2 == 1, view) for r in range(4) for view in ("published", "full")
    ]
    assert all(s["images"] == 6 for s in scores if s["view"] == "full")
    assert set(scores[-1]["iou"]) == {
        "background",
        *read_model(whole / "weights" / "task-1.safetensors").label_space.names,
    }
    splits = json.loads((whole / "splits.json").read_text())
    assert [round_plan["selected"] for round_plan in splits["rounds"]] == [r["selected"] for r in rounds]
    for r in rounds:
        for reply in r["replies"]:
            held = splits["tasks"][r["task"]]["clients"][str(reply["client"])]
            assert reply["images"] == len(held["images"])
    memories = json.loads((whole / "state.json").read_text())["memories"]
    assert set(memories) == {str(c) for r in rounds for c in r["selected"]}
    last = memories[str(rounds[-1]["selected"][0])]
    assert (last["task"], last["teacher"], last["rate"]) == (1, "task-0", 0.0)


def test_forgetting_looks_back_at_the_ends_of_earlier_tasks(whole):
    scores = [s for s in RunFolder(whole).records("scores.jsonl") if s["view"] == "full"]
    best, now = scores[1]["iou"], scores[-1]["iou"]
    old = [n for n in best if n != "background" and best[n] is not None]
    assert scores[-1]["forgetting"] == pytest.approx(sum(best[n] - now[n] for n in old) / len(old))


def test_any_tasks_weights_rebuild_the_model(whole, tiny):
    for task, sizes in ((0, (7,)), (1, (7, 3))):
        snapshot = read_model(whole / "weights" / f"task-{task}.safetensors")
        assert snapshot.label_space.sizes == sizes
        model = build(tiny.model, snapshot.label_space.sizes, 123)
        model.load(snapshot.weights, snapshot.label_space.sizes)
        assert all(torch.equal(t, snapshot.weights[k]) for k, t in model.weights().items())


def test_the_written_config_repeats_the_run(whole, tmp_path):
    experiment.start(read_toml(whole / "config.toml"), tmp_path / "again", Progress())
    assert result(tmp_path / "again") == result(whole)


def test_another_seed_is_another_run(whole, tiny, finished):
    assert result(finished(replace(tiny, seed=6)))["scores"] != result(whole)["scores"]


@pytest.mark.parametrize("step", [1, 4, 9])
def test_killed_in_training(whole, tiny, tmp_path, step):
    path = tmp_path / "r"
    assert killed(lambda: experiment.start(tiny, path, KillAtStep(step)))
    experiment.resume(path, Progress())
    assert result(path) == result(whole)


@pytest.mark.parametrize("at", range(1, 21))
def test_killed_in_a_write(whole, tiny, tmp_path, at, monkeypatch):
    """Every fsync of the beginning and two rounds: config, splits, origin, weights, folders, logs and state, torn in
    half."""
    path = tmp_path / "r"

    def work():
        die_in_fsync(at, monkeypatch)
        experiment.start(tiny, path, Progress())

    assert killed(work)
    if path.exists():
        experiment.resume(path, Progress())
    else:  # killed before there was anything to go on with
        experiment.start(tiny, path, Progress())
    assert result(path) == result(whole)


def test_killed_twice_and_in_the_middle_of_a_line(whole, tiny, tmp_path):
    path = tmp_path / "r"
    assert killed(lambda: experiment.start(tiny, path, KillAtStep(4)))
    assert killed(lambda: experiment.resume(path, KillAtStep(3)))
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 1, "ta')
    experiment.resume(path, Progress())
    assert result(path) == result(whole)


def test_one_process_at_a_time(tiny, tmp_path):
    folder = RunFolder.create(tmp_path / "r", tiny)
    with folder.locked(), pytest.raises(UserError, match="another process is working in it"):
        experiment.resume(folder.path, Progress())


def test_a_lost_state_is_not_taken_for_a_fresh_start(whole, tmp_path):
    path = copied(whole, tmp_path)
    (path / "state.json").unlink()
    before = {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}
    with pytest.raises(UserError, match=r"state\.json is gone, but rounds were finished"):
        experiment.resume(path, Progress())
    assert before == {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}


def test_a_config_changed_between_rounds_is_refused(tiny, tmp_path):
    assert killed(lambda: experiment.start(tiny, tmp_path / "r", KillAtStep(9)))
    config = tmp_path / "r" / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("later_rate = 0.01", "later_rate = 0.02"))
    with pytest.raises(UserError, match="was changed after the run began"):
        experiment.resume(tmp_path / "r", Progress())
    config.write_text(text.replace("workers = 0", "workers = 1"))  # how it is computed may change
    experiment.resume(tmp_path / "r", Progress())


def test_a_network_that_cannot_be_built_leaves_no_folder(tiny, tmp_path):
    model = replace(tiny.model, options={**tiny.model.options, "decoder_channels": -5})
    with pytest.raises(UserError, match="cannot be built"):
        experiment.start(replace(tiny, model=model), tmp_path / "r", Progress())
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_needs_its_first_weights_no_more(tiny, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "encoder.safetensors"
    save_file(build(tiny.model, [2], 9).encoder.state_dict(), path)
    config = replace(tiny, model=replace(tiny.model, weights=str(path)), world=replace(tiny.world, rounds=1))
    assert killed(lambda: experiment.start(config, tmp_path / "r", KillAtStep(6)))
    path.unlink()
    experiment.resume(tmp_path / "r", Progress())
    assert len(list(rescore(tmp_path / "r", ("full",), Progress()))) == 2


def test_paths_are_kept_absolute(tiny, tmp_path, monkeypatch):
    make_folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    experiment.start(small(tiny, DataSpec("folder", "data"), "2-1"), Path("r"), Progress())
    assert RunFolder(tmp_path / "r").config().data.root == str(tmp_path / "data")


def test_only_the_last_rounds_are_kept(tiny, tmp_path):
    config = replace(tiny, world=replace(tiny.world, rounds=4), keep=1)
    experiment.start(config, tmp_path / "r", Progress())
    names = sorted(p.stem for p in (tmp_path / "r" / "weights").iterdir())
    assert names == ["round-0007", "task-0", "task-1"]


def test_the_start_of_new_classes_reaches_the_model(tiny, tmp_path):
    """From background: before any training the new classes are copies of it."""
    from fiss.federation.boundaries import Calendar
    from fiss.federation.loop import Participants
    from fiss.federation.messages import Announcement, Server
    from fiss.labels import LabelSpace

    weights = build(tiny.model, [3], 0).weights()
    for start, same in (("background", True), ("random", False)):
        calendar = Calendar(replace(tiny.method, start=start), 0, {5: Announcement(1, 1)}, [("a", "b"), ("c",)])
        server, _ = calendar.open_round(Server(LabelSpace((("a", "b"),)), weights), Participants(5, ()), None, None)
        new, first = server.weights["classifier.groups.1.weight"], weights["classifier.groups.0.weight"]
        assert torch.equal(new[0], first[0]) is same
        assert server.before[0] is None
        assert calendar.teacher(server, 3).name == "task-0"
        assert calendar.teacher(server, 3).weights is weights


def test_a_finished_run_resumes_to_itself(whole, tmp_path):
    path = copied(whole, tmp_path)
    experiment.resume(path, Progress())
    assert result(path) == result(whole)


def test_a_base_saves_the_first_task(whole, tiny, finished):
    ours, theirs = RunFolder(finished(replace(tiny, base=str(whole)))), RunFolder(whole)
    assert ours.records("scores.jsonl") == [s for s in theirs.records("scores.jsonl") if s["round"] > 1]
    last = "weights/task-1.safetensors"
    assert (ours.path / last).read_bytes() == (whole / last).read_bytes()
    assert [r["round"] for r in ours.records("rounds.jsonl")] == [3, 4]


def test_a_run_from_a_base_survives_being_killed(whole, tiny, finished, tmp_path, monkeypatch):
    config = replace(tiny, base=str(whole))
    uninterrupted = finished(config)

    def work():
        die_in_fsync(5, monkeypatch)
        experiment.start(config, tmp_path / "r", Progress())

    assert killed(work)
    experiment.resume(tmp_path / "r", Progress())
    assert result(tmp_path / "r") == result(uninterrupted)


def test_a_base_that_does_not_fit(whole, tiny, tmp_path):
    other = replace(tiny.model, options={**tiny.model.options, "decoder_channels": 8})
    for config, says in (
        (replace(tiny, base=str(whole), model=other), "another network"),
        (replace(tiny, base=str(whole), tasks=TaskSpec("3-3")), "its first task is"),
        (replace(tiny, base=str(whole), data=replace(tiny.data, shapes_seed=7)), "other images or labels"),
        (replace(tiny, base=str(tmp_path)), "not a run folder"),
    ):
        with pytest.raises(UserError, match=says):
            experiment.start(config, tmp_path / "r", Progress())
        assert not (tmp_path / "r").exists()


def test_joint_trains_on_everything_for_as_many_steps(whole, tiny, finished):
    joint, federated = RunFolder(finished(replace(tiny, joint=True))), RunFolder(whole)

    def steps(folder):
        return sum(reply["steps"] for r in folder.records("rounds.jsonl") for reply in r["replies"])

    assert steps(joint) == steps(federated)
    last = joint.records("scores.jsonl")[-1]
    assert (last["task"], last["ends_task"], len(last["iou"])) == (0, True, 10)
    assert joint.read_weights("task-0").label_space.sizes == (10,)


@pytest.mark.parametrize("weighting", ["uniform", "images"])
def test_the_order_of_clients_does_not_matter(whole, tiny, finished, weighting, monkeypatch, tmp_path):
    from fiss.simulation.in_process import InProcessEngine

    config = replace(tiny, federation=replace(tiny.federation, weighting=weighting))
    plain = finished(config)
    ask = InProcessEngine.ask
    monkeypatch.setattr(InProcessEngine, "ask", lambda self, orders: ask(self, orders[::-1]))
    experiment.start(config, tmp_path / "reversed", Progress())
    assert result(tmp_path / "reversed") == result(plain)
    a, b = (RunFolder(p).read_weights("task-0").weights["encoder.conv1.weight"] for p in (plain, whole))
    assert torch.equal(a, b) is (weighting == "uniform")


def test_a_client_that_diverges_is_left_out_and_named(tiny, tmp_path, monkeypatch):
    from fiss.simulation import in_process

    answer_order, said = in_process.answer_order, []

    def poisoned(order, *rest):
        reply, memory = answer_order(order, *rest)
        if order.round == 1 and order.client == min(RunFolder(tmp_path / "r").records("rounds.jsonl")[0]["selected"]):
            reply.weights["encoder.conv1.weight"][0] = float("nan")
        return reply, memory

    class Listening(Progress):
        def notice(self, text):
            said.append(text)

    monkeypatch.setattr(in_process, "answer_order", poisoned)
    config = replace(tiny, world=replace(tiny.world, clients=2))
    experiment.start(config, tmp_path / "r", Listening())
    refused = [r["refused"] for r in RunFolder(tmp_path / "r").records("rounds.jsonl")]
    assert [len(r) for r in refused] == [0, 1, 0, 0]
    assert any("refused: encoder.conv1.weight has values that are not finite" in text for text in said)


def test_a_run_whose_every_update_is_refused_stops_and_says_why(tiny, tmp_path, monkeypatch):
    from fiss.simulation import in_process

    answer_order = in_process.answer_order

    def poisoned(order, *rest):
        reply, memory = answer_order(order, *rest)
        reply.weights["encoder.conv1.weight"][0] = float("inf")
        return reply, memory

    monkeypatch.setattr(in_process, "answer_order", poisoned)
    with pytest.raises(UserError, match=r"Every update of this round was refused.*not finite"):
        experiment.start(tiny, tmp_path / "r", Progress())
    assert not RunFolder(tmp_path / "r").finished()


def test_nothing_is_written_over(whole, tiny):
    before = result(whole)
    with pytest.raises(UserError, match="not written over"):
        experiment.start(tiny, whole, Progress())
    assert result(whole) == before


def copied(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copied")


def test_a_damaged_teacher_is_refused(whole, tiny, tmp_path):
    path = tmp_path / "r"
    assert killed(lambda: experiment.start(replace(tiny, method=find("mib")), path, KillAtStep(12)))
    state, model = path / "state.json", path / "weights" / "task-0.safetensors"
    record, good = json.loads(state.read_text()), model.read_bytes()
    assert record["before"] == [None, "task-0"]
    assert "task-0" in record["digests"]
    model.write_bytes(good[:-4] + b"oops")
    with pytest.raises(UserError, match=r"task-0\.safetensors: damaged, its digest"):
        experiment.resume(path, Progress())
    del record["digests"]  # as earlier versions wrote it: the last model's alone, and the teacher by itself
    record |= {"before": [None], "teacher": "task-0"}
    state.write_text(json.dumps(record))
    experiment.resume(path, Progress())


def test_every_model_that_is_kept_is_checked_whenever_it_is_read(whole, tiny, tmp_path):
    path = copied(whole, tmp_path)
    model, state = path / "weights" / "task-0.safetensors", path / "state.json"
    record = json.loads(state.read_text())
    assert record["digests"].keys() == {"round-0001", "round-0003", "task-0", "task-1"}
    data = bytearray(model.read_bytes())
    data[-4] ^= 1
    model.write_bytes(data)
    based = replace(tiny, base=str(path))
    for read in (
        lambda: list(rescore(path, ("full",), Progress())),
        lambda: experiment.start(based, tmp_path / "based", Progress()),
        lambda: Run(path).snapshot(0),
        lambda: Predictor(model, "cpu"),
    ):
        with pytest.raises(UserError, match=r"task-0\.safetensors: damaged, its digest is not the one in state\.json"):
            read()
    assert not (tmp_path / "based").exists()
    Predictor(path, "cpu")
    del record["digests"]  # of a run that ended before they were kept
    state.write_text(json.dumps(record))
    assert len(list(rescore(path, ("full",), Progress()))) == 2
    model.with_name("task-1.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"task-1\.safetensors: damaged"):
        Predictor(path, "cpu")


@pytest.mark.parametrize("name", ["state.json", "rounds.jsonl"])
def test_a_full_disk_is_said_with_the_file_and_the_run_goes_on(whole, tiny, tmp_path, monkeypatch, capsys, name):
    path, fsync = tmp_path / "r", os.fsync
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(to_toml(tiny))

    def full(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").resolve().name in (name, f"{name}.part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    for words in (["run", "tiny.toml", "--out", "r"], ["resume", "r"]):
        monkeypatch.setattr(sys, "argv", ["fiss", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.endswith(
            f"No space left on device: 'r/{name}'. No finished round is lost: make room, then `fiss resume r` goes on."
        )
    monkeypatch.setattr(os, "fsync", fsync)
    experiment.resume(path, Progress())
    assert result(path) == result(whole)


def test_a_log_on_a_full_disk_is_named(tmp_path):
    (tmp_path / "rounds.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*/rounds\.jsonl"):
        RunFolder(tmp_path).append("rounds.jsonl", RoundRecord(round=0, replies=(), seconds=0.0))


def test_damaged_and_foreign_folders(whole, tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        experiment.resume(tmp_path, Progress())
    path = copied(whole, tmp_path)
    model, state = path / "weights" / "task-1.safetensors", path / "state.json"
    good = model.read_bytes()
    for data, says in ((good[:-4] + b"oops", "damaged, its digest"), (good[: len(good) // 2], "damaged")):
        model.write_bytes(data)
        with pytest.raises(UserError, match=says):
            experiment.resume(path, Progress())
    model.unlink()
    with pytest.raises(UserError, match=r"no such model\. This run has: round-0001, round-0003, task-0"):
        experiment.resume(path, Progress())
    model.write_bytes(good)
    written = state.read_text()
    for text, says in (("{", "damaged or foreign"), ("{}", "damaged or foreign"), ('{"format": 99}', "format 99")):
        state.write_text(text)
        with pytest.raises(UserError, match=says):
            experiment.resume(path, Progress())
    state.write_text(written)
    (path / "scores.jsonl").write_text("")
    with pytest.raises(UserError, match="lines of finished rounds are missing"):
        experiment.resume(path, Progress())
    (path / "splits.json").write_text("{}")
    with pytest.raises(UserError, match="are not those this run began with"):
        experiment.resume(path, Progress())


def test_foreign_models(whole, tmp_path, tiny):
    from safetensors.torch import save_file

    path = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="not a model that fiss wrote"):
        read_model(path)
    folder = copied(whole, tmp_path)
    snapshot = read_model(whole / "weights" / "task-0.safetensors")
    RunFolder(folder).write_weights("task-0", snapshot.label_space, {"a": torch.zeros(1)})
    (folder / "state.json").unlink()  # it has the digest of the one before
    with pytest.raises(UserError, match="task-0 does not fit the network"):
        list(rescore(folder, ("full",), Progress()))


def test_scores_can_be_made_again(whole):
    assert tuple(rescore(whole, ("published", "full"), Progress())) == RunFolder(whole).ends()


def test_scores_need_a_finished_task(tiny, tmp_path):
    folder = RunFolder.create(tmp_path / "r", tiny)
    with pytest.raises(UserError, match="no task is finished"):
        list(rescore(folder.path, ("full",), Progress()))


def small(tiny, data, tasks, **world):
    spec = WorldSpec(clients=2, joiners=0, per_round=1, rounds=1, sample_ratio=1.0, single_ratio=1.0, **world)
    return replace(tiny, data=data, tasks=TaskSpec(tasks), world=spec)


@pytest.mark.parametrize(
    ("make", "name", "tasks"),
    [
        (make_voc, "voc", "aeroplane, bicycle; bird, boat"),
        (make_ade, "ade20k", "wall, building; sky"),
        (make_folder, "folder", "2-1"),
    ],
)
def test_data_sets_of_the_genuine_layouts(tiny, tmp_path, make, name, tasks):
    """Images of 40 x 48 with ignored pixels; the network pads them to its divisor."""
    make(tmp_path / "data")
    experiment.start(small(tiny, DataSpec(name, str(tmp_path / "data")), tasks), tmp_path / "r", Progress())
    assert len(RunFolder(tmp_path / "r").records("rounds.jsonl")) == 2


def test_a_data_set_that_changed_is_not_mixed_in(tiny, tmp_path):
    root = make_folder(tmp_path / "data")
    config = small(tiny, DataSpec("folder", str(root)), "2-1")
    assert killed(lambda: experiment.start(config, tmp_path / "r", KillAtStep(1)))
    path = root / "masks" / "p8.png"
    before = path.read_bytes()
    save(path, mask(0, 1))
    with pytest.raises(UserError, match="Restore the data, or start a new run"):
        experiment.resume(tmp_path / "r", Progress())
    path.write_bytes(before)
    experiment.resume(tmp_path / "r", Progress())


def test_bad_data_stops_a_run_before_it_starts(tiny, tmp_path):
    root = make_folder(tmp_path / "data")
    (root / "masks" / "p1.png").unlink()
    with pytest.raises(UserError, match=r"p1\.png: missing mask"):
        experiment.start(small(tiny, DataSpec("folder", str(root)), "2-1"), tmp_path / "r", Progress())
    assert not (tmp_path / "r").exists()


def test_own_labels_hide_the_classes_a_client_did_not_draw(tiny):
    plain = open_scenario(tiny, Progress())
    own = open_scenario(replace(tiny, world=replace(tiny.world, own_labels=True)), Progress())
    key = next(iter(plain.plan.holdings))
    assert plain.site(*key).labelled == plain.tasks.tasks[key[0]]
    assert own.site(*key).labelled == own.plan.holdings[key].classes
    assert len(own.site(*key).labelled) < len(plain.site(*key).labelled)
