"""A config with everything it needs opened and checked: the data, the world that is drawn from it, the readers."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256

import numpy as np
import torch

from fiss.config.config import Config
from fiss.data.cache import Decoded, free_bytes
from fiss.data.dataset import Dataset, Split
from fiss.data.index import Index, inspect
from fiss.data.sources import open_dataset
from fiss.data.transforms import ScoredImages, TrainingImages
from fiss.federation.boundaries import Calendar, Discovery
from fiss.federation.client import Site, Truth
from fiss.federation.collection import Gathering, Held
from fiss.federation.messages import Announcement
from fiss.federation.private_names import private
from fiss.labels import LabelSpace, TaskStream
from fiss.models.segmenter import Segmenter, check_spec, check_weights
from fiss.progress import Progress
from fiss.runs.records import HeldRecord, Splits, TaskRecord, renumbered
from fiss.runs.scoring import Validation
from fiss.simulation.world import Holding, Plan, RoundPlan, joint_plan, make_plan
from fiss.statistics.head import head_of
from fiss.training.batches import Reader, steps_per_epoch
from fiss.training.device import pick_device, use_device
from fiss.training.trainer import build_network


def is_announced(config: Config) -> bool:
    """Whether tasks are announced, as in the published runs; else the server knows nothing of them."""
    return config.joint or (config.monitor.name == "told" and config.world.synchronous)


def keeps_pretrained(config: Config) -> bool:
    """Whether the encoder is wanted as it was before any training, also where the trained one is taken over."""
    return config.method.collection is not None and config.method.collection.features.needs_pretrained


@dataclass(frozen=True)
class Scenario:
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
        """Optimizer steps of all rounds from `start` on; and batches of images whose features are counted."""
        first = self._training_rounds
        trained = sum(self._trained(plan) for plan in self.plan.round_plans[start:] if plan.round < first)
        return trained + sum(batches for round_, batches in self._counted(first) if round_ >= start)

    @property
    def _training_rounds(self) -> int:
        """Rounds in which clients train."""
        collection, rounds = self.config.method.collection, len(self.plan.round_plans)
        return rounds if collection is None else collection.rounds_of_trunk(self.boundaries.first_rounds)

    def _trained(self, round_plan: RoundPlan) -> int:
        training, plan = self.config.training, self.plan

        def of(task: int, client: int) -> int:
            images = len(plan.holdings[task, client].images)
            return training.epochs_in(task == 0) * steps_per_epoch(images, training.batch, training.drop_last)

        return sum(
            round_plan.steps if round_plan.steps is not None else of(plan.stage(client, round_plan.round)[1], client)
            for client in round_plan.selected
        )

    def _counted(self, trunk_rounds: int) -> Iterator[tuple[int, int]]:
        """Rounds in which clients count what they hold for the first time, and in how many batches."""
        if (collection := self.config.method.collection) is None:
            return
        took_part: set[int] = set()
        counted: set[tuple[int, int]] = set()
        for plan in self.plan.round_plans:
            took_part |= set(plan.selected) if plan.round < trunk_rounds else set()
            if plan.round + 1 < trunk_rounds:
                continue
            last = plan.round + 1 == trunk_rounds and collection.collected_from == "participants"
            for client in took_part if last else plan.selected:
                stage = self.plan.stage(client, plan.round)[1], client
                if stage in self.plan.holdings and stage not in counted:
                    counted.add(stage)
                    images = len(self.plan.holdings[stage].images)
                    yield plan.round, -(-images // self.config.training.batch) * (1 + collection.augmented)

    @cached_property
    def boundaries(self) -> Calendar | Discovery:
        """How the server hears of new classes: decided here, once."""
        method, seed = self.config.method, self.config.seed
        if not is_announced(self.config):
            return Discovery(method, seed, self.config.training.horizon)
        rounds = {r.round: Announcement(r.task, r.rounds_left, r.steps) for r in self.plan.round_plans}
        return Calendar(method, seed, rounds, [tuple(self.names[i - 1] for i in ids) for ids in self.tasks.tasks])

    def gathering(self, model: Segmenter) -> Gathering | None:
        """The server's part where features are added up; `model`, one of its networks, has the layers they go
        through."""
        if (collection := self.config.method.collection) is None:
            return None
        transfer, layers = self.config.federation.transfer, head_of(model).layers
        return Gathering(collection, self.boundaries.first_rounds, transfer, layers)

    @property
    def announced(self) -> bool:
        """Whether tasks are announced."""
        return isinstance(self.boundaries, Calendar)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The classes by the names under which they travel."""
        key = self.config.federation.private_names
        return tuple(private(name, key) for name in self.dataset.classes) if key else self.dataset.classes

    def site(self, round_: int, client: int) -> Site:
        """What a client owns in a round."""
        task, holding = self.plan.stage(client, round_)[1], self.plan.holding(client, round_)
        labelled = self._labelled(task, holding)
        so_far = sum(r <= round_ for r in self.transitions[client])
        task = self.plan.round_plans[round_].task
        trains = self.config.world.train_staying or not self.plan.stays(client, round_)
        truth, held = Truth(so_far, task), self._held(holding) if self.config.method.collection is not None else ()
        return Site(self.names, holding.images, labelled, self.config.seed, truth, trains, held=held)

    def _held(self, holding: Holding) -> tuple[Held, ...]:
        """Its images by their names, which nothing ever changes."""
        stems, presence = self.dataset.train.stems, self.train.presence
        return tuple(Held(stems[i], 0, tuple(np.nonzero(presence[i])[0].tolist())) for i in holding.images)

    def _labelled(self, task: int, holding: Holding) -> tuple[int, ...]:
        """Ids that a site labels, of those that its images show."""
        ids = holding.classes if self.config.world.own_labels else self.tasks.tasks[task]
        shown = np.asarray(self.train.presence[list(holding.images)].any(0))
        return tuple(i for i in ids if shown[i])

    @cached_property
    def transitions(self) -> dict[int, tuple[int, ...]]:
        """The true ones: rounds in which a client first holds a class it never held, its first data left out."""
        found: dict[int, tuple[int, ...]] = {}
        for client, stages in self.plan.stages.items():
            seen: set[int] = set()
            rounds: list[int] = []
            for start, task, _ in stages:
                if (task, client) in self.plan.holdings:
                    now = set(self._labelled(task, self.plan.holding(client, start)))
                    if seen and now - seen:
                        rounds.append(start)
                    seen |= now
            found[client] = tuple(rounds)
        return found

    @cached_property
    def decoded(self) -> tuple[Split, Split]:
        """Both splits, kept in memory once read; validation images, which are all read in every round, first."""
        how = self.config.reading
        most = min(int(self.config.training.cache * 2**30), free_bytes() // 2)
        val = Decoded(self.dataset.val, self.val.sizes, most, how)
        return Decoded(self.dataset.train, self.train.sizes, most - val.bytes_kept, how), val

    @cached_property
    def training_images(self) -> Reader:
        """Reads augmented images."""
        images = TrainingImages(self.decoded[0], self.config.augment)
        return Reader(images, self.config.training.workers, self.device.type == "cuda")

    @cached_property
    def plain_images(self) -> Reader:
        """Reads training images as they are, to look at."""
        images = ScoredImages(self.decoded[0], self.config.augment.crop)
        return Reader(images, self.config.training.workers, self.device.type == "cuda")

    @cached_property
    def validation(self) -> Validation:
        """The validation images, to score models on."""
        tasks = tuple(self.tasks.names(task) for task in range(len(self.tasks.tasks)))
        workers = self.config.training.workers
        return Validation(self.config, self.dataset.classes, self.decoded[1], self.val, tasks, workers)

    def network(self, label_space: LabelSpace, fresh: bool = False) -> Segmenter:
        """A network for that label space; `fresh` with the encoder's pretrained weights, else about to be loaded."""
        return build_network(self.config, label_space, self.device, None if fresh else "none")

    @cached_property
    def data_digest(self) -> str:
        """Digest of all names and labels."""
        digest = sha256(json.dumps([list(self.dataset.train.stems), list(self.dataset.val.stems)]).encode())
        for index in (self.train, self.val):
            digest.update(index.pixels.tobytes())
        return digest.hexdigest()

    def splits(self) -> Splits:
        """Who is selected and who holds what, in names rather than numbers; and a digest of all names and labels."""
        stems, plan = self.dataset.train.stems, self.plan

        def names(held: Holding) -> tuple[str, ...]:
            return tuple(stems[i] for i in held.images)

        tasks = tuple(
            TaskRecord(
                classes=self.tasks.names(task),
                clients={
                    client: HeldRecord(
                        classes=tuple(self.tasks.classes[i - 1] for i in held.classes), images=names(held)
                    )
                    for (t, client), held in plan.holdings.items()
                    if t == task
                },
            )
            for task in range(len(self.tasks.tasks))
        )
        rounds = tuple({k: v for k, v in asdict(one).items() if k != "present"} for one in plan.round_plans)
        splits = Splits(data=self.data_digest, rounds=rounds, tasks=tasks)
        if not self.announced:
            splits = replace(
                splits,
                present=tuple(round_plan.present for round_plan in plan.round_plans),
                stages=plan.stages,
                redrawn={"/".join(map(str, key)): names(held) for key, held in plan.redrawn.items()},
                transitions=self.transitions,
            )
        return renumbered(splits, 1)


def open_scenario(config: Config, progress: Progress, fresh: bool = False) -> Scenario:
    """Open and check everything a run needs; whatever is wrong stops it here, before anything is written. `fresh`: it
    begins with the encoder's pretrained weights."""
    use_device(config.training)
    check_spec(config.model)
    dataset = open_dataset(config.data, config.reading)
    if fresh:
        check_weights(config.model)
    for notice in dataset.notices:
        progress.notice(notice)
    tasks = TaskStream.parse(config.tasks.split, dataset.classes, config.tasks.order)
    found = inspect(dataset, progress)
    found.refuse()
    train, val = found.train, found.val
    left_out = [name for i, name in enumerate(dataset.classes, 1) if i not in tasks.seen(len(tasks.tasks) - 1)]
    if left_out:
        progress.notice(f"in no task, so background throughout: {', '.join(left_out)}.")
    for suspicion in found.suspicions:
        progress.notice(str(suspicion))
    announced = is_announced(config)
    if config.monitor.name == "told" and not announced:
        progress.notice("tasks cannot be announced in this world: each client alone knows its own (oracle).")
    everyone = not announced and config.monitor.probed == "all"
    plan = make_plan(config.world, config.tasks, tasks, train.presence, config.seed, everyone)
    scenario = Scenario(config, dataset, train, val, tasks, plan)
    if not config.joint:
        return scenario
    plan = joint_plan(plan, tasks, train.presence, scenario.steps())
    return replace(scenario, plan=plan, tasks=TaskStream(tasks.classes, (tasks.seen(len(tasks.tasks) - 1),)))
