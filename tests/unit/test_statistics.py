"""Learning by sums, against slow loops and by hand; and that nothing depends on how images are split."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import slow_statistics as slow
import torch

from fiss.errors import UserError
from fiss.labels import IGNORE
from fiss.models.output import Output
from fiss.statistics import ledger as ledger_module
from fiss.statistics.features import FeatureSpec, FixedLayers, digest, draw_layers, feature_map, named_maps
from fiss.statistics.ledger import ROUNDING, Ledger, problem
from fiss.statistics.solve import NEVER, lda, moments, ridge
from fiss.statistics.sums import Accumulator, Sums, cell_shares

C, D = 4, 6


def images(count, seed=0, channels=C, features=D):
    """Feature maps and the shares of labels with void among them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, channels, (count, 8, 12), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORE
    shares = cell_shares(labels, channels, (3, 4))
    maps = torch.randn(count, features, 3, 4, generator=generator) + 2
    return maps + torch.einsum(
        "bchw,cd->bdhw", shares.float(), torch.randn(channels, features, generator=generator)
    ), shares


def count(maps, shares):
    found = Accumulator(shares.shape[1], maps.shape[1])
    found.add_images(maps, shares)
    return found.sums()


def same(found, expected, tolerance=1e-9):
    for a, b in zip(found, expected, strict=True):
        b = torch.as_tensor(np.asarray(b))
        assert (a - b).abs().max() <= tolerance * b.abs().max()


# Sums


@pytest.mark.parametrize("size", [(3, 4), (4, 6), (8, 12), (5, 7), (11, 5), (1, 1), (9, 13)])
def test_shares_of_cells_are_exact(size):
    """Also where cells do not hold whole pixels, and where they are smaller than pixels."""
    labels = torch.randint(0, C, (2, 8, 12), generator=torch.Generator().manual_seed(1))
    labels[0, :3, :4] = IGNORE
    found, expected = cell_shares(labels.to(torch.uint8), C, size), slow.shares(labels, C, size)
    assert found.shape == (2, C, *size)
    assert np.abs(found.numpy() - np.array(expected, dtype=float)).max() < 1e-15


def test_shares_by_hand():
    labels = torch.tensor([[[0, 0, 1], [0, IGNORE, 1]]], dtype=torch.uint8)
    assert cell_shares(labels, 2, (1, 2)).flatten().tolist() == pytest.approx([5 / 6, 1 / 6, 0, 4 / 6])
    assert cell_shares(torch.full((1, 4, 4), IGNORE), 2, (2, 2)).sum() == 0


def test_labels_that_no_channel_has_are_left_out():
    assert cell_shares(torch.tensor([[[3, 1]]]), 2, (1, 1)).flatten().tolist() == [0, 0.5]


def test_sums_are_those_of_the_loop():
    maps, shares = images(3)
    found, expected = count(maps, shares), slow.sums(slow.cells(maps, shares))
    same((found.counts_C, found.sums_CD, found.gram()), expected, 1e-14)
    assert (found.cells, found.images) == (36, 3)
    assert torch.equal(found.gram(), found.gram().T)
    assert torch.equal(found.gram().diagonal(), found.diagonal())


def test_the_error_of_adding_up(monkeypatch):
    """Against exact sums, relative to the size of what is added: a large offset, many batches, small chunks."""
    monkeypatch.setattr("fiss.statistics.sums.ROWS", 7)
    maps, shares = images(60, features=2)
    maps = (maps + 1000).bfloat16()
    found = Accumulator(C, 2)
    for i in range(0, 60, 4):
        found.add_images(maps[i : i + 4], shares[i : i + 4])
    assert all(t.dtype == torch.float64 for t in found.sums().tensors().values())
    same((found.sums().counts_C, found.sums().sums_CD, found.sums().gram()), slow.sums(slow.cells(maps, shares)), 1e-13)


def test_the_scatter_within_classes():
    maps, shares = images(2)
    found, expected = slow.cells(maps, shares), np.zeros((D, D))
    for c in range(C):
        middle = sum(y[c] * np.array(f) for f, y in found) / sum(y[c] for _, y in found)
        expected += sum(y[c] * np.outer(np.array(f) - middle, np.array(f) - middle) for f, y in found)
    same([count(maps, shares).within()], [expected], 1e-12)


def test_what_was_counted_is_not_changed_by_what_comes_later():
    maps, shares = images(2)
    found = Accumulator(C, D)
    found.add_images(maps[:1], shares[:1])
    first = found.sums()
    found.add_images(maps[1:], shares[1:])
    assert first.close(count(maps[:1], shares[:1]))
    assert not first.close(found.sums())


def test_adding_taking_away_growing():
    (a, p), (b, q) = images(2, 1), images(3, 2)
    both = count(torch.cat([a, b]), torch.cat([p, q]))
    assert (count(a, p) + count(b, q)).close(both)
    assert (both - count(b, q)).close(count(a, p))
    assert (Sums.zero(C, D) + both).close(both, 0)
    grown = both.grown(C + 2)
    assert grown.channels == C + 2
    assert (both + Sums.zero(C + 2, D)).close(grown, 0)
    assert torch.equal(grown.gram(), both.gram())
    assert not grown.close(both)
    assert not both.close(replace(both, images=1))


def test_float32_loses_what_is_stated():
    found = count(*images(3))
    short = Sums.from_tensors(found.tensors(torch.float32), found.cells, found.images)
    for a, b in zip(short.tensors().values(), found.tensors().values(), strict=True):
        assert ((a - b).abs() <= 2.0**-24 * b.abs()).all()
    assert sum(t.nbytes for t in found.tensors(torch.float32).values()) == 4 * (C * (1 + D) + D * (D + 1) // 2)


# Solvers


@pytest.mark.parametrize(("shrinkage", "prior"), [(0.0, 1.0), (0.01, 0.5), (0.3, 0.0)])
def test_discriminant_analysis_is_that_of_the_classes_own_covariances(shrinkage, prior):
    maps, shares = images(6)
    same(lda(count(maps, shares), shrinkage, prior), slow.lda(slow.cells(maps, shares), shrinkage, prior))


@pytest.mark.parametrize("shrinkage", [1e-6, 0.01, 1.0])
def test_ridge_is_least_squares(shrinkage):
    maps, shares = images(6)
    same(ridge(count(maps, shares), shrinkage), slow.ridge(slow.cells(maps, shares), shrinkage), 1e-8)


def test_ridge_towards_a_classifier():
    maps, shares = images(6)
    old = torch.randn(C, D, generator=torch.Generator().manual_seed(3)).double()
    old[-1] = 0  # it does not have that channel
    found = ridge(count(maps, shares), 0.5, towards=(old[:-1], torch.zeros(C - 1)))
    same(found, slow.ridge(slow.cells(maps, shares), 0.5, old), 1e-8)
    strong = ridge(count(maps, shares), 1e9, towards=(old, torch.zeros(C)))
    same(strong[:1], [old], 1e-6)


def test_a_channel_of_the_present_classifier_is_not_given_up():
    maps, shares = images(6)
    old = torch.ones(C + 1, D), torch.zeros(C + 1)
    _, bias = ridge(count(maps, shares).grown(C + 2), towards=old)
    assert (bias == NEVER).tolist() == [False] * (C + 1) + [True]


def points(values):
    """Sums of whole cells with one feature: (value, channel)."""
    maps = torch.tensor([v for v, _ in values]).view(1, 1, 1, -1)
    return count(maps, cell_shares(torch.tensor([[[c for _, c in values]]]), 2, (1, len(values))))


def test_two_classes_and_one_feature_by_hand():
    """Means 1 and 5, variance 1 within: scores -2 (f - 3) - 2 and 2 (f - 3) - 2, and the prior, ln 1/2 each."""
    weights, bias = lda(points([(0.0, 0), (2.0, 0), (4.0, 1), (6.0, 1)]), 0.0, 1.0)
    assert weights.flatten().tolist() == pytest.approx([-2, 2])
    assert bias.tolist() == pytest.approx([4 + math.log(0.5), -8 + math.log(0.5)])


def test_balanced_ridge_where_classes_scatter_alike():
    """Weights that make the small class count as if it had been there three times: then that is what comes out."""
    few, many = [(0.0, 0), (2.0, 0), (4.0, 1), (6.0, 1)], [(0.0, 0), (2.0, 0)] * 2
    same(ridge(points(few + many), 0.1, balance=1.0)[1:], ridge(points(few), 0.1, balance=1.0)[1:], 1e-1)
    weights, bias = ridge(points(few + many), 0.0, balance=1.0)
    assert float(-(bias[1] - bias[0]) / (weights[1] - weights[0])) == pytest.approx(3)  # half way, whatever the counts
    weights, bias = ridge(points(few + many), 0.0)
    assert float(-(bias[1] - bias[0]) / (weights[1] - weights[0])) > 3.2


def scores(classifier, maps):
    weights, bias = classifier
    return torch.einsum("cd,bdhw->bchw", weights, maps.double()) + bias[:, None, None]


@pytest.mark.parametrize("solve", [lda, ridge])
def test_an_easy_problem_is_solved_and_absent_channels_never_win(solve):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, C, (10, 6, 6), generator=generator)
    labels[labels == 2] = 1
    maps = torch.randn(C, D, generator=generator)[labels].permute(0, 3, 1, 2) + 0.1 * torch.randn(
        10, D, 6, 6, generator=generator
    )
    maps[:, 0] = 5.0  # constant
    classifier = solve(count(maps, cell_shares(labels, C + 1, (6, 6))))
    assert (scores(classifier, maps).argmax(1) == labels).float().mean() > 0.99
    assert classifier[1][[2, C]].tolist() == [NEVER, NEVER]
    assert classifier[0][[2, C]].abs().sum() == 0
    assert classifier[0][:, 0].abs().sum() == 0


def test_features_may_be_scaled_and_moved():
    maps, shares = images(6)
    scale, offset = torch.logspace(-2, 2, D)[:, None, None].double(), torch.arange(D)[:, None, None]
    moved = maps.double() * scale + offset
    same([scores(lda(count(moved, shares)), moved)], [scores(lda(count(maps, shares)), maps)], 1e-8)


def test_a_constant_that_was_rounded_is_not_a_feature():
    maps, shares = images(6)
    maps[:, 2] = 5.3
    found = count(maps, shares)
    rounded = Sums.from_tensors(found.tensors(torch.float32), found.cells, found.images)
    assert moments(found)[1][2] == moments(rounded)[1][2] == 0
    same([scores(lda(rounded), maps)], [scores(lda(found), maps)], 1e-5)


def test_what_cannot_be_solved_is_said():
    with pytest.raises(UserError, match="nothing to make a classifier from"):
        lda(Sums.zero(C, D))
    with pytest.raises(UserError, match=r"not positive definite with a shrinkage of 0: use a larger"):
        lda(count(*(t[:1, :, :1, :2] for t in images(1))), shrinkage=0.0)


# Ledger


def sites():
    return {f"site-{i}": images(2 + i, 10 + i) for i in range(4)}


def test_any_split_and_order_gives_the_same_classifier():
    """The same images at one site or at several, in batches of any size, in any order."""
    everything = [torch.cat(t) for t in zip(*sites().values(), strict=True)]
    expected = lda(count(*everything)), ridge(count(*everything))
    draw = random.Random(0)
    for _ in range(5):
        order, ledger = list(range(len(everything[0]))), Ledger("trunk", D)
        draw.shuffle(order)
        while order:
            size = draw.randint(1, 5)
            batch, order = order[:size], order[size:]
            ledger = ledger.added(f"site-{draw.randint(0, 2)}", count(*(t[batch] for t in everything)), "trunk")
        total = ledger.total(C)
        assert total.images == len(everything[0])
        same(lda(total), expected[0])
        same(ridge(total), expected[1])


def test_the_total_is_the_same_to_the_bit_in_any_order():
    found = {name: count(*data) for name, data in sites().items()}
    totals = []
    for order in (list(found), list(reversed(found)), ["site-2", "site-0", "site-3", "site-1"]):
        ledger = Ledger("trunk", D)
        for name in order:
            ledger = ledger.added(name, found[name], "trunk")
        totals.append(ledger.total(C).triangle_T.numpy().tobytes())
    assert len(set(totals)) == 1
    assert (
        found["site-3"] + found["site-1"] + found["site-0"] + found["site-2"]
    ).triangle_T.numpy().tobytes() != totals[0]


def ledger_of(names):
    ledger = Ledger("trunk", D)
    for name in names:
        ledger = ledger.added(name, count(*sites()[name]), "trunk")
    return ledger


def test_what_is_taken_out_was_never_there():
    without = ledger_of(["site-0", "site-1", "site-3"])
    never = lda(without.total(C))
    assert torch.equal(lda(ledger_of(sites()).without("site-2").total(C))[0], never[0])
    part = count(*sites()["site-2"])
    same(lda(without.added("site-0", part, "trunk").taken("site-0", part, "trunk").total(C)), never)
    changed = ledger_of(sites()).replaced("site-2", count(*images(1, 99)), "trunk")
    same(lda(changed.total(C)), lda(without.added("site-2", count(*images(1, 99)), "trunk").total(C)))


def test_a_class_that_is_taken_out_again_is_gone():
    new = count(*images(7, 5, C + 1))
    ledger = ledger_of(sites()).added("site-0", new, "trunk").taken("site-0", new, "trunk")
    assert lda(ledger.total(C + 1))[1][C] == NEVER
    same((t[:C] for t in lda(ledger.total(C + 1))), lda(ledger_of(sites()).total(C)))


def test_what_rounding_leaves_of_a_class_is_no_class():
    found = count(*images(6))
    left = replace(found.grown(C + 1), counts_C=torch.cat([found.counts_C, torch.tensor([1e-13])]))
    left.sums_CD[C] = 1e-10
    same((t[:C] for t in lda(left)), lda(found))
    assert lda(left)[1][C] == NEVER
    assert problem(left, C + 1, D) is None


def test_foreign_contributions_and_names_are_refused():
    with pytest.raises(UserError, match="let it count again"):
        ledger_of(["site-0"]).added("site-1", count(*sites()["site-1"]), "another trunk")
    with pytest.raises(UserError, match="let it count again"):
        ledger_of(["site-0"]).added("site-1", Sums.zero(C, D + 1), "trunk")
    for change in (
        lambda ledger: ledger.without("site-4"),
        lambda ledger: ledger.taken("site-4", Sums.zero(C, D), "trunk"),
    ):
        with pytest.raises(UserError, match="Unknown contribution 'site-4'"):
            change(ledger_of(["site-0"]))


def test_a_ledger_is_read_as_it_was_written(tmp_path):
    ledger = ledger_of(sites()).added("late/site", Sums.zero(C + 3, D), "trunk")
    ledger.save(tmp_path / "a")
    ledger.save(tmp_path / "b")
    read = Ledger.load(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (read.made_with, read.features, set(read.contributions)) == ("trunk", D, {*sites(), "late/site"})
    assert all(read.contributions[name].close(sums, 0) for name, sums in ledger.contributions.items())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_what_came_as_float32_is_kept_and_written_as_that(tmp_path):
    """Nothing is lost: what is added to it is added in float64, and the total is that of float64 to the bit."""
    found = {name: count(*data) for name, data in sites().items()}
    sent = {name: Sums.from_tensors(s.tensors(torch.float32), s.cells, s.images) for name, s in found.items()}
    ledger = Ledger("trunk", D)
    for name, sums in sent.items():
        ledger = ledger.added(name, sums, "trunk")
    assert {s.triangle_T.dtype for s in ledger.contributions.values()} == {torch.float32}
    plain = Sums.zero(C, D)
    for name in sorted(sent):
        plain += sent[name]
    assert ledger.total(C).close(plain, 0)
    assert lda(ledger.contributions["site-1"])[0].equal(lda(sent["site-1"])[0])
    ledger.save(tmp_path / "a")
    assert Ledger.load(tmp_path / "a").total(C).close(plain, 0)
    ledger_of(sites()).save(tmp_path / "b")
    sizes = [(tmp_path / name).stat().st_size for name in "ab"]
    assert sizes[1] - sizes[0] == pytest.approx(4 * 4 * D * (D + 1) // 2, abs=100)
    twice = ledger.added("site-0", sent["site-1"], "trunk").contributions["site-0"]
    assert twice.triangle_T.dtype == torch.float64
    assert twice.close(sent["site-0"] + sent["site-1"], 0)


def test_damaged_and_foreign_files_are_named(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "ledger"
    ledger_of(sites()).save(path)
    good = path.read_bytes()
    for damaged in (good[:-5], good[:40], b"", b"words", good[:-20] + b"\x01" + good[-19:]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"{path}: missing, damaged or no ledger"):
            Ledger.load(path)
    save_file({"weight": torch.zeros(2)}, path)
    for wrong in (path, tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="damaged or no ledger"):
            Ledger.load(wrong)


def test_a_ledger_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "FORMAT", 2)
    ledger_of(sites()).save(tmp_path / "ledger")
    monkeypatch.undo()
    with pytest.raises(UserError, match="format 2, this program reads 1"):
        Ledger.load(tmp_path / "ledger")


def test_what_is_right_has_no_problem():
    found = count(*images(3))
    assert problem(found, C, D) is None
    assert problem(Sums.zero(C, D), C, D) is None
    few = count(*(t[:1, :, :1, :1] for t in images(1)))  # of rank 1: it has eigenvalues of 0
    few = Sums.from_tensors(few.tensors(torch.float32), 1, 1)
    assert problem(few, C, D) is None
    many = count(
        torch.randn(4, 40, 3, 4, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 40)[:, None, None]
        + 100,
        images(4)[1],
    )
    assert problem(Sums.from_tensors(many.tensors(torch.float32), 48, 4), C, 40) is None


def test_what_is_wrong_is_named():
    good, identity = count(*images(3)), torch.eye(D)[torch.ones(D, D).triu() > 0]
    expect = {
        "counts have the shape": good.grown(C + 1),
        "sums have the shape": replace(good, sums_CD=good.sums_CD[:, 1:]),
        "triangle have the shape": replace(good, triangle_T=good.triangle_T[1:]),
        "sums have values that are not finite": replace(good, sums_CD=good.sums_CD / 0),
        "not whole, or negative": replace(good, cells=-1),
        "channel 1 has a negative weight": replace(good, counts_C=good.counts_C * torch.tensor([1, -1, 1, 1])),
        "more than the 3 it counted": replace(good, cells=3),
        "sums of channel 2 are larger": replace(good, sums_CD=good.sums_CD * torch.tensor([1, 1, 50, 1])[:, None]),
        "negative eigenvalues": replace(good, triangle_T=good.triangle_T - 30 * identity),
    }  # fmt: skip
    for words, sums in expect.items():
        assert words in (problem(sums, C, D) or ""), words
    assert "not whole" in (problem(replace(good, images=1.5), C, D) or "")
    larger = replace(good, sums_CD=good.sums_CD * 1.5)  # each class by itself would be possible
    assert "negative eigenvalues" in (problem(larger, C, D) or "")


def test_how_small_a_negative_eigenvalue_is_noticed():
    good = Sums(torch.tensor([2.0]).double(), torch.zeros(1, 2).double(), torch.tensor([1.0, 0, 0]).double(), 2, 1)
    for value, found in (
        (-ROUNDING / 2, None),
        (-ROUNDING * 2, "the scatter within its classes has negative eigenvalues"),
    ):
        assert problem(replace(good, triangle_T=torch.tensor([1.0, 0, value]).double()), 1, 2) == found


# Features


MAPS = {"decoder": 3, "encoder": 5, "stage1": 2}


def maps_of(seed=0):
    generator = torch.Generator().manual_seed(seed)
    sides = {"decoder": (16, 24), "encoder": (2, 3), "stage1": (4, 6)}
    return {name: torch.randn(2, MAPS[name], *sides[name], generator=generator) for name in MAPS}


def test_maps_side_by_side_on_one_grid():
    spec, maps = FeatureSpec(("stage1", "decoder", "encoder"), stride=16), maps_of()
    found = feature_map(maps, spec, FixedLayers(), spec.grid(64, 96))
    assert found.shape == (2, spec.dimensions(MAPS), 4, 6)
    assert torch.equal(found[:, :2], maps["stage1"])
    means = [[slow.cell_means(channel, (4, 6)) for channel in image] for image in maps["decoder"]]
    assert torch.allclose(found[:, 2:5], torch.tensor(means), atol=1e-6)
    enlarged = torch.nn.functional.interpolate(maps["encoder"], (4, 6), mode="bilinear")
    assert torch.allclose(found[:, 5:], enlarged, atol=1e-6)


def test_an_unknown_map_is_named():
    with pytest.raises(UserError, match="Unknown feature map 'stage9'"):
        FeatureSpec(("decoder", "stage9")).dimensions(MAPS)


def test_the_fixed_layers():
    spec, maps = FeatureSpec(("stage1", "decoder"), random=7, projection=4), maps_of()
    plain = feature_map(maps, FeatureSpec(("stage1", "decoder")), FixedLayers(), (4, 6)).double()
    layers = draw_layers(spec, 5, seed=1)
    found = feature_map(maps, spec, layers, (4, 6))
    assert found.shape[1] == spec.dimensions(MAPS) == 4
    random_DK, projection_KP = layers.random_DK.double(), layers.projection_KP.double()
    assert found[1, :, 2, 3].tolist() == pytest.approx(
        ((plain[1, :, 2, 3] @ random_DK).clamp(min=0) @ projection_KP).tolist(), rel=1e-4
    )
    for again, alike in ((draw_layers(spec, 5, seed=1), True), (draw_layers(spec, 5, seed=2), False)):
        assert torch.equal(again.random_DK, layers.random_DK) == alike
        assert torch.equal(again.projection_KP, layers.projection_KP) == alike
    assert not torch.equal(layers.random_DK.flatten()[:9], layers.projection_KP.flatten()[:9])
    wide = draw_layers(FeatureSpec(random=400), 300, seed=0).random_DK
    assert float(wide.square().mean() * 300) == pytest.approx(1, rel=0.02)
    assert FeatureSpec(projection=4).dimensions(MAPS) == 4


def test_the_maps_of_a_trunk():
    stages = torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 2, 2)
    output = Output(torch.zeros(1), torch.zeros(1), torch.zeros(1, 4, 2, 2), torch.zeros(1, 3, 2, 2), stages)
    assert {k: v.shape[1] for k, v in named_maps(output.decoded_BDhw, output.encoded_BDhw, output.stages).items()} == {
        "decoder": 4,
        "encoder": 3,
        "stage1": 2,
        "stage2": 3,
        "stage-2": 2,  # counted from the last
        "stage-1": 3,
    }


def test_mixed_precision_does_not_reach_the_features():
    spec, maps = FeatureSpec(("stage1", "decoder"), random=7), maps_of()
    layers = draw_layers(spec, 5, 1)
    expected = feature_map(maps, spec, layers, (4, 6))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(feature_map(maps, spec, layers, (4, 6)), expected)
        found = count(expected, cell_shares(torch.zeros(2, 8, 8), 1, (4, 6)))
    assert found.close(count(expected, cell_shares(torch.zeros(2, 8, 8), 1, (4, 6))), 0)


def test_the_digest_tells_what_sums_were_made_with():
    spec, trunk = FeatureSpec(random=3), {"a": torch.zeros(2, 3), "b": torch.tensor(4)}
    layers = draw_layers(spec, 2, 0)
    found = {
        digest(spec, layers, trunk),
        digest(replace(spec, stride=8), layers, trunk),
        digest(spec, draw_layers(spec, 2, 1), trunk),
        digest(spec, layers, {**trunk, "b": torch.tensor(5)}),
        digest(spec, layers, {"a": torch.zeros(3, 2), "b": torch.tensor(4)}),
    }
    assert len(found) == 5
    assert digest(spec, draw_layers(spec, 2, 0).to(torch.device("cpu")), dict(reversed(trunk.items()))) in found
