"""A step of training as a recording of it needs it: the same operations on the same memory, whatever the data are.

A CUDA graph repeats what it was recorded with: operations, sizes, numbers, addresses. So a step, from the batch to the
optimizer, waits for no result, has no size that depends on the data, takes nothing but the batch from the host, and
reads what changes (the share of pseudo labels, thresholds) from tensors that stay where they are.

What is not so, by name:
- the learning rate: for SGD on a CPU it is a number of the host, so it is constant here; its GPU kernel takes a tensor;
- the first step of all, which makes tables that are kept;
- `thresholds="exact"` before an epoch, as many entropies as there are pixels that count; the steps read its thresholds;
- what a method notes in `state` lies elsewhere in the next round;
- methods of users, of which nothing is known.
"""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import TINY_NETWORK

from fiss import methods
from fiss.labels import LabelSpace
from fiss.methods.fbl import FBL
from fiss.methods.finetune import Finetune
from fiss.models.segmenter import build
from fiss.progress import Progress
from fiss.training.batches import Epoch
from fiss.training.fit import TrainingPlan, fit
from fiss.training.spec import TrainingSpec
from fiss.training.trainer import Trainer

SPACE = LabelSpace((("a", "b", "c"), ("d", "e"), ("f",)))
WAITS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "is_nonzero", "equal", "bincount", "lift_fresh")
"""Operations whose result the host waits for or whose size depends on the data; the last is of a tensor made of numbers
of the host."""


class Place(int):
    """Where a tensor lies."""


class Recorder(TorchDispatchMode):
    """Writes down the operations of each step with what they are given, and refuses what cannot be recorded."""

    def __init__(self, device):
        super().__init__()
        self.device, self.steps, self.made, self.found = device, [], None, {}

    def begin(self, batch):
        self.steps.append([])
        self.made, self.found = set(), {memory(t): f"batch {n}" for n, t in enumerate(batch)}

    def end(self, *_):
        self.made = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.made is None or function.namespace == "profiler":
            return function(*args, **kwargs)
        name = function.__name__.split(".")[0]
        masks = [a for a in (args[1] if name in ("index", "index_put_", "index_put") else ()) if a is not None]
        waits = any(word in name for word in WAITS) or any(a.dtype in (torch.bool, torch.uint8) for a in masks)
        assert not waits or len(self.steps) == 1, f"{function} cannot be recorded"
        self.steps[-1].append((function, *map(self.told, args), *map(self.told, kwargs.items())))
        result = function(*args, **kwargs)
        given = result if isinstance(result, tuple | list) else [result]
        self.made |= {memory(t) for t in given if isinstance(t, Tensor)} - self.found.keys()
        return result

    def told(self, value):
        """A tensor's kind and size, and where it lies unless the step itself made it; all else as it is."""
        if isinstance(value, tuple | list):
            return tuple(map(self.told, value))
        if not isinstance(value, Tensor):
            return value
        at = memory(value)
        place = "made" if at in self.made else self.found.setdefault(at, Place(at))
        strange = value.device.type != self.device and not str(place).startswith("batch") and len(self.steps) > 1
        assert not strange, f"a tensor {tuple(value.shape)} comes from the host"
        return value.dtype, value.shape, place


def memory(tensor):
    return tensor.untyped_storage()._cdata


class Batches(list):
    """Tells the recorder when a step begins."""

    def __init__(self, recorder, batches):
        super().__init__(batches)
        self.recorder = recorder

    def __iter__(self):
        for batch in super().__iter__():
            self.recorder.begin(batch)
            yield batch


def batch(kind, space, seed):
    """Noise, and a mask of one kind: some of all, all ignored, all background, all one new class."""
    generator = torch.Generator().manual_seed(seed)
    new = list(space.group_channels(len(space.groups) - 1))
    labels = torch.tensor([0, 1, *new, 255])[torch.randint(0, len(new) + 3, (2, 32, 32), generator=generator)]
    masks = {"some": labels, "ignored": labels * 0 + 255, "background": labels * 0, "new": labels * 0 + new[0]}[kind]
    return torch.randint(0, 256, (2, 3, 32, 32), generator=generator, dtype=torch.uint8), masks.to(torch.uint8)


@cache
def plain(groups):
    return build(TINY_NETWORK, LabelSpace(SPACE.groups[:groups]).sizes, 0)


def recorded(method, groups, monkeypatch, device="cpu"):
    """Five steps: two of an epoch, one of the next, two of a later round."""
    monkeypatch.setattr("fiss.training.fit.monotonic", lambda: 0.0)  # it shows no losses: that waits, between steps
    space, taught = LabelSpace(SPACE.groups[:groups]), groups > 1 and method.needs_teacher
    student, teacher = (deepcopy(plain(count)) for count in (groups, groups - taught))
    for network in (student, teacher):
        method.adapt_network(network)
        network.to(device)
    trainer = Trainer(student, teacher, None, TrainingSpec(batch=2, epochs=2))
    ready = trainer.teach(teacher.weights(), teacher.classifier.sizes) if taught else None
    table = np.arange(256, dtype=np.uint8)  # it has labels of channel 1, which others taught before
    table[2 : space.group_channels(groups - 1).start] = 0
    recorder = Recorder(device)
    hook = register_optimizer_step_post_hook(recorder.end)
    try:
        for number, kinds in enumerate(((("some", "ignored"), ("background",)), (("new", "some"),))):
            batches = [[batch(kind, space, seed) for seed, kind in enumerate(epoch)] for epoch in kinds]
            seen = taught and method.needs_preview
            epochs = [Epoch(Batches(recorder, epoch), epoch if seen else ()) for epoch in batches]
            plan = TrainingPlan(space, table, lambda step: 1e-3, 2 * number, groups == 1)
            over = pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta") if device == "meta" else None
            with recorder, over or nullcontext():  # without data the means of the losses cannot be told in the end
                fit(trainer, ready, method, plan, epochs, Progress())
    finally:
        hook.remove()
    return recorder.steps


def check(steps):
    assert len(steps) == 5
    assert len(steps[1]) > 100
    for number, where in ((2, tuple), (4, tuple), (3, anywhere)):
        before, step = ([where(operation) for operation in steps[n]] for n in (number - 1, number))
        differs = next((pair for pair in zip(before, step, strict=False) if pair[0] != pair[1]), None)
        assert differs is None, f"step {number} is not as the one before: {differs}"
        assert len(step) == len(before)


def anywhere(operation):
    """It, wherever the tensors lie."""
    if isinstance(operation, tuple) and not isinstance(operation, torch.Size):
        return tuple(map(anywhere, operation))
    return "kept" if isinstance(operation, Place) else operation


def variants():
    """Every method and profile, each without each of its parts, and FBL, which has most of them, with every value of a
    field that names its values or is yes or no."""
    found = {name: make() for name, make in methods.METHODS.items()}
    for name, method in list(found.items()):
        found |= {f"{name} without {part}": methods.ablate(method, part) for part in method.ablations}
    for field in fields(FBL):
        kind = get_type_hints(FBL)[field.name]
        choices = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
        found |= {f"fbl {field.name}={value}": replace(FBL(), **{field.name: value}) for value in choices}
    names = {method: name for name, method in reversed(found.items())}  # each once
    return {name: method for method, name in reversed(names.items())}


VARIANTS = variants()


@pytest.mark.parametrize(
    "name", [n if n in methods.METHODS else pytest.param(n, marks=pytest.mark.slow) for n in VARIANTS]
)
def test_steps_are_the_same_operations_on_the_same_memory(name, monkeypatch):
    check(recorded(VARIANTS[name], 3, monkeypatch))


@pytest.mark.parametrize("name", ["finetune", "rcil"])
def test_steps_of_the_first_task_too(name, monkeypatch):
    check(recorded(methods.find(name), 1, monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in methods.METHODS if getattr(methods.find(n), "thresholds", "") != "exact"])
def test_steps_take_nothing_but_the_batch_from_the_host(name, monkeypatch):
    """On a device that has no data at all."""
    check(recorded(methods.find(name), 3, monkeypatch, "meta"))


def moving(pixels, step):
    step.state["sum"] = step.state.get("sum", 0) + pixels.detach()
    return pixels + step.state["sum"]


FAULTS = {
    "waits": lambda pixels, step: pixels / float(pixels.detach().sum()),
    "picks": lambda pixels, step: pixels[step.labels_BHW == 0],
    "counts": lambda pixels, step: pixels * step.labels_BHW.unique().numel(),
    "branches": lambda pixels, step: pixels if step.state.setdefault("epoch", step.epoch) == step.epoch else 2 * pixels,
    "tells": lambda pixels, step: pixels * (1 + step.epoch),
    "makes": lambda pixels, step: pixels * torch.tensor(2.0),
    "moves": moving,
    "fetches": lambda pixels, step: pixels * torch.ones(1).to(pixels.device),
}


@dataclass(frozen=True)
class Faulty(Finetune):
    fault: str = ""

    def losses(self, step):
        return {"fault": FAULTS[self.fault](step.student.cross_entropy(step.labels_BHW), step).sum()}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_recorded_is_noticed(fault, monkeypatch):
    with pytest.raises(AssertionError, match=r"is not as the one before|cannot be recorded|comes from the host"):
        check(recorded(Faulty(fault=fault), 2, monkeypatch, "meta" if fault == "fetches" else "cpu"))
