"""What to say before hours are lost: runs that are possible, and that can hardly come to anything."""

from statistics import median

from fiss.config.presets import label
from fiss.data.index import missing_classes
from fiss.simulation.scenario import Scenario

FEW_IMAGES = 1000
"""Fewer teach a network from random weights little, wherever the images come from."""
FEW_STEPS = 100
"""Optimizer steps of a site in the first task, of a network from random weights."""


def warnings(scenario: Scenario) -> list[str]:
    """Each in plain words, with what to do about it."""
    config, tasks = scenario.config, scenario.tasks.tasks
    found = missing_classes(scenario.dataset, scenario.train, scenario.val)
    collection = config.method.collection
    trains = collection is None or collection.trunk_rounds != 0
    random = config.model.weights == "none" and not config.base
    if not trains and random:
        found.append(
            "Nothing is trained (method.trunk = pretrained) and the encoder has random weights (model.weights = none): "
            "its features mean little. Give it a file: --set model.weights=FILE.safetensors."
        )
    if trains:
        found += _small_sites(scenario)
    if trains and random:
        found += _small_data(scenario)
    if len(tasks) == 1 and not config.joint and config.method.needs_teacher:
        classes = len(tasks[0])
        how = f"--set tasks.split={classes - 1}-1" if classes > 1 else "it needs a second class"
        found.append(
            f"All classes come in one task, so there is nothing to forget and {label(config)} trains as finetune does. "
            f"For several tasks: {how}."
        )
    return found


def _small_sites(scenario: Scenario) -> list[str]:
    """Sites that cannot fill a batch."""
    config, batch = scenario.config, scenario.config.training.batch
    first_only = config.method.collection is not None
    held = [len(h.images) for (task, _), h in scenario.plan.holdings.items() if task == 0 or not first_only]
    small = [images for images in held if 0 < images < batch]
    if config.joint or len(small) * 2 <= len(held):
        return []
    fitting = max(2, int(median(held)) // 2)
    return [
        f"{len(small)} of {len(held)} sites hold fewer images than a batch of {batch} (the median {median(held):g}): "
        f"each makes one small step in an epoch. Smaller batches: --set training.batch={fitting}; or fewer sites: "
        "--set world.clients=..."
    ]


def _small_data(scenario: Scenario) -> list[str]:
    """Too little for a network that begins with random weights."""
    found, images = [], len(scenario.dataset.train.stems)
    if images < FEW_IMAGES and scenario.config.data.name != "shapes":
        found.append(
            f"{images} training images are few for a network without pretrained weights (model.weights = none). With "
            "those of ImageNet scores are usually far better: --set model.weights=imagenet, or a file of them."
        )
    rounds = [r for r in scenario.plan.round_plans if r.task == 0]
    steps = scenario.steps() - scenario.steps(len(rounds))
    each = steps / max(1, sum(len(r.selected) for r in rounds)) * len(rounds)
    if each < FEW_STEPS:
        count = len(scenario.tasks.names(0))
        found.append(
            f"The first task ({count} class{'es' * (count > 1)}) is too small to train a network from random weights: "
            f"{each:.0f} steps for each site. More classes in it (tasks.split), more rounds (world.rounds) or epochs "
            "(training.epochs) help, and so do pretrained weights (model.weights)."
        )
    return found
