"""The permutation test that says whether images look otherwise than those of before."""

import json
import math

import numpy as np
import pytest

from fiss.monitors.features import chance, compare, differences, likeness, readable, recalled, remembered, unseen


def draws(seed=0):
    return np.random.default_rng(seed)


def test_four_images_by_hand():
    """Features 0, 0 before and 1, 1 now: of the six divisions into two and two this one and its mirror differ most, all
    others by nothing. The squared distances are 0 or their largest, half of them each, so their median is half of it
    and the likeness across e^-2."""
    old, new = np.zeros((2, 1)), np.ones((2, 1))
    alike = likeness(np.concatenate([old, new]))
    assert alike == pytest.approx(np.where(np.kron(np.eye(2), np.ones((2, 2))) > 0, 1, math.exp(-2)))
    found = differences(alike, np.array([[0.0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0]]))
    assert found == pytest.approx([2 - 2 * math.exp(-2), 0, 2 - 2 * math.exp(-2)])
    assert chance(old, new, 0.001, draws()) == pytest.approx(2 / 6, abs=0.02)


def test_the_statistic_against_a_slow_loop():
    rows = draws().lognormal(size=(7, 5))
    normal = (rows - rows.mean(0)) / rows.std(0)
    values, vectors = np.linalg.eigh(normal.T @ normal)
    root = vectors @ np.diag(1 / np.sqrt(values + values.mean())) @ vectors.T
    spread = normal @ root
    squares = [[sum((a - b) ** 2 for a, b in zip(i, j, strict=True)) for j in spread] for i in spread]
    width = np.median(squares)
    alike = [[math.exp(-d / width) for d in line] for line in squares]
    assert likeness(rows) == pytest.approx(np.array(alike))
    new, old = (1, 4, 5), (0, 2, 3, 6)

    def mean(left, right):
        return sum(alike[i][j] for i in left for j in right) / (len(left) * len(right))

    chosen = np.array([[float(i in new) for i in range(7)]])
    wanted = mean(new, new) + mean(old, old) - 2 * mean(new, old)
    assert differences(np.array(alike), chosen) == pytest.approx([wanted])


@pytest.mark.parametrize("sizes", [(20, 256), (8, 8), (12, 16)])
def test_skewed_features_and_unequal_folders_keep_the_level(sizes):
    """Welch's test, the rule before, fired in a third of these with 20 images against 256, at a level of 1 %."""
    random, times, level = draws(1), 120, 0.05
    scale = np.exp(random.normal(size=40))
    found = [[random.lognormal(size=(n, 40)) * scale for n in sizes] for _ in range(times)]
    false = sum(compare(remembered(old), new, level, random)[0] <= level for old, new in found)
    assert false / times <= level + 2.6 * math.sqrt(level * (1 - level) / times)


def test_folders_of_twelve_to_sixteen_images_are_enough():
    """A quarter of the features shifted by their deviation."""
    random, seen = draws(2), 0
    for number in range(30):
        old, new = random.normal(size=(12, 160)), random.normal(size=(12 + number % 5, 160))
        new[:, ::4] += 1
        seen += compare(remembered(old), new, 0.01, random)[0] <= 0.01
    assert seen >= 29


def test_only_images_that_were_not_there_are_compared():
    old, new = draws(3).normal(size=(14, 12)), draws(4).normal(3, size=(12, 12))
    looks = remembered(old)
    grown = np.concatenate([old, new])[draws().permutation(26)]
    assert sorted(map(tuple, unseen(recalled(looks), grown))) == sorted(map(tuple, new))
    assert compare(looks, old[::-1], 0.01, draws()) == (1.0, looks)  # all the same
    found, later = compare(looks, grown, 0.01, draws())
    assert found == chance(recalled(looks), unseen(recalled(looks), grown), 0.01, draws()) == 0.001
    assert later["images"] == 26


def test_too_few_wait_for_others_unless_it_is_known_that_they_are_new():
    old, new = draws(3).normal(size=(12, 6)), draws(4).normal(9, size=(3, 6))
    looks = remembered(old)
    assert compare(looks, np.concatenate([old, new[:1]]), 0.01, draws()) == (1.0, looks)  # of 13 divisions
    assert compare(looks, new, 0.01, draws())[0] == pytest.approx(1 / 455, abs=0.002)
    assert compare(looks, new, 0.002, draws()) == (1.0, looks)
    assert compare(looks, new, 0.0, draws()) == (1.0, looks)
    assert compare(looks, new[:1], 0.01, draws(), known=True) == (1.0, remembered(new[:1]))
    assert compare(looks, new[:0], 0.01, draws()) == (1.0, looks)


def test_what_is_remembered_is_small_and_text():
    rows = draws().lognormal(size=(256, 160))
    rows[:, 7] = 3.0
    looks = json.loads(json.dumps(remembered(rows)))
    assert len(json.dumps(looks)) < 60_000
    assert (np.abs(recalled(looks) - rows) <= np.ptp(rows, axis=0) / 509 + 1e-6).all()
    assert len(unseen(recalled(looks), rows)) == 0
    assert compare(looks, rows[:, :99], 0.01, draws()) == (1.0, remembered(rows[:, :99]))  # of another network


def test_what_earlier_versions_remembered_is_replaced():
    before = {"images": 12, "mean": [0.5] * 4, "variance": [1.0] * 4}
    assert not readable(before)
    assert compare(before, np.eye(4), 0.01, draws()) == (1.0, remembered(np.eye(4)))


def test_the_same_draws_give_the_same_chance():
    old, new = draws(1).normal(size=(9, 4)), draws(2).normal(0.5, size=(9, 4))
    assert chance(old, new, 0.01, draws(3)) == chance(old, new, 0.01, draws(3))
    assert 0.01 < chance(old, new, 0.01, draws(3)) < 1
