"""Privacy filters of a site: what leaves it with each of them, and with one that does not apply."""

import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federated import Local, config, final, site_client, stage

from fiss.config.config import to_toml
from fiss.deployment import provisioning
from fiss.deployment.server import open_run, run_rounds
from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.messages import Reply
from fiss.flare.job import DEPLOYMENT, TASK
from fiss.methods.analytic import Analytic
from fiss.progress import Progress

pytest.importorskip("nvflare")
from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.apis.workspace import Workspace
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.utils import fobs
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.client.client_engine_executor_spec import TaskAssignment
from nvflare.private.fed.client.client_runner import ClientRunner, ClientRunnerConfig, TaskRouter

from fiss.flare.engines import FlareEngine
from fiss.flare.filters import to_message, to_shareable
from fiss.flare.transport import FissExecutor, Transport

numpy_decomposers.register()  # as FLARE's processes do
FLARE = "nvflare.app_common.filters"
PERCENTILE = {"path": f"{FLARE}.PercentilePrivacy", "args": {"percentile": 50, "gamma": 0.001}}
SVT = {"path": f"{FLARE}.SVTPrivacy", "args": {"fraction": 0.5, "epsilon": 1e6, "gamma": 0.001, "tau": 1e-6}}
EXCLUDE = {"path": f"{FLARE}.ExcludeVars", "args": {"exclude_vars": "classifier"}}


class FlareSite:
    """FLARE's own runner of a site's job, with our executor and the filters of the kit's privacy.json."""

    def __init__(self, kit, settings, of_job=()):
        for name in ("startup", "local"):
            (kit / name).mkdir(parents=True, exist_ok=True)
        manager = create_privacy_manager(Workspace(str(kit), "a"), names_only=False)
        self.executor = FissExecutor(DEPLOYMENT.site, {"config": to_toml(settings)})
        router = TaskRouter()
        router.add_executor([TASK], self.executor)
        table = {TASK + FilterKey.DELIMITER + FilterKey.OUT: list(of_job)}
        engine = SimpleNamespace(
            register_aux_message_handler=lambda **_: None,
            fire_event=lambda event, fl_ctx: fire_event_to_components(event, [self.executor], fl_ctx),
        )
        self.runner = ClientRunner({}, ClientRunnerConfig(router, {}, table), "job", engine)
        self.props = {
            ReservedKey.ENGINE: engine,
            ReservedKey.RUN_NUM: "job",
            FLContextKey.RUNNER: self.runner,
            FLContextKey.WORKSPACE_ROOT: str(kit),
            FLContextKey.SCOPE_OBJECT: manager.default_scope,
        }

    def __call__(self, message):
        """What leaves, read from the bytes that it leaves as."""
        fl_ctx, peer = FLContext(), FLContext()
        peer.set_prop(ReservedKey.RUN_NUM, "job", private=True)
        fl_ctx.set_peer_context(peer)
        for key, value in self.props.items():
            fl_ctx.set_prop(key, value, private=True)
        data = fobs.loads(fobs.dumps(to_shareable(message)))
        return fobs.loads(fobs.dumps(self.runner._process_task(TaskAssignment(TASK, "1", data), fl_ctx)))


class InOneProcess:
    """A controller whose sites are here; what left them is kept."""

    def __init__(self, sites):
        self.sites, self.left = sites, []

    def broadcast(self, task, fl_ctx, targets, min_responses):
        (site,) = targets
        result = self.sites[site](to_message(task.data))
        self.left.append(result)
        task.result_received_cb(
            client_task=SimpleNamespace(client=SimpleNamespace(name=site), result=result), fl_ctx=None
        )

    def cancel_task(self, task):
        pass


def kit_of(root, name, filters=None, **chains):
    kit = root / "kits" / name
    (kit / "local").mkdir(parents=True)
    (kit / "site.toml").write_text(f'data = "{root / name}"\ndevice = "cpu"\nworkers = 0\n')
    if filters is not None or chains:
        scope = {"name": "site", "task_result_filters": filters or [], **chains}
        text = json.dumps({"scopes": [scope], "default_scope": "site"})
        (kit / "local" / "privacy.json").write_text(text)
    return kit


def federation(root, settings, sites, rounds=1):
    """Rounds with those sites: the run, what left them, and who did not answer."""
    controller = InOneProcess(sites)
    names = dict(enumerate(sites))
    transport = Transport(controller, None, SimpleNamespace(triggered=False), list(sites))
    engine = FlareEngine(transport, names, settings.federation)
    run = open_run(settings, root / "run")
    run_rounds(run, engine, names, rounds, Progress())
    return run, controller.left, engine.missing


def weights_left(left):
    """The floating-point arrays of each reply, and its kind."""
    return [from_shareable(data) for data in left if "DXO" in data]


def plain(root, settings, rounds=1):
    """The same site without FLARE: each reply as it is."""
    replies = []

    class Kept(Local):
        def ask(self, orders):
            for order in orders:
                reply = next(super().ask([order]))
                replies.append((order, reply))
                yield reply

    engine = Kept({0: site_client(root, settings)})
    run = open_run(settings, root / "run")
    run_rounds(run, engine, {0: "a"}, rounds, Progress())
    return run, replies


@pytest.fixture
def reference(tmp_path):
    """What the site gives when nobody filters."""
    root = tmp_path / "plain"
    stage(root, 0, ("a",))
    return plain(root, config(), 2)


def filtered(root, filters, settings=None, of_job=(), rounds=1, **chains):
    settings = settings or config()
    stage(root, 0, ("a",))
    return federation(root, settings, {"a": FlareSite(kit_of(root, "a", filters, **chains), settings, of_job)}, rounds)


def test_without_filters_weights_travel_as_they_are(tmp_path, reference):
    run, left, missing = filtered(tmp_path, None, rounds=2)
    assert not missing
    sent = weights_left(left)
    assert [dxo.data_kind for dxo in sent] == ["WEIGHTS", "WEIGHTS"]
    assert all(array.dtype == np.float32 for array in sent[0].data.values())
    assert all(array.dtype == np.int64 for data in left for array in data["arrays"].values())
    expected = final(reference[0]).weights
    assert expected.keys() == final(run).weights.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in final(run).weights.items())


@pytest.mark.parametrize("transfer", ["float32", "bfloat16"])
@pytest.mark.parametrize("where", ["site", "job"])
def test_percentile_privacy_cuts_and_clips_what_leaves(tmp_path, transfer, where):
    from nvflare.app_common.filters import PercentilePrivacy

    of_job = [PercentilePrivacy(**PERCENTILE["args"])] if where == "job" else []
    settings = config(transfer=transfer)
    _, left, missing = filtered(tmp_path, [PERCENTILE] if where == "site" else None, settings, of_job)
    assert not missing
    (sent,) = weights_left(left)
    steps = json.loads(left[-1]["text"])["steps"]
    whole = np.concatenate([array.ravel() for array in sent.data.values()])
    assert (sent.data_kind, sent.get_filter_history()) == ("WEIGHT_DIFF", ["PercentilePrivacy"])
    assert steps > 0
    assert np.abs(whole).max() <= 0.001 * steps * 1.0001
    assert 0.4 < (whole == 0).mean() < 0.75
    assert {array.dtype for array in left[-1]["arrays"].values()} == {np.dtype(np.int64)}


def test_the_server_adds_the_difference_to_what_it_sent(tmp_path, reference):
    run, left, _ = filtered(tmp_path, [PERCENTILE])
    order, reply = reference[1][0]
    (sent,) = weights_left(left)
    reached = final(run).weights
    for name, tensor in order.weights.items():
        if tensor.is_floating_point():
            change = torch.from_numpy(sent.data[f"model/{name}"])
            whole = reply.weights[name] - tensor
            assert torch.equal(reached[name], tensor + change.reshape(tensor.shape)), name
            assert (change.abs() <= whole.abs() + 1e-6).all()
        else:
            assert torch.equal(reached[name], reply.weights[name])


def test_svt_privacy_sends_a_noisy_part(tmp_path):
    run, left, missing = filtered(tmp_path, [SVT])
    assert not missing
    (sent,) = weights_left(left)
    assert sent.get_filter_history() == ["SVTPrivacy"]
    whole = np.concatenate([array.ravel() for array in sent.data.values()])
    assert 0.3 < (whole == 0).mean() < 0.75  # half of them drawn, some twice
    assert all((t >= 0).all() for name, t in final(run).weights.items() if name.endswith("running_var"))
    assert not run.records("rounds.jsonl")[-1]["refused"]


def test_excluded_weights_do_not_leave_and_stay_as_they_were(tmp_path, reference):
    run, left, _ = filtered(tmp_path, [EXCLUDE])
    (sent,) = weights_left(left)
    order, reply = reference[1][0]
    assert sent.data
    assert not any("classifier" in name for name in sent.data)
    reached = final(run).weights
    for name, tensor in order.weights.items():
        if "classifier" in name:
            assert torch.equal(reached[name], tensor)
            assert not torch.equal(reply.weights[name], tensor)
        else:
            torch.testing.assert_close(reached[name], reply.weights[name])


class Silent(Filter):
    """Of no kind that leaves a trace."""

    def process(self, shareable, fl_ctx):
        return shareable


class Halving(DXOFilter):
    """Whose result the server cannot add up."""

    def __init__(self, dtype, algorithm=None):
        super().__init__([], [])
        self.dtype, self.algorithm = dtype, algorithm

    def process_dxo(self, dxo, shareable, fl_ctx):
        data = {name: array.astype(self.dtype) for name, array in dxo.data.items()}
        return DXO(dxo.data_kind, data, {**dxo.meta, "PROCESSED_ALGORITHM": self.algorithm})


def path(module, **args):
    return {"path": f"{FLARE}.{module}", "args": args}


IDLE = {
    "of other data": (path("statistics_privacy_filter.StatisticsPrivacyFilter", result_cleanser_ids=[]), "acted on"),
    "of weights as they are": (path("PercentilePrivacy", data_kinds=["WEIGHTS"]), "acted on"),
    "into a difference": (path("convert_weights.ConvertWeights", direction="weights_to_diff"), "acted on"),
    "switched off": (path("PercentilePrivacy", gamma=0), "acted on"),
    "a gate": (path("dxo_blocker.DXOBlocker", data_kinds=["WEIGHTS"]), "acted on"),
    "of no name": (path("ExcludeVars"), "acted on"),
    "of a wrong name": (path("ExcludeVars", exclude_vars=["classifier"]), "no weights are called"),
    "of a wrong pattern": (path("ExcludeVars", exclude_vars="^encoder"), "no weights are called"),
    "the other way": ({**PERCENTILE, "direction": "in"}, "only filters on task results"),
}


def refuses(root, caplog, says, *what, **chains):
    """No weights leave, the site's log says why, and the server hears that there is no answer."""
    with caplog.at_level(logging.ERROR):
        _, left, missing = filtered(root, *what, **chains)
    assert says in caplog.text
    assert "its log says why" in missing[0]
    assert not any("DXO" in data or data.get("arrays") for data in left)
    assert all(json.loads(data["text"])["kind"] == "probe_result" for data in left if "text" in data)


@pytest.mark.parametrize("how", IDLE)
def test_weights_on_which_a_filter_does_not_act_do_not_leave(tmp_path, caplog, how):
    """Though another one does."""
    idle, says = IDLE[how]
    refuses(tmp_path, caplog, says, [PERCENTILE, idle])


@pytest.mark.parametrize(
    ("of_job", "says"),
    [
        (Silent(), "acted on"),
        (Halving(np.float16), "cannot read"),
        (Halving(np.float32, "blockwise8"), "cannot read"),
    ],
)
def test_what_nobody_can_vouch_for_or_read_does_not_leave(tmp_path, caplog, of_job, says):
    refuses(tmp_path, caplog, says, None, None, [of_job])


def test_sums_do_not_leave_a_site_with_filters(tmp_path, caplog):
    """They are no weights; without filters they do leave."""
    by_sums = replace(config(), method=Analytic(trunk="pretrained"))
    refuses(tmp_path / "filters", caplog, "The sums are not sent", [PERCENTILE], by_sums)
    _, left, missing = filtered(tmp_path / "none", None, by_sums)
    assert not missing
    assert any(name.startswith("sums/") for dxo in weights_left(left) for name in dxo.data)


def test_filters_on_what_the_server_sends_are_refused(tmp_path, caplog):
    refuses(tmp_path, caplog, "only filters on task results", [PERCENTILE], task_data_filters=[EXCLUDE])


@pytest.mark.parametrize(
    "text",
    [
        {"task_result_filters": [PERCENTILE]},
        {"scopes": [{"name": "x", "task_results_filters": [PERCENTILE]}], "default_scope": "x"},
    ],
)
def test_a_policy_that_flare_does_not_understand_is_refused(tmp_path, caplog, text):
    stage(tmp_path, 0, ("a",))
    kit = kit_of(tmp_path, "a")
    (kit / "local" / "privacy.json").write_text(json.dumps(text))
    with caplog.at_level(logging.ERROR):
        _, left, missing = federation(tmp_path, config(), {"a": FlareSite(kit, config())})
    assert "no filters in it" in caplog.text
    assert "its log says why" in missing[0]
    assert not any("text" in data for data in left)


def test_a_difference_is_read_with_what_was_sent():
    sent = {"x": torch.randn(2, 3), "one": torch.tensor(0.5), "bn.running_var": torch.ones(2), "n": torch.tensor(7)}
    got = {"x": torch.randn(2, 3), "one": torch.tensor(0.7), "bn.running_var": torch.ones(2), "n": torch.tensor(9)}
    message = wire.from_reply(Reply(1, 2, got), transfer="bfloat16", sent=sent)
    assert {name: array.shape for name, array in message.arrays.items()}["model/one"] == (1,)  # not let through
    again = wire.to_reply(message, sent)[0].weights
    assert all(t.shape == again[k].shape and t.dtype == again[k].dtype for k, t in got.items())
    torch.testing.assert_close(again, got)
    message.arrays["model/bn.running_var"] -= 5
    del message.arrays["model/x"]
    again = wire.to_reply(message, sent)[0].weights
    assert torch.equal(again["x"], sent["x"])
    assert torch.equal(again["bn.running_var"], torch.zeros(2))
    with pytest.raises(UserError, match="nobody knows from what"):
        wire.to_reply(message)
    assert not wire.from_reply(Reply(1, 0), sent=sent).difference  # nothing to send
    with pytest.raises(UserError, match="WEIGHTS or WEIGHT_DIFF, not as METRICS"):
        to_message(DXO("METRICS", {"x": 1}).to_shareable())


def test_a_new_kit_has_a_sample_that_works(tmp_path):
    kits = provisioning.init(tmp_path / "fed", config(), "localhost", ["a"], 9000)
    site = next(kit for kit in kits if kit.name == "a")
    sample = site / "local" / "privacy.json.sample"
    assert not (site / "local" / "privacy.json").exists()
    sample.rename(site / "local" / "privacy.json")
    scope = create_privacy_manager(Workspace(str(site), "a"), names_only=False).default_scope
    assert [type(f).__name__ for f in scope.task_result_filters[FilterKey.OUT]] == ["PercentilePrivacy"]
