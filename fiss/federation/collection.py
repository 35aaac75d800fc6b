"""Adding up features instead of training: what a client counts, and how the server makes a classifier of it.

A client makes one pass over what it has not counted yet, with the labels of its present classes, and remembers what it
counted. What it counts while it labels the same classes (or more of them) is a period. In a period a changed mask makes
it count again all that it holds, in place of what it had added in that period; images that are gone stay counted. When
it passes to other classes a new period begins, and what it added before stays as it is: the data are gone.

The server keeps the sums by client and period, checks what comes in, adds it up and solves. It says with every order
what it has heard, so that a contribution that was lost or refused is made again and none is counted twice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch

from fiss.data.label_maps import training_table
from fiss.errors import UserError
from fiss.federation.messages import Announcement, Collected, Contribution, Memory, Order, Reply, Server
from fiss.federation.wire import rounded
from fiss.labels import LabelSpace
from fiss.methods.base import Method
from fiss.models.classifier import PREFIX, Weights
from fiss.progress import Progress
from fiss.rng import address
from fiss.statistics.collection import Collection
from fiss.statistics.features import FixedLayers, digest
from fiss.statistics.head import BUFFERS, head_of
from fiss.statistics.ledger import Ledger, problem
from fiss.statistics.solve import lda
from fiss.statistics.sums import Accumulator, Sums, cell_shares
from fiss.training.device import autocast
from fiss.training.trainer import Trainer

if TYPE_CHECKING:
    from fiss.federation.client import Site


@dataclass(frozen=True)
class Held:
    """One image that a site holds."""

    name: str
    """The same for as long as the site has it."""
    checksum: int = 0
    """Of its files."""
    shown: Sequence[int] | None = None
    """Ids that its mask shows; None: any."""


@dataclass(frozen=True)
class Counted:
    """What a client has added to the sums."""

    period: int = -1
    """The round in which its present period began."""
    classes: Sequence[str] = ()
    """Those that it has labelled in it."""
    images: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By image the checksum of its labels, and the period in which it was counted."""
    round: int = -1
    """That of the last contribution."""
    before: Mapping[str, Any] | None = None
    """All this before the last contribution, which may not have arrived."""


def contribute(
    order: Order, heard: int, memory: Memory, site: "Site", method: Method, trainer: Trainer, progress: Progress
) -> tuple[Reply, Memory]:
    """Add up the features of what the server has not got yet. The student's weights are overwritten."""
    assert method.collection is not None
    collection, lost = method.collection, False
    past = Counted(**memory.counted)
    if past.round != heard and past.before is not None:
        past = Counted(**past.before)
    if past.round != heard:  # one of both has forgotten the other: all that is there is counted anew
        past, lost = Counted(), heard >= 0
    now, names = _labels_of(site), set(site.names)
    same = past.period >= 0 and names >= set(past.classes)
    period = past.period if same else order.round
    changed = same and any(
        past.images[name][1] == period and past.images[name][0] != now[name] for name in past.images.keys() & now.keys()
    )
    kept = {name: own for name, own in past.images.items() if not (changed and own[1] == period)}
    new = [name for name, labels in now.items() if name not in kept or kept[name][0] != labels]
    reply = Reply(order.client, len(site.images), report={"counted": len(new)})
    if not new and not changed and not lost:
        return reply, replace(memory, counted=asdict(past))
    sums, made_with = _count(
        order, [(i, n) for i, n in _named(site) if n in set(new)], site, collection, trainer, progress
    )
    since = 0 if lost else period if changed else None
    contribution = Contribution(sums, made_with, period, since)
    images = kept | {name: (now[name], period) for name in new}
    done = Counted(period, sorted(names), images, order.round, asdict(replace(past, before=None)))
    samples = len(new) * (1 + collection.augmented)
    return replace(reply, samples=samples, contribution=contribution), replace(memory, counted=asdict(done))


def _named(site: "Site") -> list[tuple[int, str]]:
    """Its images and their names, in the order of the names: sums then do not depend on how it numbers them."""
    named = (
        zip(site.images, (held.name for held in site.held), strict=True)
        if site.held
        else ((image, str(image)) for image in site.images)
    )
    return sorted(named, key=lambda pair: pair[1])


def _labels_of(site: "Site") -> dict[str, int]:
    """A checksum of each image's labels: of the files, and of which classes in it are labelled."""
    found = {}
    for one in site.held or [Held(str(image)) for image in site.images]:
        labelled = sorted(site.classes[i - 1] for i in site.labelled if one.shown is None or i in one.shown)
        found[one.name] = crc32(f"{one.checksum} {' '.join(labelled)}".encode())
    return found


def _count(
    order: Order,
    images: Sequence[tuple[int, str]],
    site: "Site",
    collection: Collection,
    trainer: Trainer,
    progress: Progress,
) -> tuple[Sums, str]:
    """The sums over those images, every view of them, and the digest of what they were made with."""
    assert trainer.plain_reader is not None
    space, seed, batch = order.label_space, site.seed, trainer.spec.batch
    student = trainer.show(order.weights, space.sizes).eval()
    head = head_of(student)
    table = torch.from_numpy(training_table(site.classes, space, site.labelled)).to(trainer.device)
    parts = [images[a : a + batch] for a in range(0, len(images), batch)]
    passes = [trainer.plain_reader.read([(image, "published") for image, _ in part] for part in parts)]
    for view in range(collection.augmented):  # addressed by the image, whoever holds it and whenever it is counted
        keys = ([(image, address(seed, "view", name, view)) for image, name in part] for part in parts)
        passes.append(trainer.reader.read(keys))
    accumulator = Accumulator(space.channels, head.features, trainer.device)
    progress.client(order.client, len(passes) * len(parts))
    for batches in passes:
        for read in batches:
            pictures, labels = trainer.on_device(read, table)
            size = (pictures.shape[-2], pictures.shape[-1])
            with torch.inference_mode(), autocast(trainer.spec, trainer.device):
                features = head.map(*student.runs_with(pictures), size)
                accumulator.add_images(
                    features, cell_shares(labels, space.channels, (features.shape[2], features.shape[3]))
                )
            progress.step(len(pictures), None)
    sums = accumulator.sums()
    sums = Sums.from_tensors(sums.tensors(collection.dtype), sums.cells, sums.images)
    return sums, made_with(collection, order.weights, head.layers)


def made_with(collection: Collection, weights: Weights, layers: FixedLayers) -> str:
    """The digest of the trunk of a model, and of the features."""
    trunk = {k: v for k, v in weights.items() if not k.startswith(PREFIX) and k not in BUFFERS}
    return digest(collection.features, layers, trunk)


class Gathering:
    """The server's part: whom it asks, what it accepts, and the classifier that comes of it."""

    def __init__(self, collection: Collection, first_rounds: int, transfer: str, layers: FixedLayers) -> None:
        self.collection, self.transfer, self.layers = collection, transfer, layers
        self.trunk_rounds = collection.rounds_of_trunk(first_rounds)

    def trains(self, round_: int) -> bool:
        """Whether clients still train in that round."""
        return round_ < self.trunk_rounds

    def took_part(self, server: Server, round_: int, replies: Iterable[Reply]) -> Server:
        """Take note of who trained."""
        collected = server.collected or Collected()
        if self.trains(round_):
            trained = {reply.client for reply in replies if reply.images}
            collected = replace(collected, took_part=tuple(sorted({*collected.took_part, *trained})))
        return replace(server, collected=collected)

    def asked(self, server: Server, round_: int, selected: Sequence[int], there: Sequence[int] | None) -> Sequence[int]:
        """Who is to count in that round: nobody while the trunk is trained, and after its last round all who took part
        in it, if they are there."""
        if round_ + 1 < self.trunk_rounds:
            return ()
        if round_ >= self.trunk_rounds or self.collection.collected_from == "selected":
            return sorted(selected)
        assert server.collected is not None
        return [client for client in server.collected.took_part if there is None or client in there]

    def gather(
        self,
        server: Server,
        round_: int,
        asked: Sequence[int],
        announced: Announcement | None,
        ask: Callable[[Sequence[Order]], Iterable[Reply]],
    ) -> tuple[Server, tuple[Reply, ...], dict[int, str]]:
        """Ask them, add up what they say, and solve; also gives their replies, and what was refused and why."""
        collected = server.collected or Collected()
        if round_ + 1 < self.trunk_rounds:
            return server, (), {}
        if collected.ledger is None:  # the trunk stays as it is from now on: as it is after the way to a client
            server = replace(server, weights=rounded(server.weights, self.transfer))
        space, weights = server.label_space, server.weights
        orders = [
            Order(client, round_, space, weights, None, announced, collected.heard.get(client, -1)) for client in asked
        ]
        replies: list[Reply] = []
        refused: dict[int, str] = {}
        ledger, heard = collected.ledger, dict(collected.heard)
        if ledger is None:
            ledger = Ledger(made_with(self.collection, weights, self.layers), weights[BUFFERS[0]].shape[1])
        for reply in sorted(ask(orders), key=lambda reply: reply.client):
            replies.append(replace(reply, contribution=None, weights={}))
            if (given := reply.contribution) is None:
                continue
            try:
                ledger = accepted(ledger, reply.client, given, space.channels, round_)
                heard[reply.client] = round_
            except UserError as error:
                refused[reply.client] = str(error)
        server = replace(server, collected=replace(collected, heard=heard, ledger=ledger))
        if ledger is not collected.ledger or len(weights[BUFFERS[0]]) != space.channels:
            server = replace(server, weights=self.solved(weights, ledger, space))
        return server, tuple(replies), refused

    def without(self, server: Server, client: int) -> Server:
        """Without anything that a client contributed to the sums, and the classifier that comes of the others'. It
        stays in what the trunk learnt from its images."""
        collected = server.collected or Collected()
        own = [name for name in (collected.ledger or Ledger("", 0)).contributions if name.startswith(f"{client:05d}/")]
        if not own or collected.ledger is None:
            return server
        ledger = collected.ledger
        for name in own:
            ledger = ledger.without(name)
        if not ledger.contributions:
            raise UserError("Nobody else has contributed to the sums, so there would be no classifier without it.")
        heard = {other: round_ for other, round_ in collected.heard.items() if other != client}
        weights = self.solved(server.weights, ledger, server.label_space)
        return replace(server, weights=weights, collected=replace(collected, heard=heard, ledger=ledger))

    def solved(self, weights: Weights, ledger: Ledger, space: LabelSpace) -> Weights:
        """The weights with the classifier that comes of those sums."""
        total = ledger.total(space.channels)
        if not total.present_C.any():
            return weights
        found = lda(total, self.collection.shrinkage, self.collection.prior)
        return weights | {name: t.to(weights[name]) for name, t in zip(BUFFERS, found, strict=True)}


def accepted(ledger: Ledger, client: int, given: Contribution, channels: int, round_: int) -> Ledger:
    """The ledger with what a client contributes, if that can be true."""
    if not 0 <= given.period <= round_:
        raise UserError(f"its period {given.period} is none of the rounds up to {round_}")
    if why := problem(given.sums, channels, ledger.features):
        raise UserError(why)
    name = f"{client:05d}/{given.period:05d}"
    for there in [
        n for n in ledger.contributions if given.since is not None and n >= f"{client:05d}/{given.since:05d}"
    ]:
        if there.startswith(f"{client:05d}/"):
            ledger = ledger.without(there)
    return ledger.added(name, given.sums, given.made_with)
