"""From a config to a finished run: plays the rounds, scores, and keeps everything."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

from fiss.config.config import Config
from fiss.config.identity import differences, with_absolute_paths
from fiss.data.label_maps import evaluation_table
from fiss.data.transforms import View
from fiss.errors import UserError
from fiss.federation.loop import Engine, Participants, Round, run
from fiss.federation.messages import Memory, Server, Snapshot
from fiss.labels import LabelSpace
from fiss.metrics import from_background, iou, summary, to_background
from fiss.models.segmenter import Segmenter, check_weights
from fiss.monitors import accuracy
from fiss.progress import Progress
from fiss.runs.folder import RunFolder, State
from fiss.runs.provenance import origin
from fiss.runs.run import load_checked
from fiss.simulation.in_process import InProcessEngine
from fiss.simulation.scenario import Scenario, open_scenario
from fiss.training.evaluate import evaluate, scored_images
from fiss.training.trainer import build_trainer

Connect = Callable[[Scenario, Segmenter, dict[int, Memory], int, Progress], Engine]
"""Makes the engine of a run from its network, its clients' memories and the number of the next round."""


def in_process(
    scenario: Scenario, student: Segmenter, memories: dict[int, Memory], next_round: int, progress: Progress
) -> Engine:
    """All clients in this process, with one trainer around the network."""
    config = scenario.config
    first, later = next_round < config.world.rounds or not scenario.announced, not config.joint
    plain_reader = None if scenario.announced else scenario.plain_images
    untrained = None if scenario.announced else scenario.network(scenario.boundaries.first_space, fresh=True)
    groups = [1] * first + [2] * later
    trainer = build_trainer(config, student, scenario.training_images, plain_reader, untrained, groups)
    transfer = config.federation.transfer
    return InProcessEngine(scenario.site, config.method, trainer, memories, progress, config.monitor, transfer)


def start(config: Config, out: Path, progress: Progress, connect: Connect = in_process) -> RunFolder:
    """A new run in a new folder."""
    config = with_absolute_paths(config)
    if not config.base:
        check_weights(config.model)
    scenario = open_scenario(config, progress)
    base = _base(scenario) if config.base else None
    student = scenario.network(scenario.boundaries.first_space, fresh=base is None)
    folder = RunFolder.create(out, config)
    with folder.locked():
        folder.write_splits(scenario.splits())
        _go_on(scenario, folder, None, base, student, progress, connect)
    return folder


def resume(path: Path, progress: Progress, connect: Connect = in_process) -> RunFolder:
    """Go on with a run where its last finished round left it; to the same result as if it had never stopped."""
    folder = RunFolder.open(path)
    with folder.locked():
        scenario = open_scenario(folder.config(), progress)
        folder.write_splits(scenario.splits())
        state = folder.restore()
        if state is not None and state.finished:
            progress.notice(f"{folder.path} is finished already.")
            return folder
        base = _base(scenario) if scenario.config.base and state is None else None
        label_space = state.server.label_space if state else scenario.boundaries.first_space
        student = scenario.network(label_space, fresh=state is None and base is None)
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
) -> None:
    config = scenario.config
    label_space = state.server.label_space if state else scenario.boundaries.first_space
    if state is not None:
        load_checked(student, Snapshot("the last round", label_space, state.server.weights), folder.path)
    elif base is not None:
        state = _begin_from(base, scenario, folder, student, progress)
    server = state.server if state else Server(label_space, student.weights())
    memories = dict(state.memories) if state else {}
    next_round = state.next_round if state else 0
    if not student.taps:
        progress.notice(f"{config.model.encoder}: the stages that distillation sees are taken {student.stages_are}.")
    folder.add_origin(origin(scenario.device))
    engine = connect(scenario, student, memories, next_round, progress)
    progress.begin(len(scenario.plan.round_plans), scenario.steps(), scenario.steps() - scenario.steps(next_round))
    began = monotonic()
    participants = _participants(scenario, next_round, progress)
    for result in run(server, participants, scenario.boundaries, engine, config.federation, progress):
        round_plan = scenario.plan.round_plans[result.participants.round]
        folder.append("rounds.jsonl", _round_record(scenario, result, memories, monotonic() - began))
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
                scenario, folder, student, result.server.label_space, round_plan.round, round_plan.task, ends, progress
            )
        done = round_plan.round + 1 == len(scenario.plan.round_plans)
        name = f"task-{round_plan.task}" if ends else f"round-{round_plan.round:04d}"
        folder.commit(State(round_plan.round + 1, result.server, memories, done), name, config.keep)
        began = monotonic()


def _participants(scenario: Scenario, start: int, progress: Progress) -> Iterator[Participants]:
    """Who is there in each round."""
    everyone = scenario.config.monitor.probed == "all"
    for plan in scenario.plan.round_plans[start:]:
        progress.round(plan.task, plan.round, len(plan.selected))
        yield Participants(plan.round, plan.selected, plan.present if everyone else plan.selected)


def _begin_from(base: Snapshot, scenario: Scenario, folder: RunFolder, student: Segmenter, progress: Progress) -> State:
    """The first task is taken over: score it, keep it as our own, go on with the second."""
    if base.weights.keys() != student.state_dict().keys():
        base = replace(base, weights=scenario.config.method.convert_weights(student, base.weights))
    load_checked(student, base, Path(scenario.config.base))
    rounds = scenario.config.world.rounds
    score(scenario, folder, student, base.label_space, rounds - 1, 0, True, progress)
    state = State(rounds, Server(base.label_space, base.weights), {}, len(scenario.plan.round_plans) == rounds)
    folder.commit(state, "task-0", scenario.config.keep)
    return state


def _base(scenario: Scenario) -> Snapshot:
    """The model after the first task of another run, if that run fits this one."""
    config = scenario.config
    folder = RunFolder.open(Path(config.base))
    if any(key.startswith("model.") for key in differences(folder.config(), config, ignoring=("path",))):
        raise UserError(f"base = {config.base}: that run has another network than this one.")
    if folder.splits()["data"] != scenario.data_digest:
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


def _round_record(scenario: Scenario, result: Round, memories: dict[int, Memory], seconds: float) -> dict[str, Any]:
    samples = sum(reply.samples for reply in result.replies)
    round_plan = scenario.plan.round_plans[result.participants.round]
    probes = [
        {
            "client": probe_result.client,
            "transition": probe_result.transition,
            "missing": len(probe_result.missing),
            **memories[probe_result.client].evidence,
        }
        for probe_result in result.probe_results
        if memories[probe_result.client].evidence
    ]
    return {
        "round": round_plan.round,
        "task": round_plan.task,
        "clients": round_plan.clients,
        "selected": list(round_plan.selected),
        **({} if scenario.announced else {"probes": probes, "classes": len(result.server.label_space.names)}),
        "replies": [{k: v for k, v in asdict(reply).items() if k != "weights"} for reply in result.replies],
        "refused": {str(client): why for client, why in result.refused.items()},
        "seconds": round(seconds, 3),
        "images_per_second": round(samples / seconds, 1) if seconds else None,
    }


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
        record = score_record(scenario, folder.records("scores.jsonl"), model, label_space, view, task, progress)
        record = {"round": round_, "task": task, "ends_task": ends, **record, **monitored}
        folder.append("scores.jsonl", record)
        progress.scored(record)


def _monitored(scenario: Scenario, folder: RunFolder) -> dict[str, Any]:
    """True and seen transitions so far, in all and by client, and the mean entropy of the last probes."""
    rounds = folder.records("rounds.jsonl")
    seen = accuracy.by_client(scenario.transitions, rounds)
    by_client = {str(client): accuracy.record(own) for client, own in seen.items()}
    entropies = [probe["entropy"] for probe in rounds[-1]["probes"]]
    return {
        "transitions": {**accuracy.record(accuracy.total(seen.values())), "clients": by_client},
        "entropy": sum(entropies) / len(entropies) if entropies else None,
    }


def score_record(
    scenario: Scenario,
    past: list[dict[str, Any]],
    model: Segmenter,
    label_space: LabelSpace,
    view: View,
    task: int,
    progress: Progress,
) -> dict[str, Any]:
    """IoU of every class and their means in one view; `past` are the run's scores so far."""
    config, dataset = scenario.config, scenario.dataset
    label_space = scenario.readable(label_space)
    images = scored_images(view, dataset.classes, label_space, scenario.val.presence)
    matrix = evaluate(
        model,
        scenario.scored_images,
        images,
        scenario.val.sizes,
        evaluation_table(dataset.classes, label_space),
        view,
        config.evaluation,
        config.training,
        progress,
    )
    ious = iou(matrix)
    best: dict[str, float] = {}
    for earlier in past:
        if earlier["ends_task"] and earlier["view"] == view and earlier["task"] < task:
            for name, value in earlier["iou"].items():
                if name != "background" and value is not None:
                    best[name] = max(best.get(name, 0.0), value)
    names = ("background", *label_space.names)
    return {
        "view": view,
        "images": len(images),
        **summary(ious, names[1:], [scenario.tasks.names(t) for t in range(task + 1)], best),
        "iou": dict(zip(names, ious, strict=True)),
        "to_background": dict(zip(names[1:], to_background(matrix)[1:], strict=True)),
        "from_background": dict(zip(names[1:], from_background(matrix)[1:], strict=True)),
    }


def rescore(path: Path, views: tuple[View, ...], progress: Progress) -> Iterator[dict[str, Any]]:
    """Score again the models after every task of a run; nothing in the run folder changes."""
    folder = RunFolder.open(path)
    scenario = open_scenario(folder.config(), progress)
    past: list[dict[str, Any]] = []
    model = scenario.network(scenario.tasks.label_space(0))
    for task in folder.tasks_done():
        snapshot = folder.read_weights(f"task-{task}")
        load_checked(model, snapshot, folder.path)
        for view in views:
            record = score_record(scenario, past, model, snapshot.label_space, view, task, progress)
            past.append({"task": task, "ends_task": True, **record})
            yield past[-1]
