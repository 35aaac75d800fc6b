"""The site: its pages from the code are complete, its drawings and notebook are as they are made, it builds."""

import json
import os
import subprocess
import sys
from dataclasses import fields, is_dataclass
from types import ModuleType

import pytest
from rooms import ROOT

import fiss
from fiss.config.config import Config, flat, to_dict
from fiss.methods import METHODS

sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "drawings")]
import draw  # noqa: E402
import generate  # noqa: E402


def test_every_config_key_is_on_its_page():
    page = generate.config_page()
    keys = [key for key in flat(to_dict(Config())) if not key.startswith(("method.", "model.options"))]
    keys += [f"method.{f.name}" for make in METHODS.values() for f in fields(make())]
    assert len(keys) > 80
    assert [key for key in keys if f"| `{key}` |" not in page] == []


def test_every_command_and_option_is_on_its_page():
    page = generate.commands_page()
    found = dict(generate.commands())
    assert {"fiss run", "fiss data import", "fiss federation init"} <= found.keys()
    for name, command in found.items():
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        options = [opt for p in command.params if p.param_type_name == "option" for opt in p.opts]
        assert [opt for opt in options if f"`{opt}`" not in section and opt != "--help"] == [], name


def test_every_record_and_public_name_is_on_its_page():
    assert all(f"::: fiss.{name}\n" in generate.api_page() for name in fiss.__all__)
    page = generate.files_page()
    for name in ("RoundRecord", "ScoreRecord", "ReplyRecord", "Splits"):
        kind = getattr(generate.records, name)
        assert is_dataclass(kind)
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        assert all(f"| `{f.name}` |" in section for f in fields(kind))
    names = generate.names_page()
    assert all(f"| `{name}` |" in names for name in [*fiss.list_methods(), *fiss.list_presets()])


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_drawings_are_as_the_script_makes_them(name):
    path = ROOT / "docs" / "drawings" / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == draw.DRAWINGS[name]().svg(), "python docs/drawings/draw.py writes it"


def test_every_drawing_is_on_a_page():
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert all(f"drawings/{name}.svg)" in pages for name in draw.DRAWINGS)


TINY = """
config = config.replace(
    data={"shapes_train": 40, "shapes_val": 8, "shapes_size": 48}, world={"rounds": 1, "clients": 2, "joiners": 0},
    augment={"crop": 48}, training={"epochs": 1, "batch": 4, "threads": 1, "device": "cpu"}, evaluation={"size": 48},
)
"""


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    """Its ten cells, at a tiny size."""
    monkeypatch.chdir(tmp_path)
    book = json.loads((ROOT / "docs" / "tutorials" / "notebook.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 10
    module = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, cell in enumerate(cells):
        exec(compile(cell + (TINY if number == 1 else ""), f"cell {number + 1}", "exec"), module.__dict__)
    assert [run.scores[-1].task for run in (module.finetune, module.fbl, module.sure)] == [2, 2, 2]
    assert "sure" in module.sure.rounds[-1].replies[0].losses
    assert "| sure |" in fiss.compare([module.fbl, module.sure]).markdown()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "//fonts." not in text, page
        assert "//unpkg" not in text, page
        assert '<script src="http' not in text, page
    assert (tmp_path / "reference" / "api.html").read_text(encoding="utf-8").count("doc-heading") > 50
