"""A client answering an order: pass to the new task if there is one, train on its own data, remember, reply."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fiss.data.background import training_table
from fiss.data.dataset import Split
from fiss.data.transforms import AugmentSpec, TrainingImages
from fiss.federation.messages import Memory, Order, Reply
from fiss.methods.base import Method
from fiss.models.segmenter import Segmenter
from fiss.training.batches import Batch, epoch_batches, load, steps_per_epoch
from fiss.training.fit import TrainingSpec, fit
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
    batches, epochs = _batches(order, site, per_epoch)
    student.load(order.weights, order.label_space.sizes)
    if teacher is not None and order.teacher is not None:
        teacher.load(order.teacher.weights, order.teacher.label_space.sizes)
        teacher.eval()
    images = TrainingImages(site.split, training_table(site.classes, order.label_space, site.labelled), site.augment)
    watcher.client(order.client, len(batches))
    fitted = fit(
        student,
        teacher if order.teacher else None,
        load(images, batches, spec.workers, next(student.parameters()).is_cuda),
        method,
        order.label_space,
        spec,
        memory.rate,
        len(batches) * order.rounds_left,
        watcher,
    )
    memory = replace(memory, rate=fitted.rate, epochs=memory.epochs + epochs)
    reply = Reply(
        order.client, len(site.images), student.weights(), fitted.steps, fitted.images, fitted.losses, transition
    )
    return reply, memory


def _batches(order: Order, site: Site, per_epoch: int) -> tuple[list[Batch], int]:
    """The round's batches: whole epochs, or exactly the steps ordered; and how many epochs were begun."""
    wanted = site.training.epochs * per_epoch if order.steps is None else order.steps
    batches: list[Batch] = []
    epoch = 0
    while len(batches) < wanted:
        where = ("client", order.client, "round", order.round, "epoch", epoch)
        batches += epoch_batches(site.images, site.training.batch, site.training.drop_last, site.seed, *where)
        epoch += 1
    return batches[:wanted], epoch
