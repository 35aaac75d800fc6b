"""What there is by name, with a line each. The lists are read from the sources, so that nothing is imported for them
and they are there at once."""

import ast
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, NamedTuple

from fiss.config.section import in_words

ROOT = Path(__file__).parents[1]


def list_methods() -> dict[str, str]:
    """The methods by name.

    Returns:
        By name, what each is.

    Example:
        >>> fiss.list_methods()["fbl"]
    """
    return _listed("methods", "METHODS")


def list_presets() -> dict[str, str]:
    """The ready-made configs.

    Returns:
        By name, what each is.

    Example:
        >>> fiss.list_presets()["shapes"]
    """
    return _listed("config.presets", "PRESETS")


class MethodField(NamedTuple):
    """What can be set about a method."""

    takes: str
    has: Any
    meaning: str


def method_fields(method: str) -> tuple[dict[str, MethodField], tuple[str, ...]]:
    """The fields of a method of the table, and its parts that can be taken out."""
    module, name = _places("methods", "METHODS")[method]
    node, given = _found(module, name), dict[str, Any]()
    if isinstance(node, ast.FunctionDef):  # a reading of a method: `return FBL(field=value, ...)`
        call = next(line.value for line in node.body if isinstance(line, ast.Return))
        assert isinstance(call, ast.Call)
        given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        module, name = _home(module, call.func)
    fields, parts = dict[str, MethodField](), ()
    for where, kind in _with_bases(module, name):
        for line, following in pairwise([*kind.body, ast.Pass()]):
            if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name) or line.value is None:
                continue
            key = line.target.id
            if ast.unparse(line.annotation).startswith("ClassVar"):
                parts = tuple(ast.literal_eval(line.value)) if key == "ablations" else parts
                continue
            under = following.value if isinstance(following, ast.Expr) else None
            text = under.value if isinstance(under, ast.Constant) else None
            meaning = " ".join(text.split()) if isinstance(text, str) else fields[key].meaning if key in fields else ""
            has = given.get(key, ast.literal_eval(line.value))
            fields[key] = MethodField(in_words(_hint(where, line.annotation)), has, meaning)
    return fields, parts


def _with_bases(module: str, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class of ours after those it extends, each with its module."""
    node = _found(module, name)
    assert isinstance(node, ast.ClassDef)
    for base in node.bases:
        if ast.unparse(base) != "ABC":
            yield from _with_bases(*_home(module, base))
    yield module, node


def _hint(module: str, node: ast.expr) -> Any:
    """The type that an annotation stands for, also one that has a name of ours."""
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if ast.unparse(node.value) == "Literal":
            return Literal[tuple(map(ast.literal_eval, inner))]
        return GenericAlias(tuple, (_hint(module, inner[0]), ...))
    known = {"int": int, "float": float, "str": str, "bool": bool}
    if (text := ast.unparse(node)) in known:
        return known[text]
    where, name = _home(module, node)
    alias = next(line for line in _body(where) if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name)
    return _hint(where, alias.value)


@cache
def _listed(module: str, table: str) -> dict[str, str]:
    """For each key of a literal table, the first paragraph of the docstring of what the key stands for."""
    found = {key: ast.get_docstring(_found(*place)) or "" for key, place in _places(module, table).items()}
    return {key: " ".join(text.split("\n\n")[0].split()) for key, text in found.items()}


def _places(module: str, table: str) -> dict[str, tuple[str, str]]:
    """For each key of a literal table, the module and name of what the key stands for."""
    found = next(
        node.value
        for node in _body(module)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table
    )
    assert isinstance(found, ast.Dict)
    return {
        ast.literal_eval(key): _home(module, value) for key, value in zip(found.keys, found.values, strict=True) if key
    }


def _home(module: str, node: ast.expr) -> tuple[str, str]:
    """Where `name` or `module.name` of a module is defined, and as what."""
    homes = {
        alias.name: f"{line.module}".removeprefix("fiss.")
        for line in _body(module)
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    if isinstance(node, ast.Attribute):
        name = ast.unparse(node.value)
        return f"{homes[name]}.{name}", node.attr
    name = ast.unparse(node)
    return homes.get(name, module), name


def _found(module: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    return next(
        line for line in _body(module) if isinstance(line, ast.FunctionDef | ast.ClassDef) and line.name == name
    )


@cache
def _body(module: str) -> list[ast.stmt]:
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")).body
