from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from worlds import TINY_NETWORK

from fiss.data import shapes
from fiss.data.transforms import AugmentSpec, ScoredImages, TrainingImages
from fiss.errors import UserError
from fiss.federation.client import Site, answer_order, read_epochs
from fiss.federation.messages import Announcement, Memory, Order, Snapshot
from fiss.labels import LabelSpace
from fiss.methods import find
from fiss.methods.base import Method
from fiss.methods.finetune import Finetune
from fiss.models.classifier import grow
from fiss.models.segmenter import build
from fiss.progress import Progress
from fiss.training.batches import Reader, epoch_batches, steps_per_epoch
from fiss.training.device import pick_device
from fiss.training.evaluate import evaluate
from fiss.training.schedule import rate_at
from fiss.training.spec import EvaluationSpec, TrainingSpec
from fiss.training.trainer import Trainer

SPACE = LabelSpace((shapes.CLASSES[:3],))
DATA = shapes.load(12, 4, 32, 0)


def training(**changes):
    return TrainingSpec(**{"epochs": 1, "batch": 4, "device": "cpu", **changes})


def tell(order, images, model, method=None, memory=None, teacher=None, spec=None, progress=None, crop=32):
    """The client that holds these images answers an order."""
    site = Site(DATA.classes, images, (1, 2, 3), 0)
    method, spec = method or Finetune(), spec or training()
    trainer = Trainer(model, teacher, Reader(TrainingImages(DATA.train, AugmentSpec(crop=crop)), 0, False), spec)
    epochs = read_epochs(order, site, method, trainer)
    return answer_order(order, memory or Memory(), site, method, trainer, epochs, progress or Progress())


def order(model, task=0, rounds_left=5, round_=0, steps=None):
    teacher = Snapshot(f"task-{task - 1}", SPACE, model.weights()) if task else None
    return Order(0, round_, SPACE, model.weights(), teacher, Announcement(task, rounds_left, steps))


@pytest.fixture
def model():
    return build(TINY_NETWORK, SPACE.sizes, 0)


def test_the_published_check_values():
    """Facts of the published runs of 4-4: rates at the start of each epoch."""
    per_epoch = 28
    first = [rate_at(0.01, e * per_epoch, 6 * 5 * per_epoch) for e in range(6)]
    assert first == pytest.approx([0.01, 0.009699, 0.009398, 0.009095, 0.008792, 0.008487], abs=1e-6)
    reached = rate_at(0.01, 6 * per_epoch, 6 * 5 * per_epoch)
    assert reached == pytest.approx(0.008181, abs=1e-6)
    late = [rate_at(0.01, e * per_epoch, 6 * per_epoch) for e in range(6)]
    assert late == pytest.approx([0.01, 0.008487, 0.006943, 0.005359, 0.00372, 0.001994], abs=1e-6)
    assert rate_at(0.01, 6 * per_epoch, 6 * per_epoch) == 0


def test_a_client_in_every_round_follows_one_curve(model):
    memory, rates = Memory(), []
    for r in range(5):
        reply, memory = tell(order(model, 0, 5 - r, r), range(8), model, memory=memory)
        rates.append(memory.rate)
        assert reply.transition == (r == 0)
    assert rates == pytest.approx([0.01 * (1 - (r + 1) / 5) ** 0.9 for r in range(5)], abs=1e-12)
    assert memory.epochs == 5
    assert rates[-1] == 0


def test_a_client_that_sat_out_goes_on_where_it_stopped(model):
    _, memory = tell(order(model, 0, 5), range(8), model)
    seen = []

    class Rates(Progress):
        def client(self, client, steps):
            seen.append(steps)

    _, later = tell(order(model, 0, 2, 3), range(8), model, memory=memory, progress=Rates())
    assert seen == [2]
    assert later.rate == pytest.approx(memory.rate * 0.5**0.9)


def test_a_new_task_starts_the_later_rate_and_forgets_the_epochs(model):
    _, memory = tell(order(model), range(8), model)
    reply, memory = tell(order(model, 1), range(8), model, memory=memory)
    assert reply.transition
    assert memory == Memory(1, pytest.approx(0.001 * 0.8**0.9), 1, "task-0", since=0)


@pytest.mark.parametrize(
    ("images", "drop_last", "sizes"),
    [(0, True, []), (1, True, [2]), (2, True, [2]), (3, True, [3]), (4, True, [4]), (5, True, [4]), (9, True, [4, 4]),
     (9, False, [4, 5]), (10, False, [4, 4, 2]), (5, False, [5]), (3, False, [3]), (0, False, [])],
)  # fmt: skip
def test_no_batch_has_a_single_sample(images, drop_last, sizes):
    batches = epoch_batches(range(images), 4, drop_last, 0, "here")
    assert [len(batch) for batch in batches] == sizes
    assert steps_per_epoch(images, 4, drop_last) == len(sizes)
    keys = [key for batch in batches for _, key in batch]
    assert len(set(keys)) == len(keys)


def test_epochs_are_shuffled_by_their_address():
    def order_of(*where):
        return [index for batch in epoch_batches(range(40), 4, True, 0, *where) for index, _ in batch]

    assert order_of("a", 1) == order_of("a", 1)
    assert order_of("a", 1) != order_of("a", 2)
    assert sorted(order_of("a", 1)) == list(range(40))


@pytest.mark.parametrize("images", [1, 2, 3])
def test_clients_smaller_than_a_batch_train(model, images):
    reply, _ = tell(order(model), range(images), model)
    assert reply.steps == 1
    assert reply.images == images
    assert all(torch.isfinite(t).all() for t in reply.weights.values())


def test_a_client_without_images_sends_nothing(model):
    reply, memory = tell(order(model), (), model)
    assert (reply.images, reply.steps, reply.weights) == (0, 0, {})
    assert memory.task == 0


def test_a_fixed_number_of_steps(model):
    reply, memory = tell(order(model, steps=5), range(8), model)
    assert reply.steps == 5
    assert memory.epochs == 3


def test_every_round_has_an_order_of_its_own(model):
    """The same client on the same data: another round, other batches; the same round, the same weights."""
    replies = []
    for round_ in (1, 1, 2):
        reply, _ = tell(order(model, 0, 5, round_), range(12), build(TINY_NETWORK, SPACE.sizes, 0))
        replies.append(reply.weights["classifier.groups.0.weight"])
    assert torch.equal(replies[0], replies[1])
    assert not torch.equal(replies[0], replies[2])


def test_dropout_draws_from_an_address_too():
    """Whatever was drawn before, the same order gives the same weights."""
    spec = replace(TINY_NETWORK, options={**TINY_NETWORK.options, "decoder_aspp_dropout": 0.5})
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        dropping = build(spec, SPACE.sizes, 0)
        reply, _ = tell(order(dropping), range(8), dropping)
        results.append(reply.weights["classifier.groups.0.weight"])
    assert torch.equal(*results)


def test_crops_that_the_network_cannot_take_are_padded(model):
    assert model.divisor == 8
    sizes = []

    @dataclass(frozen=True)
    class Watched(Finetune):
        def first_losses(self, step):
            sizes.append((tuple(step.labels_BHW.shape[1:]), int((step.labels_BHW == 255).sum())))
            return super().first_losses(step)

    tell(order(model), range(4), model, Watched(), crop=30)
    assert sizes == [((32, 32), 4 * (32 * 32 - 30 * 30))]


def test_sgd_with_nesterov_by_hand(model):
    """Two steps of the loop equal two steps written out."""
    frozen = replace(TrainingSpec(), batch=4, epochs=2, weight_decay=0.1, batch_statistics="kept_out", device="cpu")
    before = {k: v.clone() for k, v in model.weights().items()}
    seen = []

    @dataclass(frozen=True)
    class Watched(Finetune):
        def first_losses(self, step):
            terms = super().first_losses(step)
            parameters = dict(model.named_parameters())
            grads = torch.autograd.grad(terms["segmentation"], list(parameters.values()), retain_graph=True)
            seen.append(dict(zip(parameters, grads, strict=True)))
            return terms

    reply, _ = tell(order(model, 0, 1), range(4), model, Watched(), spec=frozen)
    name = "classifier.groups.0.weight"
    weight, velocity = before[name].double(), torch.zeros_like(before[name]).double()
    for step, grads in enumerate(seen):
        gradient = grads[name].double() + 0.1 * weight
        velocity = 0.9 * velocity + gradient if step else gradient
        weight = weight - rate_at(0.01, step, 2) * (gradient + 0.9 * velocity)
    assert torch.allclose(reply.weights[name].double(), weight, atol=1e-7)
    statistics = [k for k in before if "running" in k or "num_batches" in k]
    assert statistics
    assert all(torch.equal(reply.weights[k], before[k]) for k in statistics)


def test_batch_statistics_are_trained_when_averaged(model):
    before = model.weights()
    reply, _ = tell(order(model), range(8), model)
    assert not torch.equal(reply.weights["encoder.bn1.running_mean"], before["encoder.bn1.running_mean"])


def test_the_students_entropies_are_those_it_trains_with():
    """Thresholds and acceptance look at one student: the asked share is accepted while it hardly moves, and the pass
    that makes the thresholds leaves no trace."""
    space = LabelSpace((shapes.CLASSES[:3], shapes.CLASSES[3:5]))
    student, teacher = build(TINY_NETWORK, space.sizes, 0), build(TINY_NETWORK, SPACE.sizes, 1)
    method = replace(find("fbl-paper"), counted="background", background_quantile=True)
    told = Order(0, 0, space, student.weights(), Snapshot("task-0", SPACE, teacher.weights()), Announcement(1, 5, None))
    spec = training(epochs=4, later_rate=1e-9)
    reply, _ = tell(told, range(12), student, method, teacher=teacher, spec=spec)
    shares = reply.report["pseudo_labels"]
    assert [round(told["asked"], 1) for told in shares] == [0.2, 0.3, 0.4, 0.5]
    for told in shares:
        share = sum(told["accepted"].values()) / sum(told["offered"].values())
        assert share == pytest.approx(told["asked"], abs=0.05)


def test_a_preview_leaves_no_trace(model):
    """The same training with and without one."""

    @dataclass(frozen=True)
    class Previewing(Finetune):
        needs_teacher: ClassVar[bool] = True
        needs_preview: ClassVar[bool] = True

        def preview(self, step):
            assert step.student.logits_BCHW.grad_fn is None

    class Plain(Previewing):
        needs_preview = False

    dropping = replace(TINY_NETWORK, options={**TINY_NETWORK.options, "decoder_aspp_dropout": 0.5})
    replies = []
    for method in (Previewing(), Plain()):
        student, teacher = build(dropping, SPACE.sizes, 0), build(dropping, SPACE.sizes, 1)
        told = order(student, task=1)
        replies.append(tell(told, range(8), student, method, teacher=teacher, spec=training(epochs=2))[0].weights)
    assert all(torch.equal(replies[0][name], replies[1][name]) for name in replies[0])


def test_the_teacher_is_the_model_from_before_the_task(model):
    """A method that asks for it sees the snapshot, frozen and in evaluation mode, and no gradient reaches it."""
    seen = []

    @dataclass(frozen=True)
    class Taught(Method):
        name: ClassVar[str] = "taught"
        needs_teacher: ClassVar[bool] = True

        def losses(self, step):
            seen.append((step.teacher, step.teacher_channels))
            assert step.teacher is not None
            old = step.student.logits_BCHW[:, : step.teacher_channels]
            return {"distillation": (old - step.teacher.logits_BCHW).square().mean()}

    snapshot = Snapshot("task-0", SPACE, build(TINY_NETWORK, SPACE.sizes, 3).weights())
    grown = SPACE.grow(shapes.CLASSES[3:5])
    sent = Order(0, 5, grown, grow(snapshot.weights, 2, "background", 0), snapshot, Announcement(1, 5))
    teacher = build(TINY_NETWORK, SPACE.sizes, 9)
    reply, memory = tell(sent, range(8), model, Taught(), teacher=teacher)
    assert memory.teacher == "task-0"
    assert reply.losses["distillation"] > 0
    assert {channels for _, channels in seen} == {4}
    assert not seen[0][0].logits_BCHW.requires_grad
    assert not teacher.training
    assert all(torch.equal(t, snapshot.weights[k]) for k, t in teacher.weights().items())
    assert model.classifier.sizes == (4, 2)


@dataclass(frozen=True)
class Anchored(Method):
    """Cross-entropy, and the squared distance from the teacher's weights below the classifier."""

    name: ClassVar[str] = "anchored"
    needs_teacher: ClassVar[bool] = True
    strength: float = 3.0

    def losses(self, step):
        pairs = [
            (step.student_weights[n], t) for n, t in step.teacher_weights.items() if not n.startswith("classifier.")
        ]
        return {"anchor": self.strength * torch.stack([(s - t).square().sum() for s, t in pairs]).sum()}


def test_a_method_may_pull_weights_to_the_teachers(model):
    """By hand: one tensor is 0.5 away, so the term is 3 * 0.25 for each of its numbers, and its gradient 3 * 2 * 0.5;
    a step at rate 0.1 without momentum takes 0.3 off. What does not enter the term stays."""
    name, seen = "encoder.conv1.weight", []

    @dataclass(frozen=True)
    class Watched(Anchored):
        def losses(self, step):
            terms = super().losses(step)
            if not seen:
                (gradient,) = torch.autograd.grad(terms["anchor"], step.student_weights[name], retain_graph=True)
                seen.append((float(terms["anchor"].detach()), gradient))
            assert all(step.student_weights[n] is p for n, p in model.named_parameters())  # live, and by its name
            assert not any(t.requires_grad for t in step.teacher_weights.values())
            return terms

    snapshot = Snapshot("task-0", SPACE, {k: v.clone() for k, v in model.weights().items()})
    sent = grow(snapshot.weights, 2, "background", 0)
    sent[name] = sent[name] + 0.5
    told = Order(0, 5, SPACE.grow(shapes.CLASSES[3:5]), sent, snapshot, Announcement(1, 5, 1))
    spec = training(momentum=0.0, weight_decay=0.0, later_rate=0.1, batch_statistics="kept_out")
    reply, _ = tell(told, range(8), model, Watched(), teacher=build(TINY_NETWORK, SPACE.sizes, 9), spec=spec)
    ((term, gradient),) = seen
    assert term == pytest.approx(3 * 0.25 * sent[name].numel(), rel=1e-4)
    assert torch.allclose(gradient, torch.full_like(gradient, 3.0), rtol=1e-4)
    assert torch.allclose(reply.weights[name], sent[name] - 0.3, atol=1e-5)
    assert all(torch.equal(reply.weights[k], t) for k, t in sent.items() if k != name and "num_batches" not in k)


def test_evaluation_counts_every_pixel_once(model):
    table = np.zeros(256, np.uint8)
    table[1], table[255] = 1, 255
    sizes = np.full((4, 2), 32)
    reader = Reader(ScoredImages(DATA.val, 32), 0, False)
    for view in ("published", "full"):
        spec = EvaluationSpec(size=32, batch=3)
        matrix = evaluate(model, reader, range(4), sizes, table, view, spec, training(), Progress())
        assert int(matrix.sum()) == 4 * 32 * 32
        assert int(matrix[1].sum()) == sum(int((DATA.val.read(i)[1] == 1).sum()) for i in range(4))


def test_full_images_of_odd_sizes_are_padded_not_cut(model):
    class Odd:
        name, stems = "val", ("a", "b", "c")

        def read(self, i):
            height = 30 + 3 * (i % 2)
            return np.zeros((height, 41, 3), np.uint8), np.ones((height, 41), np.uint8)

        def fingerprint(self):
            return "odd"

    table = np.arange(256, dtype=np.uint8)
    sizes = np.array([[30, 41], [33, 41], [30, 41]])
    reader = Reader(ScoredImages(Odd(), 32), 0, False)
    matrix = evaluate(model, reader, range(3), sizes, table, "full", EvaluationSpec(batch=2), training(), Progress())
    assert int(matrix.sum()) == int(matrix[1].sum()) == (30 + 33 + 30) * 41


def test_devices():
    assert pick_device("cpu").type == "cpu"
    for name in ("gpu9", "mps", "meta", "cuda:x"):
        with pytest.raises(UserError, match="use auto, cpu, cuda"):
            pick_device(name)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="0 CUDA"):
            pick_device("cuda:3")
        assert pick_device("auto").type == "cpu"


def test_a_gpu_has_a_number(monkeypatch):
    """torch.cuda.set_device refuses a device without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [pick_device(name).index for name in ("auto", "cuda", "cuda:1")] == [0, 0, 1]


def test_bfloat16_trains_on_the_cpu_too(model):
    reply, _ = tell(order(model), range(8), model, spec=training(precision="bfloat16"))
    assert reply.weights["encoder.conv1.weight"].dtype == torch.float32
    assert reply.losses["segmentation"] > 0


@pytest.mark.parametrize(
    "changes", [{"epochs": 0}, {"batch": 1}, {"first_rate": 0.0}, {"later_rate": -1.0}, {"workers": -1}]
)
def test_impossible_training(changes):
    with pytest.raises(UserError, match="training"):
        TrainingSpec(**changes)


def test_impossible_evaluation():
    with pytest.raises(UserError, match=r"evaluation\.size"):
        EvaluationSpec(size=0)
    with pytest.raises(UserError, match=r"evaluation\.views"):
        EvaluationSpec(views=())


def test_networks_and_optimizer_are_made_once(model):
    """The teacher is loaded when it changes; the optimizer is rebuilt when the classifier grows, and forgets."""
    teacher = build(TINY_NETWORK, SPACE.sizes, 1)
    trainer = Trainer(model, teacher, Reader(TrainingImages(DATA.train, AugmentSpec(crop=32)), 0, False), training())
    weights = teacher.weights()
    assert trainer.teach(weights, SPACE.sizes) is teacher
    assert not teacher.training
    loaded = []
    teacher.load = lambda *arguments: loaded.append(arguments)
    trainer.teach(weights, SPACE.sizes)
    assert not loaded
    trainer.teach(dict(weights), SPACE.sizes)
    assert len(loaded) == 1
    first = trainer.fresh_optimizer(0.1)
    (velocity := first.state[next(model.parameters())]["momentum_buffer"]).fill_(1.0)
    assert trainer.fresh_optimizer(0.1) is first
    assert first.state[next(model.parameters())]["momentum_buffer"] is velocity
    assert not any(kept["momentum_buffer"].any() for kept in first.state.values())
    model.load(grow(model.weights(), 2, "background", 0), (*SPACE.sizes, 2))
    assert trainer.fresh_optimizer(0.1) is not first


@pytest.mark.slow
def test_compiling_happens_once_not_with_every_client_round_or_growth(tiny, tmp_path, monkeypatch):
    """Three tasks compile what one task compiles, and the teacher's forward pass; the scores are the same."""
    from torch._dynamo.testing import CompileCounterWithBackend

    from fiss import methods
    from fiss.runs.folder import RunFolder
    from fiss.simulation import experiment
    from fiss.simulation.world import TaskSpec

    counts, compile_ = [], torch.compile
    for split in ("disc, ring, square, triangle, star, cross", "disc, ring, square, triangle; star, cross; arrow, ell"):
        for on in (False, True):
            torch._dynamo.reset()
            counter = CompileCounterWithBackend("eager")
            monkeypatch.setattr(torch, "compile", lambda f, counter=counter: compile_(f, backend=counter))
            config = replace(
                tiny,
                tasks=TaskSpec(split),
                method=methods.find("fbl"),
                training=replace(tiny.training, compile=on, batch=2),
            )
            path = tmp_path / f"{len(counts)}"
            experiment.start(config, path, Progress())
            counts.append(counter.frame_count)
        never, always = (
            [record["iou"] for record in RunFolder(tmp_path / str(len(counts) - k)).records("scores.jsonl")]
            for k in (2, 1)
        )
        assert never == always
    assert counts[0] == counts[2] == 0
    assert 1 <= counts[1] <= counts[3] <= 2 * counts[1]
