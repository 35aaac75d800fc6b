"""What a site does with a message. The client that answers is that of a simulation.

A site keeps its memory on its own disk, as it was before the round and after it: if the server dies and plays a round
again, the site answers it again as if for the first time.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fiss.config.config import Config
from fiss.data.label_maps import training_table
from fiss.deployment.site_config import SiteSpec
from fiss.deployment.site_folder import SiteFolder
from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.client import Site, answer_order, answer_probe, read_epochs
from fiss.federation.messages import Memory, Probe, SiteScore, Snapshot
from fiss.federation.private_names import private
from fiss.federation.wire import Message
from fiss.labels import BACKGROUND, LabelSpace
from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter
from fiss.progress import Progress
from fiss.runs.folder import write_atomically
from fiss.training.device import use_device
from fiss.training.evaluate import evaluate
from fiss.training.trainer import build_network, build_trainer


@dataclass(frozen=True)
class SiteMemory:
    """A site's memory over one round, as it stands on its disk."""

    round: int
    before: Memory
    """After the rounds before that one; `settled` in the file."""
    probed: Memory | None
    """After a probe in it."""
    now: Memory

    @classmethod
    def begin(cls, round_: int, memory: Memory) -> "SiteMemory":
        """At the beginning of a round."""
        return cls(round_, memory, None, memory)

    @classmethod
    def read(cls, path: Path) -> "SiteMemory | None":
        """The memory after the last round; None if there was none."""
        if not path.is_file():
            return None
        try:
            record = json.loads(path.read_bytes())
            probed = Memory(**record["probed"]) if record["probed"] is not None else None
            return cls(int(record["round"]), Memory(**record["settled"]), probed, Memory(**record["now"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: damaged ({error}); without it the site begins anew: remove it.") from error

    def write(self, path: Path) -> None:
        """Keep it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        record = asdict(self)
        write_atomically(path, json.dumps({"settled": record.pop("before"), **record}).encode())


class SiteClient:
    """Answers for one site: each message as it comes, with what the site's folder holds at that moment."""

    def __init__(
        self, folder: Path, config: Config, spec: SiteSpec, progress: Progress, differences: bool = False
    ) -> None:
        self.differences = differences
        """Whether its weights are sent as a difference, for privacy filters."""
        self.path, self.key, self.progress = folder / "memory.json", spec.key, progress
        batch = spec.batch or config.training.batch
        training = replace(config.training, device=spec.device, batch=batch, workers=0, cache=0.0)
        self.config = config = replace(config, training=training)
        device = use_device(training)
        self.site_folder = SiteFolder(spec, config.augment, device, progress, config.evaluation.size, config.reading)

        def network(weights: str) -> Segmenter:
            return build_network(config, LabelSpace(((),)), device, weights)

        try:
            feature_network = network(spec.weights or config.model.weights)
        except UserError as error:
            progress.notice(f"new images are compared by an untrained network: {error}")
            feature_network = network("none")
        self.trainer = build_trainer(config, network("none"), *self.site_folder.readers, feature_network)
        self.teachers: dict[str, Snapshot] = {}
        self.round = -1
        """The round of which `site` is."""
        self.site: Site | None = None
        self.kept = range(0)
        self.model: Weights | None = None
        """The one that it was given last: what is the same in the next one is not sent again."""

    def __call__(self, message: Message) -> Message:
        """Its answer."""
        text = json.loads(message.text)
        is_probe = text["kind"] == "probe"
        if is_probe or self.site is None or self.round != text["round"]:
            self.round, self.site = text["round"], self._rescan()
        return self._probe(message, self.site, text.get("heard")) if is_probe else self._train(message, self.site)

    def labelled_classes(self) -> list[str]:
        """The classes that its masks showed when they were last looked at, as the federation calls them."""
        return [self.site.classes[i - 1] for i in self.site.labelled] if self.site is not None else []

    def _rescan(self) -> Site:
        """What is there now; it stays so for the round."""
        contents = self.site_folder.rescan()
        self.trainer.reader, self.trainer.plain_reader = self.site_folder.readers
        classes = tuple(private(name, self.key) for name in contents.classes) if self.key else contents.classes
        seed, checksum, self.kept = self.config.seed, contents.checksum, contents.kept
        return Site(classes, contents.images, contents.labelled, seed, checksum=checksum, held=contents.held)

    def _probe(self, message: Message, site: Site, acknowledged: int | None) -> Message:
        probe, _ = wire.to_probe(message, self.model)
        self.model = probe.weights
        memory = self._memory_in(probe.round, acknowledged)
        probe_result, probed = answer_probe(probe, memory.before, site, self.config.monitor, self.trainer, True)
        replace(memory, probed=probed, now=probed).write(self.path)
        return wire.from_probe_result(replace(probe_result, score=self._score(probe, site)))

    def _score(self, probe: Probe, site: Site) -> SiteScore | None:
        """How good the model is on the images kept from training, by the classes that this site labels: what it finds
        of others may well be there."""
        space = probe.label_space
        known = [i for i in site.labelled if site.classes[i - 1] in space.names]
        if not self.kept or not known:
            return None
        model, reader = self.trainer.show(probe.weights, space.sizes), self.site_folder.scoring_reader
        table, sizes = training_table(site.classes, space, known), np.zeros((len(self.kept), 2), np.int64)
        spec, training = self.config.evaluation, self.config.training
        matrix = evaluate(model, reader, self.kept, sizes, table, "published", spec, training, self.progress)
        matrix = matrix.cpu().clone()
        channels = [BACKGROUND, *(space.channel(site.classes[i - 1]) for i in known)]
        others = [channel for channel in range(space.channels) if channel not in channels]
        matrix[:, BACKGROUND] += matrix[:, others].sum(1)
        matrix[:, others] = 0
        both, either = matrix.diagonal(), matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
        names = ("background", *space.names)
        return SiteScore(len(self.kept), {names[c]: (int(both[c]), int(either[c])) for c in channels})

    def _train(self, message: Message, site: Site) -> Message:
        order, _ = wire.to_order(message, self.teachers, self.model)
        self.model = order.weights
        for name in set(self.teachers) - ({order.teacher.name} if order.teacher else set()):
            del self.teachers[name]
        memory = self._memory_in(order.round, None)
        known = [i for i in site.labelled if site.classes[i - 1] in order.label_space.names]
        site = replace(site, labelled=tuple(known))  # what the server did not take note of is background
        epochs = read_epochs(order, site, self.config.method, self.trainer)
        before = memory.now if order.heard is not None else memory.probed or memory.before
        reply, now = answer_order(order, before, site, self.config.method, self.trainer, epochs, self.progress)
        if self.differences and reply.contribution is not None:
            raise UserError("The sums are not sent: they are no weights, and the filters of this site do not see them.")
        replace(memory, now=now).write(self.path)
        sent = order.weights if self.differences else None
        return wire.from_reply(reply, transfer=self.config.federation.transfer, sent=sent)

    def _memory_in(self, round_: int, acknowledged: int | None) -> SiteMemory:
        """What the site remembers in that round. If it is played again, or if what the site saw in the last one never
        reached the server (`acknowledged` is an earlier one), that is what it was before."""
        last = SiteMemory.read(self.path)
        if last is not None and last.round > round_:
            self.progress.notice(f"{self.path} is of a run that was further than this one: the site begins anew.")
            last = None
        if last is None:
            return SiteMemory.begin(round_, Memory())
        if last.round == round_:
            return last
        lost = acknowledged is not None and acknowledged < last.round
        return SiteMemory.begin(round_, last.before if lost else last.now)
