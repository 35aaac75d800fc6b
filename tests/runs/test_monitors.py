"""Monitors: when a client notices new classes by itself, and what it looks at."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from worlds import TINY_NETWORK

from fiss.cli.tables import score_table
from fiss.config import presets
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import AugmentSpec, ScoredImages, TrainingImages, normalise
from fiss.errors import UserError
from fiss.federation.client import Site, answer_order, answer_probe, read_epochs, sample
from fiss.federation.messages import Memory, Order, Probe, ProbeResult, Snapshot
from fiss.labels import LabelSpace
from fiss.methods.finetune import Finetune
from fiss.models.segmenter import build
from fiss.monitors import accuracy
from fiss.monitors.accuracy import Probed
from fiss.monitors.features import recalled
from fiss.monitors.rules import RULES, Evidence, MonitorSpec, judge
from fiss.progress import Progress
from fiss.reports import comparison, report
from fiss.runs.folder import RunFolder
from fiss.runs.records import probed
from fiss.simulation import experiment
from fiss.training.batches import Reader
from fiss.training.schedule import rate_in_round
from fiss.training.spec import TrainingSpec
from fiss.training.trainer import Trainer

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
    found = accuracy.compare([3, 7], probes)
    assert (found.true, found.seen, found.missed, found.false, found.unprobed) == (2, 1, 1, 2, 0)
    assert (found.delay_probes, found.delay_rounds) == (1, 1)
    assert (found.precision, found.recall) == (1 / 3, 1 / 2)
    never = accuracy.compare([9], probes)
    assert (never.true, never.unprobed, never.recall, never.delay_rounds) == (1, 1, None, None)
    both = accuracy.total([found, accuracy.compare([3], [(6, True)])])
    assert (both.seen, both.delay_rounds, both.delay_probes) == (2, 2.0, 0.5)
    assert accuracy.total([]).precision is None


def test_transitions_from_a_log():
    probes = [Probed(r, 4, r == 3, seen()) for r in range(1, 5)]
    found = accuracy.by_client({4: (1, 3, 9), 5: (2,), 6: (8,)}, probes, 4)
    assert set(found) == {4, 5}
    assert (found[4].true, found[4].seen, found[4].missed) == (2, 1, 0)  # round 9 has not come yet
    assert found[4].unprobed == 1  # at its first probe nobody can know that it had others before
    assert (found[5].true, found[5].unprobed) == (1, 1)


def test_a_monitor_replayed_over_its_own_run_fires_as_it_did(untold, tmp_path):
    config = replace(untold, monitor=replace(untold.monitor, name="misfit"))
    folder = experiment.start(config, tmp_path / "r", Progress())
    probes = probed(folder.rounds())
    assert len(probes) == sum(len(record["probes"]) for record in folder.records("rounds.jsonl")) > 0
    assert accuracy.replay(config.monitor, probes) == probes
    (table,) = comparison.monitors([folder.path])
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == {*RULES, "misfit (as it ran)"} - {"misfit"}
    assert rows["oracle"][1:4] == ("1.00", "1.00", "0.00")
    last = folder.scores()[-1].transitions
    counts = (last.true, last.seen, last.missed, last.false, last.unprobed)
    assert rows["misfit (as it ran)"][5:] == tuple(map(str, counts))


def test_the_report_and_the_table_show_what_monitors_saw(untold, finished, tmp_path):
    folder = RunFolder(finished(untold))
    report.write([folder.path], tmp_path / "page.html", Progress())
    page = (tmp_path / "page.html").read_text()
    assert "what the monitors saw" in page
    assert 'alt="what clients measured in every round"' in page
    seen = folder.scores()[-1].transitions
    assert f"<td>all</td><td>{seen.true}</td><td>{seen.seen}</td>" in page
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(score_table(folder.ends(), "t"))
    text = console.export_text()
    assert "transitions, recall" in text
    assert "transitions, delay in rounds" in text


def test_replaying_needs_probes(tiny, finished):
    with pytest.raises(UserError, match="--monitor oracle"):
        comparison.monitors([finished(tiny)])


# The client


@pytest.fixture
def trainer():
    model = build(TINY_NETWORK, (1, 2), 0)
    spec = TrainingSpec(epochs=1, batch=4, device="cpu", first_rate=0.1, later_rate=0.01, horizon=2, least_rate=0.2)
    plain = Reader(ScoredImages(DATA.train, 32), 0, False)
    reader, feature_network = (
        Reader(TrainingImages(DATA.train, AugmentSpec(crop=32)), 0, False),
        build(TINY_NETWORK, (1,), 5),
    )
    return Trainer(model, None, reader, spec, plain, feature_network)


def ask(trainer, memory, images, labelled, round_=0, space=None, name="images"):
    space = space or LabelSpace(((), ("disc", "ring")))
    site = Site(DATA.classes, images, labelled, 0)
    weights = build(TINY_NETWORK, space.sizes, 0).weights()
    return answer_probe(Probe(0, round_, space, weights), memory, site, MonitorSpec(name), trainer)


def test_first_data_are_no_transition_and_later_ones_may_be(trainer):
    said, memory = ask(trainer, Memory(), range(6), (1, 2))
    assert said == ProbeResult(0)
    assert memory.since == 0
    assert memory.evidence["images"] == 6
    said, memory = ask(trainer, memory, range(6), (1, 2), 1)
    assert said == ProbeResult(0)
    said, memory = ask(trainer, replace(memory, epochs=4), range(4, 12), (3,), 2)
    assert said == ProbeResult(0, ("square",), True, 2)
    assert (memory.since, memory.epochs, memory.transitions) == (2, 0, 1)
    assert memory.evidence["missed"] == 1.0  # the model cannot know it


def test_a_newcomer_asks_for_the_model_that_knows_what_it_does_not(trainer):
    space = LabelSpace(((), ("disc", "ring"), ("square",)))
    said, memory = ask(trainer, Memory(), range(6), (3,), 7, space)
    assert said == ProbeResult(0, (), False, 2)
    assert memory.since == 7
    said, _ = ask(trainer, Memory(), range(6), (1, 3), 7, space)
    assert said == ProbeResult(0)  # every group has a class of its own: nothing to remember
    said, _ = ask(trainer, Memory(), range(6), (4,), 7, space)
    assert said == ProbeResult(0, ("triangle",), False, 3)
    said, _ = ask(trainer, Memory(), range(6), (1, 2), 7, space)
    assert said == ProbeResult(0, (), False, 3)  # others have gone on: it must not unlearn what they know
    said, _ = ask(trainer, Memory(), range(6), (1, 2), 0, LabelSpace(((), ("disc", "ring"))))
    assert said == ProbeResult(0)


def test_a_client_without_data_sees_nothing(trainer):
    assert ask(trainer, Memory(), (), (1,)) == (ProbeResult(0), Memory())
    _, memory = ask(trainer, Memory(), range(6), (1,))
    _, memory = ask(trainer, memory, (), ())
    assert memory.evidence == {}  # what it saw before is not seen again
    assert memory.since == 0


def test_before_there_are_classes_a_client_only_says_what_it_holds(trainer):
    said, memory = ask(trainer, Memory(), range(6), (2, 3), 0, LabelSpace(((),)))
    assert said == ProbeResult(0, ("ring", "square"))
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
            output = trainer.feature_network.eval()(normalise(image[None]) * own)
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
            signs = torch.randint(0, 2, (depth, 32), generator=torch.Generator().manual_seed(stage)) * 2 - 1
            row += [sum(mean[d] * int(signs[d, k]) for d in range(depth)) / np.sqrt(depth) for k in range(32)]
        rows.append(row)
    assert memory.looks["images"] == len(rows) > 3
    assert recalled(memory.looks) == pytest.approx(np.array(rows), abs=1e-4 + np.ptp(rows, axis=0).max() / 500)
    assert memory.evidence["chance"] == 1.0
    _, later = ask(trainer, memory, range(9), (2, 3), 1)
    assert (later.evidence["chance"], later.looks) == (1.0, memory.looks)
    _, later = ask(trainer, memory, range(12, 24), (2, 3), 1)
    assert 0 < later.evidence["chance"] < 1
    assert later.looks != memory.looks
    assert ask(trainer, memory, range(12, 24), (2, 3), 1)[1] == later  # its draws have an address


def test_a_memory_of_an_earlier_version_is_read(trainer):
    """It kept means of features: those of the images it still holds are measured again, and nothing fires."""
    _, memory = ask(trainer, Memory(), range(9), (1, 2))
    before = replace(memory, looks={"images": 9, "mean": [0.1] * 3, "variance": [1.0] * 3})
    said, now = ask(trainer, before, range(9), (1, 2), 1, name="features")
    assert (said.transition, now.looks) == (False, memory.looks)


def test_a_class_that_the_label_space_lacks_is_new_to_the_client_too():
    lacks = seen(lacks=True, changed=True, chance=1.0)
    assert fires("features", seen(), lacks, seen(), replace(lacks, changed=False)) == [False, True, False, True]
    refused = replace(lacks, changed=False)  # reported, and not taken in
    assert fires("features", seen(), lacks, refused, refused, lacks) == [False, True, False, False, True]


def test_few_images_of_a_class_that_nobody_knows_are_a_transition_and_first_data_are_none(trainer):
    said, memory = ask(trainer, Memory(), range(6), (1, 3), name="features")
    assert (said.missing, said.transition) == (("square",), False)
    _, memory = ask(trainer, Memory(), range(6), (1, 2), name="features")
    said, memory = ask(trainer, memory, range(7), (1, 2, 3), 1, name="features")
    assert (said.missing, said.transition, memory.since) == (("square",), True, 1)
    fresh = ask(trainer, Memory(), range(7), (1, 2, 3), name="features")[1]
    assert memory.looks == fresh.looks  # the next are compared with these
    known = LabelSpace(((), ("disc", "ring"), ("square",)))
    said, memory = ask(trainer, memory, range(7), (1, 2, 3), 2, known, name="features")
    assert (said.missing, said.transition) == ((), False)


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

    space = LabelSpace(((), ("disc", "ring"), ("square",)))  # others know it already
    trainer.plain_reader = Reader(ScoredImages(Drawn(), 32), 0, False)
    _, memory = ask(trainer, Memory(), range(20), (1,), 0, space, "features")
    said, memory = ask(trainer, memory, range(20, 40), (1,), 1, space, "features")
    assert not said.transition  # others of the same kind
    said, few = ask(trainer, memory, range(39, 41), (3,), 2, space, "features")
    assert not said.transition
    assert few.looks == memory.looks  # one more is too few to tell, and to compare the next with
    said, grown = ask(trainer, few, [*range(20, 40), *range(40, 44)], (1, 3), 3, space, "features")
    assert said.transition  # four more in a folder of twenty that were there
    assert grown.evidence["chance"] == 0.001
    said, _ = ask(trainer, grown, [*range(20, 40), *range(40, 44)], (1, 3), 4, space, "features")
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
        epochs = read_epochs(order, site, Finetune(), trainer)
        return answer_order(order, Memory(since=since, transitions=1), site, Finetune(), trainer, epochs, Progress())

    reply, memory = train(3, 3, None)
    assert reply.transition
    assert memory.rate == pytest.approx(0.1 * 0.5**0.9)  # one round of two
    reply, memory = train(4, 3, None)
    assert not reply.transition
    assert memory.rate == pytest.approx(0.1 * 0.2)  # the least
    _, memory = train(3, 3, Snapshot("after-0003", space, weights))
    assert memory.rate == pytest.approx(0.01 * 0.5**0.9)
    assert memory.teacher == "after-0003"
