"""From a config to a finished run: plays the rounds, scores, and keeps everything."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from fiss.config.config import Config
from fiss.data.label_maps import evaluation_table
from fiss.data.transforms import View
from fiss.errors import UserError
from fiss.federation.loop import Announcement, Call, Engine, Round, Server, run
from fiss.federation.messages import Calendar, Memory, Snapshot
from fiss.labels import LabelSpace
from fiss.metrics import from_background, iou, summary, to_background
from fiss.models.graphs import record
from fiss.models.segmenter import Segmenter, check_weights
from fiss.monitors import accuracy
from fiss.progress import Watcher
from fiss.runs.folder import RunFolder, State
from fiss.runs.provenance import origin
from fiss.simulation.in_process import InProcess
from fiss.simulation.scenario import Setup, prepare, with_absolute_paths
from fiss.training.evaluate import evaluate, scored_images
from fiss.training.fit import Trainer, autocast, set_training

Connect = Callable[[Setup, Trainer, dict[int, Memory], Watcher], Engine]
"""Makes the engine of a run."""


def in_process(setup: Setup, trainer: Trainer, memories: dict[int, Memory], watcher: Watcher) -> Engine:
    """All clients in this process."""
    config = setup.config
    transfer = config.federation.transfer
    return InProcess(setup.site, config.method, trainer, memories, watcher, config.monitor, transfer)


def start(config: Config, out: Path, watcher: Watcher, connect: Connect = in_process) -> RunFolder:
    """A new run in a new folder."""
    config = with_absolute_paths(config)
    if not config.base:
        check_weights(config.model)
    setup = prepare(config, watcher)
    base = _base(setup) if config.base else None
    student = setup.network(setup.first_space, fresh=base is None)
    folder = RunFolder.create(out, config)
    with folder.locked():
        folder.write_splits(setup.splits())
        _go_on(setup, folder, None, base, student, watcher, connect)
    return folder


def resume(path: Path, watcher: Watcher, connect: Connect = in_process) -> RunFolder:
    """Go on with a run where its last finished round left it; to the same result as if it had never stopped."""
    folder = RunFolder.open(path)
    with folder.locked():
        setup = prepare(folder.config(), watcher)
        folder.write_splits(setup.splits())
        state = folder.restore()
        if state is not None and state.finished:
            watcher.notice(f"{folder.path} is finished already.")
            return folder
        base = _base(setup) if setup.config.base and state is None else None
        label_space = state.server.label_space if state else setup.first_space
        student = setup.network(label_space, fresh=state is None and base is None)
        _go_on(setup, folder, state, base, student, watcher, connect)
    return folder


def _go_on(
    setup: Setup,
    folder: RunFolder,
    state: State | None,
    base: Snapshot | None,
    student: Segmenter,
    watcher: Watcher,
    connect: Connect,
) -> None:
    config = setup.config
    label_space = state.server.label_space if state else setup.first_space
    if state is not None:
        load_checked(student, Snapshot("the last round", label_space, state.server.weights), folder.path)
    elif base is not None:
        state = _begin_from(base, setup, folder, student, watcher)
    server = state.server if state else Server(label_space, student.weights(), before=(None,))
    memories = dict(state.memories) if state else {}
    next_round = state.next_round if state else 0
    if not student.taps:
        watcher.notice(f"{config.model.encoder}: the stages that distillation sees are taken {student.stages_are}.")
    folder.add_origin(origin(setup.device))
    first, later = next_round < config.world.rounds, not config.joint
    trainer = make_trainer(setup, student, first or not setup.told, later)
    engine = connect(setup, trainer, memories, watcher)
    watcher.begin(len(setup.plan.turns), setup.steps(), setup.steps() - setup.steps(next_round))
    began = monotonic()
    calls = _calls(setup, next_round, watcher)
    spec = config.federation
    for result in run(server, calls, engine, config.method, spec.weighting, config.seed, watcher, spec.largest):
        turn = setup.plan.turns[result.call.round]
        folder.append("rounds.jsonl", _round_record(setup, result, memories, monotonic() - began))
        if result.refused and len(result.refused) == sum(reply.images > 0 for reply in result.replies):
            reasons = "; ".join(f"client {client}: {why}" for client, why in result.refused.items())
            raise UserError(
                "Every update of this round was refused, the model stays as it was before it; rounds.jsonl has their "
                f"losses. {reasons}"
            )
        ends = turn.rounds_left == 1
        if ends or config.evaluation.every == "round":
            trainer.prepare(result.server.weights, result.server.label_space.sizes)
            score(setup, folder, student, result.server.label_space, turn.round, turn.task, ends, watcher)
        done = turn.round + 1 == len(setup.plan.turns)
        name = f"task-{turn.task}" if ends else f"round-{turn.round:04d}"
        folder.commit(State(turn.round + 1, result.server, memories, done), name, config.keep)
        began = monotonic()


def make_trainer(setup: Setup, student: Segmenter, first: bool = True, later: bool = True) -> Trainer:
    """What clients train with, around a network, for the `first` task and for `later` ones."""
    config = setup.config
    teacher = setup.network(setup.first_space) if config.method.needs_teacher else None
    if config.training.compile:
        student.compile()
        if teacher is not None:
            teacher.compile()
    if config.training.graphs and setup.device.type == "cuda":
        side = config.augment.crop + -config.augment.crop % student.divisor
        images = torch.zeros((config.training.batch, 3, side, side), device=setup.device)
        images = images.contiguous(memory_format=torch.channels_last)
        with autocast(config.training, setup.device):
            for groups in [1] * first + [2] * later:  # a method may freeze parts after the first task
                set_training(student, config.method, groups, config.training)
                record(student, images)
            if teacher is not None:
                record(teacher.eval(), images)
    if setup.told:
        return Trainer(student, teacher, setup.training_images, config.training)
    yardstick = setup.network(setup.first_space, fresh=True)  # as it was before any training; each site has its own
    return Trainer(student, teacher, setup.training_images, config.training, setup.plain_images, yardstick)


def _calls(setup: Setup, start: int, watcher: Watcher) -> Iterator[Call]:
    """What the server is given in each round; where tasks are not told, that is who is there and nothing else."""
    for turn in setup.plan.turns[start:]:
        watcher.round(turn.task, turn.round, len(turn.selected))
        if setup.told:
            calendar = Calendar(turn.task, turn.rounds_left, turn.steps)
            yield Call(turn.round, turn.selected, told=Announcement(calendar, setup.task_names(turn.task)))
        else:
            everyone = setup.config.monitor.probed == "all"
            yield Call(turn.round, turn.selected, turn.present if everyone else turn.selected)


def _begin_from(base: Snapshot, setup: Setup, folder: RunFolder, student: Segmenter, watcher: Watcher) -> State:
    """The first task is taken over: score it, keep it as our own, go on with the second."""
    if base.weights.keys() != student.state_dict().keys():
        base = replace(base, weights=setup.config.method.adopt(student, base.weights))
    load_checked(student, base, Path(setup.config.base))
    rounds = setup.config.world.rounds
    score(setup, folder, student, base.label_space, rounds - 1, 0, True, watcher)
    state = State(rounds, Server(base.label_space, base.weights), {}, len(setup.plan.turns) == rounds)
    folder.commit(state, "task-0", setup.config.keep)
    return state


def _base(setup: Setup) -> Snapshot:
    """The model after the first task of another run, if that run fits this one."""
    config = setup.config
    folder = RunFolder.open(Path(config.base))
    theirs = folder.config()
    if replace(theirs.model, weights="") != replace(config.model, weights=""):
        raise UserError(f"base = {config.base}: that run has another network than this one.")
    if folder.splits()["data"] != setup.data_digest:
        raise UserError(f"base = {config.base}: that run has other images or labels than this one.")
    if not setup.told:
        raise UserError(
            "base: where tasks are not told, clients have to have seen the first task themselves; leave it."
        )
    snapshot = folder.read_weights("task-0")
    if snapshot.label_space != setup.first_space:
        raise UserError(
            f"base = {config.base}: its first task is {', '.join(snapshot.label_space.names)}; "
            f"this run's is {', '.join(setup.tasks.names(0))}."
        )
    return snapshot


def _round_record(setup: Setup, result: Round, memories: dict[int, Memory], seconds: float) -> dict[str, Any]:
    samples = sum(reply.samples for reply in result.replies)
    turn = setup.plan.turns[result.call.round]
    probes = [
        {
            "client": sighting.client,
            "transition": sighting.transition,
            "missing": len(sighting.missing),
            **memories[sighting.client].evidence,
        }
        for sighting in result.sightings
        if memories[sighting.client].evidence
    ]
    return {
        "round": turn.round,
        "task": turn.task,
        "clients": turn.clients,
        "selected": list(turn.selected),
        **({} if setup.told else {"probes": probes, "classes": len(result.server.label_space.names)}),
        "replies": [{k: v for k, v in asdict(reply).items() if k != "weights"} for reply in result.replies],
        "refused": {str(client): why for client, why in result.refused.items()},
        "seconds": round(seconds, 3),
        "images_per_second": round(samples / seconds, 1) if seconds else None,
    }


def score(
    setup: Setup,
    folder: RunFolder,
    model: Segmenter,
    label_space: LabelSpace,
    round_: int,
    task: int,
    ends: bool,
    watcher: Watcher,
) -> None:
    """Score a model in every view and log it."""
    monitored = {} if setup.told else _monitored(setup, folder)
    for view in setup.config.evaluation.views:
        record = score_record(setup, folder.records("scores.jsonl"), model, label_space, view, task, watcher)
        record = {"round": round_, "task": task, "ends_task": ends, **record, **monitored}
        folder.append("scores.jsonl", record)
        watcher.scored(record)


def _monitored(setup: Setup, folder: RunFolder) -> dict[str, Any]:
    """True and seen transitions so far, in all and by client, and the mean entropy of the last probes."""
    rounds = folder.records("rounds.jsonl")
    seen = accuracy.by_client(setup.transitions, rounds)
    by_client = {str(client): accuracy.record(own) for client, own in seen.items()}
    entropies = [probe["entropy"] for probe in rounds[-1]["probes"]]
    return {
        "transitions": {**accuracy.record(accuracy.total(seen.values())), "clients": by_client},
        "entropy": sum(entropies) / len(entropies) if entropies else None,
    }


def score_record(
    setup: Setup,
    past: list[dict[str, Any]],
    model: Segmenter,
    label_space: LabelSpace,
    view: View,
    task: int,
    watcher: Watcher,
) -> dict[str, Any]:
    """IoU of every class and their means in one view; `past` are the run's scores so far."""
    config, dataset = setup.config, setup.dataset
    label_space = setup.readable(label_space)
    images = scored_images(view, dataset.classes, label_space, setup.val.presence)
    matrix = evaluate(
        model,
        setup.scored_images,
        images,
        setup.val.sizes,
        evaluation_table(dataset.classes, label_space),
        view,
        config.evaluation,
        config.training,
        watcher,
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
        **summary(ious, names[1:], [setup.tasks.names(t) for t in range(task + 1)], best),
        "iou": dict(zip(names, ious, strict=True)),
        "to_background": dict(zip(names[1:], to_background(matrix)[1:], strict=True)),
        "from_background": dict(zip(names[1:], from_background(matrix)[1:], strict=True)),
    }


def rescore(path: Path, views: tuple[View, ...], watcher: Watcher) -> Iterator[dict[str, Any]]:
    """Score again the models after every task of a run; nothing in the run folder changes."""
    folder = RunFolder.open(path)
    setup = prepare(folder.config(), watcher)
    past: list[dict[str, Any]] = []
    model = setup.network(setup.tasks.label_space(0))
    for task in folder.tasks_done():
        snapshot = folder.read_weights(f"task-{task}")
        load_checked(model, snapshot, folder.path)
        for view in views:
            record = score_record(setup, past, model, snapshot.label_space, view, task, watcher)
            past.append({"task": task, "ends_task": True, **record})
            yield past[-1]


def load_checked(model: Segmenter, snapshot: Snapshot, where: Path) -> None:
    """Load a snapshot that may come from elsewhere."""
    try:
        model.load(snapshot.weights, snapshot.label_space.sizes)
    except RuntimeError as error:
        first = str(error).split("\n")[1].strip() if "\n" in str(error) else str(error)
        raise UserError(f"{where}: {snapshot.name} does not fit the network of this config ({first}).") from error
