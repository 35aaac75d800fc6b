"""Ridge towards a present classifier, against explicit least squares over the cells."""

import math

import numpy as np
import pytest
import torch

from fiss.statistics import towards as module
from fiss.statistics.sums import Accumulator
from fiss.statistics.towards import MARGIN, corrections, towards

D, OLD = 4, 3


def cells(count, seed, own=None):
    """Feature maps with one label in each cell, of channels 0 to 3, the last of them new; and a present classifier."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, OLD + 1, (count, 2, 3), generator=generator) if own is None else own
    shares = torch.nn.functional.one_hot(labels, OLD + 1).permute(0, 3, 1, 2).double()
    middle = torch.randn(OLD + 1, D, generator=torch.Generator().manual_seed(7))
    features = torch.randn(count, D, 2, 3, generator=generator) + torch.einsum("bchw,cd->bdhw", shares.float(), middle)
    present = torch.randn(OLD, D, generator=torch.Generator().manual_seed(8)), torch.tensor([0.3, -0.2, 0.1])
    return features, shares, present


def counted(features, shares, present, labelled):
    found = Accumulator(3 * shares.shape[1], D + 1)
    found.add_images(*corrections(features, shares, present, labelled))
    return found.sums()


def slow_targets(features, labels, present, k):
    """By cell, what is to be added to row k's score, in a loop."""
    found = []
    for f, label in zip(features, labels, strict=True):
        scores = [sum(w * x for w, x in zip(row, f, strict=True)) + b for row, b in zip(*present, strict=True)]
        start = scores[k] if k < OLD else scores[0]
        lead = math.log(sum(math.exp(s) for c, s in enumerate(scores) if c != k))
        found.append(max(0.0, lead + MARGIN - start) if label == k else min(0.0, lead - MARGIN - start))
    return np.array(found)


def flat(features, shares, present):
    rows = features.permute(0, 2, 3, 1).flatten(0, 2).double().numpy()
    return rows, shares.argmax(1).flatten().tolist(), [p.double().tolist() for p in present]


@pytest.mark.parametrize("k", [1, OLD])
def test_it_is_the_least_squares_solution(k, monkeypatch):
    """With the cells as many as they are: minimise the mean of (R f - r)^2 + lambda |R|^2, in units of each feature."""
    monkeypatch.setattr(module, "POWER", 1.0)
    monkeypatch.setattr(module, "STRENGTHS", (0.05,))
    features, shares, present = cells(30, 1)
    (weights, bias), strength = towards(
        present, OLD + 1, [counted(*(m[:20] for m in (features, shares)), present, [k])],
        [counted(*(m[20:] for m in (features, shares)), present, [k])],
    )  # fmt: skip
    rows, labels, plain = flat(features, shares, present)
    targets = slow_targets(rows, labels, plain, k)
    design = np.concatenate([rows, np.ones((len(rows), 1))], 1)
    unit = np.sqrt((design**2).mean(0))
    many = len(design) * strength
    more = np.concatenate([design / unit, math.sqrt(many) * np.eye(D + 1)])
    change = np.linalg.lstsq(more, np.concatenate([targets, np.zeros(D + 1)]), rcond=None)[0] / unit
    start = k if k < OLD else 0
    wanted = np.append(present[0][start].double().numpy(), float(present[1][start])) + change
    assert np.allclose(np.append(weights[k].numpy(), float(bias[k])), wanted, atol=1e-5)
    others = [c for c in range(OLD) if c != k]
    assert torch.equal(weights[others], present[0][others].double())
    assert torch.equal(bias[others], present[1][others].double())


def test_weighing_is_exact_where_own_cells_and_others_scatter_alike():
    """The same points around two means: a weighted least-squares fit over the cells gives the same row."""
    generator = torch.Generator().manual_seed(3)
    points = torch.randn(12, D, 1, 1, generator=generator)
    points = points - points.mean(0)
    features = torch.cat([points + 1, *[points - 0.5] * 3])
    labels = torch.tensor([OLD] * 12 + [0] * 36)[:, None, None]
    shares = torch.nn.functional.one_hot(labels, OLD + 1).permute(0, 3, 1, 2).double()
    _, _, present = cells(1, 0)
    (weights, bias), strength = towards(present, OLD + 1, [counted(features, shares, present, [OLD])], [])
    rows, names, plain = flat(features, shares, present)
    targets = slow_targets(rows, names, plain, OLD)
    share = 12**module.POWER / (12**module.POWER + 36**module.POWER)
    weight = np.where(np.array(names) == OLD, share / 12, (1 - share) / 36)
    design = np.concatenate([rows, np.ones((len(rows), 1))], 1)
    matrix, right = (design.T * weight) @ design, (design.T * weight) @ targets
    unit = 1 / np.sqrt(np.diag(matrix))
    change = unit * np.linalg.solve(matrix * unit * unit[:, None] + strength * np.eye(D + 1), right * unit)
    assert strength == module.USUAL
    assert np.allclose(weights[OLD].numpy() - present[0][0].double().numpy(), change[:-1], atol=1e-5)
    assert float(bias[OLD]) - float(present[1][0]) == pytest.approx(change[-1], abs=1e-5)


def test_the_strength_has_the_least_error_on_the_part_that_chooses():
    features, shares, present = cells(12, 4)
    fit = counted(features[:3], shares[:3], present, [OLD])
    choice = counted(features[3:], shares[3:], present, [OLD])
    _, chosen = towards(present, OLD + 1, [fit], [choice])
    rows, labels, plain = flat(features[3:], shares[3:], present)
    targets = slow_targets(rows, labels, plain, OLD)
    own = np.array(labels) == OLD
    share = own.sum() ** module.POWER / (own.sum() ** module.POWER + (~own).sum() ** module.POWER)
    errors = []
    for strength in module.STRENGTHS:
        row = module._solve(*module._moments([fit], OLD), strength).numpy()
        squares = (rows @ row[:-1] + row[-1] - targets) ** 2
        errors.append(share * squares[own].mean() + (1 - share) * squares[~own].mean())
    assert chosen == module.STRENGTHS[int(np.argmin(errors))]
    assert 0 < np.argmin(errors) < len(errors) - 1


def test_a_class_learns_nothing_from_images_that_do_not_label_it():
    a, b = cells(20, 5), cells(20, 6)
    one = counted(*a, [OLD])
    other = counted(*b, [1])
    (alone, _), _ = towards(a[2], OLD + 1, [one], [])
    (both, _), _ = towards(a[2], OLD + 1, [one, other], [])
    assert torch.equal(alone[OLD], both[OLD])
    assert not torch.equal(alone[1], both[1])
