"""How large the terms of a loss are: python docs/results/sizes.py RUN ...

By task, the mean of every logged term over clients and rounds. Where a run still has its model after task 0, also POD
by map on one batch of task 1 before any step, when student and teacher are the same: all of it comes from the student
normalising with the batch and the teacher with averaged statistics.
"""

import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import torch

from fiss.data.transforms import normalise
from fiss.losses.pod import local_pod
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.run import load_checked
from fiss.simulation.scenario import open_scenario

WEIGHTS = (0.01, 0.01, 0.01, 0.01, 0.01, 0.0005)
"""As published: four stages, the decoder's output, the small logits."""


def logged(folder: RunFolder) -> None:
    """The terms by task."""
    terms: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in folder.rounds():
        for reply in record.replies:
            for name, value in reply.losses.items():
                terms[record.task][name].append(value)
    for task, found in terms.items():
        print(f"{folder.path.name} task {task}:", ", ".join(f"{n} {mean(v):.2f}" for n, v in found.items()))


@torch.no_grad()
def before_a_step(folder: RunFolder) -> None:
    """POD by map, times its weight and divided by the number of maps; then all of it times the root of C / new."""
    scenario = open_scenario(folder.config(), Progress())
    snapshot, new = folder.read_weights("task-0"), list(scenario.tasks.tasks[1])
    networks = [scenario.network(snapshot.label_space) for _ in range(2)]
    for network in networks:
        load_checked(network, snapshot, folder.path)
    student, teacher = networks[0].train(), networks[1].eval()
    shown = [i for i, row in enumerate(scenario.train.presence) if row[new].any()][: scenario.config.training.batch]
    ((pictures, _),) = scenario.plain_images.read([[(i, "published") for i in shown]])
    images = normalise(pictures.to(scenario.device))
    ours, theirs = student(images), teacher(images)
    maps = [*zip(ours.stages, theirs.stages, strict=True), (ours.decoded_BDhw, theirs.decoded_BDhw)]
    maps.append((ours.small_BChw, theirs.small_BChw))
    parts = [w * float(local_pod(*pair).mean()) / len(maps) for w, pair in zip(WEIGHTS, maps, strict=True)]
    factor = math.sqrt((snapshot.label_space.channels + len(new)) / len(new))
    by_map = ", ".join(f"{part:.2f}" for part in parts)
    print(f"{folder.path.name} before a step of task 1: POD by map {by_map}; in all {factor * sum(parts):.1f}")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        run = RunFolder.open(Path(word))
        logged(run)
        if (run.path / "weights" / "task-0.safetensors").is_file():
            before_a_step(run)
