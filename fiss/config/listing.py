"""What there is by name, with a line each. The lists are read from the sources, so that nothing is imported for them
and they are there at once."""

import ast
from functools import cache
from pathlib import Path

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


@cache
def _listed(module: str, table: str) -> dict[str, str]:
    """For each key of a literal table, the first paragraph of the docstring of what the key stands for."""
    body = _body(module)
    found = next(
        node.value
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table
    )
    assert isinstance(found, ast.Dict)
    homes = {
        alias.name: f"{node.module}".removeprefix("fiss.")
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lines = {}
    for key, value in zip(found.keys, found.values, strict=True):
        assert isinstance(key, ast.Constant)
        if isinstance(value, ast.Attribute):  # module.name
            assert isinstance(value.value, ast.Name)
            where, name = f"{homes[value.value.id]}.{value.value.id}", value.attr
        else:
            assert isinstance(value, ast.Name)
            where, name = homes.get(value.id, module), value.id
        lines[str(key.value)] = _first_paragraph(where, name)
    return lines


def _first_paragraph(module: str, name: str) -> str:
    for node in _body(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    raise AssertionError(f"{module} has no {name}")


@cache
def _body(module: str) -> list[ast.stmt]:
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")).body
