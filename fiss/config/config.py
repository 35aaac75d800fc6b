"""The config of a run: one frozen value, checked when it is made, written as one complete TOML file and accepted
back.

Each section is the dataclass of the room it belongs to. There are no includes and no merging; an unknown key is an
error that names the nearest one. All that is wrong with a config is said at once.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from fiss import methods
from fiss.config.section import Problems, build, meanings
from fiss.data.reading import Reading
from fiss.data.sources import DataSpec
from fiss.data.transforms import AugmentSpec
from fiss.errors import UserError, check_least, unknown
from fiss.federation.spec import FederationSpec, TaskSpec, WorldSpec
from fiss.methods.base import Method
from fiss.methods.finetune import Finetune
from fiss.models.segmenter import ModelSpec
from fiss.monitors.rules import MonitorSpec
from fiss.training.spec import EvaluationSpec, TrainingSpec


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; its fields are the keys and sections of config.toml.

    Example:
        >>> fiss.preset("shapes").replace(seed=1, training={"epochs": 1})
    """

    name: str = "run"
    """Name of the run folder, unless --out gives one."""
    seed: int = 2023
    """Of everything random: selection, draws, order, augmentation, new weights."""
    joint: bool = False
    """The upper bound: one site with all images and labels, as many steps as the federation would make."""
    base: str = ""
    """A run folder whose model after the first task this run starts from; empty: train it."""
    keep: int = 2
    """Rounds whose weights are kept, besides those after every task."""
    method: Method = field(default_factory=Finetune)
    """`name` is one that `fiss methods` lists, or package.module:Class; the rest are that method's own fields."""
    data: DataSpec = field(default_factory=DataSpec)
    tasks: TaskSpec = field(default_factory=TaskSpec)
    world: WorldSpec = field(default_factory=WorldSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    augment: AugmentSpec = field(default_factory=AugmentSpec)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    federation: FederationSpec = field(default_factory=FederationSpec)
    monitor: MonitorSpec = field(default_factory=MonitorSpec)
    evaluation: EvaluationSpec = field(default_factory=EvaluationSpec)

    def __post_init__(self) -> None:
        check_least("", self, 1, "keep")
        assert self.reading
        if self.joint and self.base:
            raise UserError("joint and base exclude each other: joint training has no first task to take over.")

    @property
    def reading(self) -> Reading:
        """How an image becomes what the network is given."""
        return Reading(self.data.window, self.model.channels)

    def replace(self, /, **changes: Any) -> "Config":
        """The config with those fields changed: `config.replace(seed=3, training={"epochs": 1}, method="fbl")`.

        A section may be a dictionary of what changes in it. A method may also be a name, or a dictionary with one:
        the name that it has keeps its fields, another comes with the coefficients published for the data set.
        """
        method, made = changes.pop("method", {}), self
        with Problems() as problems:
            with problems.collected():
                made = build(self, changes)
            with problems.collected():
                made = build(made, {"method": _method(made, method)})
        return made


ADE20K_POD = {"pod_features": 0.001, "pod_logits": 0.00001}
COEFFICIENTS: dict[str, dict[str, dict[str, float]]] = {
    "ade20k": {
        "mib": {"distillation": 1.0},
        "plop": ADE20K_POD,
        "plop-reference": ADE20K_POD,
        "rcil": {"distillation": 5.0},
        "rcil-reference": {"distillation": 5.0},
        "fbl": {**ADE20K_POD, "proportion_step": 0.05},
        "fbl-reference": {**ADE20K_POD, "proportion_step": 0.05},
    }
}
"""What the published runs set differently for a data set, by method."""


def method_for(data: str, name: str) -> Method:
    """The method of that name with the coefficients of the published runs on that data set."""
    return build(methods.find(name), COEFFICIENTS.get(data, {}).get(name, {}))


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain values, sections as dictionaries."""

    def plain(value: Any) -> Any:
        if is_dataclass(value):
            head = {"name": methods.name_of(value)} if isinstance(value, Method) else {}
            return head | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, tuple) else value

    return dict(plain(config))


def _method(config: Config, value: Any) -> Any:
    """The method that a config's section, or a name, stands for."""
    value = {"name": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        return value
    own = {key: part for key, part in value.items() if key != "name"}
    name = value.get("name", methods.name_of(config.method))
    known = name == methods.name_of(config.method)
    return build(config.method if known else method_for(config.data.name, str(name)), own, "method.")


def from_dict(values: Mapping[str, Any]) -> Config:
    """The config those values describe; what is left out has its default."""
    return Config().replace(**values)


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config with `section.key` replaced; a string is read as after --set: as TOML, a bare word as a string."""
    own = {key: value for key, value in settings.items() if key.startswith("method.") and key != "method.name"}
    if own and len(own) < len(settings):  # fields of the method that the other settings choose
        return with_settings(with_settings(config, {k: v for k, v in settings.items() if k not in own}), own)
    values = to_dict(config)
    known, changes = flat(values), dict[str, Any]()
    with Problems() as problems:
        for key, value in settings.items():
            with problems.collected():
                *path, last = key.split(".")
                place: Any = values
                for part in path:
                    place = place.get(part) if isinstance(place, dict) else None
                open_ended = path == ["model", "options"]
                section = isinstance(place, dict) and isinstance(place.get(last), dict) and key != "model.options"
                if not isinstance(place, dict) or (last not in place and not open_ended) or section:
                    raise unknown("key", key, known)
                place[last] = _value(value, place.get(last)) if isinstance(value, str) else value
                top, *below = [*path, last][:2]
                if below:
                    changes.setdefault(top, {})[below[0]] = values[top][below[0]]
                else:
                    changes[top] = values[top]
        with problems.collected():
            config = config.replace(**changes)
    return config


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of the command line."""
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"--set {pair}: expected key=value, for example --set training.batch=8.")
    return {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in pairs)}


def _value(text: str, present: Any) -> Any:
    if isinstance(present, str):
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        if isinstance(present, list) and "[" not in text:
            return [part.strip() for part in text.split(",") if part.strip()]
        return text


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def to_toml(config: Config, reasons: Mapping[str, str] | None = None) -> str:
    """The complete config as TOML, every key with what it means, and why it is so where there are reasons."""
    values, why = to_dict(config), reasons or {}
    lines = ["# The complete config of a run; `fiss run THIS_FILE` repeats it.", ""]
    lines += _section(Config, {k: v for k, v in values.items() if not isinstance(v, dict)}, why, "")
    for spec in fields(config):
        if isinstance(values[spec.name], dict):
            lines += [
                "",
                f"[{spec.name}]",
                *_section(type(getattr(config, spec.name)), values[spec.name], why, f"{spec.name}."),
            ]
    return "\n".join(lines) + "\n"


def _section(kind: type[Any], values: Mapping[str, Any], reasons: Mapping[str, str], before: str) -> list[str]:
    lines: list[str] = []
    texts = meanings(kind)
    for key, value in values.items():
        lines += [f"# {line}" for line in wrap(texts.get(key, ""), 116)]
        lines += [f"# Here: {line}" for line in wrap(reasons.get(before + key, ""), 110)]
        if isinstance(value, Mapping):
            lines.append(f"{key} = {{ {', '.join(f'{json.dumps(k)} = {_toml(v)}' for k, v in value.items())} }}")
        else:
            lines.append(f"{key} = {_toml(value)}")
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


def from_toml(text: str) -> Config:
    """A config from TOML."""
    return from_dict(tomllib.loads(text))


def read_toml(path: Path) -> Config:
    """A config from a TOML file."""
    try:
        return from_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: unreadable ({error}).") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML ({error}).") from error
