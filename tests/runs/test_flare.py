"""The same experiment on NVIDIA FLARE's simulator: real processes on this machine, the same bits."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from killing import result
from worlds import TINY_TRANSFORMER

from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.messages import Announcement, Memory, Order, Probe, ProbeResult, Reply, Snapshot
from fiss.flare import job
from fiss.labels import LabelSpace
from fiss.methods import find
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation import on_flare

SPACE = LabelSpace(((), ("a", "b"), ("c",)))
WEIGHTS = {"x": torch.randn(2, 3), "count": torch.tensor(7), "half": torch.randn(3).to(torch.float16)}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(t, b[k]) and t.dtype == b[k].dtype for k, t in a.items())


def test_messages_travel_as_text_and_arrays():
    memory = Memory(1, 0.01, 4, "after-0003", 3, 2, 99, {"entropy": 0.5, "called": [0.5, 0.5]}, {"last": 0.4})
    probe, back = wire.to_probe(wire.from_probe(Probe(3, 5, SPACE, WEIGHTS), memory))
    assert (probe.client, probe.round, probe.label_space, back) == (3, 5, SPACE, memory)
    assert same(probe.weights, WEIGHTS)
    for probe_result in (ProbeResult(1), ProbeResult(2, ("c", "d"), True, 2)):
        assert wire.to_probe_result(wire.from_probe_result(probe_result)) == (probe_result, None)
    reply = Reply(4, 10, WEIGHTS, 5, 50, {"ce": 0.25}, {"pseudo_labels": [{"epoch": 0}]}, True)
    again, _ = wire.to_reply(wire.from_reply(reply))
    assert replace(again, weights={}) == replace(reply, weights={})
    assert same(again.weights, WEIGHTS)


@pytest.mark.parametrize("transfer", ["bfloat16", "float16"])
def test_shorter_types_halve_what_travels(transfer):
    weights = {"x": torch.randn(2, 3), "count": torch.tensor(7), "tiny": torch.tensor([1e-3, -2.5])}
    teacher = Snapshot("task-0", SPACE, weights)
    order, _ = wire.to_order(wire.from_order(Order(1, 2, SPACE, weights, teacher), transfer=transfer), {})
    probe, _ = wire.to_probe(wire.from_probe(Probe(1, 2, SPACE, weights), transfer=transfer))
    message = wire.from_reply(Reply(1, 2, weights), transfer=transfer)
    assert sum(array.nbytes for array in message.arrays.values()) == 2 * 8 + 8
    came = wire.to_reply(message)[0].weights
    for got in (order.weights, order.teacher.weights, probe.weights, came, wire.rounded(weights, transfer)):
        assert same(got, {k: t.to(wire.SHORT[transfer]).float() if t.dim() else t for k, t in weights.items()})
    assert wire.rounded(weights, "float32")["x"] is weights["x"]


@pytest.mark.network
@pytest.mark.parametrize("transfer", ["bfloat16", "float16"])
def test_in_one_process_weights_are_rounded_as_on_the_way(tiny, finished, tmp_path, transfer):
    pytest.importorskip("nvflare")
    config = replace(tiny, method=find("fbl"), federation=replace(tiny.federation, transfer=transfer))
    rounded, full = finished(config), finished(replace(tiny, method=find("fbl")))
    if transfer == "bfloat16":
        on_flare.simulate(config, tmp_path / "flare", 2, Progress())
        assert result(tmp_path / "flare") == result(rounded)
    a, b = (RunFolder(path).read_weights("task-1").weights for path in (rounded, full))
    assert not torch.equal(a["encoder.conv1.weight"], b["encoder.conv1.weight"])
    torch.testing.assert_close(a["encoder.conv1.weight"], b["encoder.conv1.weight"], rtol=0.05, atol=0.02)


def test_a_teacher_is_sent_once():
    teacher = Snapshot("task-0", LabelSpace((("a",),)), {"x": torch.ones(2)})
    order = Order(1, 2, SPACE, WEIGHTS, teacher, Announcement(1, 3))
    message = wire.from_order(order, with_teacher=False)
    assert not any(name.startswith("teacher/") for name in message.arrays)
    known = {}
    with pytest.raises(UserError, match="task-0 was not sent"):
        wire.to_order(message, known)
    first, _ = wire.to_order(wire.from_order(order), known)
    again, _ = wire.to_order(message, known)
    assert again.teacher is first.teacher
    assert (again.announced, again.label_space) == (order.announced, SPACE)
    assert wire.to_order(wire.from_order(replace(order, teacher=None, announced=None)), known)[0].teacher is None


@pytest.mark.parametrize("transfer", ["float32", "bfloat16"])
def test_an_order_sends_only_what_the_probe_did_not(transfer):
    grown = {**WEIGHTS, "new": torch.ones(3), "count": torch.tensor(8)}
    probe, _ = wire.to_probe(wire.from_probe(Probe(1, 2, SPACE, WEIGHTS), transfer=transfer))
    message = wire.from_order(Order(1, 2, SPACE, grown, None), transfer=transfer, there=WEIGHTS)
    assert {name.split("/")[-1] for name in message.arrays} == {"new", "count"}
    order, _ = wire.to_order(message, {}, probe.weights)
    assert same(order.weights, wire.rounded(grown, transfer))
    with pytest.raises(UserError, match="was not given"):
        wire.to_order(message, {})


def test_nothing_but_text_and_arrays():
    for message in (wire.from_order(Order(1, 2, SPACE, WEIGHTS, None)), wire.from_reply(Reply(4, 10, WEIGHTS))):
        json.loads(message.text)
        assert all(type(array) is np.ndarray and array.dtype != object for array in message.arrays.values())
    with pytest.raises(UserError, match="kind order, got reply"):
        wire.to_order(wire.from_reply(Reply(4, 10)), {})


@pytest.mark.network
@pytest.mark.parametrize(("told", "method"), [(True, "fbl"), (False, "fbl"), (True, "analytic")])
def test_the_same_bits_as_in_one_process(tiny, finished, tmp_path, told, method):
    pytest.importorskip("nvflare")
    config = replace(tiny, method=find(method))
    if method == "analytic":
        config = replace(config, model=TINY_TRANSFORMER)
    if not told:
        world = replace(tiny.world, lag=1, clients=4)
        config = replace(config, world=world, monitor=MonitorSpec("misfit", probed="all"))
    plain, scores = finished(config), []

    class Hears(Progress):
        def scored(self, record):
            scores.append(record.round)

    on_flare.simulate(config, tmp_path / "flare", 2, Hears())
    assert result(tmp_path / "flare") == result(plain)
    assert len(scores) == len(RunFolder(plain).records("scores.jsonl"))


@pytest.mark.network
def test_a_run_on_flare_that_fails_says_so_and_goes_on(tiny, finished, tmp_path, monkeypatch):
    pytest.importorskip("nvflare")
    whole = finished(tiny)
    real = on_flare._follow

    def stopped(process, out, progress):
        while not (out / "state.json").is_file():
            if process.poll() is not None:
                return
        process.kill()
        real(process, out, progress)

    monkeypatch.setattr(on_flare, "_follow", stopped)
    with pytest.raises(UserError, match="Give the same command again"):
        on_flare.simulate(tiny, tmp_path / "r", 1, Progress())
    assert (tmp_path / "r.flare.log").is_file()
    monkeypatch.setattr(on_flare, "_follow", real)
    on_flare.simulate(tiny, tmp_path / "r", 1, Progress())
    assert result(tmp_path / "r") == result(whole)
    with pytest.raises(UserError, match="other settings"):  # and another run is not taken for this one
        on_flare.simulate(replace(tiny, seed=6), tmp_path / "r", 1, Progress())


def test_one_gpu_per_site_where_there_are_several():
    assert on_flare._at_once(4, 0) == on_flare._at_once(4, 1) == ["-t", "4"]
    assert on_flare._at_once(4, 3) == ["-gpu", "0,1,2"]
    assert on_flare._at_once(2, 8) == ["-gpu", "0,1"]


def test_what_is_wrong_is_said_before_anything_starts(tiny, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="No VOC 2012"):
        on_flare.simulate(
            replace(tiny, data=replace(tiny.data, name="voc", root=str(tmp_path))), tmp_path / "r", 1, Progress()
        )
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fiss\[flare\]'"):
        on_flare.simulate(tiny, tmp_path / "r", 1, Progress())
    assert not (tmp_path / "r").exists()
