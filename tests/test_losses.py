"""Every loss against the slow loops of slow.py, its gradient against finite differences, and its limit cases."""

import math
from dataclasses import dataclass

import pytest
import slow
import torch

from fiss.labels import LabelSpace
from fiss.losses import compensation, distillation, pod, pseudo, relation
from fiss.losses.segmentation import cross_entropy

CASES = {
    #                (B, H, W), groups (classes per task), teacher's groups
    "random": ((2, 3, 4), (2, 2, 1, 2), 3),
    "second task": ((2, 4, 3), (3, 2), 1),
    "one pixel": ((1, 1, 1), (2, 1), 1),
    "one class each": ((1, 3, 3), (1, 1, 1), 2),
    "teacher far behind": ((2, 3, 3), (2, 1, 2, 1), 1),
    "some ignored": ((2, 3, 4), (2, 2, 1), 2),
    "all ignored": ((1, 2, 3), (2, 2), 1),
    "no background": ((2, 3, 3), (2, 2), 1),
    "only background": ((1, 3, 3), (2, 2), 1),
    "certain": ((1, 3, 4), (2, 1, 1), 2),
    "many": ((1, 2, 5), (100, 50), 1),
}


@dataclass
class Case:
    logits: torch.Tensor
    teacher: torch.Tensor
    labels: torch.Tensor
    groups: tuple[int, ...]
    old: int
    space: LabelSpace

    @property
    def channels(self):
        return self.logits.shape[1]

    @property
    def exponent(self):
        return (self.old - 1) / (self.channels - 1)


def make(name):
    (batch, height, width), groups, known = CASES[name]
    channels, old = 1 + sum(groups), 1 + sum(groups[:known])
    random = torch.Generator().manual_seed(sum(map(ord, name)))

    def draw(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64) * 2

    labels = torch.randint(0, channels, (batch, height, width), generator=random, dtype=torch.uint8)
    if name in ("some ignored", "random"):
        labels[0, 0] = 255
    if name == "all ignored":
        labels[:] = 255
    if name == "no background":
        labels.clamp_(min=1)
    if name == "only background":
        labels.zero_()
    logits, teacher = draw(batch, channels, height, width), draw(batch, old, height, width)
    if name == "certain":
        logits[:, 1], teacher[:, 2] = 800.0, 900.0  # probabilities of exactly 0 and 1
    names = iter(f"c{i}" for i in range(channels))
    space = LabelSpace(tuple(tuple(next(names) for _ in range(size)) for size in groups))
    return Case(logits, teacher, labels, groups, old, space)


def near(value, expected):
    assert math.isfinite(float(value))
    assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def check_gradient(function, logits):
    if logits.numel() > 300:
        return  # the same code as for few classes; finite differences would take minutes
    logits = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(function, (logits,), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("over", ["all", "valid"])
@pytest.mark.parametrize("name", CASES)
def test_cross_entropy(name, over):
    case = make(name)
    near(cross_entropy(case.logits, case.labels, over), slow.cross_entropy(case.logits, case.labels, over))
    check_gradient(lambda z: cross_entropy(z, case.labels, over), case.logits)


@pytest.mark.parametrize("name", CASES)
def test_logit_distillation(name):
    case = make(name)
    near(distillation.logit_distillation(case.logits, case.teacher), slow.logit_distillation(case.logits, case.teacher))
    check_gradient(lambda z: distillation.logit_distillation(z, case.teacher), case.logits)


@pytest.mark.parametrize("name", CASES)
def test_feature_distillation(name):
    case = make(name)
    other = case.logits.flip(1)
    near(distillation.feature_distillation(case.logits, other), slow.feature_distillation(case.logits, other))
    if name != "certain":  # finite differences of squares of 800 are too coarse
        check_gradient(lambda z: distillation.feature_distillation(z, other), case.logits)


@pytest.mark.parametrize("over", ["all", "valid"])
@pytest.mark.parametrize("name", CASES)
def test_unbiased_cross_entropy(name, over):
    case = make(name)
    value = distillation.unbiased_cross_entropy(case.logits, case.labels, case.old, over)
    near(value, slow.unbiased_cross_entropy(case.logits, case.labels, case.old, over))
    check_gradient(lambda z: distillation.unbiased_cross_entropy(z, case.labels, case.old, over), case.logits)


@pytest.mark.parametrize("name", CASES)
def test_unbiased_cross_entropy_without_old_classes_is_cross_entropy(name):
    case = make(name)
    for old in (0, 1):
        near(
            distillation.unbiased_cross_entropy(case.logits, case.labels, old),
            float(cross_entropy(case.logits, case.labels)),
        )


@pytest.mark.parametrize("name", CASES)
def test_unbiased_distillation(name):
    case = make(name)
    value = distillation.unbiased_distillation(case.logits, case.teacher)
    near(value, slow.unbiased_distillation(case.logits, case.teacher))
    check_gradient(lambda z: distillation.unbiased_distillation(z, case.teacher), case.logits)


def test_unbiased_distillation_is_least_for_the_grown_teacher():
    """A student that is the teacher grown from background is at the minimum: no gradient, and any other is worse."""
    case = make("second task")
    new = case.channels - case.old
    grown = torch.cat([case.teacher, case.teacher[:, :1].repeat(1, new, 1, 1)], 1)
    grown[:, 0] -= math.log(new + 1)
    grown[:, case.old :] -= math.log(new + 1)
    grown.requires_grad_()
    least = distillation.unbiased_distillation(grown, case.teacher)
    (gradient,) = torch.autograd.grad(least, grown)
    assert gradient.abs().max() < 1e-12
    for seed in range(20):
        step = torch.randn(grown.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert distillation.unbiased_distillation(grown + 0.1 * step, case.teacher) > least


MAPS = {
    "square": (2, 3, 8, 8),
    "wide": (1, 2, 4, 9),
    "tiny": (1, 2, 1, 1),
    "narrow": (2, 1, 7, 3),
    "flat": (1, 1, 2, 6),
}


@pytest.mark.parametrize("function", ["local_pod", "spatial_cube", "channel_cube"])
@pytest.mark.parametrize("shape", MAPS)
def test_pooled_maps(function, shape):
    random = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(MAPS[shape], generator=random, dtype=torch.float64) for _ in range(2))
    ours, loop = getattr(pod, function), getattr(slow, function)
    assert ours(student, teacher).tolist() == pytest.approx(loop(student, teacher), rel=1e-9, abs=1e-9)
    check_gradient(lambda z: ours(z, teacher), student)


@pytest.mark.parametrize("function", ["local_pod", "spatial_cube", "channel_cube"])
def test_a_student_equal_to_its_teacher_is_left_in_peace(function):
    student = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    value = getattr(pod, function)(student, student.detach().clone())
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert value.tolist() == [0.0, 0.0]
    assert gradient.abs().max() == 0


def test_folded_logits():
    logits = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 5, 1, 1)
    assert pod.fold_logits(logits, 3).flatten().tolist() == [1 + 4 + 5, 2, 3]


@pytest.mark.parametrize("name", CASES)
def test_entropies(name):
    case = make(name)
    ours = pseudo.entropy(case.teacher)
    theirs = pseudo.published_entropy(case.teacher, case.channels)
    for p in slow.pixels(case.labels):
        near(ours[p], slow.entropy(case.teacher, *p))
        near(theirs[p], slow.published_entropy(case.teacher, case.channels, *p))


def drawn_entropies(seed, count=5000, channels=5):
    """Classes of very different confidence and frequency; the last one has no pixel."""
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, channels - 1, (count,), generator=random) * torch.randint(
        0, 2, (count,), generator=random
    )
    spread = torch.tensor([1e-4, 0.02, 0.3, 1.0, 1.0])[classes]
    values = -spread * torch.rand(count, generator=random).log()
    return values % (math.log(channels) - 1e-3), classes


@pytest.mark.parametrize("proportion", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_exact_thresholds(seed, proportion):
    values, classes = drawn_entropies(seed)
    values = values.double()
    found = pseudo.exact_thresholds(values, classes, proportion, 5)
    assert found.tolist() == slow.exact_thresholds(values.tolist(), classes.tolist(), proportion, 5)
    for k in range(4):
        own = values[classes == k]
        accepted, asked = int((own <= found[k]).sum()), len(own) * proportion
        assert abs(accepted - asked) <= 1.0 + 1e-9  # the pixel at the index itself is accepted
    assert found[4] == -1.0


def test_exact_thresholds_of_nothing():
    none = torch.zeros(0, dtype=torch.float64)
    assert pseudo.exact_thresholds(none, none.long(), 0.5, 3).tolist() == [-1.0, -1.0, -1.0]
    one = pseudo.exact_thresholds(torch.tensor([0.3]), torch.tensor([1]), 0.8, 3)
    assert one.tolist() == pytest.approx([-1.0, 0.3, -1.0])


@pytest.mark.parametrize("proportion", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_streamed_thresholds_accept_what_was_asked_to_a_percentage_point(seed, proportion):
    values, classes = drawn_entropies(seed, 20000)
    edges = pseudo.edges(5, values.device)
    histogram = sum(
        pseudo.tally(v, c, torch.ones_like(c, dtype=torch.bool), 5, edges)
        for v, c in zip(values.split(3000), classes.split(3000), strict=True)
    )
    assert int(histogram.sum()) == 20000
    found = pseudo.streamed_thresholds(histogram, edges, proportion)
    for k in range(4):
        own = values[classes == k]
        assert abs(float((own <= found[k]).double().mean()) - proportion) < 0.01
    assert found[4] == -1.0


def test_pixels_that_do_not_count_are_not_tallied():
    edges = pseudo.edges(3, torch.device("cpu"))
    counted = torch.tensor([True, False, True])
    histogram = pseudo.tally(torch.tensor([0.0, 0.5, 1.0986]), torch.tensor([0, 1, 2]), counted, 3, edges)
    assert histogram.sum(1).tolist() == [1, 0, 1]
    assert histogram[0, 0] == 1
    assert histogram[2, -1] + histogram[2, -2] == 1


@pytest.mark.parametrize("proportion", [0.2, 0.5, 0.8])
def test_published_thresholds_equal_the_faulty_loop(proportion):
    random = torch.Generator().manual_seed(0)
    rows = [torch.zeros(100, dtype=torch.long) for _ in range(8)]
    rows[1][0] = 1000  # confident: a value in the first bin, whatever the distribution
    rows[2][:3] = torch.tensor([10, 500, 90])
    rows[3][:5] = torch.tensor([1000, 1500, 2500, 2500, 2500])
    rows[4][3] = 40
    rows[5] = torch.randint(0, 50, (100,), generator=random)
    rows[6][:10] = torch.randint(0, 9000, (10,), generator=random)
    rows[7][20] = 7
    found = pseudo.published_thresholds(torch.stack(rows), proportion)
    for row, value in zip(rows, found.tolist(), strict=True):
        expected = slow.published_threshold(row.tolist(), proportion)
        assert value == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_facts_of_the_published_quantile():
    """0.01 * target / count where the first bin suffices; infinity, so all accepted, where no bin does."""
    histogram = torch.zeros(2, 100, dtype=torch.long)
    histogram[0, 0] = 1000
    histogram[1, :4] = 30000
    found = pseudo.published_thresholds(histogram, 0.2)
    assert float(found[0]) == pytest.approx(0.01 * 0.2)
    assert math.isfinite(float(found[1]))
    assert pseudo.published_thresholds(histogram, 0.8)[1] == math.inf


def test_published_bins_are_hundredths():
    edges = pseudo.published_edges(torch.device("cpu"))
    values = torch.tensor([0.0, 0.0099, 0.0101, 0.995, 1.0])
    histogram = pseudo.tally(values, torch.zeros(5, dtype=torch.long), torch.ones(5, dtype=torch.bool), 1, edges)
    assert histogram[0].nonzero().flatten().tolist() == [0, 1, 99]
    assert histogram[0, 99] == 2


def test_pseudo_labels_by_hand():
    labels = torch.tensor([[[0, 0, 0, 5, 255, 0]]], dtype=torch.uint8)
    classes = torch.tensor([[[1, 2, 0, 1, 1, 0]]])
    accepted = torch.tensor([[[True, False, True, True, True, False]]])
    assert pseudo.pseudo_labels(labels, classes, accepted, 255).flatten().tolist() == [1, 255, 0, 5, 255, 255]
    assert pseudo.pseudo_labels(labels, classes, accepted, 0).flatten().tolist() == [1, 0, 0, 5, 255, 0]
    assert pseudo.accepted_share(labels, accepted).tolist() == pytest.approx([2 / 4], abs=1e-6)
    assert pseudo.accepted_share(labels * 0 + 5, accepted).tolist() == [0.0]
    assert pseudo.by_class(accepted.flatten(), classes.flatten(), 3).tolist() == [1, 3, 0]


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_balanced_weights(name):
    case = make(name)
    g = compensation.gradients(case.logits, case.labels, case.old, case.exponent)
    weights = compensation.balanced_weights(g, case.labels, case.space)
    expected = slow.balanced_weights(case.logits, case.labels, case.old, case.exponent, case.groups)
    for p in slow.pixels(case.labels):
        near(g[p], slow.gradient(case.logits, case.labels, case.old, case.exponent, *p))
        near(weights[p], expected[p])


@pytest.mark.parametrize("name", CASES)
def test_published_weights(name):
    case = make(name)
    weights = compensation.published_weights(case.logits, case.labels, case.space, case.old)
    if name == "certain":
        assert torch.isfinite(weights).all()
        return  # the published code divides 0 by 0 there
    expected = slow.published_weights(case.logits, case.labels, case.old, case.groups)
    for p in slow.pixels(case.labels):
        near(weights[p], expected[p])


def test_with_one_group_and_equal_gradients_compensation_is_cross_entropy():
    logits = torch.zeros(2, 4, 3, 3, dtype=torch.float64)
    logits[:, 1] = 1.0
    labels = torch.ones(2, 3, 3, dtype=torch.uint8)
    space = LabelSpace((("a", "b", "c"),))
    weights = compensation.balanced_weights(compensation.gradients(logits, labels, 4, 0.5), labels, space)
    assert torch.allclose(weights, torch.ones_like(weights))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("how", ["moved", "divided"])
@pytest.mark.parametrize("name", [n for n in CASES if n != "many"])
def test_relation_consistency(name, how, background):
    case = make(name)
    target = relation.relation_targets(case.teacher, case.labels, case.channels, how)
    assert torch.allclose(target.sum(1), torch.ones_like(target[:, 0]))
    g = compensation.gradients(case.logits, case.labels, case.old, case.exponent)

    def value(z):
        return relation.relation_consistency(z, target, case.labels, g, case.space, 10.0, background)

    if name == "certain":  # probabilities of exactly 0: large, and finite
        assert torch.isfinite(value(case.logits))
        return
    arguments = (case.logits, case.teacher, case.labels, case.old, case.exponent, case.groups, how, 10.0, background)
    near(value(case.logits), slow.relation_consistency(*arguments))
    check_gradient(value, case.logits)


def test_the_largest_class_weight_is_bounded():
    case = make("random")
    target = relation.relation_targets(case.teacher, case.labels, case.channels, "moved")
    g = compensation.gradients(case.logits, case.labels, case.old, case.exponent)
    values = [
        float(relation.relation_consistency(case.logits, target, case.labels, g, case.space, m, False))
        for m in (0.1, 10.0)
    ]
    assert values[0] < values[1]


def test_relation_consistency_is_zero_for_a_student_that_agrees():
    case = make("random")
    target = relation.relation_targets(case.teacher, case.labels, case.channels, "moved")
    logits = target.clamp(min=1e-30).log()
    g = torch.ones(case.labels.shape, dtype=torch.float64)
    assert abs(float(relation.relation_consistency(logits, target, case.labels, g, case.space, 10.0, True))) < 1e-9


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("many", "certain")])
def test_published_relation_terms(name):
    case = make(name)
    expected = slow.published_weights(case.logits, case.labels, case.old, case.groups)
    weights = torch.zeros(case.labels.shape, dtype=torch.float64)
    for p in slow.pixels(case.labels):
        weights[p] = expected[p]
    near(
        relation.published_confidence(case.logits, case.teacher, case.labels, weights),
        slow.published_confidence(case.logits, case.teacher, case.labels, expected),
    )
    near(
        relation.published_soft_labels(case.logits, case.teacher, case.labels),
        slow.published_soft_labels(case.logits, case.teacher, case.labels),
    )
    near(relation.published_entropy_term(case.logits), slow.published_entropy_term(case.logits))
    check_gradient(lambda z: relation.published_confidence(z, case.teacher, case.labels, weights), case.logits)
    check_gradient(lambda z: relation.published_soft_labels(z, case.teacher, case.labels), case.logits)
    check_gradient(relation.published_entropy_term, case.logits)


def test_published_terms_are_finite_where_probabilities_are_0_or_1():
    case = make("certain")
    logits = case.logits.requires_grad_()
    weights = compensation.published_weights(logits, case.labels, case.space, case.old)
    total = (
        relation.published_confidence(logits, case.teacher, case.labels, weights)
        + relation.published_soft_labels(logits, case.teacher, case.labels)
        + relation.published_entropy_term(logits)
    )
    (gradient,) = torch.autograd.grad(total, logits)
    assert torch.isfinite(total)
    assert torch.isfinite(gradient).all()


def test_weights_and_targets_carry_no_gradient():
    case = make("random")
    logits, teacher = case.logits.requires_grad_(), case.teacher.requires_grad_()
    g = compensation.gradients(logits, case.labels, case.old, case.exponent)
    for tensor in (
        g,
        compensation.balanced_weights(g, case.labels, case.space),
        compensation.published_weights(logits, case.labels, case.space, case.old),
        relation.relation_targets(teacher, case.labels, case.channels, "moved"),
        pseudo.entropy(logits),
    ):
        assert not tensor.requires_grad
    total = (
        distillation.logit_distillation(logits, teacher)
        + distillation.unbiased_distillation(logits, teacher)
        + distillation.feature_distillation(logits[:, :1], teacher[:, :1])
        + pod.local_pod(logits[:, :1], teacher[:, :1]).sum()
        + relation.published_soft_labels(logits, teacher, case.labels)
    )
    total.backward()
    assert logits.grad is not None
    assert teacher.grad is None


def test_half_precision_is_widened():
    case = make("random")
    half, teacher = case.logits.bfloat16(), case.teacher.bfloat16()
    g = compensation.gradients(half, case.labels, case.old, 0.5)
    target = relation.relation_targets(teacher, case.labels, case.channels, "moved")
    for value in (
        cross_entropy(half, case.labels),
        distillation.logit_distillation(half, teacher),
        distillation.unbiased_cross_entropy(half, case.labels, case.old),
        distillation.unbiased_distillation(half, teacher),
        pod.local_pod(half, half * 0.5).sum(),
        pod.spatial_cube(half, half * 0.5).sum(),
        g.sum(),
        relation.relation_consistency(half, target, case.labels, g, case.space, 10.0, False),
    ):
        assert value.dtype == torch.float32
        assert torch.isfinite(value)
