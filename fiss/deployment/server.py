"""A real federation: what its server does over the rounds, and what a site does with a message. Whatever carries the
messages, and the federation's own loop, client and checkpoint, are those of a simulation.

A site keeps its memory on its own disk, as it was before the round and after it: if the server dies and plays a round
again, the site answers it again as if for the first time.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic, time
from typing import Any, Protocol

import torch

from fiss.config.config import Config, flat, to_dict, to_toml
from fiss.deployment.site_folder import SiteFolder, SiteSpec
from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.boundaries import Discovery
from fiss.federation.client import Site, answer_order, answer_probe, read_epochs
from fiss.federation.loop import Engine, Participants, run
from fiss.federation.messages import Memory, Server, Snapshot
from fiss.federation.private_names import private
from fiss.federation.wire import Message
from fiss.labels import LabelSpace
from fiss.models.classifier import Weights
from fiss.monitors.rules import RULES
from fiss.progress import Progress
from fiss.rng import stream
from fiss.runs.folder import RunFolder, State, write_atomically
from fiss.runs.provenance import origin
from fiss.runs.records import ProbeRecord, RoundRecord, ScoreRecord
from fiss.runs.scoring import Validation, groups
from fiss.training.device import pick_device
from fiss.training.trainer import build_network, build_trainer

UNTOLD = tuple(name for name in RULES if name not in ("told", "oracle", "reference"))
"""Monitors that a site can use: the others know what only a simulation knows."""
STOP, RENEW, JOB = "stop", "renew", "job.json"
"""In the run folder: marks to end after this round, or to end this job because the sites have changed; and who is in
it."""


def check(config: Config) -> None:
    """Refuse what makes no sense where sites own their data."""
    if config.monitor.name not in UNTOLD:
        raise UserError(
            f"monitor.name = {config.monitor.name}: a real site cannot know that; use one of {', '.join(UNTOLD)}."
        )
    if config.federation.private_names:
        raise UserError("federation.private_names: the server would know the key; give it in each site's site.toml.")
    if config.joint or config.base:
        raise UserError("joint and base belong to simulations; leave them out.")


class Reachable(Engine, Protocol):
    """An engine that knows who does not answer."""

    missing: dict[int, str]
    """Sites that are not asked again, and why."""
    late: dict[int, str]
    """Sites whose answers a round did not wait for."""
    heard: dict[int, int]
    """The last round in which each site's probe_result was taken note of."""


def numbers(folder: RunFolder, names: Sequence[str]) -> dict[int, str]:
    """The sites by their numbers: those known from before keep theirs, new ones follow in the order of their names."""
    path = folder.path / "sites.json"
    known: list[str] = json.loads(path.read_bytes()) if path.is_file() else []
    known += sorted(set(names) - set(known))
    write_atomically(path, json.dumps(known).encode())
    return {i: name for i, name in enumerate(known) if name in names}


def open_run(config: Config, out: Path) -> RunFolder:
    """The federation's run folder; a new one if there is none."""
    check(config)
    if not (out / "config.toml").is_file():
        return RunFolder.create(out, config)
    run = RunFolder.open(out)
    if not (out / "state.json").is_file():  # no round is finished: as it is now
        write_atomically(out / "config.toml", to_toml(config).encode())
    began, now = flat(to_dict(run.config())), flat(to_dict(config))
    if changed := [key for key in now if now[key] != began.get(key)]:
        raise UserError(
            f"{out.parent / 'federation.toml'} was changed after the run began ({', '.join(changed)}); rounds would "
            "not belong together. Undo that, or begin a new federation."
        )
    return run


def lead(folder: RunFolder, engine: Reachable, names: Mapping[int, str], until: int, progress: Progress) -> None:
    """Rounds from the last finished one on, until there are `until` of them, a mark says to end, or nobody is left."""
    config = folder.config()
    with folder.locked():
        state = folder.restore()
        server = state.server if state else _beginning(config)
        start = state.next_round if state else 0
        folder.add_origin(origin(torch.device("cpu")))
        began = monotonic()
        spec, gone = config.federation, dict[str, float]()
        evaluator = ServerEvaluator(config, progress) if config.data.root else None
        numbered: dict[int | str, int] = {name: n for n, name in names.items()}
        for past in folder.rounds():  # cut to the last finished one
            engine.heard |= {numbered[p.client]: past.round for p in past.probes or () if p.client in numbered}
        _tell(folder, names, gone)
        participants = _participants(folder, config, engine, names, start, until)
        for result in run(server, participants, Discovery(config.method, config.seed), engine, spec, progress):
            asked = {*result.participants.selected, *result.participants.probed}
            if asked <= engine.missing.keys():
                break  # nobody was there: no round
            lost = {names[n]: why for n, why in sorted((engine.missing | engine.late).items()) if n in asked}
            engine.late.clear()
            space = result.server.label_space
            record = RoundRecord.of(
                result,
                monotonic() - began,
                names,
                task=len(groups(space)) - 1,
                clients=len(names),
                probes=tuple(ProbeRecord.of(said, names[said.client]) for said in result.probe_results),
                classes=len(space.names),
                class_names=space.names,
                missing=lost,
            )
            folder.append("rounds.jsonl", record)
            gone |= {name: time() for name in (names[n] for n in engine.missing) if name not in gone}
            _tell(folder, names, gone)
            for name, why in lost.items():
                progress.notice(f"round {record.round + 1}: {name} took no part: {why}")
            done = record.round + 1
            for score in evaluator(result.server, record.round, folder.scores()) if evaluator is not None else ():
                folder.append("scores.jsonl", score)
            engine.heard |= {probe_result.client: record.round for probe_result in result.probe_results}
            folder.commit(State(done, result.server, {}, done >= until), f"round-{done - 1:04d}", config.keep)
            began = monotonic()
        (folder.path / JOB).unlink(missing_ok=True)


class ServerEvaluator:
    """Scores the global model on images that the server has of its own (`data.root`)."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self.progress = progress
        self.validation = Validation.of_server(config, progress)
        self.model = self.validation.network(LabelSpace(((),)))
        self.foreign: set[str] = set()

    def __call__(self, server: Server, round_: int, past: Iterable[ScoreRecord]) -> list[ScoreRecord]:
        """A score in each view; none if the sites have classes that it does not know."""
        space, config, classes = server.label_space, self.validation.config, self.validation.classes
        foreign = [name for name in space.names if name not in classes]
        if not self.foreign.issuperset(foreign):  # said once of each, not every round
            words = ", ".join(repr(name) for name in foreign if name not in self.foreign)
            self.progress.notice(
                f"not scored: {config.data.root} has no class {words}. Its classes.txt needs the sites' names, "
                "and no score is possible where the sites hide them (key in site.toml)."
            )
            self.foreign.update(foreign)
        if foreign:
            return []
        self.model.load(server.weights, space.sizes)
        score, task = self.validation.score, len(groups(space)) - 1
        views, past = config.evaluation.views, list(past)
        return [score(self.model, space, view, past, self.progress, round_=round_, task=task) for view in views]


def _tell(folder: RunFolder, names: Mapping[int, str], gone: Mapping[str, float]) -> None:
    """For whoever supervises: who is in this job, and who has been missing since when."""
    record = {"sites": sorted(names.values()), "missing": dict(gone)}
    write_atomically(folder.path / JOB, json.dumps(record).encode())


def _beginning(config: Config) -> Server:
    """Nothing but background, and the network as it is before any training."""
    space = LabelSpace(((),))
    return Server(space, build_network(config, space).weights())


def _participants(
    folder: RunFolder, config: Config, engine: Reachable, names: Mapping[int, str], start: int, until: int
) -> Iterator[Participants]:
    """Who is asked, round after round."""
    for round_ in range(start, until):
        if any((folder.path / mark).exists() for mark in (STOP, RENEW)):
            return
        there = [n for n in sorted(names) if n not in engine.missing]
        if not there:
            return
        count = min(config.world.per_round, len(there))
        selected = tuple(sorted(stream(config.seed, "select", round_).sample(there, count)))
        yield Participants(round_, selected, tuple(there) if config.monitor.probed == "all" else selected)


@dataclass(frozen=True)
class _Kept:
    """A site's memory on its disk."""

    round: int
    settled: Memory
    """After the rounds before that one."""
    probed: Memory | None
    """After a probe in it."""
    now: Memory


class SiteClient:
    """Answers for one site: each message as it comes, with what the site's folder holds at that moment."""

    def __init__(self, folder: Path, config: Config, spec: SiteSpec, progress: Progress) -> None:
        self.path, self.progress = folder / "memory.json", progress
        training = replace(
            config.training, device=spec.device, batch=spec.batch or config.training.batch, workers=0, cache=0.0
        )
        self.config = config = replace(config, training=training)
        if training.threads:
            torch.set_num_threads(training.threads)
        device = pick_device(spec.device)
        self.site_folder = SiteFolder(spec, config.augment, device, progress)

        def make(weights: str) -> Any:
            return build_network(config, LabelSpace(((),)), device, weights)

        try:
            feature_network = make(spec.weights or config.model.weights)
        except UserError as error:
            progress.notice(f"new images are compared by an untrained network: {error}")
            feature_network = make("none")
        readers = self.site_folder.readers
        self.trainer = build_trainer(config, make("none"), *readers, feature_network)
        self.teachers: dict[str, Snapshot] = {}
        self.key = spec.key
        self.looked: tuple[int, Site] | None = None
        self.shown: Weights | None = None

    def __call__(self, message: Message) -> Message:
        """Its answer."""
        text = json.loads(message.text)
        if text["kind"] == "probe" or self.looked is None or self.looked[0] != text["round"]:
            self.looked, self.shown = (text["round"], self._site()), None
        if text["kind"] == "probe":
            return self._answer_probe(message, self.looked[1], text.get("heard"))
        return self._train(message, self.looked[1])

    def _site(self) -> Site:
        """What is there now; it stays so for the round."""
        held = self.site_folder.rescan()
        self.trainer.reader, self.trainer.plain_reader = self.site_folder.readers
        classes = tuple(private(name, self.key) for name in held.classes) if self.key else held.classes
        return Site(classes, held.images, held.labelled, self.config.seed, mark=held.mark)

    def _answer_probe(self, message: Message, site: Site, heard: int | None) -> Message:
        probe, _ = wire.to_probe(message)
        self.shown = probe.weights
        kept = self._kept(probe.round, heard)
        probe_result, memory = answer_probe(probe, kept.settled, site, self.config.monitor, self.trainer)
        self._keep(replace(kept, probed=memory, now=memory))
        return wire.from_probe_result(probe_result)

    def _train(self, message: Message, site: Site) -> Message:
        order, _ = wire.to_order(message, self.teachers, self.shown)
        for name in set(self.teachers) - ({order.teacher.name} if order.teacher else set()):
            del self.teachers[name]
        kept = self._kept(order.round, None)
        known = [i for i in site.labelled if site.classes[i - 1] in order.label_space.names]
        site = replace(site, labelled=tuple(known))  # what the server did not take note of is background
        epochs = read_epochs(order, site, self.config.method, self.trainer)
        memory = kept.probed or kept.settled
        reply, memory = answer_order(order, memory, site, self.config.method, self.trainer, epochs, self.progress)
        self._keep(replace(kept, now=memory))
        return wire.from_reply(reply, transfer=self.config.federation.transfer)

    def _kept(self, round_: int, heard: int | None) -> _Kept:
        """As of that round: what it was before it, if it is played again, or if what the site saw in the last one never
        reached the server."""
        try:
            text = json.loads(self.path.read_bytes()) if self.path.is_file() else None
        except ValueError as error:
            raise UserError(f"{self.path}: damaged ({error}); without it the site begins anew: remove it.") from error
        if text is None:
            return _Kept(round_, Memory(), None, Memory())
        settled, now = Memory(**text["settled"]), Memory(**text["now"])
        if text["round"] > round_:
            self.progress.notice(f"{self.path} is of a run that was further than this one: the site begins anew.")
            return _Kept(round_, Memory(), None, Memory())
        if text["round"] < round_ and heard is not None and heard < text["round"]:
            return _Kept(round_, settled, None, settled)
        if text["round"] == round_:
            probed = Memory(**text["probed"]) if text["probed"] is not None else None
            return _Kept(round_, settled, probed, now)
        return _Kept(round_, now, None, now)

    def _keep(self, kept: _Kept) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(asdict(kept)).encode())
