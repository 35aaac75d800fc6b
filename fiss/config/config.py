"""The config of a run: one frozen value, checked when it is made, written as one complete TOML file and accepted
back.

Each section is the dataclass of the room it belongs to. There are no includes and no merging; an unknown key is an
error that names the nearest one.
"""

import ast
import inspect
import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import isfinite
from pathlib import Path
from textwrap import dedent, wrap
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fiss import methods
from fiss.data.sources import DataSpec
from fiss.data.transforms import AugmentSpec
from fiss.errors import UserError, unknown
from fiss.federation.spec import FederationSpec, TaskSpec, WorldSpec
from fiss.methods.base import Method
from fiss.methods.finetune import Finetune
from fiss.models.segmenter import ModelSpec
from fiss.monitors.rules import MonitorSpec
from fiss.training.spec import EvaluationSpec, TrainingSpec


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

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
        if self.keep < 1:
            raise UserError(f"keep = {self.keep}: must be 1 or more.")
        if self.joint and self.base:
            raise UserError("joint and base exclude each other: joint training has no first task to take over.")


COMPUTED = tuple(f"training.{key}" for key in ("device", "workers", "threads", "cache", "compile", "graphs"))
"""Keys that say how a run is computed: by more than rounding they do not decide what comes out."""


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


def from_dict(values: Mapping[str, Any]) -> Config:
    """The config those values describe; what is left out has its default."""
    values = dict(values)
    section = values.get("method", {})
    if not isinstance(section, Mapping):
        raise UserError("method must be a section: [method] with name = ...")
    method = methods.find(str(section.get("name", Finetune.name)))
    own = {k: v for k, v in section.items() if k != "name"}
    config: Config = _build(Config(), values | {"method": _build(method, own, "method.")}, "")
    return config


def with_settings(config: Config, settings: Mapping[str, str]) -> Config:
    """The config with `section.key` replaced by values written as in TOML; a bare word is a string."""
    values = to_dict(config)
    for key, text in settings.items():
        known = flat(values)
        *path, last = key.split(".")
        place: Any = values
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        open_ended = path == ["model", "options"]
        section = isinstance(place, dict) and isinstance(place.get(last), dict) and key != "model.options"
        if not isinstance(place, dict) or (last not in place and not open_ended) or section:
            raise unknown("key", key, known)
        place[last] = _value(key, text, place.get(last))
    return from_dict(values)


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of the command line."""
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"--set {pair}: expected key=value, for example --set training.batch=8.")
    return {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in pairs)}


def _value(key: str, text: str, present: Any) -> Any:
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


def _build(default: Any, values: Mapping[str, Any], where: str) -> Any:
    """`default` with those values, each checked against the type of its field."""
    hints = get_type_hints(type(default))
    known = {f.name: hints[f.name] for f in fields(default)}
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise unknown("key", where + key, [where + k for k in known])
        made[key] = _checked(value, known[key], where + key)
    return replace(default, **made)


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type that `hint` asks for, or an error that says what was expected."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if isinstance(value, Mapping):
            return _build(hint(), value, f"{where}.")
    elif origin is Literal:
        if value in arguments and isinstance(value, str):
            return value
        if isinstance(value, str):
            raise unknown(f"value of {where}", value, arguments)
    elif origin is tuple and isinstance(value, (list, tuple)):
        inner = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(inner) == len(value):
            return tuple(_checked(v, h, f"{where}[{i}]") for i, (v, h) in enumerate(zip(value, inner, strict=True)))
    elif inspect.isclass(origin) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {str(k): _checked(v, arguments[1], f"{where}.{k}") for k, v in value.items()}
    elif origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return _checked(value, option, where)
            except UserError:
                continue
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise UserError(f"{where} = {json.dumps(value, default=str)}: expected {_words(hint)}.")


def _words(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        some = "a list of" if arguments[-1] is Ellipsis else f"a list of {len(arguments)}:"
        return f"{some} {_words(arguments[0])}"
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return names.get(hint, "a section of keys" if is_dataclass(hint) else "another type")


def to_toml(config: Config) -> str:
    """The complete config as TOML, every key with what it means."""
    values = to_dict(config)
    lines = ["# The complete config of a run; `fiss run THIS_FILE` repeats it.", ""]
    lines += _section(Config, {k: v for k, v in values.items() if not isinstance(v, dict)})
    for spec in fields(config):
        if isinstance(values[spec.name], dict):
            lines += ["", f"[{spec.name}]", *_section(type(getattr(config, spec.name)), values[spec.name])]
    return "\n".join(lines) + "\n"


def _section(kind: type[Any], values: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    texts = meanings(kind)
    for key, value in values.items():
        lines += [f"# {line}" for line in wrap(texts.get(key, ""), 116)]
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


def meanings(kind: type[Any]) -> dict[str, str]:
    """The string under each field of a config dataclass and of those it extends."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        body = ast.parse(dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                text = getattr(following.value, "value", None)
                if isinstance(text, str) and isinstance(statement.target, ast.Name):
                    found[statement.target.id] = " ".join(text.split())
    return found


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
