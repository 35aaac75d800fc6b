import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from worlds import voc_presence

from fiss.config.presets import preset
from fiss.data import voc
from fiss.data.label_maps import evaluation_table, training_table
from fiss.errors import UserError
from fiss.federation.spec import TaskSpec, WorldSpec
from fiss.labels import TaskStream
from fiss.simulation.world import joint_plan, make_plan, task_pool
from fiss.training.evaluate import scored_images

PUBLISHED = json.loads((Path(__file__).parents[1] / "support" / "published_draws.json").read_text())
SETTINGS = list(PUBLISHED)


def published_plan(setting, seed=2023):
    config = preset(f"voc-{setting}")
    stream = TaskStream.parse(config.tasks.split, voc.CLASSES)
    return make_plan(config.world, config.tasks, stream, voc_presence("train"), seed), stream


def test_images_per_class_are_those_of_train_aug():
    counts = voc_presence("train")[:, 1:].sum(0).tolist()
    assert counts == [
        586, 486, 698, 461, 654, 385, 1086, 1000, 1081, 264, 528, 1177, 444, 482, 3898, 487, 299, 491, 500, 548,
    ]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_selection_and_draw_of_the_published_runs(setting):
    plan, _ = published_plan(setting)
    assert [list(round_plan.selected) for round_plan in plan.round_plans] == PUBLISHED[setting]["selections"]
    drawn = {key: [list(h.classes), len(h.images)] for key, h in plan.holdings.items()}
    expected = {
        (task, int(client)): draw
        for task, draws in enumerate(PUBLISHED[setting]["draws"])
        for client, draw in draws.items()
    }
    assert drawn == expected


def test_there_are_90_selections_and_243_draws():
    assert sum(len(PUBLISHED[s]["selections"]) for s in SETTINGS) == 90
    assert sum(len(draws) for s in SETTINGS for draws in PUBLISHED[s]["draws"]) == 243


def test_fingerprints_of_the_published_runs():
    for setting in SETTINGS:
        assert published_plan(setting)[0].round_plans[0].selected == (6, 7, 9, 2)
    plan, _ = published_plan("4-4")
    assert [round_plan.selected for round_plan in plan.round_plans[:3]] == [(6, 7, 9, 2), (6, 0, 7, 2), (8, 5, 3, 7)]
    first = {
        client: (set(plan.holdings[0, client].classes), len(plan.holdings[0, client].images)) for client in (6, 7, 9, 2)
    }
    assert first == {6: ({3, 4}, 690), 7: ({1, 3}, 769), 9: ({2, 3}, 709), 2: ({2, 3}, 709)}
    base = published_plan("15-1")[0].holdings[0, 6]
    assert base.classes == (2, 5, 6, 10, 11, 12, 15)
    assert len(base.images) == 4769


@pytest.mark.parametrize(
    ("setting", "counts"),
    [
        ("15-1", [1240, 1277, 1329, 1353, 1421, 1449]),
        ("4-4", [341, 699, 1005, 1277, 1449]),
        ("8-2", [699, 869, 1005, 1140, 1277, 1353, 1449]),
    ],
)
def test_validation_images_per_task(setting, counts):
    stream = TaskStream.parse(setting, voc.CLASSES)
    presence = voc_presence("val")
    spaces = [stream.label_space(t) for t in range(len(counts))]
    assert [len(scored_images("published", voc.CLASSES, space, presence)) for space in spaces] == counts
    assert len(scored_images("full", voc.CLASSES, spaces[0], presence)) == 1449


def test_the_calendar():
    plan, _ = published_plan("4-4")
    assert [round_plan.clients for round_plan in plan.round_plans[::5]] == [10, 14, 18, 22, 26]
    assert [round_plan.rounds_left for round_plan in plan.round_plans[:6]] == [5, 4, 3, 2, 1, 5]
    assert [round_plan.task for round_plan in plan.round_plans] == [t for t in range(5) for _ in range(5)]


def test_the_paper_says_40_percent_in_every_task():
    stream = TaskStream.parse("15-1", voc.CLASSES)
    plan = make_plan(WorldSpec(sample_ratio=0.4), TaskSpec("15-1"), stream, voc_presence("train"), 2023)
    held = plan.holdings[0, 6]
    assert held.classes == (2, 5, 6, 10, 11, 12, 15)
    assert len(held.images) == 2384  # 40 % of the 5,962 images of which 80 % are 4,769


@pytest.mark.parametrize("split", ["client-disjoint", "dirichlet"])
def test_disjoint_splits_give_an_image_to_one_client(split):
    stream = TaskStream.parse("8-2", voc.CLASSES)
    presence = voc_presence("train")
    spec = WorldSpec(split=split, rounds=6, per_round=10)  # everybody is selected in the first task
    plan = make_plan(spec, TaskSpec("8-2"), stream, presence, 0)
    assert plan == make_plan(spec, TaskSpec("8-2"), stream, presence, 0)
    assert plan != make_plan(spec, TaskSpec("8-2"), stream, presence, 1)
    held = [i for client in range(10) for i in plan.holdings[0, client].images]
    assert max(Counter(held).values()) == 1
    pool = set(task_pool(TaskSpec("8-2"), stream, presence, 0, 0).tolist())
    assert set(held) <= pool
    assert len(held) > 0.95 * len(pool)
    for client in range(10):
        own = plan.holdings[0, client]
        assert not own.images or presence[list(own.images)][:, list(own.classes)].any(1).all()


def test_a_small_alpha_makes_sites_differ_more():
    stream = TaskStream.parse("8-2", voc.CLASSES)

    def spread(alpha):
        spec = WorldSpec(split="dirichlet", alpha=alpha, per_round=10)
        plan = make_plan(spec, TaskSpec("8-2"), stream, voc_presence("train"), 0)
        return float(np.std([len(plan.holdings[0, c].images) for c in range(10)]))

    assert spread(0.1) > 2 * spread(100.0)


def test_every_class_has_shares_of_its_own():
    """With a small alpha each class sits at few sites, and not all classes at the same ones."""
    presence = np.zeros((400, 3), bool)
    presence[:200, 1] = presence[200:, 2] = True
    spec = WorldSpec(split="dirichlet", alpha=0.05, per_round=10)
    plan = make_plan(spec, TaskSpec("all"), TaskStream.parse("all", ("a", "b")), presence, 1)
    main = []
    for images in (range(200), range(200, 400)):
        counts = [len(set(plan.holdings[0, c].images) & set(images)) for c in range(10)]
        main.append(int(np.argmax(counts)))
    assert main[0] != main[1]


def test_task_pools():
    stream = TaskStream.parse("1-1", ("a", "b", "c"))
    #                     bg    a      b      c
    presence = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1], [1, 0, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]], bool)

    def pools(images):
        return [task_pool(TaskSpec("1-1", images=images), stream, presence, t, 3).tolist() for t in range(3)]

    assert pools("overlapped") == [[0, 1, 5], [1, 2, 5], [2, 3, 5]]
    assert pools("disjoint") == [[0], [1], [2, 3, 5]]
    parts = pools("partitioned")
    assert sorted(i for part in parts for i in part) == [0, 1, 2, 3, 5]
    assert all(set(part) <= set(whole) for part, whole in zip(parts, pools("overlapped"), strict=True))
    many = np.ones((300, 4), bool)
    sizes = [len(task_pool(TaskSpec("1-1", images="partitioned"), stream, many, t, 3)) for t in range(3)]
    assert sum(sizes) == 300
    assert min(sizes) > 70  # drawn, not always the first task


def test_joint_has_everything_and_the_same_number_of_steps():
    plan, stream = published_plan("4-4")
    joint = joint_plan(plan, stream, voc_presence("train"), 23478)
    assert len(joint.holdings[0, 0].images) == 10582
    assert len(joint.round_plans) == 25
    assert sum(round_plan.steps for round_plan in joint.round_plans) == 23478
    assert {round_plan.selected for round_plan in joint.round_plans} == {(0,)}
    assert joint.round_plans[-1].rounds_left == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"per_round": 11},
        {"clients": 0, "per_round": 0},
        {"class_ratio": 0.0},
        {"sample_ratio": 1.5},
        {"single_ratio": -1.0},
        {"alpha": 0.0},
        {"alpha": 1e308},
        {"rounds": 0},
        {"joiners": -1},
    ],
)
def test_impossible_worlds(changes):
    with pytest.raises(UserError, match="world"):
        WorldSpec(**changes)


def test_a_task_without_images_is_refused():
    presence = np.array([[1, 1, 0]], bool)
    with pytest.raises(UserError, match=r"Task 1 \(b\) has no image"):
        make_plan(WorldSpec(), TaskSpec("1-1"), TaskStream.parse("1-1", ("a", "b")), presence, 0)


def test_background_shift_tables():
    stream = TaskStream.parse("2-1", ("a", "b", "c", "d"), order=("d", "a", "b", "c"))
    space = stream.label_space(1)  # d, a | b
    assert space.names == ("d", "a", "b")
    training = training_table(stream.classes, space, stream.tasks[1])
    #      background a  b  c  d: only b is labelled, on channel 3
    assert training[:5].tolist() == [0, 0, 3, 0, 0]
    evaluation = evaluation_table(stream.classes, space)
    #      c is not seen yet
    assert evaluation[:5].tolist() == [0, 2, 3, 0, 1]
    assert training[255] == evaluation[255] == 255
