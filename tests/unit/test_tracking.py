"""What goes to TensorBoard, MLflow and Weights & Biases."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from command_line import fiss

from fiss.errors import UserError
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.tracking import KINDS, round_values, score_values, tracked
from fiss.simulation import experiment


def test_tensorboard_reads_what_a_run_came_to(tiny, tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    told = []
    listener = type("Listener", (Progress,), {"played": lambda self, record: told.append(record)})()
    with tracked(listener, "tensorboard", tmp_path / "run") as progress:
        run = experiment.start(replace(tiny, world=replace(tiny.world, rounds=1)), tmp_path / "run", progress)
    found = reading.EventAccumulator(str(run.path / "tensorboard"), {"scalars": 0, "tensors": 0}).Reload()
    assert tuple(told) == run.rounds()
    wanted = {}
    for record in run.rounds():
        wanted |= {(name, record.round): value for name, value in round_values(record).items()}
    for record in run.scores():
        wanted |= {(name, record.round): value for name, value in score_values(record).items()}
    seen = {}
    for name in found.Tags()["tensors"]:
        for event in found.Tensors(name):
            seen[name, event.step] = event.tensor_proto.float_val[0]
    assert seen == pytest.approx(wanted, rel=1e-6)
    assert {("published/miou", 1), ("published/iou/disc", 0), ("loss/segmentation", 0)} <= seen.keys()


@pytest.fixture
def played(tiny, finished):
    return RunFolder.open(finished(tiny))


def test_mlflow_and_wandb(played, tmp_path, monkeypatch):
    """Their clients are stood in for: neither is installed here."""
    said = []
    mlflow = SimpleNamespace(
        start_run=lambda run_name: said.append(run_name),
        log_metrics=lambda values, step: said.append((values, step)),
        end_run=lambda: said.append("end"),
    )
    own = SimpleNamespace(log=lambda values: said.append(values), finish=lambda: said.append("end"))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda project, name: said.append(name) or own))
    record, score = played.rounds()[1], replace(played.scores()[0], iou={"a, b": 1.0})
    with tracked(Progress(), "mlflow", tmp_path / "run") as progress:
        progress.played(record)
        progress.scored(score)
    assert said[0] == "run"
    assert said[1] == (round_values(record), 1)
    assert said[2][0]["published/iou/a_ b"] == 1.0
    assert said.pop() == "end"
    said.clear()
    with tracked(Progress(), "wandb", tmp_path / "run") as progress:
        progress.played(record)
    assert said == ["run", round_values(record) | {"round": 1}, "end"]


def test_what_is_not_there(tmp_path, monkeypatch, capsys):
    for kind in KINDS:
        monkeypatch.setitem(sys.modules, "tensorboard.summary" if kind == "tensorboard" else kind, None)
        fiss("run", "shapes", "--track", kind, "--out", tmp_path / "run", code=2)
        assert f"pip install {kind}" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"Unknown tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        tracked(Progress(), "tensorbord", tmp_path).__enter__()
    assert not (tmp_path / "run").exists()
    told = Progress()
    with tracked(told, "", tmp_path) as same:
        assert same is told
