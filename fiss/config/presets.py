"""Ready-made configs: functions, so that one may be derived from another in plain Python."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fiss import methods
from fiss.config.config import Config, method_for, parse_settings, read_toml, with_settings
from fiss.data.sources import DataSpec, open_dataset, recognise
from fiss.data.transforms import AugmentSpec
from fiss.errors import UserError, unknown
from fiss.federation.spec import TaskSpec, WorldSpec
from fiss.methods.base import Method
from fiss.models.segmenter import ModelSpec
from fiss.training.spec import EvaluationSpec, TrainingSpec

PUBLISHED_NETWORK = ModelSpec(
    "deeplabv3",
    "resnet101",
    "imagenet",
    {"encoder_output_stride": 16, "decoder_atrous_rates": (6, 12, 18), "decoder_aspp_dropout": 0.0},
)
SMALL_NETWORK = ModelSpec(
    "deeplabv3plus",
    "resnet18",
    "none",
    {
        "encoder_depth": 4,
        "encoder_output_stride": 16,
        "decoder_channels": 96,
        "decoder_atrous_rates": (1, 2, 3),
        "decoder_aspp_separable": False,
        "decoder_aspp_dropout": 0.0,
    },
)


def shapes() -> Config:
    """The built-in data set with a small network: a whole run in minutes on two CPU cores."""
    return Config(
        name="shapes",
        data=DataSpec("shapes"),
        tasks=TaskSpec("6-3"),
        world=WorldSpec(clients=4, joiners=1, per_round=2, rounds=3, class_ratio=0.7, sample_ratio=0.8),
        model=SMALL_NETWORK,
        augment=AugmentSpec(crop=96),
        training=TrainingSpec(epochs=2, batch=8, first_rate=0.2, later_rate=0.02),
        evaluation=EvaluationSpec(size=96, batch=20),
    )


def voc_15_1() -> Config:
    """Pascal VOC 2012, 15 classes and then one at a time, as published (80 % of the images per site in the first
    task, then 40 %)."""
    return _voc("15-1", WorldSpec(sample_ratio=0.8, single_ratio=0.4))


def voc_4_4() -> Config:
    """Pascal VOC 2012, four classes at a time, as published."""
    return _voc("4-4", WorldSpec())


def voc_8_2() -> Config:
    """Pascal VOC 2012, eight classes and then two at a time, as published."""
    return _voc("8-2", WorldSpec())


def ade_100_10() -> Config:
    """ADE20k, 100 classes and then ten at a time, as published."""
    config = _voc("100-10", WorldSpec(class_ratio=0.7, sample_ratio=1.0))
    return replace(config, name="ade-100-10", data=DataSpec("ade20k"), training=TrainingSpec(epochs=12, workers=8))


def voc_15_1_small() -> Config:
    """voc-15-1 with ResNet-50 and crops of 256: minutes instead of hours on one GPU."""
    return _small(voc_15_1())


def voc_4_4_small() -> Config:
    """voc-4-4 with ResNet-50, crops of 256, and two local epochs in later tasks."""
    return _small(voc_4_4(), later_epochs=2)


def voc_8_2_small() -> Config:
    """voc-8-2 with ResNet-50, crops of 256, and two local epochs in later tasks."""
    return _small(voc_8_2(), later_epochs=2)


def ade_100_10_small() -> Config:
    """ade-100-10 with ResNet-50 and crops of 256."""
    return _small(ade_100_10())


def _small(config: Config, later_epochs: int = 0) -> Config:
    return replace(
        config,
        name=f"{config.name}-small",
        model=replace(config.model, encoder="resnet50"),
        augment=replace(config.augment, crop=256),
        evaluation=replace(config.evaluation, size=256),
        training=replace(config.training, later_epochs=later_epochs, graphs=True),
    )


def folder() -> Config:
    """Your own images and masks (data.root), two classes first and then one at a time, with a pretrained ResNet-50."""
    config = _voc("2-1", WorldSpec(clients=5, joiners=1, per_round=3))
    return replace(config, name="folder", data=DataSpec("folder"), model=replace(PUBLISHED_NETWORK, encoder="resnet50"))


def folder_small() -> Config:
    """Your own images and masks (data.root), a small network from random weights, by sums: nothing is downloaded."""
    return replace(
        shapes(),
        name="folder-small",
        data=DataSpec("folder"),
        tasks=TaskSpec("2-1"),
        world=WorldSpec(clients=3, joiners=0, per_round=3, rounds=4, split="client-disjoint", class_ratio=1.0),
        method=method_for("folder", "analytic"),
        augment=AugmentSpec(crop=128),
        training=TrainingSpec(epochs=3, batch=8, first_rate=0.2, later_rate=0.02),
        evaluation=EvaluationSpec(size=128, batch=16, every="task"),
    )


def _voc(split: str, world: WorldSpec) -> Config:
    return Config(
        name=f"voc-{split}",
        data=DataSpec("voc"),
        tasks=TaskSpec(split),
        world=world,
        model=PUBLISHED_NETWORK,
        training=TrainingSpec(workers=8),
    )


PRESETS: dict[str, Callable[[], Config]] = {
    "shapes": shapes,
    "voc-15-1": voc_15_1,
    "voc-4-4": voc_4_4,
    "voc-8-2": voc_8_2,
    "ade-100-10": ade_100_10,
    "voc-15-1-small": voc_15_1_small,
    "voc-4-4-small": voc_4_4_small,
    "voc-8-2-small": voc_8_2_small,
    "ade-100-10-small": ade_100_10_small,
    "folder": folder,
    "folder-small": folder_small,
}


def preset(name: str) -> Config:
    """A ready-made config.

    Args:
        name: One of `fiss.list_presets()`.

    Returns:
        A frozen value; `.replace(...)` gives another one.

    Example:
        >>> fiss.preset("voc-15-1").replace(seed=1, training={"batch": 12})
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]()


def exact_label(config: Config) -> str | None:
    """The name that stands for exactly this method under this preset, such as fbl or fbl-without-pod; None if its
    fields were changed."""
    if config.joint:
        return "joint"
    for name in methods.METHODS:
        value = method_for(config.data.name, name)
        if value == config.method:
            return name
        for part in value.ablations:
            if type(value) is type(config.method) and methods.ablate(value, part) == config.method:
                return f"{name}-without-{part}"
    return None


def label(config: Config) -> str:
    """What to call the method of a run."""
    return exact_label(config) or methods.name_of(config.method).rsplit(":", 1)[-1].lower()


def choose(
    what: str | Path | Config,
    method: str | Method = "",
    ablate: Sequence[str] = (),
    settings: Sequence[str] | Mapping[str, Any] = (),
    seed: int | None = None,
    base: Path | None = None,
    joint: bool = False,
    monitor: str = "",
) -> Config:
    """A preset, a config file or a config, changed as the command line asks; settings come last."""
    if isinstance(what, Config):
        config = what
    else:
        if Path(what).is_dir() and str(what) not in PRESETS:
            open_dataset(recognise(Path(what)))  # says what to do about data of another kind
            raise UserError(f"{what} is a folder and no preset. `fiss start {what}` proposes a run with it.")
        config = read_toml(Path(what)) if str(what).endswith(".toml") else preset(str(what))
    if isinstance(method, Method):
        config, method = config.replace(method=method), ""
    changes = dict(settings if isinstance(settings, Mapping) else parse_settings(list(settings)))
    named = {key: name for key, name in (("method.name", method), ("monitor.name", monitor)) if name}
    own = {k: changes.pop(k) for k in list(changes) if k.startswith("method.") and k != "method.name"}
    config = with_settings(config, named | changes)
    for part in ablate:
        config = replace(config, method=methods.ablate(config.method, part))
    given = {"seed": seed, "base": str(base) if base else None, "joint": joint or None}
    return with_settings(config, own).replace(**{k: v for k, v in given.items() if v is not None})
