"""Adding up features: what a client counts and when, what a server accepts, and that splits do not matter."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fiss.errors import UserError
from fiss.federation import collection, wire
from fiss.federation.client import Site, answer_order
from fiss.federation.collection import Gathering, Held, accepted
from fiss.federation.messages import Contribution, Memory, Order, Reply, Server
from fiss.labels import LabelSpace
from fiss.methods import find
from fiss.methods.analytic import Analytic
from fiss.progress import Progress
from fiss.statistics.features import FixedLayers
from fiss.statistics.ledger import Ledger
from fiss.statistics.sums import Accumulator, Sums

CLASSES, FEATURES = ("a", "b", "c", "d"), 5
TASKS = (LabelSpace((("a", "b"),)), LabelSpace((("a", "b"), ("c", "d"))))
METHOD = Analytic(trunk="pretrained", sent_as="float64")
WEIGHTS = {"encoder.w": torch.ones(3), "head.weight": torch.zeros(0, FEATURES), "head.bias": torch.zeros(0)}
TRUNK = collection.made_with(METHOD.collection, WEIGHTS, FixedLayers())


def cells(name, labelled, channels, checksum=0):
    """Stored features of an image, 16 cells, and their labels as a site with these classes has them."""
    generator = torch.Generator().manual_seed(int(name) + 1000 * checksum)
    ids = torch.randint(0, 5, (1, 4, 4), generator=generator)
    features = torch.randn(1, FEATURES, 4, 4, generator=generator) + ids[:, None]
    ids = torch.where(torch.isin(ids, torch.tensor([0, *labelled])), ids, 0)
    return features, torch.nn.functional.one_hot(ids, channels).permute(0, 3, 1, 2).double()


@pytest.fixture(autouse=True)
def stored(monkeypatch):
    """Sums of stored features in place of a pass through a network."""

    def count(order, images, site, spec, trainer, progress):
        accumulator = Accumulator(order.label_space.channels, FEATURES)
        for _, name in images:
            checksum = next(held.checksum for held in site.held if held.name == name)
            accumulator.add_images(*cells(name, site.labelled, order.label_space.channels, checksum))
        return accumulator.sums(), TRUNK

    monkeypatch.setattr(collection, "_count", count)


def site(images, task=0, checksums=()):
    labelled = ((1, 2), (3, 4))[task]
    held = tuple(Held(str(i), dict(checksums).get(i, 0), (1, 2, 3, 4)) for i in images)
    return Site(CLASSES, tuple(images), labelled, 1, held=held)


def order(client, round_, heard, task=0):
    return Order(client, round_, TASKS[task], WEIGHTS, None, heard=heard)


def ask(order_, memory, own):
    return answer_order(order_, memory, own, METHOD, None, [], Progress())


def expected(images, task=0, channels=3, checksums=()):
    total = Sums.zero(channels, FEATURES)
    for i in images:
        accumulator = Accumulator(channels, FEATURES)
        accumulator.add_images(*cells(str(i), ((1, 2), (3, 4))[task], channels, dict(checksums).get(i, 0)))
        total += accumulator.sums()
    return total


def test_a_client_that_is_asked_twice_counts_once():
    first, memory = ask(order(1, 3, -1), Memory(), site(range(6)))
    assert first.contribution.sums.close(expected(range(6)))
    assert (first.contribution.period, first.contribution.since, first.report) == (3, None, {"counted": 6})
    again, memory = ask(order(1, 4, 3), memory, site(range(6)))
    assert (again.contribution, again.images, again.weights) == (None, 6, {})
    more, _ = ask(order(1, 5, 3), memory, site([*range(3), 7, 8]))  # three are gone, two are new
    assert more.contribution.sums.close(expected([7, 8]))
    assert (more.contribution.period, more.contribution.since) == (3, None)


def test_a_changed_mask_replaces_what_it_added():
    _, memory = ask(order(1, 3, -1), Memory(), site(range(6)))
    changed, memory = ask(order(1, 4, 3), memory, site(range(5), checksums={2: 9}.items()))
    assert changed.contribution.sums.close(expected(range(5), checksums={2: 9}.items()))
    assert (changed.contribution.period, changed.contribution.since) == (3, 3)
    assert ask(order(1, 5, 4), memory, site(range(5), checksums={2: 9}.items()))[0].contribution is None


def test_new_classes_begin_a_period_and_leave_the_old_one_alone():
    _, memory = ask(order(1, 0, -1), Memory(), site(range(6)))
    reply, memory = ask(order(1, 1, 0, task=1), memory, site([4, 5, 6], task=1))
    assert reply.contribution.sums.close(expected([4, 5, 6], 1, 5))
    assert (reply.contribution.period, reply.contribution.since) == (1, None)


def test_what_was_lost_on_its_way_is_sent_again():
    _, memory = ask(order(1, 0, -1), Memory(), site(range(4)))
    again, memory = ask(order(1, 1, -1), memory, site(range(6)))
    assert again.contribution.sums.close(expected(range(6)))
    _, memory = ask(order(1, 2, 1), memory, site(range(8)))
    again, memory = ask(order(1, 3, 1), memory, site(range(9)))
    assert again.contribution.sums.close(expected([6, 7, 8]))
    anew, _ = ask(order(1, 4, 3), Memory(), site(range(5)))  # the site has lost its memory
    assert anew.contribution.sums.close(expected(range(5)))
    assert anew.contribution.since == 0


def played(rounds):
    """The classifier after rounds of (task, {client: images}), asked in the order given; through the wire."""
    gathering = Gathering(METHOD.collection, 0, "float32", FixedLayers())
    server, memories = Server(TASKS[0], WEIGHTS), {}
    for number, (task, sites) in enumerate(rounds):

        def engine(orders, sites=sites, task=task):
            for one in sorted(orders, key=lambda one: list(sites).index(one.client)):
                one = wire.to_order(wire.from_order(one), {})[0]
                reply, memories[one.client] = ask(
                    one, memories.get(one.client, Memory()), site(sites[one.client], task)
                )
                yield wire.to_reply(wire.from_reply(reply))[0]

        server = replace(server, label_space=TASKS[task])
        server, _, refused = gathering.gather(server, number, tuple(sites), None, engine)
        assert not refused
    return server


def test_splits_orders_and_repetitions_do_not_matter():
    one = played([(0, {1: range(20)}), (1, {1: range(12, 40)})])
    other = played(
        [
            (0, {3: range(5)}),
            (0, {3: range(5), 2: range(5, 20)}),
            (1, {7: range(30, 40)}),
            (1, {2: range(12, 30), 7: range(30, 40)}),
            (1, {2: range(12, 30)}),
        ]
    )
    assert one.weights["head.weight"].shape == (5, FEATURES)
    for name in ("head.weight", "head.bias"):
        whole = [
            Gathering(METHOD.collection, 0, "float32", FixedLayers()).solved(
                {k: v.double() for k, v in WEIGHTS.items()}, s.collected.ledger, TASKS[1]
            )[name]
            for s in (one, other)
        ]
        assert (whole[0] - whole[1]).abs().max() <= 1e-9 * whole[0].abs().max()


def test_what_cannot_be_true_is_refused():
    good, _ = ask(order(1, 2, -1), Memory(), site(range(6)))
    given, ledger = good.contribution, Ledger(TRUNK, FEATURES)
    assert list(accepted(ledger, 1, given, 3, 2).contributions) == ["00001/00002"]
    wrong = replace(given.sums, triangle_T=given.sums.triangle_T * -1)
    cases = {
        "negative eigenvalues|allow": replace(given, sums=wrong),
        "not finite": replace(given, sums=replace(given.sums, counts_C=given.sums.counts_C * float("nan"))),
        "the shape": replace(given, sums=given.sums.grown(4)),
        "do not add up": replace(given, made_with="another"),
        "none of the rounds": replace(given, period=3),
    }
    for says, bad in cases.items():
        with pytest.raises(UserError, match=says):
            accepted(ledger, 1, bad, 3, 2)
    gathering = Gathering(METHOD.collection, 0, "float32", FixedLayers())
    replies = [replace(good, contribution=cases["not finite"]), replace(good, client=2)]
    server, _, refused = gathering.gather(Server(TASKS[0], WEIGHTS), 2, (1, 2), None, lambda orders: replies)
    assert list(refused) == [1]
    assert dict(server.collected.heard) == {2: 2}


def test_replacing_leaves_other_clients_and_earlier_periods():
    ledger = Ledger(TRUNK, FEATURES)
    for client, period in ((1, 0), (1, 2), (1, 4), (2, 2)):
        ledger = accepted(ledger, client, Contribution(expected([client]), TRUNK, period), 3, 9)
    ledger = accepted(ledger, 1, Contribution(expected([5]), TRUNK, 2, since=2), 3, 9)
    assert sorted(ledger.contributions) == ["00001/00000", "00001/00002", "00002/00002"]
    assert ledger.total(3).close(expected([1, 5, 2]), 1e-12)


@pytest.mark.parametrize("sent_as", ["float32", "float64"])
def test_sums_through_the_wire(sent_as):
    dtype = replace(METHOD, sent_as=sent_as).collection.dtype
    sums = Sums.from_tensors(expected(range(3)).tensors(dtype), 48, 3)
    message = wire.from_reply(Reply(1, 3, contribution=Contribution(sums, TRUNK, 4, 2)))
    assert {array.dtype.name for array in message.arrays.values()} == {sent_as}
    back = wire.to_reply(message)[0].contribution
    assert (back.made_with, back.period, back.since, back.sums.images) == (TRUNK, 4, 2, 3)
    assert back.sums.close(sums, 0)
    for key, value in (("cells", -1), ("period", 1.5), ("made_with", 3)):
        text = wire.json.loads(message.text)
        text["contribution"][key] = value
        with pytest.raises(UserError):
            wire.to_reply(replace(message, text=wire.json.dumps(text)))
    with pytest.raises(UserError, match="counts, sums and a triangle"):
        wire.to_reply(replace(message, arrays={}))


def test_who_is_asked():
    gathering = Gathering(Analytic().collection, 3, "float32", FixedLayers())
    server = SimpleNamespace(collected=SimpleNamespace(took_part=(1, 2, 5)))
    assert [gathering.trains(r) for r in range(5)] == [True, True, True, False, False]
    assert gathering.asked(server, 1, (2, 3), None) == ()
    assert gathering.asked(server, 2, (2, 3), None) == [1, 2, 5]
    assert gathering.asked(server, 2, (2, 3), (2, 5, 7)) == [2, 5]
    assert gathering.asked(server, 3, (3, 2), None) == [2, 3]
    only = Gathering(Analytic(collected_from="selected").collection, 3, "float32", FixedLayers())
    assert only.asked(server, 2, (3, 2), None) == [2, 3]


def test_fields_are_checked():
    with pytest.raises(UserError, match="never trained, so its maps are those without `pretrained/`"):
        Analytic(trunk="pretrained", maps=("pretrained/stage-1",))
    assert find("analytic").collection.trunk_rounds is None
    assert Analytic(trunk="pretrained", trunk_rounds=4).collection.trunk_rounds == 0
    for fields, says in (({"stride": -1}, "method.stride"), ({"shrinkage": 0.0}, "above 0"), ({"maps": ()}, "one map")):
        with pytest.raises(UserError, match=says):
            Analytic(**fields)
