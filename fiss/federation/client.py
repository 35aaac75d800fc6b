"""A client answering an order: pass to the new task if there is one, train on its own data, remember, reply."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fiss.data.background import training_table
from fiss.federation.messages import Memory, Order, Reply
from fiss.methods.base import Method
from fiss.rng import address
from fiss.training.batches import Batch, epoch_batches, steps_per_epoch
from fiss.training.fit import Lesson, Trainer, TrainingSpec, fit
from fiss.watch import Watcher


@dataclass(frozen=True)
class Site:
    """What a client owns: its images, and which of their classes it labels."""

    classes: tuple[str, ...]
    """Class names of the data set, by id - 1."""
    images: Sequence[int]
    """Its images."""
    labelled: Sequence[int]
    """Ids it has labels for; all others are background in its masks."""
    seed: int


def epoch_lengths(order: Order, site: Site, spec: TrainingSpec) -> list[int]:
    """Steps of each epoch that the order asks for: whole epochs, or exactly the steps ordered; none without images."""
    per_epoch = steps_per_epoch(len(site.images), spec.batch, spec.drop_last)
    if per_epoch == 0:
        return []
    steps = spec.epochs_in(order.task) * per_epoch if order.steps is None else order.steps
    return [per_epoch] * (steps // per_epoch) + [steps % per_epoch] * (steps % per_epoch > 0)


def batches(order: Order, site: Site, method: Method, spec: TrainingSpec) -> list[list[Batch]]:
    """What the order makes the client read, by epoch."""
    epochs = []
    for epoch, length in enumerate(epoch_lengths(order, site, spec)):
        where = ("client", order.client, "round", order.round, "epoch", epoch)
        epochs.append(epoch_batches(site.images, spec.batch, spec.drop_last, site.seed, *where)[:length])
    if method.looks and method.needs_teacher and order.teacher is not None:
        epochs = [[*_looked_at(epoch, site.seed), *epoch] for epoch in epochs]
    return epochs


def _looked_at(epoch: list[Batch], seed: int) -> list[Batch]:
    """The same images once more, augmented differently, for a method that looks before it trains."""
    return [[(image, address(seed, "look", key)) for image, key in batch] for batch in epoch]


def answer(
    order: Order,
    memory: Memory,
    site: Site,
    method: Method,
    trainer: Trainer,
    watcher: Watcher,
) -> tuple[Reply, Memory]:
    """Train as ordered, on `batches` that the trainer's reader has been asked for. The weights of its networks are
    overwritten."""
    spec = trainer.spec
    transition = order.task != memory.task
    if transition:
        rate = spec.first_rate if order.task == 0 else spec.later_rate
        memory = Memory(order.task, rate, 0, memory.score, order.teacher.name if order.teacher else "")
    epochs = epoch_lengths(order, site, spec)
    if not epochs:
        return Reply(order.client, 0, transition=transition), memory
    trainer.student.load(order.weights, order.label_space.sizes)
    taught_by = order.teacher if method.needs_teacher else None
    teacher = trainer.teach(taught_by.weights, taught_by.label_space.sizes) if taught_by is not None else None
    table = training_table(site.classes, order.label_space, site.labelled)
    lesson = Lesson(order.label_space, table, memory.rate, sum(epochs) * order.rounds_left, epochs, memory.epochs)
    watcher.client(order.client, sum(epochs))
    torch.manual_seed(address(site.seed, "noise", order.client, order.round))  # dropout and the like
    fitted = fit(trainer, teacher, method, lesson, watcher)
    memory = replace(memory, rate=fitted.rate, epochs=memory.epochs + len(epochs))
    reply = Reply(
        order.client,
        len(site.images),
        trainer.student.weights(),
        fitted.steps,
        fitted.images,
        fitted.losses,
        fitted.report,
        transition,
    )
    return reply, memory
