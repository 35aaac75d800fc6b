"""Nobody announces a task: monitors, the label space by agreement, sites that come and go, resume."""

import io
import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from conftest import TINY_NETWORK, voc_presence
from rich.console import Console
from test_runs import KillAtStep, die_in_fsync, killed, result

from fiss import experiment, presets, report, tables, transitions
from fiss.checkpoint import RunFolder
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import AugmentSpec, ScoredImages, TrainingImages, normalise
from fiss.data.world import TaskSpec, WorldSpec, make_plan
from fiss.display import score_table
from fiss.errors import UserError
from fiss.federation.aggregate import FederationSpec
from fiss.federation.client import Site, answer, batches, sample, sight
from fiss.federation.loop import Call, Server, run, take_note
from fiss.federation.messages import Memory, Order, Probe, Reply, Sighting, Snapshot
from fiss.labels import LabelSpace, TaskStream
from fiss.methods import find
from fiss.methods.base import Step
from fiss.methods.finetune import Finetune
from fiss.methods.monitors import RULES, Evidence, Looks, MonitorSpec, chance, judge
from fiss.models.output import Output
from fiss.models.segmenter import build
from fiss.setup import prepare, private
from fiss.training.batches import Reader
from fiss.training.fit import Trainer, TrainingSpec
from fiss.training.schedule import rate_in_round
from fiss.watch import Watcher

DATA = open_dataset(DataSpec("shapes", shapes_train=24, shapes_val=4, shapes_size=32))


def seen(**values):
    plain = {"images": 10, "entropy": 0.3, "entropy_error": 0.01, "missed": 0.2, "missed_error": 0.02}
    return Evidence(**{**plain, **values})


def fires(name, *steps, **fields):
    spec, notes, found = MonitorSpec(name, **fields), {}, []
    for step in steps:
        fired, notes = judge(spec, step, notes)
        notes = json.loads(json.dumps(notes))  # as it comes back from a run folder
        found.append(fired)
    return found


# Rules, by hand


def test_told_fires_once_for_every_true_transition():
    assert fires("told", seen(), seen(transitions=1), seen(transitions=1), seen(transitions=3)) == [
        False,
        True,
        False,
        True,
    ]


def test_names():
    assert fires("names", seen(), seen(lacks=True), seen()) == [False, True, False]


def test_entropy_needs_a_rise_of_tau_since_the_last_probe():
    scores = [0.3, 0.89, 1.49, 2.2, 2.1]
    assert fires("entropy", *(seen(entropy=e) for e in scores)) == [False, False, True, True, False]
    assert fires("entropy", *(seen(entropy=e) for e in (0.25, 0.75)), tau=0.5) == [False, True]  # exactly tau counts


def test_the_reference_fires_at_every_boundary_whatever_the_data():
    steps = [seen(task=0), seen(task=0), seen(task=1), seen(task=1), seen(task=1, entropy=0.8), seen(task=1, entropy=2)]
    assert fires("reference", *steps) == [True, False, True, False, False, True]


def test_images_and_never():
    assert fires("images", seen(), seen(changed=True), seen()) == [False, True, False]
    assert fires("never", seen(lacks=True, changed=True, transitions=3)) == [False]


def test_misfit_needs_other_images_and_a_rise_beyond_its_noise():
    before, worse = seen(missed=0.2), seen(missed=0.6, changed=True)
    assert fires("misfit", before, worse) == [False, True]
    assert fires("misfit", before, replace(worse, changed=False)) == [False, False]  # forgotten, not new
    assert fires("misfit", before, replace(worse, missed=0.24)) == [False, False]  # too small
    assert fires("misfit", before, replace(worse, missed_error=0.2)) == [False, False]  # too uncertain


def test_misfit_sees_a_class_that_others_have_taught_the_model():
    known = seen(missed=0.2, called=(0.1, 0.9, 0.0))
    other = seen(missed=0.25, called=(0.2, 0.2, 0.6), changed=True)
    assert fires("misfit", known, other) == [False, True]
    assert fires("misfit", known, replace(other, changed=False)) == [False, False]
    assert fires("misfit", known, replace(other, called=(0.2, 0.4, 0.4))) == [False, False]  # too little of it
    assert fires("misfit", known, replace(other, called=(0.2, 0.2, 0.0, 0.6))) == [False, False]  # a channel just made
    assert fires("misfit", seen(missed=0.9, called=(0.9, 0.1)), seen(missed=0.3, called=(0.3, 0.7), changed=True)) == [
        False,
        False,
    ]  # learnt in between


def test_every_rule_can_be_chosen_and_no_other():
    for name in RULES:
        assert presets.choose("shapes", monitor=name).monitor.name == name
    with pytest.raises(UserError, match="misfit"):
        presets.choose("shapes", monitor="misfits")
    with pytest.raises(UserError, match=r"monitor\.tau"):
        MonitorSpec(tau=-1)


# True against seen


def test_transitions_by_hand():
    """True in rounds 3 and 7. Probed in 1, 3, 4, 6, 8: fired in 1 (false), 4 (seen, one probe and one round late), 6
    (false: seen already); nothing after 7."""
    probes = [(1, True), (3, False), (4, True), (6, True), (8, False)]
    found = transitions.compare([3, 7], probes)
    assert (found.true, found.seen, found.missed, found.false, found.unprobed) == (2, 1, 1, 2, 0)
    assert (found.delay_probes, found.delay_rounds) == (1, 1)
    assert (found.precision, found.recall) == (1 / 3, 1 / 2)
    never = transitions.compare([9], probes)
    assert (never.true, never.unprobed, never.recall, never.delay_rounds) == (1, 1, None, None)
    both = transitions.total([found, transitions.compare([3], [(6, True)])])
    assert (both.seen, both.delay_rounds, both.delay_probes) == (2, 2.0, 0.5)
    assert transitions.total([]).precision is None


def test_transitions_from_a_log():
    rounds = [{"round": r, "probes": [{"client": 4, "transition": r == 3}]} for r in range(1, 5)]
    found = transitions.by_client({4: (1, 3, 9), 5: (2,), 6: (8,)}, rounds)
    assert set(found) == {4, 5}
    assert (found[4].true, found[4].seen, found[4].missed) == (2, 1, 0)  # round 9 has not come yet
    assert found[4].unprobed == 1  # at its first probe nobody can know that it had others before
    assert (found[5].true, found[5].unprobed) == (1, 1)


def test_a_monitor_replayed_over_its_own_run_fires_as_it_did(untold, tmp_path):
    config = replace(untold, monitor=replace(untold.monitor, name="misfit"))
    folder = experiment.start(config, tmp_path / "r", Watcher())
    rounds = folder.records("rounds.jsonl")
    again = transitions.replay(config.monitor, rounds)
    fired = [[(p["client"], p["transition"]) for p in record["probes"]] for record in rounds]
    assert [[(p["client"], p["transition"]) for p in record["probes"]] for record in again] == fired
    (table,) = tables.monitors([folder.path])
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == {*RULES, "misfit (as it ran)"} - {"misfit"}
    assert rows["oracle"][1:4] == ("1.00", "1.00", "0.00")
    last = folder.records("scores.jsonl")[-1]["transitions"]
    counts = ("true", "seen", "missed", "false", "unprobed")
    assert rows["misfit (as it ran)"][5:] == tuple(str(last[k]) for k in counts)


def test_the_report_and_the_table_show_what_monitors_saw(untold, tmp_path):
    folder = experiment.start(untold, tmp_path / "r", Watcher())
    report.write([folder.path], tmp_path / "page.html", Watcher())
    page = (tmp_path / "page.html").read_text()
    assert "what the monitors saw" in page
    assert 'alt="what clients measured in every round"' in page
    seen = folder.records("scores.jsonl")[-1]["transitions"]
    assert f"<td>all</td><td>{seen['true']}</td><td>{seen['seen']}</td>" in page
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(score_table([r for r in folder.records("scores.jsonl") if r["ends_task"]], "t"))
    text = console.export_text()
    assert "transitions, recall" in text
    assert "transitions, delay in rounds" in text


def test_replaying_needs_probes(tiny, tmp_path):
    folder = experiment.start(tiny, tmp_path / "r", Watcher())
    with pytest.raises(UserError, match="--monitor oracle"):
        tables.monitors([folder.path])


# The world


def plan(seed=3, everyone=False, **changes):
    classes = TaskStream.parse("4-4", [f"c{i}" for i in range(1, 21)])
    return make_plan(WorldSpec(**changes), TaskSpec("4-4"), classes, voc_presence("val"), seed, everyone)


def test_without_any_of_it_everyone_moves_together():
    found = plan()
    assert WorldSpec().synchronous
    assert found.stages[0] == tuple((5 * t, t, 0) for t in range(5))
    assert found.stages[14] == tuple((5 * t, t, 0) for t in range(2, 5))  # the first joiner of task 2
    assert all(turn.present == tuple(range(turn.clients)) for turn in found.turns)


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
    assert all(set(turn.present) == set(range(turn.clients)) for turn in found.turns)  # there, and probed
    asked = {(c, turn.task) for turn in found.turns for c in turn.selected}
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
        setup = prepare(config, Watcher())
        folder = experiment.start(config, tmp_path / str(train_staying), Watcher())
        rounds = folder.records("rounds.jsonl")
        staying = [
            reply
            for record in rounds
            for reply in record["replies"]
            if setup.plan.stays(reply["client"], record["round"])
        ]
        assert staying
        assert all((reply["steps"] > 0) == train_staying for reply in staying)
        assert not any(
            p["transition"] for r in rounds for p in r["probes"] if setup.plan.stays(p["client"], r["round"])
        )


def test_sites_join_in_any_round_and_come_and_go():
    joined = {stages[0][0] % 5 for client, stages in plan(join="any").stages.items() if client >= 10}
    assert len(joined) > 2
    found = plan(away=0.3)
    there = [client in turn.present for turn in found.turns for client in range(10)]
    assert 0.6 < np.mean(there) < 0.8
    assert all(set(turn.selected) <= set(turn.present) for turn in found.turns)
    assert any(0 in a.present and 0 not in b.present for a, b in zip(found.turns, found.turns[1:], strict=False))


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
    assert some.turns == everyone.turns
    assert all(everyone.holdings[key] == held for key, held in some.holdings.items())
    assert len(everyone.holdings) == sum(len(stages) for stages in everyone.stages.values()) > len(some.holdings)


def test_true_transitions_are_first_meetings_of_a_class(tiny):
    world = replace(tiny.world, rounds=3, lag=2, clients=4, joiners=1, refresh=0.3)
    setup = prepare(replace(tiny, world=world, monitor=MonitorSpec(probed="all")), Watcher())
    assert not setup.told
    for client, rounds in setup.transitions.items():
        held = set()
        expected = []
        for round_ in range(setup.plan.stages[client][0][0], len(setup.plan.turns)):
            now = set(setup.site(round_, client).names)
            if held and now - held:
                expected.append(round_)
            held |= now
        assert list(rounds) == expected
    assert any(setup.transitions.values())


# The server


def server(*names):
    space = LabelSpace(((),)) if not names else LabelSpace(((), names))
    return Server(space, build(TINY_NETWORK, space.sizes, 0).weights(), before=(None,) if not names else (None, None))


def note(start, sightings, round_=3, watcher=None):
    return take_note(start, sightings, round_, Finetune(), 0, watcher or Watcher())


def test_classes_enter_once_in_the_order_of_their_names_whoever_reports_them():
    reports = [Sighting(1, ("dog", "cat")), Sighting(2, ("ant", "cat")), Sighting(3)]
    one, other = note(server(), reports), note(server(), reports[::-1])
    assert one.label_space == other.label_space == LabelSpace(((), ("ant", "cat", "dog")))
    assert all(torch.equal(t, other.weights[k]) for k, t in one.weights.items())
    later = note(one, [Sighting(4, ("bee", "cat"))], 5)  # cat has come in the meantime
    assert later.label_space.groups == ((), ("ant", "cat", "dog"), ("bee",))
    assert [later.label_space.channel(n) for n in one.label_space.names] == [1, 2, 3]  # channels never move
    assert note(later, [Sighting(1, ("bee",))], 6).label_space == later.label_space


def test_a_client_is_taught_by_the_model_from_just_before_its_transition():
    known = server("ant")
    after = note(known, [Sighting(1, ("bee",), True, 2), Sighting(2, (), True, 2), Sighting(3)])
    assert after.taught[1] is after.taught[2]  # once per content
    assert after.taught[1].name == "before-0003"
    assert after.taught[1].weights is known.weights
    assert 3 not in after.taught
    newcomer = note(after, [Sighting(9, (), False, 2)], 5)  # bee is its class: taught by who knew the others
    assert newcomer.taught[9] is after.taught[1]
    assert newcomer.before == (None, None, after.taught[1])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Sighting(7, ("",)), "empty"),
        (Sighting(7, ("x" * 201,)), "longer"),
        (Sighting(7, tuple(f"c{i}" for i in range(300))), "more than 254"),
        (Sighting(7, (), True, 9), "group 9"),
    ],
)
def test_what_a_client_reports_is_checked(bad, why):
    told = []

    class Hears(Watcher):
        def notice(self, text):
            told.append(text)

    after = note(server("ant"), [bad, Sighting(8, ("bee",))], watcher=Hears())
    assert after.label_space.names == ("ant", "bee")
    assert 7 not in after.taught
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
            yield Sighting(probe.client, missing, moved, len(probe.label_space.groups) if moved else None)

    def ask(self, orders):
        self.orders += orders
        return [Reply(o.client, 1, {k: v.clone() for k, v in o.weights.items()}) for o in orders]


def test_the_server_knows_no_calendar():
    """Boundaries differ from client to client; all the server is given is who is there."""
    script = {0: {0: ("a", "b"), 2: ("c",)}, 1: {0: ("b",), 4: ("c", "d")}, 2: {3: ("d", "e")}}
    calls = [Call(r, (0, 1) if r < 3 else (0, 1, 2), (0, 1) if r < 3 else (0, 1, 2)) for r in range(6)]
    assert all(call.told is None for call in calls)
    engine = Scripted(script)
    rounds = list(run(server(), calls, engine, find("fbl"), "uniform", 0, Watcher()))
    spaces = [r.server.label_space.groups for r in rounds]
    assert spaces[1] == ((), ("a", "b"))
    assert spaces[2] == ((), ("a", "b"), ("c",))
    assert spaces[3] == spaces[5] == ((), ("a", "b"), ("c",), ("d", "e"))
    taught = {(o.round, o.client): o.teacher and o.teacher.name for o in engine.orders}
    assert taught[1, 0] is None
    assert taught[2, 0] == taught[5, 0] == "before-0002"
    assert taught[3, 1] is None  # it trains on as before while others move
    assert taught[4, 1] == "before-0004"
    assert all(o.calendar is None for o in engine.orders)
    teacher = rounds[-1].server.taught[1]
    assert teacher.label_space.groups == spaces[3]


# The client


@pytest.fixture
def trainer():
    model = build(TINY_NETWORK, (1, 2), 0)
    spec = TrainingSpec(epochs=1, batch=4, device="cpu", first_rate=0.1, later_rate=0.01, horizon=2, least_rate=0.2)
    plain = Reader(ScoredImages(DATA.train, 32), 0, False)
    reader, yardstick = Reader(TrainingImages(DATA.train, AugmentSpec(crop=32)), 0, False), build(TINY_NETWORK, (1,), 5)
    return Trainer(model, None, reader, spec, plain, yardstick)


def ask(trainer, memory, images, labelled, round_=0, space=None, name="images"):
    space = space or LabelSpace(((), ("disc", "ring")))
    site = Site(DATA.classes, images, labelled, 0)
    weights = build(TINY_NETWORK, space.sizes, 0).weights()
    return sight(Probe(0, round_, space, weights), memory, site, MonitorSpec(name), trainer)


def test_first_data_are_no_transition_and_later_ones_may_be(trainer):
    said, memory = ask(trainer, Memory(), range(6), (1, 2))
    assert said == Sighting(0)
    assert memory.since == 0
    assert memory.evidence["images"] == 6
    said, memory = ask(trainer, memory, range(6), (1, 2), 1)
    assert said == Sighting(0)
    said, memory = ask(trainer, replace(memory, epochs=4), range(4, 12), (3,), 2)
    assert said == Sighting(0, ("square",), True, 2)
    assert (memory.since, memory.epochs, memory.transitions) == (2, 0, 1)
    assert memory.evidence["missed"] == 1.0  # the model cannot know it


def test_a_newcomer_asks_for_the_model_that_knows_what_it_does_not(trainer):
    space = LabelSpace(((), ("disc", "ring"), ("square",)))
    said, memory = ask(trainer, Memory(), range(6), (3,), 7, space)
    assert said == Sighting(0, (), False, 2)
    assert memory.since == 7
    said, _ = ask(trainer, Memory(), range(6), (1, 3), 7, space)
    assert said == Sighting(0)  # every group has a class of its own: nothing to remember
    said, _ = ask(trainer, Memory(), range(6), (4,), 7, space)
    assert said == Sighting(0, ("triangle",), False, 3)
    said, _ = ask(trainer, Memory(), range(6), (1, 2), 7, space)
    assert said == Sighting(0, (), False, 3)  # others have gone on: it must not unlearn what they know
    said, _ = ask(trainer, Memory(), range(6), (1, 2), 0, LabelSpace(((), ("disc", "ring"))))
    assert said == Sighting(0)


def test_a_client_without_data_sees_nothing(trainer):
    assert ask(trainer, Memory(), (), (1,)) == (Sighting(0), Memory())
    _, memory = ask(trainer, Memory(), range(6), (1,))
    _, memory = ask(trainer, memory, (), ())
    assert memory.evidence == {}  # what it saw before is not seen again
    assert memory.since == 0


def test_before_there_are_classes_a_client_only_says_what_it_holds(trainer):
    said, memory = ask(trainer, Memory(), range(6), (2, 3), 0, LabelSpace(((),)))
    assert said == Sighting(0, ("ring", "square"))
    assert memory == Memory()


def test_what_is_measured(trainer):
    """Against a slow loop over the pixels."""
    _, memory = ask(trainer, Memory(), range(9), (2, 3))
    model = trainer.student.eval()
    entropies, missed = [], []
    for i in range(9):
        image, mask = ScoredImages(DATA.train, 32)[i, "published"]
        with torch.no_grad():
            p = model(normalise(image[None])).logits_BCHW.double().softmax(1)[0]
        ids = mask.long()
        entropies.append(float(-(p * p.log()).sum(0)[ids != 255].mean()))
        called = p.argmax(0)
        own = (ids == 2) | (ids == 3)
        if own.any():
            wrong = [c != 2 if i == 2 else True for c, i in zip(called[own].tolist(), ids[own].tolist(), strict=True)]
            missed.append(np.mean(wrong))
    assert memory.evidence["entropy"] == pytest.approx(np.mean(entropies), abs=1e-5)
    assert memory.evidence["missed"] == pytest.approx(np.mean(missed), abs=1e-5)
    assert memory.evidence["missed_error"] == pytest.approx(np.std(missed, ddof=1) / np.sqrt(len(missed)), abs=1e-5)
    assert sum(memory.evidence["called"]) == pytest.approx(1, abs=1e-5)
    assert len(memory.evidence["called"]) == 3


def test_what_images_look_like(trainer):
    """Against a slow loop over the pixels, and told apart only by other images."""
    _, memory = ask(trainer, Memory(), range(9), (2, 3))
    rows = []
    for i in range(9):
        image, mask = ScoredImages(DATA.train, 32)[i, "published"]
        own = (mask == 2) | (mask == 3)
        if not own.any():
            continue
        with torch.no_grad():
            output = trainer.yardstick.eval()(normalise(image[None]))
        row = []
        for stage, features in enumerate((*output.stages, output.encoded_BDhw)):
            depth, height, width = features.shape[1:]
            step = 32 // height
            mean, whole = np.zeros(depth), 0.0
            for y in range(height):
                for x in range(width):
                    share = float(own[y * step : (y + 1) * step, x * step : (x + 1) * step].double().mean())
                    mean += share * features[0, :, y, x].double().numpy()
                    whole += share
            mean /= whole
            mean /= np.sqrt(np.mean(mean**2))
            signs = torch.randint(0, 2, (depth, 64), generator=torch.Generator().manual_seed(stage)) * 2 - 1
            row += [sum(mean[d] * int(signs[d, k]) for d in range(depth)) / np.sqrt(depth) for k in range(64)]
        rows.append(row)
    assert memory.looks["images"] == len(rows) > 3
    assert memory.looks["mean"] == pytest.approx(np.mean(rows, 0), abs=1e-4)
    assert memory.looks["variance"] == pytest.approx(np.var(rows, 0, ddof=1), abs=1e-4)
    assert memory.evidence["chance"] == 1.0
    _, later = ask(trainer, memory, range(9), (2, 3), 1)
    assert (later.evidence["chance"], later.looks) == (1.0, memory.looks)
    _, later = ask(trainer, memory, range(12, 24), (2, 3), 1)
    new = Looks(**later.looks)
    assert later.evidence["chance"] == pytest.approx(chance(Looks(**memory.looks), new), abs=1e-6)
    assert new.mean != tuple(memory.looks["mean"])


def tail(t, df):
    """Twice the tail of Student's distribution, by adding up its density."""
    x = t * np.exp(np.linspace(0, 40, 400_001))
    factor = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    return 2 * float(np.trapezoid(factor * (1 + x**2 / df) ** (-(df + 1) / 2), x))


@pytest.mark.parametrize(("sizes", "shift"), [((10, 17), 0.5), ((12, 40), 2.0), ((30, 31), 1.1)])
def test_the_chance_is_welchs(sizes, shift):
    """One feature, with the smaller group's degrees of freedom."""
    draw = np.random.default_rng(3)
    a, b = draw.normal(size=sizes[0]), draw.normal(shift, 2.0, size=sizes[1])
    t = abs(b.mean() - a.mean()) / np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    looks = [Looks(len(v), (float(v.mean()),), (float(v.var(ddof=1)),)) for v in (a, b)]
    assert chance(*looks) == pytest.approx(tail(t, min(sizes) - 1), rel=0.08)
    two = [replace(one, mean=one.mean * 2, variance=one.variance * 2) for one in looks]
    assert chance(*two) == pytest.approx(min(1, 2 * chance(*looks)))
    assert chance(looks[0], looks[0]) == 1.0
    assert chance(looks[0], Looks(9, (50.0,), (1.0,))) == 1.0  # too few
    assert chance(looks[0], two[1]) == 1.0  # of another network


@pytest.mark.parametrize("sizes", [(30, 30), (10, 256), (20, 256), (256, 12)])
def test_features_fire_by_chance_as_rarely_as_they_say(sizes):
    draw, false, seen_ = np.random.default_rng(0), 0, 0
    scale = np.linspace(0.1, 3, 320)
    for _ in range(150):
        groups = [draw.normal(size=(n, 320)) * scale for n in (*sizes, sizes[1])]
        groups[2][:, 3] += 4.0 * scale[3]
        old, same, other = (Looks(len(g), tuple(g.mean(0)), tuple(g.var(0, ddof=1))) for g in groups)
        false += chance(old, same) <= 0.01
        seen_ += chance(old, other) <= 0.01
    assert false <= 5
    assert seen_ >= 140


def test_features_need_other_images():
    odd = seen(chance=0.001, changed=True)
    assert fires("features", seen(), odd, replace(odd, changed=False), replace(odd, chance=0.02)) == [
        False,
        True,
        False,
        False,
    ]
    assert fires("features", odd, level=0.0001) == [False]
    with pytest.raises(UserError, match="compared"):
        MonitorSpec("features", compared=1)


def test_features_fire_when_what_is_labelled_looks_otherwise(trainer):
    """Plain drawings: bright squares on dark ground, then dark ones on bright; others of the same kind in between."""

    class Drawn:
        name, stems = "train", tuple(str(i) for i in range(60))

        def read(self, i):
            level = 200 if i < 40 else 20
            image = np.full((32, 32, 3), 220 - level, np.uint8) + np.random.default_rng(i).integers(
                0, 9, (32, 32, 3), np.uint8
            )
            mask = np.zeros((32, 32), np.uint8)
            image[8:24, 8:24], mask[8:24, 8:24], mask[:2] = level, 1 if i < 40 else 3, 255
            return image, mask

    trainer.plain = Reader(ScoredImages(Drawn(), 32), 0, False)
    _, memory = ask(trainer, Memory(), range(20), (1,), 0, name="features")
    said, memory = ask(trainer, memory, range(20, 40), (1,), 1, name="features")
    assert not said.transition  # others of the same kind
    said, few = ask(trainer, memory, range(40, 45), (3,), 2, name="features")
    assert not said.transition
    assert few.looks == memory.looks  # too few to tell, and too few to compare the next with
    said, memory = ask(trainer, few, range(40, 60), (3,), 3, name="features")
    assert said.transition
    assert memory.evidence["chance"] < 1e-3
    said, _ = ask(trainer, memory, range(40, 60), (3,), 4, name="features")
    assert not said.transition


def test_a_sample_stays_the_same_while_the_data_do():
    site = Site(DATA.classes, range(20), (1,), 0)
    assert sample(3, site, 5) == sample(3, site, 5)
    assert len(set(sample(3, site, 5))) == 5
    assert sample(4, site, 5) != sample(3, site, 5)
    assert sample(3, site, 0) == range(20)


def test_the_learning_rate_needs_no_schedule_from_outside(trainer):
    assert rate_in_round(0.01, 0, 5, 0.1) == 0.01
    assert rate_in_round(0.01, 2.5, 5, 0.1) == pytest.approx(0.01 * 0.5**0.9)
    assert rate_in_round(0.01, 4.9, 5, 0.1) == rate_in_round(0.01, 99, 5, 0.1) == pytest.approx(0.001)
    space = LabelSpace(((), ("disc", "ring")))
    weights = build(TINY_NETWORK, space.sizes, 0).weights()
    site = Site(DATA.classes, range(8), (1, 2), 0)

    def train(round_, since, teacher):
        order = Order(0, round_, space, weights, teacher)
        for epoch in batches(order, site, Finetune(), trainer.spec):
            trainer.reader.ask(epoch)
        return answer(order, Memory(since=since, transitions=1), site, Finetune(), trainer, Watcher())

    reply, memory = train(3, 3, None)
    assert reply.transition
    assert memory.rate == pytest.approx(0.1 * 0.5**0.9)  # one round of two
    reply, memory = train(4, 3, None)
    assert not reply.transition
    assert memory.rate == pytest.approx(0.1 * 0.2)  # the least
    _, memory = train(3, 3, Snapshot("before-0003", space, weights))
    assert memory.rate == pytest.approx(0.01 * 0.5**0.9)
    assert memory.teacher == "before-0003"


# Whole runs


@pytest.fixture
def untold(tiny):
    world = WorldSpec(
        clients=4, joiners=1, per_round=2, rounds=3, class_ratio=0.5, sample_ratio=0.5, lag=1, stay=0.2, join="any",
        away=0.1, refresh=0.1,
    )  # fmt: skip
    monitor = MonitorSpec("images", probed="all", sample=6)
    return replace(tiny, world=world, monitor=monitor, method=find("fbl"), keep=1)


def test_a_run_that_is_told_nothing(untold, tmp_path):
    folder = experiment.start(untold, tmp_path / "r", Watcher())
    rounds, scores = folder.records("rounds.jsonl"), folder.records("scores.jsonl")
    setup = prepare(untold, Watcher())
    for record in rounds:
        there = [c for c in setup.plan.turns[record["round"]].present if setup.site(record["round"], c).images]
        assert [p["client"] for p in record["probes"]] == there
    assert sum(p["transition"] for r in rounds for p in r["probes"]) > 0
    last = scores[-1]["transitions"]
    assert last["recall"] == 1.0  # other images are seen at once
    assert last["delay_probes"] == 0
    assert last["seen"] + last["missed"] == last["true"] > 0
    state = json.loads((folder.path / "state.json").read_text())
    kept = {p.stem for p in (folder.path / "weights").glob("before-*")}
    assert kept == {name for name in (*state["before"], *state["taught"].values()) if name}
    assert kept <= set(state["digests"])
    held = {
        name for r in rounds for c in setup.plan.turns[r["round"]].present for name in setup.site(r["round"], c).names
    }
    assert set(scores[-1]["iou"]) - {"background"} == held
    assert set(last["clients"]) >= {str(p["client"]) for r in rounds for p in r["probes"]}
    assert scores[-1]["entropy"] > 0


@pytest.mark.parametrize("step", [2, 9, 15])
def test_a_killed_untold_run_resumes_to_the_same_bits(untold, tmp_path, step):
    experiment.start(untold, tmp_path / "whole", Watcher())
    assert killed(lambda: experiment.start(untold, tmp_path / "killed", KillAtStep(step)))
    experiment.resume(tmp_path / "killed", Watcher())
    assert result(tmp_path / "killed") == result(tmp_path / "whole")


@pytest.mark.parametrize("at", [30, 37, 44])
def test_killed_in_a_write_of_an_untold_run(untold, tmp_path, at, monkeypatch):
    experiment.start(untold, tmp_path / "whole", Watcher())

    def work():
        die_in_fsync(at, monkeypatch)
        experiment.start(untold, tmp_path / "killed", Watcher())

    assert killed(work)
    experiment.resume(tmp_path / "killed", Watcher())
    assert result(tmp_path / "killed") == result(tmp_path / "whole")


@pytest.mark.parametrize("name", ["finetune", "mib", "plop", "rcil", "ilt", "fbl-paper"])
def test_every_method_runs_untold(untold, tmp_path, name):
    config = replace(untold, method=find(name), monitor=replace(untold.monitor, name="misfit", probed="selected"))
    folder = experiment.start(config, tmp_path / "r", Watcher())
    assert folder.finished()
    assert all(
        np.isfinite(v) for r in folder.records("rounds.jsonl") for p in r["replies"] for v in p["losses"].values()
    )


def test_the_server_does_not_learn_private_names(untold, tmp_path):
    config = replace(untold, federation=FederationSpec(private_names="a key of the sites"))
    folder = experiment.start(config, tmp_path / "r", Watcher())
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
    plain = experiment.start(untold, tmp_path / "plain", Watcher()).records("scores.jsonl")[-1]
    assert plain["transitions"] == folder.records("scores.jsonl")[-1]["transitions"]


def test_private_names_where_tasks_are_told(tiny, tmp_path):
    """Only the names differ."""
    config = replace(tiny, federation=FederationSpec(private_names="k"))
    ours, plain = (experiment.start(c, tmp_path / n, Watcher()) for c, n in ((config, "a"), (tiny, "b")))
    assert (ours.path / "scores.jsonl").read_bytes() == (plain.path / "scores.jsonl").read_bytes()
    a, b = (folder.read_weights("task-1") for folder in (ours, plain))
    assert all(torch.equal(t, b.weights[k]) for k, t in a.weights.items())
    assert a.label_space.sizes == b.label_space.sizes
    assert not set(a.label_space.names) & set(b.label_space.names)


def test_all_the_server_is_given(untold, tmp_path, monkeypatch):
    """What the experiment hands to the loop: no task, no number of tasks, no class, no key."""
    given = {}

    def spied(server, calls, engine, method, weighting, seed, watcher, largest):
        given.update(server=server, weighting=weighting, calls=[])

        def seen():
            for call in calls:
                given["calls"].append(call)
                yield call

        return real(server, seen(), engine, method, weighting, seed, watcher, largest)

    real = experiment.run
    monkeypatch.setattr(experiment, "run", spied)
    experiment.start(replace(untold, federation=FederationSpec(private_names="k")), tmp_path / "r", Watcher())
    start = given["server"]
    assert start.label_space == LabelSpace(((),))
    assert (start.teacher, start.before, start.taught) == (None, (None,), {})
    assert {name for name in start.weights if "groups.1" in name} == set()
    assert given["weighting"] == "uniform"
    assert len(given["calls"]) == 6
    assert all(call.told is None for call in given["calls"])
    assert {field.name for field in fields(Call)} == {"round", "selected", "probed", "told"}


def test_classes_one_by_one(untold, tmp_path):
    """Every group has one class, and the first none."""
    config = replace(untold, tasks=TaskSpec("disc; ring; square"), world=replace(untold.world, refresh=0.0))
    for name in ("fbl", "fbl-reference", "lwf"):
        folder = experiment.start(replace(config, method=find(name)), tmp_path / name, Watcher())
        assert folder.finished()


def test_mib_learns_a_class_that_its_teacher_knows_already():
    """A client that meets a class after others has a teacher with that channel."""
    from fiss.losses.distillation import unbiased_cross_entropy

    logits = torch.zeros(1, 3, 1, 1, dtype=torch.float64, requires_grad=True)
    unbiased_cross_entropy(logits.log_softmax(1), torch.full((1, 1, 1), 2, dtype=torch.uint8), 3).backward()
    assert logits.grad.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, -2 / 3])


def test_own_classes_are_neither_old_nor_pseudo_labels():
    from fiss.losses.compensation import exponents

    assert exponents(5, 4, torch.device("cpu"), (2,)).tolist() == pytest.approx([1, 0.5, 1, 0.5, 1, 1])
    teacher = torch.zeros(1, 4, 1, 4)
    teacher[0, [0, 1, 2, 3], 0, [0, 1, 2, 3]] = 50.0  # sure of background, 1, 2, 3
    output = Output(teacher, teacher, teacher, teacher, ())
    space = LabelSpace(((), ("a", "b", "c"), ("d",)))
    step = Step(torch.zeros(1, 1, 4, dtype=torch.uint8), output, output, space, 4, 0, {}, (2,))
    labels, _ = replace(find("plop"), thresholds="constant").relabel(step)
    assert labels.flatten().tolist() == [0, 1, 0, 3]  # its own mask says that there is no 2


def test_a_base_is_refused_where_clients_have_to_have_seen_it(untold, tiny, tmp_path):
    experiment.start(tiny, tmp_path / "base", Watcher())
    with pytest.raises(UserError, match="seen the first task themselves"):
        experiment.start(replace(untold, base=str(tmp_path / "base")), tmp_path / "r", Watcher())
    assert not (tmp_path / "r").exists()


def test_teachers_do_not_multiply_with_clients(untold, tmp_path):
    """Twenty clients that move in three rounds have three teachers."""
    world = replace(untold.world, clients=20, stay=0.0, refresh=0.0, join="boundary", away=0.0, lag=2)
    folder = experiment.start(replace(untold, world=world), tmp_path / "r", Watcher())
    state = json.loads((folder.path / "state.json").read_text())
    assert len(state["taught"]) > 15
    assert len(set(state["taught"].values())) <= 3
    assert RunFolder.open(folder.path).restore().server.taught.keys() == {int(c) for c in state["taught"]}
