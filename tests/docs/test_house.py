"""Decisions as tests: the direction of imports, the size of files, the rooms that docs/design.md names."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch
from command_line import fiss as command_line
from rooms import LEVELS, MODULES, PATH, ROOT, lines_of, room, written

from fiss.config.config import to_toml


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


def test_no_file_of_the_pages_is_long_either():
    for path in (ROOT / "fiss").rglob("*.*"):
        assert path.suffix not in (".js", ".css", ".html") or path.read_text().count("\n") <= 350, path


def test_only_known_rooms():
    """No loose modules; py.typed says that the types are meant to be used."""
    there = {p.name for p in (ROOT / "fiss").iterdir()} - {"__pycache__"}
    rooms = {name if (ROOT / "fiss" / name).is_dir() else f"{name}.py" for name in set().union(*LEVELS) - {"fiss"}}
    assert there == rooms | {"__init__.py", "py.typed"}
    assert len(there) <= 27


def test_the_design_names_every_room_and_module():
    text = (ROOT / "docs" / "design.md").read_text()
    now, then = (re.sub(r"\| \d+ \|", "| N |", page) for page in (written(text), text))  # lines as they were written
    assert now == then, "python tests/support/rooms.py writes it"
    assert all(f"{path.name}  " in text for path in MODULES if path.name != "__init__.py")


def test_one_round_is_read_in_ten_minutes():
    assert len(PATH) <= 14
    assert sum(lines_of(ROOT / "fiss" / name) for name in PATH) <= 2200


def test_the_path_of_one_round_is_the_call_stack_of_a_logarithm(tiny, tmp_path, monkeypatch):
    """From the command line down to the cross-entropy of FBL's second task."""
    seen: set[str] = set()
    real = torch.nn.functional.log_softmax

    class SeenError(Exception):
        """It was there."""

    def log_softmax(*given, **named):
        files = {Path(frame.filename) for frame in inspect.stack(0)}
        inside = {str(p.relative_to(ROOT / "fiss")) for p in files if p.is_relative_to(ROOT / "fiss")}
        if {"methods/fbl.py", "simulation/in_process.py"} <= inside:
            seen.update(inside)
            raise SeenError
        return real(*given, **named)

    monkeypatch.setattr(torch.nn.functional, "log_softmax", log_softmax)
    (tmp_path / "tiny.toml").write_text(to_toml(tiny))
    with pytest.raises(SeenError):
        command_line(
            "run", tmp_path / "tiny.toml", "--method", "fbl", "--set", "world.rounds=1", "--out", tmp_path / "r"
        )
    assert "models/output.py" in seen
    assert seen <= PATH.keys()


def test_the_readme_is_a_screen_and_a_half():
    assert len((ROOT / "README.md").read_text().split()) <= 900
    assert "make test" in (ROOT / ".ci" / "run").read_text()
