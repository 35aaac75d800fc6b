"""A client answering an order: pass to the new task if there is one, train on its own data, remember, reply."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fiss.data.background import training_table
from fiss.data.dataset import Split
from fiss.data.transforms import AugmentSpec, TrainingImages
from fiss.federation.messages import Memory, Order, Reply
from fiss.methods.base import Method
from fiss.models.segmenter import Segmenter
from fiss.rng import address
from fiss.training.batches import Batch, epoch_batches, load, steps_per_epoch
from fiss.training.fit import Lesson, TrainingSpec, fit
from fiss.watch import Watcher


@dataclass(frozen=True)
class Site:
    """What a client owns: its images, which of their classes it labels, and how it trains."""

    split: Split
    classes: tuple[str, ...]
    """Class names of the data set, by id - 1."""
    images: Sequence[int]
    """Its images."""
    labelled: Sequence[int]
    """Ids it has labels for; all others are background in its masks."""
    augment: AugmentSpec
    training: TrainingSpec
    seed: int


def answer(
    order: Order,
    memory: Memory,
    site: Site,
    method: Method,
    student: Segmenter,
    teacher: Segmenter | None,
    watcher: Watcher,
) -> tuple[Reply, Memory]:
    """Train as ordered. `student` and `teacher` are networks to work with; their weights are overwritten."""
    spec = site.training
    transition = order.task != memory.task
    if transition:
        rate = spec.first_rate if order.task == 0 else spec.later_rate
        memory = Memory(order.task, rate, 0, memory.score, order.teacher.name if order.teacher else "")
    per_epoch = steps_per_epoch(len(site.images), spec.batch, spec.drop_last)
    if per_epoch == 0:
        return Reply(order.client, 0, transition=transition), memory
    epochs = _epochs(order, site, per_epoch)
    student.load(order.weights, order.label_space.sizes)
    taught_by = order.teacher if method.needs_teacher else None
    if taught_by is not None:
        assert teacher is not None
        teacher.load(taught_by.weights, taught_by.label_space.sizes)
        teacher.eval()
    looks = method.looks and taught_by is not None
    batches = [batch for epoch in epochs for batch in (*_looked_at(epoch, site.seed, looks), *epoch)]
    images = TrainingImages(site.split, training_table(site.classes, order.label_space, site.labelled), site.augment)
    steps = sum(map(len, epochs))
    lesson = Lesson(order.label_space, memory.rate, steps * order.rounds_left, [*map(len, epochs)], memory.epochs)
    watcher.client(order.client, steps)
    torch.manual_seed(address(site.seed, "noise", order.client, order.round))  # dropout and the like
    loader = load(images, batches, spec.workers, next(student.parameters()).is_cuda)
    fitted = fit(student, teacher if taught_by else None, loader, method, lesson, spec, watcher)
    memory = replace(memory, rate=fitted.rate, epochs=memory.epochs + len(epochs))
    reply = Reply(
        order.client,
        len(site.images),
        student.weights(),
        fitted.steps,
        fitted.images,
        fitted.losses,
        fitted.report,
        transition,
    )
    return reply, memory


def _epochs(order: Order, site: Site, per_epoch: int) -> list[list[Batch]]:
    """The round's batches by epoch: whole epochs, or exactly the steps ordered."""
    left = site.training.epochs * per_epoch if order.steps is None else order.steps
    epochs: list[list[Batch]] = []
    while left > 0:
        where = ("client", order.client, "round", order.round, "epoch", len(epochs))
        batches = epoch_batches(site.images, site.training.batch, site.training.drop_last, site.seed, *where)
        epochs.append(batches[:left])
        left -= len(epochs[-1])
    return epochs


def _looked_at(epoch: list[Batch], seed: int, looks: bool) -> list[Batch]:
    """The same images once more, augmented differently, for a method that looks before it trains."""
    return [[(image, address(seed, "look", key)) for image, key in batch] for batch in epoch] if looks else []
