"""From a config to a finished run: plays the rounds, scores, and keeps everything."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from fiss.config.config import Config
from fiss.config.identity import differences, with_absolute_paths
from fiss.errors import UserError
from fiss.federation.loop import Engine, Participants, Round, run
from fiss.federation.messages import Collected, Memory, Server, Snapshot
from fiss.labels import LabelSpace
from fiss.models.segmenter import Segmenter
from fiss.monitors import accuracy
from fiss.progress import Progress
from fiss.runs.extension import is_extended
from fiss.runs.folder import RunFolder, State
from fiss.runs.provenance import method_changed, origin
from fiss.runs.records import ProbeRecord, RoundRecord, probed
from fiss.runs.run import load_checked
from fiss.simulation.advice import warnings
from fiss.simulation.in_process import InProcessEngine
from fiss.simulation.scenario import Scenario, keeps_pretrained, open_scenario
from fiss.training.trainer import build_trainer

Connect = Callable[[Scenario, Segmenter, dict[int, Memory], int, Progress], Engine]
"""Makes the engine of a run from its network, its clients' memories and the number of the next round."""


def in_process(
    scenario: Scenario, student: Segmenter, memories: dict[int, Memory], next_round: int, progress: Progress
) -> Engine:
    """All clients in this process, with one trainer around the network."""
    config = scenario.config
    first, later = next_round < config.world.rounds or not scenario.announced, not config.joint
    looks = not scenario.announced or config.method.collection is not None
    plain_reader = scenario.plain_images if looks else None
    untrained = None if scenario.announced else scenario.network(scenario.boundaries.first_space, fresh=True)
    groups = [1] * first + [2] * later
    trainer = build_trainer(config, student, scenario.training_images, plain_reader, untrained, groups)
    transfer = config.federation.transfer
    return InProcessEngine(scenario.site, config.method, trainer, memories, progress, config.monitor, transfer)


def start(config: Config, out: Path, progress: Progress, connect: Connect = in_process) -> RunFolder:
    """A new run in a new folder."""
    config = with_absolute_paths(config)
    fresh = not config.base or keeps_pretrained(config)
    scenario = open_scenario(config, progress, fresh)
    notices = warnings(scenario)
    for notice in notices:
        progress.notice(notice)
    base = _base(scenario) if config.base else None
    student = scenario.network(scenario.boundaries.first_space, fresh)
    folder = RunFolder.create(out, config)
    with folder.locked():
        folder.write_splits(scenario.splits())
        _go_on(scenario, folder, None, base, student, progress, connect, notices)
    return folder


def resume(path: Path, progress: Progress, connect: Connect = in_process) -> RunFolder:
    """Go on with a run where its last finished round left it; to the same result as if it had never stopped."""
    folder = RunFolder.open(path)
    if folder.deployed:
        raise UserError(f"{path} is the run of a real federation: `fiss federation run` goes on with it.")
    if is_extended(folder):
        raise UserError(f"{path} is an extended model, and there is nothing to go on with: `fiss extend` adds to it.")
    with folder.locked():
        scenario = open_scenario(folder.config(), progress)
        folder.write_splits(scenario.splits())
        state = folder.restore()
        if state is not None and state.finished:
            progress.notice(f"{folder.path} is finished already.")
            return folder
        base = _base(scenario) if scenario.config.base and state is None else None
        label_space = state.server.label_space if state else scenario.boundaries.first_space
        fresh = state is None and (base is None or keeps_pretrained(scenario.config))
        student = scenario.network(label_space, fresh)
        _go_on(scenario, folder, state, base, student, progress, connect)
    return folder


def _go_on(
    scenario: Scenario,
    folder: RunFolder,
    state: State | None,
    base: Snapshot | None,
    student: Segmenter,
    progress: Progress,
    connect: Connect,
    notices: Sequence[str] = (),
) -> None:
    config = scenario.config
    if state is not None:
        now = Snapshot("the last round", state.server.label_space, state.server.weights)
        load_checked(student, now, folder.path)
    elif base is not None:
        state = _begin_from(base, scenario, folder, student, progress, connect)
    server = state.server if state else Server(scenario.boundaries.first_space, student.weights())
    memories = dict(state.memories) if state else {}
    next_round = state.next_round if state else 0
    if not student.taps:
        progress.notice(f"{config.model.encoder}: the stages that distillation sees are taken {student.stages_are}.")
    here = origin(scenario.device, config.method)
    if changed := method_changed(folder.origins(), here):
        progress.notice(changed)
        notices = (*notices, changed)
    folder.add_origin(here | ({"notices": list(notices)} if notices else {}))
    engine = connect(scenario, student, memories, next_round, progress)
    progress.begin(len(scenario.plan.round_plans), scenario.steps(), scenario.steps() - scenario.steps(next_round))
    began = monotonic()
    participants = _participants(scenario, next_round, progress)
    gathering = scenario.gathering(student)
    for result in run(server, participants, scenario.boundaries, engine, config.federation, progress, gathering):
        round_plan = scenario.plan.round_plans[result.participants.round]
        record = _round_record(scenario, result, memories, monotonic() - began)
        folder.append("rounds.jsonl", record)
        progress.played(record)
        if result.refused and len(result.refused) == sum(reply.images > 0 for reply in result.replies):
            reasons = "; ".join(f"client {client}: {why}" for client, why in result.refused.items())
            raise UserError(
                "Every update of this round was refused, the model stays as it was before it; rounds.jsonl has their "
                f"losses. {reasons}"
            )
        ends = round_plan.rounds_left == 1
        if ends or config.evaluation.every == "round":
            student.load(result.server.weights, result.server.label_space.sizes)
            score(
                scenario,
                folder,
                student,
                result.server.label_space,
                round_plan.round + 1,
                round_plan.task,
                ends,
                progress,
            )
        done = round_plan.round + 1 == len(scenario.plan.round_plans)
        name = f"task-{round_plan.task}" if ends else folder.counting.model_of(round_plan.round + 1)
        folder.commit(State(round_plan.round + 1, result.server, memories, done), name, config.keep)
        began = monotonic()


def _participants(scenario: Scenario, start: int, progress: Progress) -> Iterator[Participants]:
    """Who is there in each round."""
    everyone = scenario.config.monitor.probed == "all"
    for plan in scenario.plan.round_plans[start:]:
        progress.round(plan.task, plan.round + 1, len(plan.selected))
        there = tuple(client for client in plan.present if scenario.plan.holds(client, plan.round))
        yield Participants(plan.round, plan.selected, plan.present if everyone else plan.selected, there)


def _begin_from(
    base: Snapshot, scenario: Scenario, folder: RunFolder, student: Segmenter, progress: Progress, connect: Connect
) -> State:
    """The first task is taken over: score it, keep it as our own, go on with the second. Where features are added up,
    those who train in the first task count theirs first."""
    if base.weights.keys() != student.state_dict().keys():
        base = replace(base, weights=scenario.config.method.convert_weights(student, base.weights))
    load_checked(student, base, Path(scenario.config.base))
    rounds = scenario.config.world.rounds
    server, memories = Server(base.label_space, base.weights), dict[int, Memory]()
    if (gathering := scenario.gathering(student)) is not None:
        first = {client for plan in scenario.plan.round_plans[:rounds] for client in plan.selected}
        server = replace(server, collected=Collected(tuple(sorted(first))))
        asked = scenario.plan.round_plans[rounds - 1].selected
        asked = tuple(gathering.asked(server, rounds - 1, asked, None))
        engine = connect(scenario, student, memories, rounds, progress)
        announced = scenario.boundaries.announcement(rounds - 1)
        server, _, refused = gathering.gather(server, rounds - 1, asked, announced, engine.ask)
        for client, why in refused.items():
            progress.notice(f"round {rounds}: the update of client {client} was refused: {why}")
        student.load(server.weights, server.label_space.sizes)
    score(scenario, folder, student, base.label_space, rounds, 0, True, progress)
    state = State(rounds, server, memories, len(scenario.plan.round_plans) == rounds)
    folder.commit(state, "task-0", scenario.config.keep)
    return state


def _base(scenario: Scenario) -> Snapshot:
    """The model after the first task of another run, if that run fits this one."""
    config = scenario.config
    if (collection := config.method.collection) is not None and collection.trunk_rounds == 0:
        raise UserError("base: a method that trains nothing has no first task to take over; leave it.")
    folder = RunFolder.open(Path(config.base))
    if any(key.startswith("model.") for key in differences(folder.config(), config, ignoring=("path",))):
        raise UserError(f"base = {config.base}: that run has another network than this one.")
    splits = folder.splits()
    if splits is None or splits.data != scenario.data_digest:
        raise UserError(f"base = {config.base}: that run has other images or labels than this one.")
    if not scenario.announced:
        raise UserError(
            "base: where tasks are not told, clients have to have seen the first task themselves; leave it."
        )
    snapshot = folder.read_weights("task-0")
    if snapshot.label_space != scenario.boundaries.first_space:
        raise UserError(
            f"base = {config.base}: its first task is {', '.join(snapshot.label_space.names)}; "
            f"this run's is {', '.join(scenario.tasks.names(0))}."
        )
    return snapshot


def _round_record(scenario: Scenario, result: Round, memories: dict[int, Memory], seconds: float) -> RoundRecord:
    round_plan = scenario.plan.round_plans[result.participants.round]
    more: dict[str, Any] = {"task": round_plan.task, "clients": round_plan.clients}
    if not scenario.announced:
        measured = ((p, memories[p.client].evidence) for p in result.probe_results)
        more["probes"] = tuple(ProbeRecord.of(p, p.client, evidence) for p, evidence in measured if evidence)
        more["classes"] = len(result.server.label_space.names)
    return RoundRecord.of(result, seconds, **more)


def score(
    scenario: Scenario,
    folder: RunFolder,
    model: Segmenter,
    label_space: LabelSpace,
    round_: int,
    task: int,
    ends: bool,
    progress: Progress,
) -> None:
    """Score a model in every view and log it."""
    monitored = {} if scenario.announced else _monitored(scenario, folder)
    for view in scenario.config.evaluation.views:
        record = scenario.validation.score(
            model, label_space, view, folder.scores(), progress, round_=round_, task=task, ends_task=ends
        )
        record = replace(record, **monitored)
        folder.append("scores.jsonl", record)
        progress.scored(record)


def _monitored(scenario: Scenario, folder: RunFolder) -> dict[str, Any]:
    """True and seen transitions so far, in all and by client, and the mean entropy of the last probes."""
    rounds = folder.rounds()
    true = {client: [round_ + 1 for round_ in own] for client, own in scenario.transitions.items()}
    seen = accuracy.by_client(true, probed(rounds), rounds[-1].round)
    entropies = [probe.evidence.entropy for probe in probed(rounds[-1:])]
    return {
        "transitions": accuracy.in_all(seen),
        "entropy": sum(entropies) / len(entropies) if entropies else None,
    }
