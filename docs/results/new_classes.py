"""Who claims what: python docs/results/new_classes.py BASE [RUN ...]

For the first model of BASE: how many of its pseudo labels on training images of the second task are right, by the
proportion accepted. For each RUN on shapes, after every later task: of the pixels given to new classes, what they are.
"""

import sys
from pathlib import Path

import torch

from fiss.data.dataset import Split
from fiss.data.transforms import normalise
from fiss.losses import pseudo
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation.scenario import Scenario, open_scenario


def see(
    scenario: Scenario, folder: RunFolder, task: int, split: Split, images: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and true ids of those images."""
    snapshot = folder.read_weights(f"task-{task}")
    model = scenario.network(snapshot.label_space).eval()
    model.load(snapshot.weights, snapshot.label_space.sizes)
    logits, truth = [], []
    with torch.inference_mode():
        for i in images:
            image, mask = split.read(i)
            batch = torch.tensor(image).permute(2, 0, 1)[None].to(scenario.device)
            logits.append(model(normalise(batch)).logits_BCHW.cpu())
            truth.append(torch.from_numpy(mask.astype("int64"))[None])
    return torch.cat(logits), torch.cat(truth)


def main(base: Path, runs: list[Path]) -> None:
    """Print a line for each proportion, then for each run and task."""
    folder = RunFolder.open(base)
    scenario = open_scenario(folder.config(), Progress())
    present = list(scenario.tasks.tasks[1])
    pool = [i for i in range(400) if scenario.train.presence[i][present].any()][:160]
    logits, truth = see(scenario, folder, 0, scenario.dataset.train, pool)
    unlabelled = ~torch.isin(truth, torch.tensor(present))
    entropy, classes, truth = pseudo.entropy(logits)[unlabelled], logits.argmax(1)[unlabelled], truth[unlabelled]
    for proportion in (0.2, 0.5, 0.8, 1.0):
        threshold = pseudo.exact_thresholds(entropy, classes, proportion, logits.shape[1])
        given = (entropy <= threshold[classes]) & (classes > 0)
        future = given & (truth > max(present))
        right = given & (truth == classes)
        print(f"{proportion}: right {right.sum() / given.sum():.2f}, future {future.sum() / given.sum():.2f}")
    for path in runs:
        folder = RunFolder.open(path)
        scenario = open_scenario(folder.config(), Progress())
        for task in range(1, len(scenario.tasks.tasks)):
            new = list(scenario.tasks.tasks[task])
            logits, truth = see(
                scenario, folder, task, scenario.dataset.val, list(range(len(scenario.dataset.val.stems)))
            )
            called = logits.argmax(1)
            claimed = torch.isin(called, torch.tensor(new))
            kinds = {"right": called == truth, "future": truth > max(new), "ground": truth == 0}
            shares = (f"{name} {(claimed & kind).sum() / claimed.sum():.2f}" for name, kind in kinds.items())
            print(f"{path} task {task}: {', '.join(shares)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
