"""From a config to a finished run: opens the data, draws the world, plays the rounds, scores, and keeps everything."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from fiss.checkpoint import RunFolder, State
from fiss.config import Config
from fiss.data.background import evaluation_table
from fiss.data.dataset import Dataset, Split
from fiss.data.decoded import Decoded, free_bytes
from fiss.data.index import Index, check, missing_classes
from fiss.data.sources import open_dataset
from fiss.data.transforms import ScoredImages, TrainingImages, View
from fiss.data.world import Plan, Presence, joint_plan, make_plan
from fiss.engines.inprocess import InProcess
from fiss.errors import UserError
from fiss.federation.client import Site
from fiss.federation.loop import Round, Server, run
from fiss.federation.messages import Snapshot
from fiss.labels import LabelSpace, TaskStream
from fiss.metrics import iou, summary, to_background
from fiss.models.segmenter import Segmenter, build, check_spec, check_weights
from fiss.rng import address
from fiss.training.batches import Reader, steps_per_epoch
from fiss.training.evaluate import evaluate
from fiss.training.fit import Trainer, pick_device, place
from fiss.watch import Watcher


@dataclass(frozen=True)
class Setup:
    """A config with its data opened and checked and its world drawn."""

    config: Config
    dataset: Dataset
    train: Index
    val: Index
    tasks: TaskStream
    plan: Plan

    @cached_property
    def device(self) -> torch.device:
        """Where the networks live."""
        return pick_device(self.config.training.device)

    def steps(self, start: int = 0) -> int:
        """Optimizer steps of all rounds from `start` on."""
        return _steps(self.config, self.plan, start)

    def site(self, task: int, client: int) -> Site:
        """What a client owns during a task."""
        config, holding = self.config, self.plan.holdings[task, client]
        labelled = holding.classes if config.world.own_labels else self.tasks.tasks[task]
        return Site(self.dataset.classes, holding.images, labelled, config.seed)

    @cached_property
    def decoded(self) -> tuple[Split, Split]:
        """Both splits, kept in memory once read; validation images, which are all read in every round, first."""
        most = min(int(self.config.training.cache * 2**30), free_bytes() // 2)
        val = Decoded(self.dataset.val, self.val.sizes, most)
        return Decoded(self.dataset.train, self.train.sizes, most - val.bytes_kept), val

    @cached_property
    def training_images(self) -> Reader:
        """Reads augmented images."""
        images = TrainingImages(self.decoded[0], self.config.augment)
        return Reader(images, self.config.training.workers, self.device.type == "cuda")

    @cached_property
    def scored_images(self) -> Reader:
        """Reads images to score."""
        images = ScoredImages(self.decoded[1], self.config.evaluation.size)
        return Reader(images, self.config.training.workers, self.device.type == "cuda")

    def network(self, label_space: LabelSpace, fresh: bool = False) -> Segmenter:
        """A network for that label space; `fresh` with the encoder's pretrained weights, else about to be loaded."""
        spec = self.config.model if fresh else replace(self.config.model, weights="none")
        model = build(spec, label_space.sizes, address(self.config.seed, "model"))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(address(self.config.seed, "wire"))
            self.config.method.wire(model)
        return place(model, self.device)

    @cached_property
    def data_digest(self) -> str:
        """Digest of all names and labels."""
        digest = sha256(json.dumps([list(self.dataset.train.stems), list(self.dataset.val.stems)]).encode())
        for index in (self.train, self.val):
            digest.update(index.pixels.tobytes())
        return digest.hexdigest()

    def splits(self) -> dict[str, Any]:
        """Who is selected and who holds what, in names rather than numbers; and a digest of all names and labels."""
        stems = self.dataset.train.stems
        tasks = [
            {
                "classes": self.tasks.names(task),
                "clients": {
                    str(client): {
                        "classes": [self.tasks.classes[i - 1] for i in held.classes],
                        "images": [stems[i] for i in held.images],
                    }
                    for (t, client), held in self.plan.holdings.items()
                    if t == task
                },
            }
            for task in range(len(self.tasks.tasks))
        ]
        return {"data": self.data_digest, "rounds": [asdict(turn) for turn in self.plan.turns], "tasks": tasks}


def prepare(config: Config, watcher: Watcher) -> Setup:
    """Open and check everything a run needs; whatever is wrong stops it here, before anything is written."""
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    if (device := pick_device(config.training.device)).type == "cuda":
        torch.cuda.set_device(device)
    check_spec(config.model)
    dataset = open_dataset(config.data)
    for notice in dataset.notices:
        watcher.notice(notice)
    tasks = TaskStream.parse(config.tasks.split, dataset.classes, config.tasks.order)
    train, val = check(dataset, watcher)
    left_out = [name for i, name in enumerate(dataset.classes, 1) if i not in tasks.seen(len(tasks.tasks) - 1)]
    if left_out:
        watcher.notice(f"in no task, so background throughout: {', '.join(left_out)}.")
    for notice in missing_classes(dataset, train, val):
        watcher.notice(notice)
    plan = make_plan(config.world, config.tasks, tasks, train.presence, config.seed)
    if config.joint:
        steps = _steps(config, plan)
        plan = joint_plan(plan, tasks, train.presence, steps)
        tasks = TaskStream(tasks.classes, (tasks.seen(len(tasks.tasks) - 1),))
    return Setup(config, dataset, train, val, tasks, plan)


def _steps(config: Config, plan: Plan, start: int = 0) -> int:
    training = config.training

    def of(task: int, client: int) -> int:
        images = len(plan.holdings[task, client].images)
        return training.epochs_in(task) * steps_per_epoch(images, training.batch, training.drop_last)

    return sum(
        turn.steps if turn.steps is not None else of(turn.task, client)
        for turn in plan.turns[start:]
        for client in turn.selected
    )


def start(config: Config, out: Path, watcher: Watcher) -> RunFolder:
    """A new run in a new folder."""
    config = with_absolute_paths(config)
    if not config.base:
        check_weights(config.model)
    setup = prepare(config, watcher)
    base = _base(setup) if config.base else None
    student = setup.network(setup.tasks.label_space(0), fresh=base is None)
    folder = RunFolder.create(out, config)
    with folder.locked():
        folder.write_splits(setup.splits())
        _go_on(setup, folder, None, base, student, watcher)
    return folder


def with_absolute_paths(config: Config) -> Config:
    """The config with its paths made absolute, so that it means the same from any folder."""

    def absolute(text: str) -> str:
        return str(Path(text).expanduser().absolute()) if text else text

    weights = config.model.weights
    return replace(
        config,
        base=absolute(config.base),
        data=replace(config.data, root=absolute(config.data.root)),
        model=replace(config.model, weights=absolute(weights) if weights.endswith(".safetensors") else weights),
    )


def resume(path: Path, watcher: Watcher) -> RunFolder:
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
        label_space = state.server.label_space if state else setup.tasks.label_space(0)
        student = setup.network(label_space, fresh=state is None and base is None)
        _go_on(setup, folder, state, base, student, watcher)
    return folder


def _go_on(
    setup: Setup, folder: RunFolder, state: State | None, base: Snapshot | None, student: Segmenter, watcher: Watcher
) -> None:
    config = setup.config
    first = setup.tasks.label_space(0)
    label_space = state.server.label_space if state else first
    teacher = setup.network(label_space) if config.method.needs_teacher else None
    if config.training.compile:
        student.compile()
        if teacher is not None:
            teacher.compile()
    if state is not None:
        load_checked(student, Snapshot("the last round", label_space, state.server.weights), folder.path)
    elif base is not None:
        state = _begin_from(base, setup, folder, student, watcher)
    server = state.server if state else Server(first, student.weights())
    memories = dict(state.memories) if state else {}
    next_round = state.next_round if state else 0
    if not student.taps:
        watcher.notice(f"{config.model.encoder}: the stages that distillation sees are taken {student.stages_are}.")
    trainer = Trainer(student, teacher, setup.training_images, config.training)
    engine = InProcess(setup.site, config.method, trainer, memories, watcher)
    turns = setup.plan.turns[next_round:]
    watcher.begin(len(setup.plan.turns), setup.steps(), setup.steps() - setup.steps(next_round))
    began = monotonic()
    for result in run(server, turns, setup.tasks, engine, config.method, config.federation, config.seed, watcher):
        turn = result.turn
        folder.append("rounds.jsonl", _round_record(result, monotonic() - began))
        ends = turn.rounds_left == 1
        if ends or config.evaluation.every == "round":
            student.load(result.server.weights, result.server.label_space.sizes)
            score(setup, folder, student, result.server.label_space, turn.round, turn.task, ends, watcher)
        done = turn.round + 1 == len(setup.plan.turns)
        name = f"task-{turn.task}" if ends else f"round-{turn.round:04d}"
        folder.commit(State(turn.round + 1, result.server, memories, done), name, config.keep)
        began = monotonic()


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
    if folder.data_digest() != setup.data_digest:
        raise UserError(f"base = {config.base}: that run has other images or labels than this one.")
    snapshot = folder.read_weights("task-0")
    if snapshot.label_space != setup.tasks.label_space(0):
        raise UserError(
            f"base = {config.base}: its first task is {', '.join(snapshot.label_space.names)}; "
            f"this run's is {', '.join(setup.tasks.names(0))}."
        )
    return snapshot


def _round_record(result: Round, seconds: float) -> dict[str, Any]:
    samples = sum(reply.samples for reply in result.replies)
    return {
        "round": result.turn.round,
        "task": result.turn.task,
        "clients": result.turn.clients,
        "selected": list(result.turn.selected),
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
    for view in setup.config.evaluation.views:
        record = score_record(setup, folder.records("scores.jsonl"), model, label_space, view, task, watcher)
        record = {"round": round_, "task": task, "ends_task": ends, **record}
        folder.append("scores.jsonl", record)
        watcher.scored(record)


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
        **summary(ious, label_space, best),
        "iou": dict(zip(names, ious, strict=True)),
        "to_background": dict(zip(names[1:], to_background(matrix)[1:], strict=True)),
    }


def scored_images(view: View, classes: Sequence[str], label_space: LabelSpace, presence: Presence) -> list[int]:
    """Every image, or in the published view those that show a class seen so far."""
    if view == "full":
        return list(range(len(presence)))
    known = [i for i, name in enumerate(classes, 1) if name in label_space.names]
    return [int(i) for i in np.nonzero(presence[:, known].any(1))[0]]


def rescore(path: Path, views: tuple[View, ...], watcher: Watcher) -> Iterator[dict[str, Any]]:
    """Score again the models after every task of a run; nothing in the run folder changes."""
    folder = RunFolder.open(path)
    setup = prepare(folder.config(), watcher)
    there = sorted(int(p.stem.split("-")[1]) for p in (path / "weights").glob("task-*.safetensors"))
    if not there:
        raise UserError(f"{path}: no task is finished yet, so there is no model to score.")
    past: list[dict[str, Any]] = []
    model = setup.network(setup.tasks.label_space(0))
    for task in there:
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
