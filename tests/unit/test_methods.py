"""The contract that every method keeps, and what each one promises.

FISS_METHOD=package.module:Class puts a method outside the package into the tests of the contract.
"""

import os
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from killing import KillAtStep, killed, result
from worlds import TINY_NETWORK

from fiss import methods
from fiss.config import presets
from fiss.config.config import from_dict, to_dict
from fiss.errors import UserError
from fiss.federation.spec import TaskSpec
from fiss.labels import LabelSpace
from fiss.losses.distillation import unbiased_cross_entropy
from fiss.methods.base import Step
from fiss.methods.fbl import FBL
from fiss.models import branches
from fiss.models.segmenter import ModelSpec, build
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment

NAMES = [*methods.METHODS, *filter(None, [os.environ.get("FISS_METHOD")])]
SPACE = LabelSpace((("a", "b", "c"), ("d", "e"), ("f",)))


@cache
def fresh(groups, seed):
    return build(TINY_NETWORK, LabelSpace(SPACE.groups[:groups]).sizes, seed)


def network(method, groups, seed=0):
    model = deepcopy(fresh(groups, seed))  # drawing a network takes longer than a step
    torch.manual_seed(seed)
    method.adapt_network(model)
    return model


def make_step(method, groups, labels, teacher_groups=None, state=None, epoch=0, seed=0):
    """A step of the `groups`-th task, as the training loop makes it."""
    images = torch.randn(*labels.shape[:1], 3, *labels.shape[1:], generator=torch.Generator().manual_seed(seed))
    student = network(method, groups, seed).train()
    method.prepare_training(student, groups)
    taught, known, teacher_weights = None, 0, {}
    if groups > 1 and method.needs_teacher:
        teacher = network(method, teacher_groups or groups - 1, seed + 1).eval()
        known, teacher_weights = sum(teacher.classifier.sizes), {n: p.detach() for n, p in teacher.named_parameters()}
        with torch.no_grad():
            taught = teacher(images)
    state, weights = {} if state is None else state, dict(student.named_parameters())
    space = LabelSpace(SPACE.groups[:groups])
    step = Step(labels, student(images), taught, space, known, epoch, state, (), weights, teacher_weights)
    return student, step


def losses(method, step, groups):
    if groups > 1 and method.needs_preview:
        with torch.no_grad():
            method.preview(step)
    return (method.losses if groups > 1 else method.first_losses)(begun(method, step) if groups > 1 else step)


def begun(method, step, **changes):
    """The step, in an epoch that has begun."""
    step = replace(step, **changes)
    method.begin_epoch(step.state, step.epoch, step.teacher_channels, step.labels_BHW.device)
    return step


def some_labels(kind, groups):
    space = LabelSpace(SPACE.groups[:groups])
    new = list(space.group_channels(groups - 1))
    labels = torch.tensor([0, *new], dtype=torch.uint8)[torch.randint(0, len(new) + 1, (2, 32, 32))]
    if kind == "ignored":
        labels[:] = 255
    elif kind == "background":
        labels[:] = 0
    elif kind == "new only":
        labels[:] = new[0]
    else:
        labels[0, :4] = 255
    return labels


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_value(name):
    method = methods.find(name)
    assert method == methods.find(name)
    assert hash(method) == hash(methods.find(name))
    assert presets.label(replace(presets.shapes(), method=method)) == name.rsplit(":", 1)[-1].lower()
    with pytest.raises(AttributeError):
        method.start = "random"
    config = from_dict({"method": {"name": name}})
    assert config.method == method
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize("kind", ["some", "ignored", "background", "new only"])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_finite(name, groups, kind):
    torch.manual_seed(0)
    method = methods.find(name)
    student, step = make_step(method, groups, some_labels(kind, groups))
    terms = losses(method, step, groups)
    total = torch.stack(list(terms.values())).sum()
    assert all(t.dtype == torch.float32 and torch.isfinite(t) for t in terms.values()), terms
    total.backward()
    gradients = [p.grad for p in student.parameters() if p.requires_grad and p.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("name", [n for n in NAMES if methods.find(n).needs_teacher])
def test_a_teacher_may_lack_more_than_the_new_classes(name):
    """The label space has three groups, the teacher knows one, the client labels the third."""
    torch.manual_seed(0)
    method = methods.find(name)
    _, step = make_step(method, 3, some_labels("some", 3), teacher_groups=1)
    assert step.teacher_channels == 4
    assert all(torch.isfinite(t) for t in losses(method, step, 3).values())


@pytest.mark.parametrize("name", NAMES)
def test_the_first_task_is_plain_cross_entropy(name):
    torch.manual_seed(0)
    method = methods.find(name)
    _, step = make_step(method, 1, some_labels("some", 1))
    assert list(losses(method, step, 1)) == ["segmentation"]


@pytest.fixture
def three_tasks(tiny):
    return replace(
        tiny,
        tasks=TaskSpec("disc, ring, square, triangle; star, cross; heart, comb"),
        world=replace(tiny.world, rounds=1, sample_ratio=1.0),
        training=replace(tiny.training, epochs=2),
        evaluation=replace(tiny.evaluation, views=("published",)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_three_tasks_resume_exactly_and_do_not_mind_the_order_of_clients(name, three_tasks, tmp_path, monkeypatch):
    from fiss.simulation.in_process import InProcessEngine

    config = replace(three_tasks, method=methods.find(name))
    experiment.start(config, tmp_path / "whole", Progress())
    ask = InProcessEngine.ask
    monkeypatch.setattr(InProcessEngine, "ask", lambda self, orders: ask(self, orders[::-1]))
    assert killed(lambda: experiment.start(config, tmp_path / "reversed", KillAtStep(20)))
    experiment.resume(tmp_path / "reversed", Progress())
    assert result(tmp_path / "reversed") == result(tmp_path / "whole")


def test_coefficients_are_those_of_the_published_runs():
    find = methods.find
    assert find("lwf").distillation == find("ilt").distillation == find("ilt").features == 100
    assert (find("mib").distillation, find("rcil").distillation) == (10, 100)
    assert {find(n).start for n in ("finetune", "lwf", "ilt", "analytic")} == {"random"}
    assert {find(n).start for n in methods.METHODS if n not in ("finetune", "lwf", "ilt", "analytic")} == {"background"}
    for name in ("plop", "fbl", "fbl-reference"):
        assert (find(name).pod_features, find(name).pod_logits) == (0.01, 0.0005)
    assert (find("rcil").cube_features, find("rcil").cube_logits) == (0.01, 0.0005)
    fbl = find("fbl")
    assert [fbl.proportion(e) for e in (0, 1, 5, 6, 30)] == pytest.approx([0.2, 0.3, 0.7, 0.8, 0.8])
    assert fbl.relation_weight == 0.5
    assert [find("plop").proportion(e) for e in (0, 9)] == [0.5, 0.5]
    reference = find("fbl-reference")
    assert (reference.soft_labels, reference.entropy_term, reference.floor) == (0.3, 0.1, 0.001)
    assert (find("fbl-paper").pod_features, find("fbl-paper").pod_scheduled) == (0.0005, False)


@pytest.mark.parametrize(
    ("sizes", "known", "factor"),
    [((4, 4), 1, 1.5), ((4, 4, 4), 2, 1.80), ((4, 4, 4, 4, 4), 4, 2.29), ((15, 1), 1, 4.12), ((8, 2), 1, 2.35)],
)
def test_the_schedule_of_pod(sizes, known, factor):
    """The roots of all channels by new ones in the published settings."""
    from fiss.methods.features import weighted_distance

    names = iter(map(str, range(99)))
    space = LabelSpace(tuple(tuple(next(names) for _ in range(size)) for size in sizes))
    step = Step(torch.zeros(1), None, None, space, 1 + sum(sizes[:known]), 0, {})
    maps = [((torch.tensor([1.0, 3.0]), None), 0.5), ((torch.tensor([4.0, 4.0]), None), 1.0)]
    for scheduled, expected in ((False, 1.0), (True, factor)):
        value = float(weighted_distance(step, lambda a, b: a, maps, scheduled))
        assert value == pytest.approx((0.5 * 2 + 4) / 2 * expected, rel=0.005)


def test_ablations_take_one_part_out():
    torch.manual_seed(0)
    whole = {"compensation", "relation", "pod"}
    for part, left in (
        ("pseudo-labels", whole),
        ("compensation", whole),
        ("relation", whole - {"relation"}),
        ("pod", whole - {"pod"}),
    ):
        method = methods.ablate(FBL(), part)
        assert presets.label(replace(presets.shapes(), method=method)) == f"fbl-without-{part}"
        _, step = make_step(method, 2, some_labels("some", 2))
        assert set(losses(method, step, 2)) == left
    both = methods.ablate(methods.ablate(FBL(), "pod"), "relation")
    _, step = make_step(both, 2, some_labels("some", 2))
    assert set(losses(both, step, 2)) == {"compensation"}
    assert set(losses(methods.ablate(methods.find("fbl-reference"), "relation"), step, 2)) == {"compensation", "pod"}
    with pytest.raises(UserError, match="Did you mean 'relation'"):
        methods.ablate(FBL(), "relations")
    with pytest.raises(UserError, match="no parts to take out"):
        methods.ablate(methods.find("lwf"), "pod")


def certain_teacher(method, classes, confidence=20.0, groups=2):
    """A step whose teacher says `classes` with the given logit."""
    _, step = make_step(method, groups, torch.zeros(classes.shape, dtype=torch.uint8))
    logits = torch.zeros_like(step.teacher.logits_BCHW).scatter_(1, classes[:, None], confidence)
    return replace(step, teacher=replace(step.teacher, logits_BCHW=logits))


def test_sound_pseudo_labels_accept_the_asked_share():
    """Entropies that grow from pixel to pixel: the surest fifth of every class is accepted, the rest ignored."""
    method = FBL()
    classes = torch.randint(0, 4, (2, 32, 32))
    step = certain_teacher(method, classes)
    ramp = torch.linspace(1, 15, classes.numel()).view(2, 1, 32, 32)
    logits = torch.zeros_like(step.teacher.logits_BCHW).scatter_(1, classes[:, None], ramp)
    step = replace(step, teacher=replace(step.teacher, logits_BCHW=logits))
    labels, factor = method.relabel(begun(method, step))
    for k in range(4):
        share = float((labels[classes == k] == k).float().mean())
        assert share == pytest.approx(0.2, abs=0.01)
    accepted = labels != 255
    assert (labels[accepted] == classes[accepted]).all()
    assert factor.tolist() == [1.0, 1.0]
    (told,) = method.report(step.state, step.label_space)["pseudo_labels"]
    assert told["asked"] == 0.2
    assert sum(told["offered"].values()) == classes.numel()
    assert sum(told["accepted"].values()) == int(accepted.sum())
    late, _ = method.relabel(begun(method, step, epoch=9, state={}))
    assert float((late != 255).float().mean()) == pytest.approx(0.8, abs=0.01)


def test_what_becomes_of_rejected_pixels():
    classes = torch.randint(0, 4, (2, 32, 32))
    for method, rejected in ((FBL(), 255), (methods.find("fbl-paper"), 0)):
        step = certain_teacher(method, classes, confidence=2.0)
        step.state["seen"] = [(torch.tensor([1e-9] * 4), torch.arange(4))]
        begun(method, step)
        if not method.needs_preview:
            step.state["histogram"][:, 0] = 10**9
        labels, _ = method.relabel(step)
        expected = (
            torch.where(classes == 0, 0, rejected) if method.needs_preview else torch.full_like(classes, rejected)
        )
        assert (labels == expected).all()


@pytest.mark.parametrize("name", ["fbl", "plop"])
def test_rejected_pixels_may_be_background_or_old(name):
    """With everything rejected that is MiB's cross-entropy of the background; accepted pixels have no part in it."""
    method = replace(methods.find(name), rejected="old")
    step = certain_teacher(method, torch.randint(0, 4, (2, 32, 32)), confidence=2.0)
    step.labels_BHW[0, :8] = 4  # a new class
    step.labels_BHW[1, :4] = 255
    begun(method, step).state["histogram"][:, 0] = 10**9
    terms = method.losses(step)
    background = torch.where(step.labels_BHW == 4, 255, step.labels_BHW)
    expected = unbiased_cross_entropy(step.student.log_p_BCHW, background, 4)
    assert float(terms["unsure"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    own = method.losses(replace(step, state=dict(step.state), labelled_old=(2,)))["unsure"]  # 2: it has masks for it
    left = step.student.log_p_BCHW[:, [0, 1, 3]].logsumexp(1)[background == 0]
    assert float(own.detach()) == pytest.approx(-float(left.sum().detach()) / background.numel(), rel=1e-5)
    valid = replace(method, mean_over="valid").losses(replace(step, state=dict(step.state)))
    for key in terms.keys() - {"pod", "relation"}:  # both divided by all that is not ignored
        ratio = (step.labels_BHW != 255).float().mean()
        assert float(valid[key].detach() * ratio) == pytest.approx(float(terms[key].detach()), rel=1e-5)
    everything = replace(method, first_proportion=1.0, last_proportion=1.0)
    assert float(everything.losses(begun(everything, step, state={}))["unsure"].detach()) == 0
    assert "unsure" not in replace(method, rejected="ignore").losses(begun(method, step, state={}))


def test_constant_thresholds_ask_for_a_probability():
    method = methods.ablate(FBL(), "pseudo-labels")
    classes = torch.randint(0, 4, (2, 32, 32))
    assert (method.relabel(begun(method, certain_teacher(method, classes, 20.0)))[0] == classes).all()
    assert (method.relabel(begun(method, certain_teacher(method, classes, 1.0)))[0] == 255).all()


def test_plops_factor_multiplies_an_image():
    method = methods.find("plop")
    torch.manual_seed(0)
    _, step = make_step(method, 2, some_labels("some", 2))
    logits = step.teacher.logits_BCHW * 100  # an untrained one is as unsure of one pixel as of the next
    step = replace(step, teacher=replace(step.teacher, logits_BCHW=logits))
    labels, factor = method.relabel(begun(method, step, state={}))
    assert 0 < float(factor.min()) < 1

    pixels = step.student.cross_entropy(labels).detach()
    expected = sum(float(pixels[b].sum() * factor[b]) for b in range(2)) / labels.numel()
    assert method.losses(begun(method, step, state={}))["segmentation"].item() == pytest.approx(expected, rel=1e-5)


def test_exact_thresholds_see_the_pass_before_the_epoch():
    method = replace(FBL(), thresholds="exact")
    torch.manual_seed(0)
    _, step = make_step(method, 2, some_labels("background", 2))
    with torch.no_grad():
        method.preview(step)
    labels, _ = method.relabel(begun(method, step))
    classes = step.teacher.logits_BCHW.argmax(1)
    for k in classes.unique():
        own = labels[classes == k] == k
        assert abs(int(own.sum()) - 0.2 * len(own)) <= 1.0 + 1e-6


# RCIL's branches


@pytest.mark.parametrize("keep", [True, False])
def test_folding(keep):
    """Folding both branches into the left one leaves the function; the published code's gives F / 2 + right / 2."""
    method = methods.find("rcil" if keep else "rcil-reference")
    model = network(method, 1)
    for module in model.modules():  # branches that differ, with statistics that matter
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, low, high in ((module.running_mean, -0.5, 0.5), (module.running_var, 0.5, 2.0)):
                tensor.uniform_(low, high)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, branches.Branches):
            torch.nn.init.normal_(module.right_conv.weight, std=0.05)
    model.eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = model(images).logits_BCHW
        pairs = [m for m in model.modules() if isinstance(m, branches.Branches)]
        x = torch.randn(2, pairs[0].left_conv.in_channels, 8, 8)
        whole = pairs[0](x)
        right = pairs[0].right_norm(pairs[0].right_conv(x))
        model.load(method.consolidate(model.weights()), model.classifier.sizes)
        after = model(images).logits_BCHW
        folded = pairs[0](x)
    if keep:
        assert (after - before).abs().max() < 1e-5 * before.abs().max().clamp(min=1)
        assert (folded - whole).abs().max() < 1e-5
    else:
        assert (folded - (whole + right) / 2).abs().max() < 1e-5
        assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("encoder", "fits"),
    [
        ("resnet18", True),
        ("mobilenet_v2", True),
        ("inceptionv4", True),  # an epsilon of 1e-3
        ("efficientnet-b0", True),  # padded by hand, other names
        ("vgg11_bn", True),  # convolutions with a bias
        ("tu-darknet53", True),  # activations inside the norms
        ("tu-regnety_002", True),
        ("tu-vovnet39a", True),
        ("dpn68", False),  # norms before the convolutions
        ("densenet121", False),
        ("mit_b0", False),  # no BatchNorm
        ("tu-ghostnet_100", False),  # a stage before its norm
    ],
)
def test_branches_keep_the_function_or_are_refused(encoder, fits):
    """Splitting and folding, with small variances, where epsilon matters, and branches that differ."""
    architecture = "segformer" if encoder == "mit_b0" else "unet"
    model, method = build(ModelSpec(architecture, encoder, "none"), [3], 0), methods.find("rcil")
    plain = deepcopy(model)
    if not fits:
        with pytest.raises(UserError, match=rf"model.encoder = {encoder}: RCIL's branches do not fit, .* encoder\."):
            method.adapt_network(model)
        return
    before = torch.get_rng_state()
    method.adapt_network(model)
    assert torch.equal(torch.get_rng_state(), before)  # no ASPP here: nothing is drawn
    assert any(isinstance(m, branches.Branches) for m in model.encoder.modules())
    torch.manual_seed(1)
    for module in plain.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.3, 0.3)
            torch.nn.init.uniform_(module.running_var, 0.003, 0.1)
            torch.nn.init.uniform_(module.weight, 0.05, 0.3)
            torch.nn.init.uniform_(module.bias, -0.3, 0.3)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = plain.eval()(images).logits_BCHW
        model.load_state_dict(method.convert_weights(model, plain.weights()))
        assert relative(model.eval()(images).logits_BCHW, expected) < 1e-4
        for module in model.modules():
            if isinstance(module, branches.Branches):
                torch.nn.init.uniform_(module.right_norm.running_var, 0.003, 0.1)
                torch.nn.init.uniform_(module.right_norm.bias, -0.3, 0.3)
                module.right_conv.weight.mul_(1 + 0.3 * torch.randn_like(module.right_conv.weight))
        apart = model(images).logits_BCHW
        assert relative(apart, expected) > 1e-2
        for _ in range(2):
            folded = method.consolidate(model.weights())
            assert all((folded[n] >= 0).all() for n in folded if n.endswith("running_var"))  # a server refuses others
            model.load_state_dict(folded)
            assert relative(model(images).logits_BCHW, apart) < 1e-4


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


class Standardised(torch.nn.Conv2d):
    """A convolution whose weights are not used as they are."""

    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std((1, 2, 3), keepdim=True), self.bias)


def test_a_layer_that_cannot_be_folded_is_named():
    model = build(TINY_NETWORK, [3], 0)
    model.spec = replace(TINY_NETWORK, encoder="resnet18-standardised")
    model.encoder.layer2[0].conv2 = Standardised(128, 128, 3, padding=1, bias=False)
    with pytest.raises(UserError, match=r"resnet18-standardised.* in place of encoder\.layer2\.0\.conv2 "):
        branches.split(model)


def test_an_encoder_for_one_size_alone_is_refused():
    model = build(ModelSpec("unet", "tu-swin_tiny_patch4_window7_224", "none"), [3], 0)
    with pytest.raises(UserError, match=r"takes no image of 64 px .*224"):
        branches.split(model)


def test_the_branches_of_a_resnet_have_no_weights_besides():
    """Runs from before epsilon was among the weights go on."""
    names = {n.rpartition(".")[2] for n in network(methods.find("rcil"), 1).weights()}
    assert names == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def test_folded_again_the_right_branch_is_the_whole_in_training_too():
    """Two branches that move together: then both norms have what the folded convolution gives, fold after fold."""
    method = methods.find("rcil")
    model = network(method, 1)
    pair = next(m for m in model.modules() if isinstance(m, branches.Branches))
    x = torch.randn(16, pair.left_conv.in_channels, 16, 16)
    with torch.no_grad():
        maps = pair.left_conv(x)
        for norm in (pair.left_norm, pair.right_norm):
            norm.running_mean.copy_(maps.mean((0, 2, 3)))
            norm.running_var.copy_(maps.var((0, 2, 3), correction=0))
            torch.nn.init.uniform_(norm.weight, 0.1, 0.4)
            torch.nn.init.uniform_(norm.bias, -0.5, 0.5)
        whole = pair.eval()(x)
        for _ in range(3):
            model.load(method.consolidate(model.weights()), model.classifier.sizes)
            assert (pair.eval()(x) - whole).abs().max() < 1e-4
            momentum, pair.right_norm.momentum = pair.right_norm.momentum, 0.0  # look without touching
            assert (pair.right_norm.train()(pair.right_conv(x)) - whole).abs().max() < 1e-2 * whole.abs().max()
            pair.right_norm.momentum = momentum


def test_every_3x3_of_the_encoder_and_the_aspp_is_split():
    model = network(methods.find("rcil"), 1)
    split = [name for name, m in model.named_modules() if isinstance(m, branches.Branches)]
    encoder = [n for n in split if n.startswith("encoder")]
    assert len(encoder) == 8  # two stages of two blocks of two
    assert len(split) - len(encoder) == 4  # 1x1 and three atrous ones, not the pooling
    left = [m for m in model.encoder.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(left) == 16
    assert torch.equal(model.encoder.layer1[0].conv1.left_conv.weight, model.encoder.layer1[0].conv1.right_conv.weight)


def test_a_frozen_left_branch_stays_and_the_right_one_learns(three_tasks, tmp_path):
    config = replace(three_tasks, method=methods.find("rcil"))
    experiment.start(config, tmp_path / "r", Progress())
    folder = RunFolder(tmp_path / "r")
    settled = config.method.consolidate(folder.read_weights("task-0").weights)
    after = folder.read_weights("task-1").weights
    for name in after:
        if ".left_" in name and "num_batches" not in name:
            assert torch.allclose(after[name], settled[name], atol=1e-7), name
    assert any(".right_conv" in n and not torch.equal(after[n], settled[n]) for n in after)


def test_mixing_is_random_by_channel_in_training_and_the_mean_otherwise():
    model = network(methods.find("rcil"), 1)
    pair = next(m for m in model.modules() if isinstance(m, branches.Branches))
    torch.nn.init.normal_(pair.right_conv.weight)
    x = torch.randn(1, pair.left_conv.in_channels, 6, 6)
    pair.train()
    torch.manual_seed(3)
    mixed = pair(x)
    left, right = pair.left_norm(pair.left_conv(x)), pair.right_norm(pair.right_conv(x))
    kinds = [torch.allclose(mixed, whole[:, :], atol=1e-6) for whole in (left, right)]
    assert kinds == [False, False]
    of = [
        [torch.allclose(mixed[:, c], w[:, c], atol=1e-6) for c in range(mixed.shape[1])]
        for w in (left, right, (left + right) / 2)
    ]
    assert all(any(column) for column in zip(*of, strict=True))
    assert all(0.15 < sum(row) / len(row) < 0.55 for row in of)


def test_rcil_takes_over_a_plain_base(three_tasks, tmp_path):
    experiment.start(three_tasks, tmp_path / "plain", Progress())
    config = replace(three_tasks, method=methods.find("rcil"), base=str(tmp_path / "plain"))
    experiment.start(config, tmp_path / "rcil", Progress())
    plain, split = (RunFolder(tmp_path / n).records("scores.jsonl") for n in ("plain", "rcil"))
    assert split[0]["miou"] == pytest.approx(plain[0]["miou"], abs=0.2)  # both branches are copies: the same function
    assert split[-1]["round"] == plain[-1]["round"]


# Adding a method


def test_the_documented_method_works(three_tasks, tmp_path, monkeypatch, capsys):
    """docs/add-a-method.md, followed to the letter."""
    import re

    from command_line import fiss

    from fiss.config.config import to_toml

    text = (Path(__file__).parents[2] / "docs" / "add-a-method.md").read_text()
    (tmp_path / "sure.py").write_text(re.search(r"```python\n(.*?)```", text, re.S)[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(to_toml(three_tasks))
    fiss("run", "tiny.toml", "--method", "sure:Sure", "--set", "method.strength=2.0", "--out", "r")
    rounds = RunFolder(tmp_path / "r").records("rounds.jsonl")
    assert set(rounds[0]["replies"][0]["losses"]) == {"segmentation"}
    assert set(rounds[-1]["replies"][0]["losses"]) == {"segmentation", "sure"}
    fiss("resume", "r")


def test_a_method_must_have_losses():
    @dataclass(frozen=True)
    class Nothing(methods.Method):
        name: ClassVar[str] = "nothing"

    with pytest.raises(TypeError, match="losses"):
        Nothing()
    assert [f.name for f in fields(methods.Method)] == ["start", "mean_over"]
