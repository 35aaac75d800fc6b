import re
import weakref
from itertools import permutations

import pytest
import torch

from fiss.federation.aggregate import aggregate
from fiss.federation.messages import Reply

SENT = {"weight": torch.zeros(2), "count": torch.zeros((), dtype=torch.long)}


def reply(client, values, images=1, count=1):
    return Reply(client, images, {"weight": torch.tensor(values), "count": torch.tensor(count)})


def test_the_plain_mean():
    result = aggregate(SENT, [reply(0, [1.0, 2.0], 10), reply(1, [3.0, 6.0], 30)], "uniform")
    assert result.weights["weight"].tolist() == [2.0, 4.0]
    assert not result.refused


def test_the_mean_by_images():
    result = aggregate(SENT, [reply(0, [1.0, 2.0], 10), reply(1, [3.0, 6.0], 30)], "images")
    assert result.weights["weight"].tolist() == [2.5, 5.0]


@pytest.mark.parametrize("weighting", ["uniform", "images"])
def test_any_order_gives_the_same_bits(weighting):
    """Values that cancel: their sum depends on the order in which they are added, so the order must be fixed."""
    sent = {"weight": torch.zeros(3)}
    values = ([1e20, 1.0, 3.0], [1.0, 1e20, 5.0], [-1e20, -1e20, 7.0], [3.0, 2.0, 1e-8])
    replies = [Reply(c, 8, {"weight": torch.tensor(v)}) for c, v in enumerate(values)]
    naive = {tuple(sum(r.weights["weight"].double()[:2] for r in order).tolist()) for order in permutations(replies)}
    assert len(naive) > 1
    results = {aggregate(sent, order, weighting).weights["weight"].numpy().tobytes() for order in permutations(replies)}
    assert len(results) == 1


def test_counters_take_the_largest():
    result = aggregate(SENT, [reply(0, [1.0, 1.0], count=3), reply(1, [1.0, 1.0], count=5)], "uniform")
    assert int(result.weights["count"]) == 5
    assert result.weights["count"].dtype == torch.long


def test_clients_without_images_do_not_count():
    result = aggregate(SENT, [reply(0, [1.0, 1.0]), Reply(1, 0)], "uniform")
    assert result.weights["weight"].tolist() == [1.0, 1.0]
    assert aggregate(SENT, [Reply(1, 0)], "uniform").weights is SENT


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"weight": torch.tensor([1.0, float("nan")]), "count": torch.tensor(1)}, "not finite"),
        ({"weight": torch.tensor([1.0, float("inf")]), "count": torch.tensor(1)}, "not finite"),
        ({"weight": torch.ones(1), "count": torch.tensor(1)}, r"\(1,\), sent as torch.float32 \(2,\)"),
        ({"weight": torch.ones(2, dtype=torch.float64), "count": torch.tensor(1)}, "torch.float64"),
        ({"weight": torch.ones(2)}, "such as count"),
        ({"weight": torch.ones(2), "count": torch.tensor(1), "extra": torch.ones(1)}, "such as extra"),
    ],
)
def test_a_bad_update_is_refused_and_named(bad, says):
    result = aggregate(SENT, [reply(0, [1.0, 2.0]), Reply(7, 5, bad)], "uniform")
    assert result.weights["weight"].tolist() == [1.0, 2.0]
    assert list(result.refused) == [7]
    assert re.search(says, result.refused[7])
    alone = aggregate(SENT, [Reply(7, 5, bad)], "uniform")
    assert alone.weights is SENT  # nothing to go on with: the model stays
    assert list(alone.refused) == [7]


def test_an_update_far_larger_than_the_others_is_refused_and_named():
    """Updates of length 1, 2, 3 and 40 from (0, 0): the others of the last have the median 2."""
    replies = [reply(0, [1.0, 0.0]), reply(1, [0.0, 2.0]), reply(2, [-3.0, 0.0]), reply(3, [24.0, 32.0])]
    sent = {**SENT, "weight": torch.zeros(2)}
    kept = aggregate(sent, replies, "uniform", range(4), largest=10)
    assert list(kept.refused) == [3]
    assert "40 long, 10 times the others' 2" in kept.refused[3]
    assert kept.weights["weight"].tolist() == pytest.approx([-2 / 3, 2 / 3])
    assert [r.client for r in kept.replies] == [0, 1, 2, 3]
    assert not aggregate(sent, replies, "uniform", range(4), largest=21).refused
    assert not aggregate(sent, replies, "uniform", range(4)).refused
    assert not aggregate(sent, replies[3:], "uniform", largest=10).refused  # nothing to compare it with
    assert list(aggregate(sent, [replies[0], replies[3]], "uniform", largest=10).refused) == [3]
    long = {**SENT, "weight": torch.tensor([300.0, 400.0])}
    idle, honest = reply(0, [300.0, 400.0]), reply(1, [300.0, 440.0])
    assert not aggregate(long, [idle, honest], "uniform", largest=10).refused  # 40 is not far from 1 % of 500
    assert list(aggregate(long, [idle, reply(1, [300.0, 460.0])], "uniform", largest=10).refused) == [1]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("running_var", torch.tensor([-1.0]), "running_var has negative values"),
        ("running_var", torch.tensor([float("nan")]), "running_var has values that are not finite"),
        ("count", torch.tensor(2**62), "count counts more"),
        ("count", torch.tensor(-(2**63)), "count counts more"),  # whose absolute value is itself
    ],
)
def test_what_batchnorm_cannot_have_counted_is_refused(name, value, says):
    given = {"running_var": torch.ones(1), "count": torch.tensor(3)}
    assert not aggregate(given, [Reply(0, 1, {**given, "count": torch.tensor(500)})], "uniform").refused
    assert says in aggregate(given, [Reply(0, 1, {**given, name: value})], "uniform").refused[0]


def test_replies_are_added_up_as_they_come():
    """In order, one reply is alive besides the sum; one that comes early waits, and the bits are the same."""
    alive, most = weakref.WeakSet(), []

    def replies(order):
        for client in order:
            values = torch.full((3,), 0.1 * (client + 1))
            alive.add(values)
            most.append(len(alive))
            yield Reply(client, 5, {"weight": values})
            del values

    sent = {"weight": torch.zeros(3)}
    straight = aggregate(sent, replies(range(6)), "uniform", range(6))
    assert max(most) == 1
    assert [r.client for r in straight.replies] == list(range(6))
    assert all(not r.weights for r in straight.replies)
    most.clear()
    mixed = aggregate(sent, replies([1, 0, 3, 5, 4, 2]), "uniform", range(6))
    assert max(most) == 4  # clients 3, 5 and 4 wait for client 2
    assert torch.equal(mixed.weights["weight"], straight.weights["weight"])
    missing = aggregate(sent, replies([4, 1]), "uniform", range(6))
    assert missing.weights["weight"].tolist() == pytest.approx([0.35] * 3)
