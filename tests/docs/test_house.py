"""Decisions as tests: the direction of imports, the size of files, the README's tour, the documents' commands."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from rooms import LEVELS, MODULES, ROOT, room, written
from typer.main import get_command

from fiss.cli.main import app
from fiss.config.presets import PRESETS

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def test_links_and_paths_in_the_documents_exist():
    for text in TEXTS:
        for target in re.findall(r"\]\(([^)#]+?)\)", text.read_text()):
            assert (text.parent / target).exists(), f"{text.name}: {target}"
        for name in re.findall(r"`((?:fiss|docs|tests|benchmarks)/[\w/.-]+)`", text.read_text()):
            assert (ROOT / name).exists(), f"{text.name}: {name}"


def commands() -> list[tuple[str, str]]:
    found = []
    for text in TEXTS:
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text.read_text(), re.S):
            found += [(text.name, line.strip()) for line in block.splitlines() if line.strip().startswith("fiss ")]
    return found


@pytest.mark.parametrize(("where", "line"), commands())
def test_commands_in_the_documents_are_understood(where, line):
    """Each `fiss ...` line names a command, options and presets that exist, and keys that the config has."""
    words = shlex.split(line, comments=True)[1:]
    command = get_command(app)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), line
    context = command.make_context("fiss", list(words))
    if command.name == "run" and "what" in context.params:
        from fiss.config.presets import choose

        values = context.params
        if not values["what"].endswith(".toml"):
            assert values["what"] in PRESETS
            settings, parts = list(values["setting"] or ()), list(values["ablate"] or ())
            method = "" if ":" in (values["method"] or "") else values["method"]
            if method != values["method"]:  # from outside: its own fields are not known here
                settings = [s for s in settings if not s.startswith("method.")]
            choose(values["what"], method, parts, settings, values["seed"], None, False)


def test_there_are_commands_to_check():
    assert len(commands()) >= 8


def test_make_targets_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
    assert "make test" in (ROOT / ".ci" / "run").read_text()
