"""Decisions as tests: the direction of imports, the size of files, the rooms that docs/design.md names."""

import ast
from pathlib import Path

import pytest
from rooms import LEVELS, MODULES, ROOT, room, written


def level(name: str) -> int:
    return next(i for i, rooms in enumerate(LEVELS) if name in rooms)


def imported(path: Path) -> set[str]:
    """The rooms that a module imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "fiss":
            found |= {f"fiss.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    parts = [name.split(".") for name in found if name == "fiss" or name.startswith("fiss.")]
    return {p[1] if p[1:] and p[1] in set().union(*LEVELS) else "fiss" for p in parts}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    here = room(path)
    for there in imported(path):
        assert there == here or level(there) < level(here), f"{here} imports {there}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_one_thing_and_says_what_it_is_for(path):
    text = path.read_text()
    assert text.count("\n") <= 350
    assert ast.get_docstring(ast.parse(text))


def test_only_known_rooms():
    """No loose modules; py.typed says that the types are meant to be used."""
    there = {p.name for p in (ROOT / "fiss").iterdir()} - {"__pycache__"}
    rooms = {name if (ROOT / "fiss" / name).is_dir() else f"{name}.py" for name in set().union(*LEVELS) - {"fiss"}}
    assert there == rooms | {"__init__.py", "py.typed"}
    assert len(there) <= 27


def test_the_design_names_every_room_and_module():
    text = (ROOT / "docs" / "design.md").read_text()
    assert written(text) == text, "python tests/support/rooms.py writes it"
    assert all(f"{path.name}  " in text for path in MODULES if path.name != "__init__.py")


def test_ci_is_make_test():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
