"""Whole runs of the method that adds up features."""

import json
import shutil
from dataclasses import replace

import federated
import numpy as np
import pytest
import torch
from federated import Carried, drop, final, site_client
from killing import KillAtStep, killed, result
from PIL import Image
from worlds import TINY_TRANSFORMER

from fiss.config import presets
from fiss.config.config import from_toml, to_toml
from fiss.deployment import server
from fiss.errors import UserError
from fiss.labels import LabelSpace
from fiss.methods import find
from fiss.methods.analytic import Analytic
from fiss.predict.predictor import Predictor
from fiss.progress import Progress
from fiss.rng import address
from fiss.runs.folder import RunFolder
from fiss.runs.run import Run
from fiss.runs.scoring import rescore
from fiss.simulation import experiment, in_process
from fiss.simulation.sweep import plan
from fiss.statistics.features import FeatureSpec, FixedLayers, draw_layers, feature_map, named_maps
from fiss.statistics.head import head_of
from fiss.training.trainer import build_network


@pytest.fixture
def told(tiny):
    return replace(tiny, method=find("analytic"), evaluation=replace(tiny.evaluation, views=("published",)))


def whole(path):
    """With the sums, to the bit."""
    return result(path) | {p.name: p.read_bytes() for p in path.glob("ledger-*")}


def test_after_the_first_task_nothing_is_trained(told, finished):
    folder = RunFolder(finished(told))
    rounds, state = folder.rounds(), json.loads((folder.path / "state.json").read_text())
    trained = [[bool(reply.losses) for reply in record.replies] for record in rounds]
    assert trained[0] == [True, True]
    assert trained[1][:2] == [True, True]
    assert not any(sum(trained[2:], [False, *trained[1][2:]]))
    took_part = {client for record in rounds[:2] for client in record.selected}
    assert [reply.client for reply in rounds[1].replies[2:]] == sorted(took_part) == state["collected"]["took_part"]
    first, last = (folder.read_weights(f"task-{task}").weights for task in (0, 1))
    assert [len(weights["head.weight"]) for weights in (first, last)] == [7, 10]
    for name, tensor in first.items():
        assert name.startswith(("classifier", "head")) or torch.equal(tensor, last[name]), name
    assert [p.name for p in folder.path.glob("ledger-*")] == [state["collected"]["ledger"]]
    model = Run(folder.path).model()
    assert model(torch.zeros(1, 3, 32, 32)).logits_BCHW.shape == (1, 10, 32, 32)
    assert tuple(rescore(folder.path, ("published",), Progress())) == folder.ends()
    assert Predictor(Run(folder.path))(np.zeros((40, 50, 3), np.uint8)).mask.shape == (40, 50)
    assert presets.exact_label(folder.config()) == "analytic"
    assert from_toml(to_toml(told)) == told


def test_killed_and_resumed_to_the_same_bits(told, finished, tmp_path):
    counter = KillAtStep(10**9)
    experiment.start(told, tmp_path / "counted", counter)
    steps = 10**9 - counter.left
    assert steps == experiment.open_scenario(told, Progress()).steps()
    for part in (0.3, 0.6, 0.8, 1.0):
        path = tmp_path / str(part)
        assert killed(lambda path=path, at=int(steps * part): experiment.start(told, path, KillAtStep(at)))
        experiment.resume(path, Progress())
        assert whole(path) == whole(finished(told))


def test_a_frozen_transformer_as_trunk(told, finished, tmp_path):
    config = replace(told, model=TINY_TRANSFORMER, method=Analytic(trunk="pretrained"))
    folder = RunFolder(finished(config))
    assert not any(reply.losses for record in folder.rounds() for reply in record.replies)
    own, last = build_network(config, LabelSpace(((),))).weights(), folder.read_weights("task-1").weights
    assert all(torch.equal(tensor, last[name]) for name, tensor in own.items() if name.startswith("encoder"))
    assert last["head.weight"].shape == (10, 2 * 64)
    assert Predictor(Run(folder.path))(np.zeros((40, 50, 3), np.uint8)).mask.shape == (40, 50)
    assert folder.ends()[-1].miou > 5
    assert from_toml(to_toml(config)) == config
    assert killed(lambda: experiment.start(config, tmp_path / "r", KillAtStep(9)))
    experiment.resume(tmp_path / "r", Progress())
    assert whole(tmp_path / "r") == whole(finished(config))


def test_a_damaged_ledger_is_refused(told, finished, tmp_path):
    folder = shutil.copytree(finished(told), tmp_path / "r")
    (path,) = folder.glob("ledger-*")
    path.write_bytes(path.read_bytes()[:-4] + b"oops")
    with pytest.raises(UserError, match="damaged, its digest"):
        experiment.resume(folder, Progress())
    path.unlink()
    with pytest.raises(UserError, match="missing, damaged or no ledger"):
        experiment.resume(folder, Progress())


def test_the_trunk_of_a_base_is_taken_over(told, tiny, finished, tmp_path):
    plain = replace(tiny, evaluation=told.evaluation)
    config = replace(told, base=str(finished(plain)))
    experiment.start(config, tmp_path / "r", Progress())
    own, alone = RunFolder(tmp_path / "r"), RunFolder(finished(told))
    assert own.ends() == alone.ends()
    a, b = (folder.read_weights("task-1").weights for folder in (own, alone))
    assert all(torch.equal(a[name], b[name]) for name in b)
    nothing = replace(config, method=Analytic(trunk="pretrained"))
    with pytest.raises(UserError, match="no first task to take over"):
        experiment.start(nothing, tmp_path / "n", Progress())
    jobs = plan(tiny, ["finetune", "analytic"], [1], tmp_path / "sweep", False)
    assert [job.base is not None for job in jobs] == [False, True]


def test_the_untrained_encoder_beside_the_trained_one(told, tiny, finished, tmp_path):
    maps = ("decoder", "stage-1", "pretrained/stages")
    config = replace(told, method=Analytic(maps=maps), base=str(finished(replace(tiny, evaluation=told.evaluation))))
    folder = experiment.start(config, tmp_path / "r", Progress())
    last, first = folder.read_weights("task-1").weights, build_network(config, LabelSpace(((),))).weights()
    kept = {name: tensor for name, tensor in last.items() if name.startswith("pretrained.")}
    assert kept
    for name, tensor in kept.items():
        assert torch.equal(tensor, first[f"encoder.{name.removeprefix('pretrained.')}"]), name
    model, image = Run(folder.path).model(), torch.randn(1, 3, 32, 32)
    assert model.head.spec.maps == ("decoder", "stage-1", "pretrained/stage1", "pretrained/stage2")
    with torch.no_grad():
        found = named_maps(*model.trunk(image), pretrained=True)
        before = build_network(config, LabelSpace(((),))).eval()
        torch.testing.assert_close(found["pretrained/stage1"], before.trunk(image)[2][0])
        torch.testing.assert_close(found["stage-1"], model.trunk(image)[2][1])
        torch.testing.assert_close(found["pretrained/encoder"], before.trunk(image)[1])
    assert not torch.equal(found["stage-1"], found["pretrained/stage-1"])
    widths = [found[name].shape[1] for name in model.head.spec.maps]
    assert model.head.features == last["head.weight"].shape[1] == sum(widths)
    assert model(image).logits_BCHW.shape == (1, 10, 32, 32)


def test_another_split_of_the_same_images_gives_the_same_predictions(told, tmp_path, monkeypatch):
    """Every image counts once, at one client or at another, and each client is asked in every round."""
    world = replace(told.world, clients=2, joiners=0, per_round=2)
    config = replace(told, world=world, method=Analytic(trunk="pretrained"))
    site, models = experiment.Scenario.site, []
    for name, shares in (("a", (0, 2)), ("b", (1, 3))):

        def shared(scenario, round_, client, shares=shares):
            task = scenario.plan.round_plans[round_].task
            own = site(scenario, round_, min(c for c in range(2) if (task, c) in scenario.plan.holdings))
            pairs = list(zip(own.images, own.held, strict=True))
            cut = len(pairs) * (1 + shares[0]) // 5
            part = pairs[:cut] if client == 0 else pairs[cut:]
            return replace(own, images=tuple(i for i, _ in part), held=tuple(h for _, h in part))

        monkeypatch.setattr(experiment.Scenario, "site", shared)
        experiment.start(config, tmp_path / name, Progress())
        models.append(Run(tmp_path / name).model())
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = (model(images).logits_BCHW.max(1).indices for model in models)
    assert len(a.unique()) > 1
    assert (a == b).float().mean() >= 0.999


def test_a_client_that_sends_nonsense_is_left_out_and_named(told, tmp_path, monkeypatch):
    answer_order, said = in_process.answer_order, []

    def poisoned(order, *rest):
        reply, memory = answer_order(order, *rest)
        if order.heard is not None and order.client == 0 and reply.contribution is not None:
            sums = reply.contribution.sums
            sums = replace(sums, triangle_T=-sums.triangle_T)
            reply = replace(reply, contribution=replace(reply.contribution, sums=sums))
        return reply, memory

    class Listening(Progress):
        def notice(self, text):
            said.append(text)

    monkeypatch.setattr(in_process, "answer_order", poisoned)
    experiment.start(told, tmp_path / "r", Listening())
    refused = [record.refused for record in RunFolder(tmp_path / "r").rounds()]
    assert {"0"} == {client for one in refused for client in one}
    assert any("client 0 was refused" in text for text in said)


def test_where_nothing_is_announced(untold, tmp_path):
    method = Analytic(trunk_rounds=2, random=40, projection=24)
    config = replace(untold, method=method, evaluation=replace(untold.evaluation, views=("full",)))
    experiment.start(config, tmp_path / "whole", Progress())
    folder = RunFolder(tmp_path / "whole")
    rounds = folder.rounds()
    assert all(not reply.losses for record in rounds[2:] for reply in record.replies)
    assert sum(reply.report.get("counted", 0) for record in rounds for reply in record.replies) > 0
    assert final(Run(tmp_path / "whole").folder).weights["head.weight"].shape == (rounds[-1].classes + 1, 24)
    model, image = Run(tmp_path / "whole").model(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        found = head_of(model).map(*model.trunk(image), image.shape[2:])
        plain = feature_map(named_maps(*model.trunk(image)), FeatureSpec(("decoder", "stages")), FixedLayers(), (8, 8))
    layers = draw_layers(method.collection.features, plain.shape[1], address(config.seed, "wire"))
    hidden = (plain.permute(0, 2, 3, 1) @ layers.random_DK).relu() @ layers.projection_KP
    torch.testing.assert_close(found.permute(0, 2, 3, 1), hidden)
    assert killed(lambda: experiment.start(config, tmp_path / "r", KillAtStep(12)))
    experiment.resume(tmp_path / "r", Progress())
    assert whole(tmp_path / "r") == whole(tmp_path / "whole")


def test_in_a_real_federation(tmp_path):
    """Through the wire: sites report what is new, a changed mask replaces, and a server that goes on is the same. The
    frozen trunk goes to each site once."""
    flare = pytest.importorskip("fiss.flare.engines")
    settings = replace(federated.config(), method=Analytic(trunk_rounds=1))
    names, carried = dict(enumerate("ab")), []

    def play(folder, until, clients):
        run = server.open_run(settings, folder)
        carried.append(Carried({names[n]: client for n, client in clients.items()}))
        server.run_rounds(run, flare.FlareEngine(carried[-1], names, settings.federation), names, until, Progress())
        return run

    for n, name in names.items():
        drop(tmp_path / name, range(6 * n, 6 * n + 6), (1, 2, 3))
    clients = {n: site_client(tmp_path, settings, name) for n, name in names.items()}
    counted = []
    run = play(tmp_path / "run", 2, clients)
    drop(tmp_path / "a", range(24, 30), (4, 5))
    play(tmp_path / "run", 3, clients)
    mask = tmp_path / "b" / "masks" / "scan007.png"
    Image.fromarray(np.where(np.arange(32) < 4, 255, np.asarray(Image.open(mask))).astype(np.uint8)).save(mask)
    run = play(tmp_path / "run", 4, clients)
    for record in run.rounds():
        counted.append({r.client: r.report["counted"] for r in record.replies if "counted" in r.report})
    assert counted == [{"a": 6, "b": 6}, {"a": 0, "b": 0}, {"a": 6, "b": 0}, {"a": 0, "b": 6}]
    ledger = run.restore().server.collected.ledger
    assert sorted(ledger.contributions) == ["00000/00000", "00000/00002", "00001/00000"]
    assert ledger.contributions["00001/00000"].images == 6
    assert final(run).weights["head.weight"].shape[0] == 6
    whole, sent = len(final(run).weights), [[len(message.arrays) for message in one.messages] for one in carried]
    grown, nothing, trunk, solved = [2, 2], [0, 0], [whole - 2] * 2, [2, 2]
    probed = [whole - 4] * 2 + grown  # a second time with the classes that the first one found
    assert sent[0] == probed + nothing + trunk + solved + nothing
    assert sent[1] == trunk + grown  # another job, whose engine knows of nothing
    assert sorted(carried[0].messages[8].arrays) == ["model/head.bias", "model/head.weight"]
    carried[0].site_clients["a"].model = None
    with pytest.raises(UserError, match=r"was not given \(\d+ tensors\)"):
        carried[0].site_clients["a"](carried[0].messages[-1])
