"""What only a GPU can show; everything else is tested without one."""

import pytest
import torch
from torch import nn

from fiss.config.presets import SMALL_NETWORK
from fiss.methods.rcil import RCIL
from fiss.models.graphs import Recorded, record
from fiss.models.segmenter import Segmenter, Trunk, build
from fiss.training.spec import TrainingSpec
from fiss.training.trainer import set_training


def on_gpu(test):  # type: ignore[no-untyped-def]
    """What a machine without a GPU skips."""
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")(test))


def network(device: str = "cpu") -> Segmenter:
    return build(SMALL_NETWORK, (4,), 1).to(device).to(memory_format=torch.channels_last)


def pictures(device: str, side: int = 64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, side, side, generator=generator).to(device).contiguous(memory_format=torch.channels_last)


def descend(model: Segmenter, device: str, sides: tuple[int, ...]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number, side in enumerate(sides):
        optimizer.zero_grad(set_to_none=True)
        output = model.train()(pictures(device, side, number))
        (output.logits_BCHW.square().mean() + output.stages[1].square().mean()).backward()
        optimizer.step()


@on_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_training_by_the_record_is_training(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    moved = []
    for recorded in (False, True):
        model = network("cuda")
        if recorded:
            if compiled:
                model.compile()
            record(model.train(), pictures("cuda"))
        start = model.weights()
        descend(model, "cuda", (64, 64, 96, 64))
        moved.append({name: tensor.double() - start[name] for name, tensor in model.weights().items()})
    for kind in ("weight", "running_mean", "running_var", "num_batches_tracked"):
        plain, ours = (torch.cat([t.flatten() for n, t in m.items() if n.endswith(kind)]) for m in moved)
        assert (ours - plain).norm() < 0.01 * plain.norm(), kind


@on_gpu
def test_a_recorded_teacher_follows_its_weights() -> None:
    teacher, plain = network("cuda").eval(), network("cuda").eval()
    with torch.autocast("cuda", torch.bfloat16):
        record(teacher, pictures("cuda"))
    descend(other := network("cuda"), "cuda", (64, 64))
    for model in (teacher, plain):
        model.load(other.weights(), (4,))
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for seed in (1, 2):
            ours, theirs = teacher(pictures("cuda", seed=seed)), plain(pictures("cuda", seed=seed))
            torch.testing.assert_close(ours.logits_BCHW, theirs.logits_BCHW)
            torch.testing.assert_close(ours.stages[0], theirs.stages[0])


@on_gpu
def test_branches_are_recorded_open_and_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As RCIL trains them: all in the first task, the right ones in later tasks. Their mix is drawn anew each time,
    from the same numbers as without a record."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    rcil, images = RCIL(), pictures("cuda")
    model = build(SMALL_NETWORK, (4,), 1)
    rcil.adapt_network(model)
    model = model.to("cuda").to(memory_format=torch.channels_last)
    before = model.weights()
    for groups in (1, 2):
        set_training(model, rcil, groups, TrainingSpec())
        record(model, images)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.weights().items())
    recorded = model.runs_with
    assert isinstance(recorded, Recorded)
    replayed: list[int] = []

    def counted(number: int, replay: Trunk) -> Trunk:
        return lambda images: (replayed.append(number), replay(images))[1]

    recorded.replays = {s: counted(number, r) for number, (s, r) in enumerate(recorded.replays.items())}

    def trained(run: Trunk) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        model.runs_with = run
        model.load(before, (4,))
        model.zero_grad()
        torch.manual_seed(3)
        logits = model(images).logits_BCHW
        logits.square().mean().backward()
        grads = {f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        statistics = {n: b.clone().float() for n, b in model.named_buffers()}
        return {"logits": logits.detach().clone()} | grads | statistics, model(images).logits_BCHW.detach()

    for groups in (1, 2, 1):
        set_training(model, rcil, groups, TrainingSpec())
        (plain, _), (ours, again) = trained(model.trunk), trained(recorded)
        assert ours.keys() == plain.keys()
        assert any(".left_" in name for name in ours if name.startswith("gradient")) == (groups == 1)
        for name, tensor in plain.items():
            assert (ours[name] - tensor).norm() <= 0.01 * tensor.norm() + 1e-6, name
        assert not torch.equal(ours["logits"], again)
    assert replayed == [0, 0, 1, 1, 0, 0]


def test_the_record_is_used_only_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: recording is replaced by something that runs the network, as recording does, and counts."""
    replays: list[torch.Size] = []

    def recording(below: nn.Module, images: tuple[torch.Tensor], allow_unused_input: bool) -> object:
        below(*images)

        def replay(given: torch.Tensor) -> object:
            replays.append(given.shape)
            return below(given)

        return replay

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", recording)
    model, images = network(), pictures("cpu", 32)
    before = model.weights()
    record(model.train(), images)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.weights().items())
    expected = network().train()(images).logits_BCHW
    assert torch.equal(model.train()(images).logits_BCHW, expected)
    assert len(replays) == 1
    model.train()(pictures("cpu", 64))
    model.eval()(images)
    model.train()
    with torch.no_grad():
        model(images)
    next(model.encoder.parameters()).requires_grad_(False)
    model(images)
    next(module for module in model.decoder.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    next(model.encoder.parameters()).requires_grad_(True)
    model(images)
    assert len(replays) == 1
    model.train()(images)
    assert len(replays) == 2
    model.train()(images.double().float())
    assert len(replays) == 3
    torch.set_autocast_enabled("cuda", True)
    model(images)
    torch.set_autocast_enabled("cuda", False)
    parameter = next(model.encoder.parameters())
    parameter.data = parameter.data.clone()  # elsewhere: the record would read what is there no longer
    model(images)
    assert len(replays) == 3


def test_a_record_for_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []

    def recording(below: nn.Module, images: tuple[torch.Tensor], allow_unused_input: bool) -> object:
        number = sum(p.requires_grad for p in below.parameters())

        def replay(given: torch.Tensor) -> object:
            recorded.append(number)
            return below(given)

        return replay

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", recording)
    rcil, images = RCIL(), pictures("cpu", 32)
    model = network()
    rcil.adapt_network(model)
    for groups in (1, 2, 1):
        set_training(model, rcil, groups, TrainingSpec())
        record(model, images)
    assert isinstance(model.runs_with, Recorded)
    assert len(model.runs_with.replays) == 2
    for groups in (2, 1):
        set_training(model, rcil, groups, TrainingSpec())
        model(images)
    open_, frozen = recorded[1], recorded[0]
    assert open_ > frozen > 0


@on_gpu
def test_updates_are_compared_with_a_model_that_was_restored():
    """What is read from a disk lies in the memory, and replies on the GPU."""
    from fiss.federation.aggregate import aggregate
    from fiss.federation.messages import Reply

    sent = {"w": torch.zeros(2)}
    replies = [Reply(i, 1, {"w": torch.full((2,), x, device="cuda")}, 1, 1) for i, x in enumerate((1.0, 1.1, 50.0))]
    assert list(aggregate(sent, replies, "uniform", range(3), largest=10).refused) == [2]
