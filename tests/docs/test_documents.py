"""The documents: how they are written, their links, and every command and block of code in them."""

import ast
import inspect
import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import prose
import pytest
from command_line import fiss as command
from rooms import ROOT
from typer.main import get_command

import fiss
from fiss.cli.main import app
from fiss.config.presets import PRESETS, choose

TEXTS = prose.documents()
NOT_RUN = {
    "run": "minutes, or data", "start": "minutes, and data", "sweep": "hours, and data", "resume": "a run",
    "table": "runs", "compare": "runs", "picture": "runs", "report": "runs", "monitors": "runs", "eval": "a run",
    "predict": "a run", "export": "a run", "extend": "a run", "forget": "a run", "verify": "a run", "web": "runs",
    "data": "data", "federation": "machines", "demo": "minutes",
}  # fmt: skip
"""Commands that are parsed only, and what they need; others are run."""


def blocks(*kinds: str) -> list[tuple[str, str]]:
    """Fenced blocks of these kinds, with the document they are in."""
    return [
        (str(text.relative_to(ROOT)), block)
        for text in TEXTS
        for kind, block in re.findall(r"^```(\w+)\n(.*?)^```", text.read_text(encoding="utf-8"), re.S | re.M)
        if kind in kinds
    ]


def lines() -> list[tuple[str, str]]:
    return [
        (where, line.strip())
        for where, block in blocks("sh", "bash", "console")
        for line in block.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub and the site make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower()).replace("`", "")
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


PAGES_MADE = ("reference/", "tutorials/notebook.md", "project/")
"""Pages that exist on the site only: `mkdocs build --strict` checks links to them."""


@pytest.mark.parametrize("text", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_it_is_written_as_agreed(text):
    assert prose.problems(text) == []


def test_the_rules_of_prose_find_what_is_against_them(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    text = tmp_path / "README.md"
    text.write_text(
        f"# A heading is no sentence {'word ' * 40}\n\n"
        f"{'word ' * 31}.\n\nShort. It has 3 of 4 and 5.5 here.\nVOC 2012 has 20 classes in 15-1, `7` times 2.\n\n"
        f"- {'item ' * 20}\n- {'item ' * 20}\n\n| {'cell ' * 100}|\n\n```\n{'code ' * 40}\n```\n\n{'x' * 241}\n"
    )
    found = [problem.split(": ", 1)[1] for problem in prose.problems(text)]
    assert [problem[:16] for problem in found] == ["a line of 241 ch", "a sentence of 31", "3 numbers in a s"]


@pytest.mark.parametrize("text", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_exist(text):
    words = text.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)", words):
        there = text.parent / target if target else text
        made = (ROOT / "docs") in there.resolve().parents and any(
            str(there.resolve().relative_to(ROOT / "docs")).startswith(page) for page in PAGES_MADE
        )
        assert made or there.exists(), target
        if anchor and not made and there.suffix == ".md":
            assert anchor in anchors(there), f"{target}#{anchor}"
    for name in re.findall(r"`((?:fiss|docs|tests|benchmarks)/[\w/.-]+)`", words):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(("where", "line"), [pair for pair in lines() if pair[1].startswith("fiss ")])
def test_commands_are_understood(where, line, capsys):
    """Each `fiss ...` line names a command, options and presets that exist, and keys that the config has; what needs
    no data and no time is run."""
    words = shlex.split(line, comments=True)[1:]
    if words[0] not in NOT_RUN:
        command(*words)
        assert capsys.readouterr().out
        return
    found = get_command(app)
    while hasattr(found, "commands") and words and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    assert not hasattr(found, "commands"), line
    values = found.make_context("fiss", list(words)).params
    if found.name in ("run", "init") and "what" in values and not values["what"].endswith(".toml"):
        assert values["what"] in PRESETS
        settings, parts = list(values["setting"] or ()), list(values.get("ablate") or ())
        method = "" if ":" in (values["method"] or "") else values["method"]
        if method != values["method"]:  # from outside: its own fields are not known here
            settings = [s for s in settings if not s.startswith("method.")]
        choose(values["what"], method, parts, settings, values.get("seed"), None, False)


@pytest.mark.parametrize(("where", "line"), [pair for pair in lines() if not pair[1].startswith("fiss ")])
def test_other_commands_name_what_is_there(where, line):
    first, *words = (word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word))
    if first == "make":
        assert re.search(rf"^{words[-1]}:", (ROOT / "Makefile").read_text(), re.M)
    elif first == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert [extra for word in words for extra in re.findall(r"\[([\w,]+)\]", word) if extra not in extras] == []
    elif first in ("python", "sh") and not words[0].startswith("-"):
        assert (ROOT / words[0]).exists()
    elif first == "bash":
        assert words[0].endswith("startup/start.sh")  # of a kit
    else:
        assert first in ("touch", "cp", "rm", "source", "ssh", "sh", "python", "git", "cd", "podman", "docker"), line


@pytest.mark.parametrize(("where", "block"), blocks("python", "json", "toml"))
def test_blocks_of_code_are_understood(where, block):
    """What they call of the API is there and takes what it is given. The notebook and the method of add-a-method.md are
    run by tests of their own."""
    if block.lstrip().startswith("{"):
        assert json.loads(block)
        return
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fiss"):
            module = __import__(node.module, fromlist=["x"])
            assert all(hasattr(module, alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fiss":
            assert node.attr in fiss.__all__
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"fiss.{name}" for name in fiss.__all__}:
            given = {keyword.arg: None for keyword in node.keywords}
            inspect.signature(getattr(fiss, node.func.attr)).bind(*node.args, **given)


def test_there_are_commands_and_blocks_to_check():
    assert len(lines()) >= 80
    assert len(blocks("python")) >= 3


def test_folders_of_the_tutorials_are_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = [line for _, line in lines() if "draw_folder.py" in line]
    assert len(drawn) == 5
    for line in drawn:
        _, _, folder, classes, *rest = shlex.split(line)
        rest = [*rest[: rest.index("--count")], "--count", "2"]
        monkeypatch.setattr(sys, "argv", ["draw_folder.py", folder, classes, *rest])
        runpy.run_path(str(ROOT / "docs" / "tutorials" / "draw_folder.py"), run_name="__main__")
        found = fiss.check_data(folder, progress=False)
        assert found.dataset.classes == tuple(classes.split(","))
    assert len(list((tmp_path / "north" / "images").iterdir())) == 4


def test_the_version_is_the_changelogs_and_the_citations():
    newest = re.search(r"^## (\d+\.\d+\.\d+), (\d{4}-\d\d-\d\d): ", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest[1] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {newest[1]}\n" in citation
    assert f"\ndate-released: {newest[2]}\n" in citation
