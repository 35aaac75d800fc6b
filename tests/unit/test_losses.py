"""Every loss against the slow loops of slow.py, its gradient against finite differences, and its limit cases."""

import math
from dataclasses import dataclass, replace

import pytest
import slow
import torch

from fiss.labels import LabelSpace
from fiss.losses import compensation, distillation, pod, pseudo, relation
from fiss.losses.segmentation import pixel_mean
from fiss.models.output import Output
from fiss.ops.scatter import add_up, class_sums, means

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


def log_p(logits):
    return logits.log_softmax(1)


def output(logits):
    return Output(logits, logits, logits, logits, ())


def cross_entropy(logits, labels, over="all"):
    return pixel_mean(output(logits).cross_entropy(labels), labels, over)


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
    teacher = log_p(case.teacher)
    value = distillation.logit_distillation(log_p(case.logits), teacher)
    near(value, slow.logit_distillation(case.logits, case.teacher))
    check_gradient(lambda z: distillation.logit_distillation(log_p(z), teacher), case.logits)


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
    for without in ((), tuple(range(1, case.old))[-1:]):

        def loss(z, without=without):
            return distillation.unbiased_cross_entropy(log_p(z), case.labels, case.old, over, without)

        near(loss(case.logits), slow.unbiased_cross_entropy(case.logits, case.labels, case.old, over, without))
        check_gradient(loss, case.logits)


@pytest.mark.parametrize("name", CASES)
def test_unbiased_cross_entropy_without_old_classes_is_cross_entropy(name):
    case = make(name)
    for old in (0, 1):
        near(
            distillation.unbiased_cross_entropy(log_p(case.logits), case.labels, old),
            float(cross_entropy(case.logits, case.labels)),
        )


@pytest.mark.parametrize("name", CASES)
def test_none_but_first(name):
    case = make(name)
    chosen = case.labels % 2 == 0
    near(output(case.logits).none_but_first(case.old, chosen).sum(), slow.none_but_first(case.logits, chosen, case.old))
    assert (output(case.logits).none_but_first(case.old, chosen)[~chosen] == 0).all()
    check_gradient(lambda z: output(z).none_but_first(case.old, chosen).sum(), case.logits)


def test_none_but_first_is_rounded_once():
    """Its gradient is a small difference of large ones."""
    torch.manual_seed(0)
    half = (torch.randn(1, 8, 16, 16) * 3).bfloat16().requires_grad_()
    exact = half.detach().double().requires_grad_()
    chosen = torch.ones(1, 16, 16, dtype=torch.bool)
    for logits in (half, exact):
        output(logits).none_but_first(5, chosen).sum().backward()
    assert ((half.grad - exact.grad).abs() <= exact.grad.abs() / 128 + 1e-6).all()


@pytest.mark.parametrize("name", CASES)
def test_unbiased_distillation(name):
    case = make(name)
    teacher = log_p(case.teacher)
    value = distillation.unbiased_distillation(log_p(case.logits), teacher)
    near(value, slow.unbiased_distillation(case.logits, case.teacher))
    check_gradient(lambda z: distillation.unbiased_distillation(log_p(z), teacher), case.logits)


def test_unbiased_distillation_is_least_for_the_grown_teacher():
    """A student that is the teacher grown from background is at the minimum: no gradient, and any other is worse."""
    case = make("second task")
    new = case.channels - case.old
    grown = torch.cat([case.teacher, case.teacher[:, :1].repeat(1, new, 1, 1)], 1)
    grown[:, 0] -= math.log(new + 1)
    grown[:, case.old :] -= math.log(new + 1)
    grown.requires_grad_()
    least = distillation.unbiased_distillation(log_p(grown), log_p(case.teacher))
    (gradient,) = torch.autograd.grad(least, grown)
    assert gradient.abs().max() < 1e-12
    for seed in range(20):
        step = torch.randn(grown.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert distillation.unbiased_distillation(log_p(grown + 0.1 * step), log_p(case.teacher)) > least


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
    ours = output(case.teacher).entropy[0]
    theirs = pseudo.published_entropy(log_p(case.teacher), case.channels)
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


def streamed(values, classes, proportion, channels=5, batch=3000):
    """Thresholds from batches."""
    edges = pseudo.edges(channels, values.device)
    histogram = sum(
        pseudo.tally(v, c, torch.ones_like(c, dtype=torch.bool), channels, edges)
        for v, c in zip(values.split(batch), classes.split(batch), strict=True)
    )
    assert int(histogram.sum()) == len(values)
    return pseudo.streamed_thresholds(histogram, edges, proportion)


@pytest.mark.parametrize("proportion", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_streamed_thresholds_accept_what_was_asked_to_a_percentage_point(seed, proportion):
    values, classes = drawn_entropies(seed, 20000)
    found = streamed(values, classes, proportion)
    for k in range(4):
        own = values[classes == k]
        assert 0 <= float((own < found[k]).double().mean()) - proportion < 0.01
    assert found[4] == -1.0


@pytest.mark.parametrize("proportion", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("sure", [5.0, 15.0, 20.0, 40.0, 70.0])
def test_streamed_thresholds_of_a_very_confident_teacher(sure, proportion):
    """Its entropies go far below 1e-7."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 5, 100, 100, generator=random)
    logits[:, 0] += sure
    values, classes = (part.flatten() for part in output(logits).entropy)
    found = streamed(values, classes, proportion)
    own = values[classes == 0]
    assert 0 <= float((own < found[0]).double().mean()) - proportion < 0.015


@pytest.mark.parametrize("entropy", [0.0, 1e-45, 1e-37, 1e-7, 0.01, 0.5, math.log(5)])
def test_equal_entropies_are_accepted_together(entropy):
    values, classes = torch.full((1000,), entropy), torch.zeros(1000, dtype=torch.long)
    for proportion in (0.01, 0.2, 0.999):
        assert (values < streamed(values, classes, proportion)[0]).all()
    values[:300] = 2 * entropy if entropy < 0.4 else entropy / 2  # and some that are not equal
    found = streamed(values, classes, 0.2)[0]
    assert int((values < found).sum()) == (300 if values[0] < values[-1] else 700 if entropy > 1e-40 else 1000)


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
    rows = [torch.zeros(100, dtype=torch.long) for _ in range(9)]
    rows[1][0] = 1000  # confident: a value in the first bin, whatever the distribution
    rows[2][:3] = torch.tensor([10, 500, 90])
    rows[3][:5] = torch.tensor([1000, 1500, 2500, 2500, 2500])
    rows[4][3] = 40
    rows[5] = torch.randint(0, 50, (100,), generator=random)
    rows[6][:10] = torch.randint(0, 9000, (10,), generator=random)
    rows[7][20] = 7
    rows[8][:10] = 100  # few and spread out: no bin settles it, and the total passes it by
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
    histogram[1, :10] = 100  # below the running total's end, 4950
    assert pseudo.published_thresholds(histogram, 0.8)[1] == -math.inf  # then raised to the floor


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
    counts = pseudo.offered_and_accepted(labels, classes, accepted, 3)
    assert counts.tolist() == [[2, 1, 1], [1, 1, 0]]


def gradients(case):
    pixels = output(case.logits).cross_entropy(case.labels)
    return compensation.gradients(pixels, case.labels, exact(case))


def exact(case):
    """The table of exponents in float64."""
    table = compensation.exponents(case.channels, case.old, case.labels.device).double()
    assert table[1 : case.old].tolist() == pytest.approx([case.exponent] * (case.old - 1))
    table[1 : case.old] = case.exponent
    return table


def balance(case, g):
    return compensation.balance(g, case.labels, compensation.groups_of(case.space, g.device))


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_balanced_weights(name):
    case = make(name)
    g = gradients(case)
    weights = compensation.balanced_weights(g, case.labels, balance(case, g))
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
    table = compensation.exponents(4, 4, logits.device)
    g = compensation.gradients(output(logits).cross_entropy(labels), labels, table)
    mean = compensation.balance(g, labels, compensation.groups_of(space, logits.device))
    weights = compensation.balanced_weights(g, labels, mean)
    assert torch.allclose(weights, torch.ones_like(weights))


def sums(case, logits):
    ours = output(logits).cross_entropy_and_sums(case.labels, case.channels)[1]
    return ours, output(case.teacher).class_sums(case.labels, case.channels)


def target_prototypes(case, how):
    mean = balance(case, gradients(case))
    theirs = output(case.teacher).class_sums(case.labels, case.channels)
    target = relation.relation_targets(theirs / mean.count_C.clamp(min=1)[:, None], how)
    return target * (mean.count_C > 0)[:, None]  # rows of classes without pixels are not looked at


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("how", ["moved", "divided"])
@pytest.mark.parametrize("name", [n for n in CASES if n != "many"])
def test_relation_consistency(name, how, background):
    case = make(name)
    mean = balance(case, gradients(case))
    target = target_prototypes(case, how)
    assert torch.allclose(target.sum(1), (mean.count_C > 0).double())

    def value(z):
        return relation.relation_consistency(*sums(case, z), mean, how, 10.0, background)

    if name == "certain":  # probabilities of exactly 0: large, and finite
        assert torch.isfinite(value(case.logits))
        return
    arguments = (case.logits, case.teacher, case.labels, case.old, case.exponent, case.groups, how, 10.0, background)
    near(value(case.logits), slow.relation_consistency(*arguments))
    check_gradient(value, case.logits)


def test_the_largest_class_weight_is_bounded():
    case = make("random")
    mean = balance(case, gradients(case))
    arguments = *sums(case, case.logits), mean, "moved"
    values = [float(relation.relation_consistency(*arguments, most, False)) for most in (0.1, 10.0)]
    assert values[0] < values[1]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("nats", [20, 40, 60, 75])
def test_a_class_that_has_collapsed_is_pulled_back(nats, kind):
    """The teacher is sure of class 1 at its pixels, the student gives it next to nothing there."""
    case = make("second task")
    labels = torch.ones_like(case.labels)
    teacher = torch.zeros_like(case.teacher)
    teacher[:, 1] = 3.0
    logits = torch.zeros_like(case.logits, dtype=kind)
    logits[:, 1] -= nats
    case = replace(case, logits=logits, teacher=teacher.to(kind), labels=labels)
    mean = balance(case, torch.ones(labels.shape, dtype=kind))

    def value(z):
        return relation.relation_consistency(*sums(case, z), mean, "moved", 10.0, False)

    arguments = (logits.double(), teacher, labels, case.old, 0.0, case.groups, "moved", 10.0, False)
    assert float(value(logits)) == pytest.approx(slow.relation_consistency(*arguments), rel=1e-5)
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(logits), logits)
    own = teacher.softmax(1)[0, 1, 0, 0]  # raising its logits lowers the loss by what the teacher gives it
    assert float(gradient[:, 1].sum()) == pytest.approx(-float(own), rel=1e-5)
    for _ in range(300):
        (gradient,) = torch.autograd.grad(value(logits), logits)
        logits = (logits.detach() - 30.0 * gradient).requires_grad_()
    found = logits.detach().softmax(1)[:, 1].mean()
    assert float(found) == pytest.approx(float(own), abs=0.05)


def test_relation_consistency_is_zero_for_a_student_that_agrees():
    case = make("random")
    new = torch.arange(case.old, case.channels)
    p = torch.zeros_like(case.logits)  # at each pixel the teacher's distribution, its background moved where it is new
    p[:, : case.old] = case.teacher.softmax(1)
    for c in new:
        here = case.labels == c
        p[:, c][here], p[:, 0][here] = p[:, 0][here], 0.0
    mean = balance(case, torch.ones(case.labels.shape, dtype=torch.float64))
    arguments = *sums(case, p.clamp(min=1e-30).log()), mean, "moved"
    assert abs(float(relation.relation_consistency(*arguments, 10.0, True))) < 1e-9


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("many", "certain")])
def test_published_relation_terms(name):
    case = make(name)
    expected = slow.published_weights(case.logits, case.labels, case.old, case.groups)
    weights = torch.zeros(case.labels.shape, dtype=torch.float64)
    for p in slow.pixels(case.labels):
        weights[p] = expected[p]
    near(
        relation.published_confidence(log_p(case.logits), log_p(case.teacher), case.labels, weights),
        slow.published_confidence(case.logits, case.teacher, case.labels, expected),
    )
    near(
        relation.published_soft_labels(log_p(case.logits), case.teacher, case.labels),
        slow.published_soft_labels(case.logits, case.teacher, case.labels),
    )
    near(relation.published_entropy_term(log_p(case.logits)), slow.published_entropy_term(case.logits))
    teacher = log_p(case.teacher)
    check_gradient(lambda z: relation.published_confidence(log_p(z), teacher, case.labels, weights), case.logits)
    check_gradient(lambda z: relation.published_soft_labels(log_p(z), case.teacher, case.labels), case.logits)
    check_gradient(lambda z: relation.published_entropy_term(log_p(z)), case.logits)


def test_published_terms_are_finite_where_probabilities_are_0_or_1():
    case = make("certain")
    logits = case.logits.requires_grad_()
    weights = compensation.published_weights(logits, case.labels, case.space, case.old)
    total = (
        relation.published_confidence(log_p(logits), log_p(case.teacher), case.labels, weights)
        + relation.published_soft_labels(log_p(logits), case.teacher, case.labels)
        + relation.published_entropy_term(log_p(logits))
    )
    (gradient,) = torch.autograd.grad(total, logits)
    assert torch.isfinite(total)
    assert torch.isfinite(gradient).all()


def test_weights_and_targets_carry_no_gradient():
    case = make("random")
    logits, teacher = case.logits.requires_grad_(), case.teacher.requires_grad_()
    g = gradients(case)
    mean = balance(case, g)
    for tensor in (
        g,
        mean.class_C,
        mean.group_C,
        compensation.balanced_weights(g, case.labels, mean),
        compensation.published_weights(logits, case.labels, case.space, case.old),
        output(logits).entropy[0],
    ):
        assert not tensor.requires_grad
    total = (
        distillation.logit_distillation(log_p(logits), log_p(teacher))
        + distillation.unbiased_distillation(log_p(logits), log_p(teacher))
        + relation.relation_consistency(*sums(case, logits), mean, "moved", 10.0, False)
        + distillation.feature_distillation(logits[:, :1], teacher[:, :1])
        + pod.local_pod(logits[:, :1], teacher[:, :1]).sum()
        + relation.published_soft_labels(log_p(logits), teacher, case.labels)
    )
    total.backward()
    assert logits.grad is not None
    assert teacher.grad is None


def test_half_precision_is_widened():
    case = make("random")
    half, teacher = case.logits.bfloat16(), case.teacher.bfloat16()
    given = output(half)
    assert given.log_p_BCHW.dtype == torch.float32
    assert given.log_p_BCHW is given.log_p_BCHW  # computed once
    assert torch.equal(given.log_p_BCHW, half.float().log_softmax(1))
    for value in (
        distillation.feature_distillation(half, half * 0.5),
        pod.local_pod(half, half * 0.5).sum(),
        pod.spatial_cube(half, half * 0.5).sum(),
        pod.channel_cube(half, half * 0.5).sum(),
        compensation.published_weights(half, case.labels, case.space, case.old).sum(),
        relation.published_soft_labels(given.log_p_BCHW, teacher, case.labels),
        given.cross_entropy(case.labels).sum(),
        given.class_sums(case.labels, case.channels).sum(),
    ):
        assert value.dtype == torch.float32
        assert torch.isfinite(value)


@pytest.mark.parametrize("name", CASES)
def test_sums_over_pixels(name):
    case = make(name)
    expected = torch.zeros(case.channels, case.old, dtype=torch.float64)
    for b, y, x in slow.pixels(case.labels):
        if case.labels[b, y, x] != 255:
            expected[case.labels[b, y, x].long()] += case.teacher[b, :, y, x]
    assert torch.allclose(class_sums(case.teacher, case.labels, case.channels), expected)
    mix = torch.randn(case.channels, case.old, dtype=torch.float64)
    check_gradient(lambda z: (class_sums(z, case.labels, case.channels) * mix).sum(), case.teacher)
    values, labels = case.logits[:, 0].flatten(), case.labels.flatten()
    mean, count = means(values, labels, case.channels)
    for c in range(case.channels):
        own = values[labels == c]
        near(mean[c], float(own.mean()) if len(own) else 0.0)
        assert count[c] == len(own)
    assert add_up(labels, 256).tolist() == torch.bincount(labels, minlength=256).tolist()


def test_means_over_many_pixels_are_not_too_small():
    """Added one by one in float32, 24 images of 512 pixels squared lose more than a percent."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (24, 512, 512), generator=random, dtype=torch.uint8) // 2  # most are background
    values = torch.rand(labels.shape, generator=random).pow(12)  # most gradients are small
    space = LabelSpace((("a",), ("b",)))
    found = compensation.balance(values, labels, compensation.groups_of(space, labels.device))
    for c in range(2):
        expected = float(values[labels == c].double().mean())
        assert float(found.class_C[c]) == pytest.approx(expected, rel=1e-6)
        assert float(found.group_C[c]) == pytest.approx(expected, rel=1e-6)
    assert found.class_C.dtype == torch.float32
