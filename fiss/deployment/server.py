"""What the server of a real federation does over the rounds; the loop and the run folder are those of a simulation."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

import torch

from fiss.config.config import Config, to_toml
from fiss.config.identity import WHILE_IT_LIVES, differences
from fiss.deployment.job_status import JOB, Observed, SiteEngine, silent_sites
from fiss.errors import UserError
from fiss.federation.boundaries import Discovery
from fiss.federation.collection import Gathering
from fiss.federation.loop import Participants, run
from fiss.federation.messages import Probe, ProbeResult, Server
from fiss.labels import LabelSpace
from fiss.monitors.rules import RULES
from fiss.progress import Progress
from fiss.rng import stream
from fiss.runs.changes import CHANGES, change
from fiss.runs.folder import RunFolder, State, write_atomically
from fiss.runs.provenance import method_changed, origin
from fiss.runs.records import ProbeRecord, RoundRecord, ScoreRecord
from fiss.runs.scoring import Validation, groups, score_of_sites
from fiss.statistics.head import head_of
from fiss.training.trainer import build_network

MONITORS = tuple(name for name in RULES if name not in ("told", "oracle", "reference"))
"""Those that a site can use: the others know what only a simulation knows."""
STOP, RENEW = "stop", "renew"
"""Marks in the run folder: end after this round; end this job after it, because the sites have changed."""
PROBLEM = "problem.txt"
"""In the run folder: why the last job failed."""
QUIET = Progress()


def check(config: Config) -> None:
    """Refuse what makes no sense where sites own their data."""
    if config.monitor.name not in MONITORS:
        raise UserError(
            f"monitor.name = {config.monitor.name}: a real site cannot know that; use one of {', '.join(MONITORS)}."
        )
    if config.federation.private_names:
        raise UserError("federation.private_names: the server would know the key; give it in each site's site.toml.")
    if config.joint or config.base:
        raise UserError("joint and base belong to simulations; leave them out.")


def number_sites(run: RunFolder, names: Sequence[str]) -> dict[int, str]:
    """The sites by their numbers: those known from before keep theirs, new ones follow in the order of their names."""
    path = run.path / "sites.json"
    known: list[str] = json.loads(path.read_bytes()) if path.is_file() else []
    known += sorted(set(names) - set(known))
    write_atomically(path, json.dumps(known).encode())
    return {i: name for i, name in enumerate(known) if name in names}


def open_run(config: Config, out: Path, progress: Progress = QUIET) -> RunFolder:
    """The federation's run folder; a new one if there is none. What may change while it lives changes here."""
    check(config)
    if not (out / "config.toml").is_file():
        return RunFolder.create(out, config)
    run = RunFolder.open(out)
    if not (out / "state.json").is_file():  # no round is finished: as it is now
        write_atomically(out / "config.toml", to_toml(config).encode())
        (out / CHANGES).unlink(missing_ok=True)
    refuse_changes(run.config(), config, out.parent / "federation.toml")
    if changed := differences(run.config(), config, ignoring=()):  # all go by the run's own
        round_ = run.stands()[0] + run.counting.first
        for key, (before, after) in change(out, run.config(), config, changed, round_).items():
            progress.notice(f"{key} was {before} and is {after} from the next job on.")
    return run


def refuse_changes(before: Config, after: Config, path: Path) -> None:
    """Only some keys may change while a federation lives."""
    if fixed := differences(before, after, ignoring=WHILE_IT_LIVES):
        may = ", ".join(key for key in WHILE_IT_LIVES if key != "place")
        raise UserError(
            f"{path} was changed after the run began where it may not ({', '.join(fixed)}): rounds would not belong "
            f"together. Undo that, or begin a new federation. What may change: {may}."
        )


def run_rounds(folder: RunFolder, engine: SiteEngine, names: Mapping[int, str], until: int, progress: Progress) -> None:
    """Rounds from the last finished one on, until there are `until` of them, a mark says to end, or nobody is left."""
    config = folder.config()
    with folder.locked():
        state = folder.restore()
        server = state.server if state else initial_server(config)
        start = state.next_round if state else 0
        here = origin(torch.device("cpu"), config.method)
        if changed := method_changed(folder.origins(), here):
            progress.notice(changed)
        folder.add_origin(here)
        began, before = monotonic(), server.label_space
        spec, observed = config.federation, Observed(engine, folder, names)
        evaluator = ServerEvaluator(config, progress) if config.data.root else None
        numbered: dict[int | str, int] = {name: n for n, name in names.items()}
        waiting = set[int]()
        """Sites with classes that were new, until they have answered an order."""
        for past in folder.rounds():  # cut to the last finished one
            engine.acknowledged |= {
                numbered[p.client]: past.round - 1 for p in past.probes or () if p.client in numbered
            }
            waiting |= {numbered[p.client] for p in past.probes or () if p.missing and p.client in numbered}
            waiting -= {numbered[reply.client] for reply in past.replies if reply.client in numbered}
        participants = _participants(folder, config, engine, names, waiting, range(start, until))
        boundaries = Discovery(config.method, config.seed, config.training.horizon)
        traffic, told = engine.traffic, len(folder.scores())
        for result in run(server, participants, boundaries, observed, spec, progress, gathering_of(config)):
            asked = {*result.participants.selected, *result.participants.probed}
            if asked <= engine.missing.keys():
                break  # nobody was there: no round
            if evaluator is None:
                _note_scores(folder, result.probe_results, before, result.participants.round)
            lost = {names[n]: why for n, why in sorted((engine.missing | engine.late).items()) if n in asked}
            engine.late.clear()
            waiting |= {found.client for found in result.probe_results if found.missing}
            waiting -= {reply.client for reply in result.replies}
            space = result.server.label_space
            record = RoundRecord.of(
                result,
                monotonic() - began,
                names,
                task=len(groups(space)) - 1,
                clients=len(names),
                probes=tuple(ProbeRecord.of(found, names[found.client]) for found in result.probe_results),
                classes=len(space.names),
                class_names=space.names,
                missing=lost,
                brought=observed.holders({name for name in space.names if name not in before.names}),
                sent=engine.traffic[0] - traffic[0],
                received=engine.traffic[1] - traffic[1],
            )
            traffic = engine.traffic
            folder.append("rounds.jsonl", record)
            observed.lost(engine.missing)
            for name, why in lost.items():
                progress.notice(f"round {record.round}: {name} took no part: {why}")
            done = record.round
            for score in evaluator(result.server, record.round, folder.scores()) if evaluator is not None else ():
                folder.append("scores.jsonl", score)
            engine.acknowledged |= {probe_result.client: done - 1 for probe_result in result.probe_results}
            if done >= until and any(probe_result.score for probe_result in result.probe_results):
                there = [n for n in result.participants.probed if n not in engine.missing]
                probes = [Probe(n, done, space, result.server.weights) for n in there]  # the last model's, once more
                _note_scores(folder, list(engine.probe(probes)), space, done)
            folder.commit(State(done, result.server, {}, done >= until), folder.counting.model_of(done), config.keep)
            for score in folder.scores()[told:]:  # sites score the model of the round before
                progress.scored(score)
                told += 1
            progress.played(record)
            began, before = monotonic(), space
        (folder.path / JOB).unlink(missing_ok=True)


def _note_scores(folder: RunFolder, reports: Sequence[ProbeResult], space: LabelSpace, round_: int) -> None:
    """What sites say of the model after that round, if they do and it is not known yet."""
    past = folder.scores()
    if round_ < 1 or (past and past[-1].round >= round_):
        return
    if record := score_of_sites([one.score for one in reports if one.score], space, past, round_):
        folder.append("scores.jsonl", record)


class ServerEvaluator:
    """Scores the global model on images that the server has of its own (`data.root`)."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self.progress = progress
        self.validation = Validation.of_server(config, progress)
        self.model = build_network(config, LabelSpace(((),)), self.validation.device, "none")
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


def initial_server(config: Config) -> Server:
    """Nothing but background, and the network as it is before any training."""
    space = LabelSpace(((),))
    return Server(space, build_network(config, space).weights())


def gathering_of(config: Config) -> Gathering | None:
    """The server's part where features are added up."""
    if (collection := config.method.collection) is None:
        return None
    layers = head_of(build_network(config, LabelSpace(((),)))).layers
    return Gathering(collection, config.training.horizon, config.federation.transfer, layers)


def _participants(
    folder: RunFolder,
    config: Config,
    engine: SiteEngine,
    names: Mapping[int, str],
    waiting: Collection[int],
    rounds: Iterable[int],
) -> Iterator[Participants]:
    """Who is asked, round after round: those who wait to train on new classes first."""
    for round_ in rounds:
        if any((folder.path / mark).exists() for mark in (STOP, RENEW)):
            return
        silent = silent_sites(folder)
        there = [n for n in sorted(names) if n not in engine.missing and names[n] not in silent]
        if not there:
            return
        drawn = stream(config.seed, "select", round_).sample(there, min(config.world.per_round, len(there)))
        urgent = tuple(n for n in there if n in waiting)
        selected = tuple([*urgent, *(n for n in drawn if n not in urgent)][: len(drawn)])
        probed = tuple(there) if config.monitor.probed == "all" else selected
        yield Participants(round_, selected, probed, tuple(there), urgent)
