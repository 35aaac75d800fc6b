"""How a section of a config is checked: all that is wrong with it is said at once.

Values from a file, a command line or Python become a frozen dataclass. Types are strict: nothing is converted but a
list into a tuple and a whole number into a float.
"""

import ast
import inspect
import json
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from sys import float_info
from textwrap import dedent
from types import TracebackType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fiss.errors import UserError, unknown

Section = TypeVar("Section")


class Problems(list[str]):
    """Errors that are raised together when a `with` block ends."""

    def __enter__(self) -> "Problems":
        return self

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep what a user can put right for later."""
        try:
            yield
        except UserError as error:
            self.append(str(error))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self and error is None:
            raise UserError("\n".join(dict.fromkeys(self)))


def build(default: Section, values: Mapping[str, Any], where: str = "") -> Section:
    """`default`, a dataclass, with those values, each checked against the type of its field; `where` comes before the
    names of keys in errors."""
    hints, made = get_type_hints(type(default)), dict[str, Any]()
    known = [f.name for f in fields(default)]  # type: ignore[arg-type]
    with Problems() as problems:
        for key, value in values.items():
            with problems.collected():
                if key not in known:
                    raise unknown("key", where + key, [where + k for k in known])
                present = getattr(default, key)
                if is_dataclass(present) and isinstance(value, Mapping):
                    made[key] = build(present, value, f"{where}{key}.")
                else:
                    made[key] = _checked(value, hints[key], where + key)
    return replace(default, **made)  # type: ignore[type-var]


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type that `hint` asks for, or an error that says what was expected."""
    origin, arguments = get_origin(hint), get_args(hint)
    if inspect.isclass(hint) and is_dataclass(hint) and isinstance(value, hint):
        return value
    if origin is Literal:
        if value in arguments and isinstance(value, str):
            return value
        if isinstance(value, str):
            raise unknown(f"value of {where}", value, arguments)
    elif origin is tuple and isinstance(value, (list, tuple)):
        inner = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(inner) == len(value):
            return tuple(_checked(v, h, f"{where}[{i}]") for i, (v, h) in enumerate(zip(value, inner, strict=True)))
    elif inspect.isclass(origin) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        found: dict[str, Any] = {}
        with Problems() as problems:
            for key, part in value.items():
                with problems.collected():
                    found[str(key)] = _checked(part, arguments[1], f"{where}.{key}")
        return found
    elif origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return _checked(value, option, where)
            except UserError:
                continue
    elif hint is float and type(value) in (int, float) and abs(value) <= float_info.max:
        return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise UserError(f"{where} = {json.dumps(value, default=str)}: expected {in_words(hint)}.")


def meanings(kind: type[Any]) -> dict[str, str]:
    """The string under each field of a config dataclass and of those it extends."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # a class of a notebook's cell has no file
            continue
        body = ast.parse(dedent(source)).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                text = getattr(following.value, "value", None)
                if isinstance(text, str) and isinstance(statement.target, ast.Name):
                    found[statement.target.id] = " ".join(text.split())
    return found


def in_words(hint: Any) -> str:
    """What may stand for a type, as a person would say it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(map(in_words, arguments))
    if origin is tuple:
        some = "a list of" if arguments[-1] is Ellipsis else f"a list of {len(arguments)}:"
        return f"{some} {in_words(arguments[0])}"
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return names.get(hint, "a section of keys" if is_dataclass(hint) else "another type")
