"""Nobody announces a task: worlds in which sites move on their own, a label space by agreement, whole runs, resume."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from killing import KillAtStep, die_in_fsync, killed, result
from worlds import TINY_NETWORK, voc_presence

from fiss.data.sources import DataSpec, open_dataset
from fiss.errors import UserError
from fiss.federation.boundaries import Discovery, take_note
from fiss.federation.loop import Participants, run
from fiss.federation.messages import ProbeResult, Reply, Server
from fiss.federation.spec import FederationSpec, TaskSpec, WorldSpec
from fiss.labels import LabelSpace, TaskStream
from fiss.methods import find
from fiss.methods.base import Step
from fiss.methods.finetune import Finetune
from fiss.methods.mib import MiB
from fiss.methods.rcil import RCIL
from fiss.models.output import Output
from fiss.models.segmenter import build
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment
from fiss.simulation.scenario import open_scenario, private
from fiss.simulation.world import make_plan

DATA = open_dataset(DataSpec("shapes", shapes_train=24, shapes_val=4, shapes_size=32))


# The world


def plan(seed=3, everyone=False, **changes):
    classes = TaskStream.parse("4-4", [f"c{i}" for i in range(1, 21)])
    return make_plan(WorldSpec(**changes), TaskSpec("4-4"), classes, voc_presence("val"), seed, everyone)


def test_without_any_of_it_everyone_moves_together():
    found = plan()
    assert WorldSpec().synchronous
    assert found.stages[0] == tuple((5 * t, t, 0) for t in range(5))
    assert found.stages[14] == tuple((5 * t, t, 0) for t in range(2, 5))  # the first joiner of task 2
    assert all(round_plan.present == tuple(range(round_plan.clients)) for round_plan in found.round_plans)


def test_sites_meet_a_task_in_different_rounds():
    found = plan(lag=3)
    assert not WorldSpec(lag=3).synchronous
    late = {stages[1][0] - 5 for client, stages in found.stages.items() if client < 10}
    assert late == {0, 1, 2, 3}
    client = next(c for c, s in found.stages.items() if s[1][0] == 7)
    assert found.stage(client, 6)[1] == 0
    assert found.stage(client, 7)[1] == 1
    with pytest.raises(UserError, match=r"world\.lag"):
        WorldSpec(lag=5)


def test_sites_that_stay_keep_their_data():
    found = plan(stay=0.4, everyone=True)
    staying = {(c, t) for c in found.stages for t in range(1, 5) if c < 10 and found.stage(c, 5 * t)[1] < t}
    assert 5 < len(staying) < 30
    assert all(
        set(round_plan.present) == set(range(round_plan.clients)) for round_plan in found.round_plans
    )  # there, and probed
    asked = {(c, round_plan.task) for round_plan in found.round_plans for c in round_plan.selected}
    assert asked & staying  # the server does not know who stays
    assert {(c, t) for c in range(10) for t in range(1, 5) if found.stays(c, 5 * t)} == staying
    client, task = min(staying)
    assert found.holding(client, 5 * task) == found.holding(client, 5 * task - 1)
    late = plan(lag=3)
    assert not any(late.stays(c, 5) for c in range(10))  # they are only late


def test_sites_that_stay_decline_to_train(untold, tmp_path):
    world = replace(untold.world, stay=0.6, lag=0, join="boundary", away=0.0, refresh=0.0, clients=5, per_round=4)
    for train_staying in (False, True):
        config = replace(untold, world=replace(world, train_staying=train_staying))
        scenario = open_scenario(config, Progress())
        folder = experiment.start(config, tmp_path / str(train_staying), Progress())
        rounds = folder.records("rounds.jsonl")
        staying = [
            reply
            for record in rounds
            for reply in record["replies"]
            if scenario.plan.stays(reply["client"], record["round"] - 1)
        ]
        assert staying
        assert all((reply["steps"] > 0) == train_staying for reply in staying)
        assert not any(
            p["transition"] for r in rounds for p in r["probes"] if scenario.plan.stays(p["client"], r["round"] - 1)
        )


def test_sites_join_in_any_round_and_come_and_go():
    joined = {stages[0][0] % 5 for client, stages in plan(join="any").stages.items() if client >= 10}
    assert len(joined) > 2
    found = plan(away=0.3)
    there = [client in round_plan.present for round_plan in found.round_plans for client in range(10)]
    assert 0.6 < np.mean(there) < 0.8
    assert all(set(round_plan.selected) <= set(round_plan.present) for round_plan in found.round_plans)
    assert any(
        0 in a.present and 0 not in b.present for a, b in zip(found.round_plans, found.round_plans[1:], strict=False)
    )


def test_other_images_of_the_same_classes():
    found = plan(refresh=0.3, everyone=True)
    assert found.redrawn
    (task, client, n), held = next(iter(found.redrawn.items()))
    first = found.holdings[task, client]
    assert n == 1
    assert held.classes == first.classes
    assert len(held.images) == len(first.images)
    assert held.images != first.images
    start = next(s for s in found.stages[client] if s[1:] == (task, 1))[0]
    assert found.holding(client, start) == held
    assert found.holding(client, start - 1) != held


def test_everyone_holds_data_and_the_published_draws_stay_what_they_are():
    some, everyone = plan(), plan(everyone=True)
    assert some.round_plans == everyone.round_plans
    assert all(everyone.holdings[key] == held for key, held in some.holdings.items())
    assert len(everyone.holdings) == sum(len(stages) for stages in everyone.stages.values()) > len(some.holdings)


def test_true_transitions_are_first_meetings_of_a_class(tiny):
    world = replace(tiny.world, rounds=3, lag=2, clients=4, joiners=1, refresh=0.3)
    scenario = open_scenario(replace(tiny, world=world, monitor=MonitorSpec(probed="all")), Progress())
    assert not scenario.announced
    for client, rounds in scenario.transitions.items():
        held = set()
        expected = []
        for round_ in range(scenario.plan.stages[client][0][0], len(scenario.plan.round_plans)):
            now = set(scenario.site(round_, client).names)
            if held and now - held:
                expected.append(round_)
            held |= now
        assert list(rounds) == expected
    assert any(scenario.transitions.values())


# The server


def server(*names):
    space = LabelSpace(((),)) if not names else LabelSpace(((), names))
    return Server(space, build(TINY_NETWORK, space.sizes, 0).weights(), before=(None,) if not names else (None, None))


def note(start, probe_results, round_=3, progress=None):
    return take_note(start, probe_results, round_, Finetune(), 0, progress or Progress())


def test_classes_enter_once_in_the_order_of_their_names_whoever_reports_them():
    reports = [ProbeResult(1, ("dog", "cat")), ProbeResult(2, ("ant", "cat")), ProbeResult(3)]
    one, other = note(server(), reports), note(server(), reports[::-1])
    assert one.label_space == other.label_space == LabelSpace(((), ("ant", "cat", "dog")))
    assert all(torch.equal(t, other.weights[k]) for k, t in one.weights.items())
    later = note(one, [ProbeResult(4, ("bee", "cat"))], 5)  # cat has come in the meantime
    assert later.label_space.groups == ((), ("ant", "cat", "dog"), ("bee",))
    assert [later.label_space.channel(n) for n in one.label_space.names] == [1, 2, 3]  # channels never move
    assert note(later, [ProbeResult(1, ("bee",))], 6).label_space == later.label_space


def test_a_client_is_taught_by_the_model_from_just_before_its_transition():
    known = server("ant")
    after = note(known, [ProbeResult(1, ("bee",), True, 2), ProbeResult(2, (), True, 2), ProbeResult(3)])
    assert after.teachers[1] is after.teachers[2]  # once per content
    assert after.teachers[1].name == "after-0003"
    assert after.teachers[1].weights is known.weights
    assert 3 not in after.teachers
    newcomer = note(after, [ProbeResult(9, (), False, 2)], 5)  # bee is its class: taught by who knew the others
    assert newcomer.teachers[9] is after.teachers[1]
    assert newcomer.before == (None, None, after.teachers[1])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (ProbeResult(7, ("",)), "empty"),
        (ProbeResult(7, ("x" * 201,)), "longer"),
        (ProbeResult(7, tuple(f"c{i}" for i in range(300))), "more than 254"),
        (ProbeResult(7, (), True, 9), "group 9"),
    ],
)
def test_what_a_client_reports_is_checked(bad, why):
    told = []

    class Hears(Progress):
        def notice(self, text):
            told.append(text)

    after = note(server("ant"), [bad, ProbeResult(8, ("bee",))], progress=Hears())
    assert after.label_space.names == ("ant", "bee")
    assert 7 not in after.teachers
    assert len(told) == 1
    assert why in told[0]
    assert "client 7" in told[0]


class Scripted:
    """Clients that meet their classes in rounds of their own; the server hears what they answer and nothing else."""

    def __init__(self, script):
        self.script, self.orders = script, []

    def probe(self, probes):
        for probe in reversed(probes):  # in any order
            held = self.script[probe.client].get(probe.round, ())
            missing = tuple(name for name in held if name not in probe.label_space.names)
            moved = bool(held) and probe.round > min(self.script[probe.client])
            yield ProbeResult(probe.client, missing, moved, len(probe.label_space.groups) if moved else None)

    def ask(self, orders):
        self.orders += orders
        return [Reply(o.client, 1, {k: v.clone() for k, v in o.weights.items()}) for o in orders]


def test_the_server_knows_no_calendar():
    """Boundaries differ from client to client; all the server is given is who is there."""
    script = {0: {0: ("a", "b"), 2: ("c",)}, 1: {0: ("b",), 4: ("c", "d")}, 2: {3: ("d", "e")}}
    there = [Participants(r, (0, 1) if r < 3 else (0, 1, 2), (0, 1) if r < 3 else (0, 1, 2)) for r in range(6)]
    engine = Scripted(script)
    rounds = list(run(server(), there, Discovery(find("fbl"), 0), engine, FederationSpec(), Progress()))
    spaces = [r.server.label_space.groups for r in rounds]
    assert spaces[1] == ((), ("a", "b"))
    assert spaces[2] == ((), ("a", "b"), ("c",))
    assert spaces[3] == spaces[5] == ((), ("a", "b"), ("c",), ("d", "e"))
    taught = {(o.round, o.client): o.teacher and o.teacher.name for o in engine.orders}
    assert taught[1, 0] is None
    assert taught[2, 0] == taught[5, 0] == "after-0002"
    assert taught[3, 1] is None  # it trains on as before while others move
    assert taught[4, 1] == "after-0004"
    assert all(o.announced is None for o in engine.orders)
    teacher = rounds[-1].server.teachers[1]
    assert teacher.label_space.groups == spaces[3]


# Whole runs


def test_a_run_that_is_told_nothing(untold, finished):
    folder = RunFolder(finished(untold))
    rounds, scores = folder.records("rounds.jsonl"), folder.records("scores.jsonl")
    scenario = open_scenario(untold, Progress())
    for record in rounds:
        there = [
            c
            for c in scenario.plan.round_plans[record["round"] - 1].present
            if scenario.site(record["round"] - 1, c).images
        ]
        assert [p["client"] for p in record["probes"]] == there
    assert sum(p["transition"] for r in rounds for p in r["probes"]) > 0
    last = scores[-1]["transitions"]
    assert last["recall"] == 1.0  # other images are seen at once
    assert last["delay_probes"] == 0
    assert last["seen"] + last["missed"] == last["true"] > 0
    state = json.loads((folder.path / "state.json").read_text())
    kept = {p.stem for p in (folder.path / "weights").glob("after-*")}
    assert kept == {name for name in (*state["before"], *state["taught"].values()) if name}
    assert kept <= set(state["digests"])
    held = {
        name
        for r in rounds
        for c in scenario.plan.round_plans[r["round"] - 1].present
        for name in scenario.site(r["round"] - 1, c).names
    }
    assert set(scores[-1]["iou"]) - {"background"} == held
    assert set(last["clients"]) >= {str(p["client"]) for r in rounds for p in r["probes"]}
    assert scores[-1]["entropy"] > 0


@pytest.mark.parametrize("step", [2, 9, 15])
def test_a_killed_untold_run_resumes_to_the_same_bits(untold, finished, tmp_path, step):
    assert killed(lambda: experiment.start(untold, tmp_path / "killed", KillAtStep(step)))
    experiment.resume(tmp_path / "killed", Progress())
    assert result(tmp_path / "killed") == result(finished(untold))


@pytest.mark.parametrize("at", [30, 37, 44])
def test_killed_in_a_write_of_an_untold_run(untold, finished, tmp_path, at, monkeypatch):
    def work():
        die_in_fsync(at, monkeypatch)
        experiment.start(untold, tmp_path / "killed", Progress())

    assert killed(work)
    experiment.resume(tmp_path / "killed", Progress())
    assert result(tmp_path / "killed") == result(finished(untold))


@pytest.mark.parametrize("name", ["finetune", "mib", "plop", "rcil", "ilt", "fbl-paper"])
def test_every_method_runs_untold(untold, tmp_path, name):
    config = replace(untold, method=find(name), monitor=replace(untold.monitor, name="misfit", probed="selected"))
    folder = experiment.start(config, tmp_path / "r", Progress())
    assert folder.finished()
    assert all(
        np.isfinite(v) for r in folder.records("rounds.jsonl") for p in r["replies"] for v in p["losses"].values()
    )


def test_the_server_does_not_learn_private_names(untold, finished, tmp_path):
    config = replace(untold, federation=FederationSpec(private_names="a key of the sites"))
    folder = experiment.start(config, tmp_path / "r", Progress())
    space = folder.read_weights("task-1").label_space
    assert space.names
    assert not set(space.names) & set(DATA.classes)
    assert all(len(name) == 32 for name in space.names)
    assert private("disc", "one key") != private("disc", "another")
    known = set(folder.records("scores.jsonl")[-1]["iou"]) - {"background"}  # whoever runs the experiment may read
    assert known <= set(DATA.classes)
    assert {private(name, "a key of the sites") for name in known} == set(space.names)
    for name in ("weights/task-1.safetensors", "state.json", "rounds.jsonl"):
        assert b"disc" not in (folder.path / name).read_bytes()
    plain = RunFolder(finished(untold)).records("scores.jsonl")[-1]
    assert plain["transitions"] == folder.records("scores.jsonl")[-1]["transitions"]


def test_private_names_where_tasks_are_told(tiny, finished):
    """Only the names differ."""
    config = replace(tiny, federation=FederationSpec(private_names="k"))
    ours, plain = (RunFolder(finished(c)) for c in (config, tiny))
    assert (ours.path / "scores.jsonl").read_bytes() == (plain.path / "scores.jsonl").read_bytes()
    a, b = (folder.read_weights("task-1") for folder in (ours, plain))
    assert all(torch.equal(t, b.weights[k]) for k, t in a.weights.items())
    assert a.label_space.sizes == b.label_space.sizes
    assert not set(a.label_space.names) & set(b.label_space.names)


def test_all_the_server_is_given(untold, tmp_path, monkeypatch):
    """What the experiment hands to the loop: no task, no number of tasks, no class, no key."""
    given = {}

    def spied(server, participants, boundaries, engine, spec, progress, gathering):
        given.update(server=server, boundaries=boundaries, participants=[], gathering=gathering)

        def seen():
            for there in participants:
                given["participants"].append(there)
                yield there

        return real(server, seen(), boundaries, engine, spec, progress, gathering)

    real = experiment.run
    monkeypatch.setattr(experiment, "run", spied)
    experiment.start(replace(untold, federation=FederationSpec(private_names="k")), tmp_path / "r", Progress())
    start = given["server"]
    assert start.label_space == LabelSpace(((),))
    assert (start.before, start.teachers) == ((None,), {})
    assert {name for name in start.weights if "groups.1" in name} == set()
    assert len(given["participants"]) == 6
    assert {field.name for field in fields(Participants)} == {"round", "selected", "probed", "there", "urgent"}
    assert {there.urgent for there in given["participants"]} == {None}  # what the server saw itself, in a real one
    assert {field.name for field in fields(given["boundaries"])} == {"method", "seed", "first_rounds"}
    assert given["boundaries"].first_rounds == untold.training.horizon  # the config's, not the calendar's
    assert given["gathering"] is None


def test_classes_one_by_one(untold, tmp_path):
    """Every group has one class, and the first none."""
    config = replace(untold, tasks=TaskSpec("disc; ring; square"), world=replace(untold.world, refresh=0.0))
    for name in ("fbl", "fbl-reference", "lwf"):
        folder = experiment.start(replace(config, method=find(name)), tmp_path / name, Progress())
        assert folder.finished()


def test_mib_learns_a_class_that_its_teacher_knows_already():
    """A client that meets a class after others has a teacher with that channel."""
    from fiss.losses.distillation import unbiased_cross_entropy

    logits = torch.zeros(1, 3, 1, 1, dtype=torch.float64, requires_grad=True)
    unbiased_cross_entropy(logits.log_softmax(1), torch.full((1, 1, 1), 2, dtype=torch.uint8), 3).backward()
    assert logits.grad.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, -2 / 3])


@pytest.mark.parametrize("name", ["mib", "rcil"])
def test_mibs_background_is_no_class_that_the_client_has_masks_for(name):
    """What its own mask calls background is trained away from a class that it labels itself."""
    logits = torch.tensor([0.0, 0.0, 6.0]).view(1, 3, 1, 1).requires_grad_()
    output = Output(logits, logits, logits, logits, ())
    step = Step(torch.zeros(1, 1, 1, dtype=torch.uint8), output, output, LabelSpace(((), ("a", "b"))), 3, 0, {}, (2,))
    MiB.losses(replace(find(name), distillation=0.0), step)["segmentation"].backward()
    assert logits.grad[0, 2, 0, 0] > 0.9
    assert (logits.grad[0, :2] < 0).all()


def test_branches_stay_frozen_at_clients_that_still_learn_their_first_classes(untold, tmp_path, monkeypatch):
    """The server folds when it adds a second group, whoever has noticed."""
    seen = []
    prepare = RCIL.prepare_training
    monkeypatch.setattr(RCIL, "prepare_training", lambda *words: seen.append(words[2]) or prepare(*words))
    config = replace(untold, method=find("rcil"), monitor=replace(untold.monitor, name="never"))
    folder = experiment.start(config, tmp_path / "run", Progress())
    sizes = [record["classes"] for record in folder.records("rounds.jsonl") for r in record["replies"] if r["steps"]]
    assert len(sizes) == len(seen)
    assert max(seen) > 1  # nobody ever has a transition, so all train as in their first task
    assert all((count > 1) == (size > min(sizes)) for count, size in zip(seen, sizes, strict=True))


def test_own_classes_are_neither_old_nor_pseudo_labels():
    from fiss.losses.compensation import exponents

    assert exponents(5, 4, torch.device("cpu"), (2,)).tolist() == pytest.approx([1, 0.5, 1, 0.5, 1, 1])
    teacher = torch.zeros(1, 4, 1, 4)
    teacher[0, [0, 1, 2, 3], 0, [0, 1, 2, 3]] = 50.0  # sure of background, 1, 2, 3
    output = Output(teacher, teacher, teacher, teacher, ())
    space = LabelSpace(((), ("a", "b", "c"), ("d",)))
    step = Step(torch.zeros(1, 1, 4, dtype=torch.uint8), output, output, space, 4, 0, {}, (2,))
    method = replace(find("plop"), thresholds="constant")
    method.begin_epoch(step.state, 0, 4, torch.device("cpu"))
    labels, _ = method.relabel(step)
    assert labels.flatten().tolist() == [0, 1, 0, 3]  # its own mask says that there is no 2


def test_a_base_is_refused_where_clients_have_to_have_seen_it(untold, tiny, finished, tmp_path):
    with pytest.raises(UserError, match="seen the first task themselves"):
        experiment.start(replace(untold, base=str(finished(tiny))), tmp_path / "r", Progress())
    assert not (tmp_path / "r").exists()


def test_teachers_do_not_multiply_with_clients(untold, tmp_path):
    """Twenty clients that move in three rounds have three teachers."""
    world = replace(untold.world, clients=20, stay=0.0, refresh=0.0, join="boundary", away=0.0, lag=2)
    folder = experiment.start(replace(untold, world=world), tmp_path / "r", Progress())
    state = json.loads((folder.path / "state.json").read_text())
    assert len(state["taught"]) > 15
    assert len(set(state["taught"].values())) <= 3
    assert RunFolder.open(folder.path).restore().server.teachers.keys() == {int(c) for c in state["taught"]}
