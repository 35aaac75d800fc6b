"""What goes to TensorBoard, MLflow and Weights & Biases."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from command_line import fiss

from fiss.errors import UserError
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.tracking import KINDS, Tracked, round_values, score_values, tracked, tracker
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
    assert {("published/miou", 2), ("published/iou/disc", 1), ("loss/segmentation", 1)} <= seen.keys()


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
    assert said[1] == (round_values(record), record.round)
    assert said[2][0]["published/iou/a_ b"] == 1.0
    assert said.pop() == "end"
    said.clear()
    with tracked(Progress(), "wandb", tmp_path / "run") as progress:
        progress.played(record)
    assert said == ["run", round_values(record) | {"round": record.round}, "end"]


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


class Engine:
    """As much of FLARE's as its receivers ask for, in the server's process of a job."""

    def __init__(self, place, *handlers):
        from nvflare.apis.fl_constant import FLContextKey, ProcessType
        from nvflare.apis.fl_context import FLContextManager

        own = {FLContextKey.PROCESS_TYPE: ProcessType.SERVER_JOB}
        self.contexts = FLContextManager(self, "server", "0123456789", {}, own)
        self.place, self.handlers = place, handlers

    def new_context(self):
        return self.contexts.new_context()

    def get_workspace(self):
        return SimpleNamespace(get_run_dir=lambda job: str(self.place / job))

    def get_clients(self):
        return [SimpleNamespace(name="a")]

    def fire_event(self, event, fl_ctx):
        from nvflare.apis.utils.event import fire_event_to_components

        fire_event_to_components(event, list(self.handlers), fl_ctx)


def of_tensorboard(place):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(place / "run" / "tensorboard" / "server"), {"scalars": 0}).Reload()
    return {(name, one.step): one.value for name in found.Tags()["scalars"] for one in found.Scalars(name)}


def of_mlflow(place):
    client = pytest.importorskip("mlflow").MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("fiss").experiment_id])  # none of a site
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {(name, one.step): one.value for name, values in histories.items() for one in values}


def of_wandb(place):
    lines = [json.loads(line) for line in (place / "wandb.jsonl").read_text().splitlines()]
    return {(name, step): value for values, step in lines for name, value in values.items()}


def wandb_at(place):
    """Stands in for Weights & Biases, which is not installed; FLARE's receiver calls it from a process of its own."""

    def log(values, step):
        with (place / "wandb.jsonl").open("a") as file:
            file.write(json.dumps([values, step]) + "\n")

    def init(project, name, dir, mode, **also):
        assert (project, dir, mode) == ("fiss", str(place), "offline")
        assert name.startswith("server-")  # none of a site
        return SimpleNamespace(finish=lambda: None)

    return SimpleNamespace(init=init, log=log)


@pytest.mark.parametrize(
    ("kind", "read"), [("tensorboard", of_tensorboard), ("mlflow", of_mlflow), ("wandb", of_wandb)]
)
def test_flares_receivers_write_what_they_hear(played, tmp_path, monkeypatch, kind, read):
    """Each as a job has it, without a network; MLflow where it is installed."""
    tracking = pytest.importorskip("fiss.flare.tracking")
    monkeypatch.delitem(sys.modules, "nvflare.app_opt.tracking.wandb.wandb_receiver", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb_at(tmp_path))
    pytest.importorskip(kind)
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_component import FLComponent

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = tracking.Tracker(**tracker(kind, tmp_path / "run", "hospitals"))
    engine = Engine(tmp_path, made)
    engine.fire_event(EventType.START_RUN, engine.new_context())
    wanted = {}
    with closing(tracking.Analytics(FLComponent(), engine.new_context())) as analytics:
        progress = Tracked(Progress(), analytics)
        for record in played.rounds():
            score = replace(played.scores()[0], round=record.round, iou={"a, b": 0.5})
            progress.played(record)
            progress.scored(score)
            wanted |= {(name, record.round): value for name, value in round_values(record).items()}
            wanted |= {(name, record.round): value for name, value in score_values(score).items()}
    engine.fire_event(EventType.END_RUN, engine.new_context())
    assert ("published/iou/a_ b", 1) in wanted
    assert read(tmp_path) == pytest.approx(wanted, rel=1e-6)
