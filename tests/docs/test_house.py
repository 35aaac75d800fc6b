"""Decisions as tests: the direction of imports, the size of files, the README's tour, the documents' commands."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from fiss.cli.main import app
from fiss.config.presets import PRESETS

ROOT = Path(__file__).parents[2]
LEVELS = [
    {"errors", "rng", "progress"},
    {"labels", "ops"},
    {"data", "models", "losses", "metrics"},
    {"monitors", "methods"},
    {"training"},
    {"federation"},
    {"config"},
    {"runs"},
    {"flare"},
    {"simulation"},
    {"deployment"},
    {"reports"},
    {"predict"},
    {"cli"},
    {"__main__"},
]
MODULES = sorted((ROOT / "fiss").rglob("*.py"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def level(name: str) -> int:
    return next(i for i, rooms in enumerate(LEVELS) if name in rooms)


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "fiss":
            names |= {f"fiss.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("fiss.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts == ("fiss", "__init__"):
        return
    here = parts[1]
    for name in imported(path):
        there = room(name)
        assert there == here or level(there) < level(here), f"{here} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_one_room_and_says_what_it_is_for(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    assert ast.get_docstring(ast.parse(text))


def test_only_known_rooms():
    rooms = {path.relative_to(ROOT / "fiss").parts[0].removesuffix(".py") for path in MODULES} - {"__init__"}
    assert rooms == set().union(*LEVELS)


def test_the_readmes_tree_is_the_tree():
    """Every module stands in the README's file tree with a phrase, and nothing stands there that is not in the tree."""
    block = re.search(r"```\n(fiss/\n.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block
    listed, stack = set(), []
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, phrase = line.strip().partition("  ")
        stack = [*stack[:depth], name.rstrip("/")]
        assert name == "fiss/" or phrase.strip(), f"{name} has no phrase"
        if name.endswith(".py"):
            listed.add("/".join(stack))
    actual = {str(p.relative_to(ROOT)) for p in MODULES if p.name != "__init__.py" or p.parent.name == "methods"}
    assert listed == actual


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
