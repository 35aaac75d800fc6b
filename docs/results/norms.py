"""Are BatchNorm's averaged statistics to blame? python docs/results/norms.py [--images N] [--tasks T,...] RUN ...

Scores the models of each RUN after its tasks as they are, and with the running means and variances of BatchNorm
measured again on training images of every class (which no site could do: this is to look at, not to use).
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from fiss.data.transforms import normalise
from fiss.models.segmenter import Segmenter
from fiss.progress import Progress
from fiss.rng import stream
from fiss.runs.folder import RunFolder
from fiss.runs.run import load_checked
from fiss.simulation.scenario import Scenario, open_scenario
from fiss.training.device import autocast
from fiss.training.trainer import set_training


@torch.no_grad()
def measure_again(scenario: Scenario, model: Segmenter, images: int) -> None:
    """Replace running statistics by their mean over batches of training images."""
    set_training(model, scenario.config.method, len(model.classifier.sizes), scenario.config.training)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.training:  # not the frozen ones of RCIL
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
    batch = scenario.config.training.batch
    order = stream(scenario.config.seed, "norms").sample(range(len(scenario.train.presence)), images)
    parts = [[(i, "published") for i in order[a : a + batch]] for a in range(0, images, batch)]
    for read, _ in scenario.plain_images.read(parts):
        pictures = read.to(scenario.device)
        with autocast(scenario.config.training, scenario.device):
            model(normalise(pictures))


def main() -> None:
    """A line for every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--images", type=int, default=960)
    parser.add_argument("--tasks", default="")
    options = parser.parse_args()
    for path in options.runs:
        folder, progress = RunFolder.open(path), Progress()
        scenario = open_scenario(folder.config(), progress)
        model = scenario.network(scenario.tasks.label_space(0))
        for task in [int(t) for t in options.tasks.split(",") if t] or folder.last_models():
            snapshot = folder.read_weights(f"task-{task}")
            found = []
            for again in (False, True):
                load_checked(model, snapshot, path)
                if again:
                    measure_again(scenario, model, options.images)
                space, score = snapshot.label_space, scenario.validation.score
                record = score(model, space, "published", (), progress, round_=0, task=task)
                found.append(f"mIoU {record.miou:.1f}, background {record.background:.1f}")
            print(f"{path.name} task {task}: averaged: {found[0]}; measured again: {found[1]}", flush=True)


if __name__ == "__main__":
    main()
