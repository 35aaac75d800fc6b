"""A client answering: looking at its own data with the global model when probed, training when ordered to, and
remembering.

When the client passes to new classes, and how its learning rate falls, is told by `boundaries.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from fiss.data.label_maps import training_table
from fiss.federation.boundaries import client_round
from fiss.federation.collection import Held, contribute
from fiss.federation.messages import Memory, Order, Probe, ProbeResult, Reply
from fiss.labels import BACKGROUND, IGNORE, LabelSpace
from fiss.methods.base import Method
from fiss.monitors.features import compare, readable
from fiss.monitors.rules import Evidence, MonitorSpec, judge
from fiss.progress import Progress
from fiss.rng import address, stream
from fiss.training.batches import Batch, Epoch, epoch_batches, steps_per_epoch
from fiss.training.fit import TrainingPlan, fit
from fiss.training.probe import UNKNOWN, ImagePass, features, measure
from fiss.training.spec import TrainingSpec
from fiss.training.trainer import Trainer


@dataclass(frozen=True)
class Truth:
    """What only a simulation knows of a client; some monitors are given it for comparison."""

    transitions: int = 0
    """True transitions so far."""
    task: int = 0
    """The calendar's task."""


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
    truth: Truth = Truth()
    trains: bool = True
    """Whether it takes part in training; one that stays on its old data does not."""
    checksum: int | None = None
    """Checksum of what it holds; None: the numbers of its images say it."""
    held: Sequence[Held] = ()
    """Of each image what tells it from others and from itself with another mask; needed where features are added
    up."""

    @property
    def names(self) -> tuple[str, ...]:
        """Classes it has labels for."""
        return tuple(self.classes[i - 1] for i in self.labelled)


def sample(client: int, site: Site, count: int) -> Sequence[int]:
    """The images it looks at: all (0), or a sample that stays the same as long as what it holds does."""
    if not count or count >= len(site.images):
        return site.images
    return sorted(stream(site.seed, "probe", client).sample(list(site.images), count))


def answer_probe(
    probe: Probe, memory: Memory, site: Site, spec: MonitorSpec, trainer: Trainer, unknown_counts: bool = False
) -> tuple[ProbeResult, Memory]:
    """Look at its own data, let the monitor judge, and say what the server has to know. With `unknown_counts` a class
    that the label space lacks is a transition whatever the monitor says, once for what the client holds. The student's
    weights are overwritten; its reader of plain images is used."""
    space = probe.label_space
    missing = tuple(name for name in site.names if name not in space.names)
    if not site.images or not space.names:  # nothing to look at, or to look through
        return ProbeResult(probe.client, missing), replace(memory, evidence={})
    held = crc32(np.asarray(site.images, np.int64).tobytes()) if site.checksum is None else site.checksum
    newcomer = memory.since < 0
    assert trainer.plain_reader is not None
    student = trainer.show(probe.weights, space.sizes)
    table, plain = probe_table(site, space), trainer.plain_reader
    seen = measure(ImagePass(student, plain, sample(probe.client, site, spec.sample), table, trainer.spec))
    changed, looks, chance_ = not newcomer and held != memory.held, memory.looks, 1.0
    if newcomer or changed or not readable(looks):
        assert trainer.feature_network is not None
        compared = sample(probe.client, site, spec.compared)
        rows = features(ImagePass(trainer.feature_network, plain, compared, table, trainer.spec))
        draws = np.random.default_rng(address(site.seed, "compare", probe.client, probe.round))
        chance_, looks = compare(looks, rows, spec.level, draws, known=bool(missing))
    now = replace(
        seen,
        lacks=bool(missing),
        changed=changed,
        chance=chance_,
        transitions=site.truth.transitions,
        task=site.truth.task,
    )
    evidence = _plain(asdict(now))
    fired, notes = judge(spec, Evidence(**evidence), memory.notes)  # by what is logged, so that a replay is the same
    fired |= unknown_counts and now.lacks and (changed or not memory.evidence.get("lacks", False))
    memory = replace(memory, held=held, looks=looks, evidence=evidence, notes=_plain(dict(notes)))
    if newcomer:  # its first data are no transition, but there may be classes to remember that it never saw
        return ProbeResult(probe.client, missing, False, _needed(space, site.names)), replace(memory, since=probe.round)
    if not fired:
        return ProbeResult(probe.client, missing), memory
    memory = replace(memory, since=probe.round, epochs=0, transitions=memory.transitions + 1)
    return ProbeResult(probe.client, missing, True, len(space.groups)), memory


def probe_table(site: Site, space: LabelSpace) -> NDArray[np.int16]:
    """Its labels as channels, those that the label space lacks as a number of their own."""
    table = np.full(256, BACKGROUND, np.int16)
    for i in site.labelled:
        name = site.classes[i - 1]
        table[i] = space.channel(name) if name in space.names else UNKNOWN
    table[IGNORE] = IGNORE
    return table


def _needed(space: LabelSpace, names: Sequence[str]) -> int | None:
    """Which model a newcomer has to be taught by: the one from just before its classes entered, if all others are
    older; the present one, if some came later; none, if there are no others."""
    own = [i for i, group in enumerate(space.groups) if set(group) & set(names)]
    others = [i for i, group in enumerate(space.groups) if group and i not in own]
    first = own[0] if own else len(space.groups)
    if not others:
        return None
    return first if others[-1] < first else len(space.groups)


def _plain(value: Any) -> Any:
    """A value as it stands in a log: six digits, lists."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return round(value, 6) if isinstance(value, float) else value


def epoch_batches_of(order: Order, site: Site, spec: TrainingSpec) -> list[list[Batch]]:
    """The batches of each epoch that the order asks for: whole epochs, or exactly the steps ordered; none without
    images."""
    per_epoch = steps_per_epoch(len(site.images), spec.batch, spec.drop_last)
    if per_epoch == 0 or not site.trains or order.heard is not None:
        return []
    fixed = order.announced.steps if order.announced is not None else None
    steps = spec.epochs_in(order.first) * per_epoch if fixed is None else fixed
    lengths = [per_epoch] * (steps // per_epoch) + [steps % per_epoch] * (steps % per_epoch > 0)
    epochs = []
    for epoch, length in enumerate(lengths):
        where = ("client", order.client, "round", order.round, "epoch", epoch)
        epochs.append(epoch_batches(site.images, spec.batch, spec.drop_last, site.seed, *where)[:length])
    return epochs


def read_epochs(order: Order, site: Site, method: Method, trainer: Trainer) -> list[Epoch]:
    """Begin to read what the client is to train on; the same images once more before, augmented differently, for a
    method that wants a preview."""
    epochs = []
    for batches in epoch_batches_of(order, site, trainer.spec):
        shown: list[Batch] = []
        if method.needs_preview and method.needs_teacher and order.teacher is not None:
            shown = [[(image, address(site.seed, "look", key)) for image, key in batch] for batch in batches]
        preview = trainer.reader.read(shown)
        epochs.append(Epoch(trainer.reader.read(batches), preview))
    return epochs


def answer_order(
    order: Order,
    memory: Memory,
    site: Site,
    method: Method,
    trainer: Trainer,
    epochs: Sequence[Epoch],
    progress: Progress,
) -> tuple[Reply, Memory]:
    """Train on those epochs as ordered, or add up features. The weights of the trainer's networks are overwritten."""
    if order.heard is not None:
        return contribute(order, order.heard, memory, site, method, trainer, progress)
    begin = client_round(order, memory, trainer.spec)
    memory = replace(begin.memory, teacher=order.teacher.name if order.teacher else "")
    if not epochs:
        return Reply(order.client, 0, transition=begin.transition), memory
    trainer.prepare(order.weights, order.label_space.sizes)
    snapshot = order.teacher if method.needs_teacher else None
    teacher = trainer.teach(snapshot.weights, snapshot.label_space.sizes) if snapshot is not None else None
    steps = sum(len(epoch.batches) for epoch in epochs)
    plan = TrainingPlan(
        order.label_space,
        training_table(site.classes, order.label_space, site.labelled),
        lambda step: begin.rate(step, steps),
        memory.epochs,
        order.first,
    )
    progress.client(order.client, steps)
    torch.manual_seed(address(site.seed, "noise", order.client, order.round))  # dropout and the like
    result = fit(trainer, teacher, method, plan, epochs, progress)
    memory = replace(memory, rate=result.rate, epochs=memory.epochs + len(epochs))
    reply = Reply(
        order.client,
        len(site.images),
        trainer.student.weights(),
        result.steps,
        result.images,
        result.losses,
        result.report,
        begin.transition,
    )
    return reply, memory
