"""The public API: what it has, what it costs to import, and the README's example in a fresh interpreter."""

import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from command_line import fiss as command
from worlds import picture, save

import fiss
from fiss.config.config import to_toml

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "typer", "rich", "pydantic", "PIL", "matplotlib", "safetensors")
NAMES = [
    "FBL",
    "ILT",
    "PLOP",
    "RCIL",
    "Analytic",
    "Comparison",
    "Config",
    "DataCheck",
    "Document",
    "Export",
    "Extended",
    "Finetune",
    "Forgotten",
    "Imported",
    "LwF",
    "Method",
    "MiB",
    "Output",
    "Prediction",
    "Predictor",
    "Progress",
    "Proposal",
    "Run",
    "Step",
    "Sweep",
    "UserError",
    "check_data",
    "compare",
    "evaluate",
    "export",
    "extend",
    "forget",
    "import_data",
    "list_methods",
    "list_presets",
    "open_run",
    "picture",
    "preset",
    "propose",
    "report",
    "resume",
    "run",
    "sweep",
    "verify",
]


def python(code, folder):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exported_names():
    assert fiss.__all__ == NAMES
    assert set(NAMES) <= set(dir(fiss))
    with pytest.raises(AttributeError, match="nothing"):
        fiss.nothing  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_takes_and_gives_with_an_example(name):
    thing = getattr(fiss, name)
    text = inspect.getdoc(thing)
    assert "Example:" in text
    assert ">>>" in text
    if inspect.isfunction(thing):
        assert "Returns:" in text
        for argument in inspect.signature(thing).parameters:
            assert re.search(rf"^    {argument}: \w", text, re.M), argument
        assert "return" in thing.__annotations__


def test_importing_it_is_cheap(tmp_path):
    code = f"import sys, fiss; dir(fiss); print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(code, tmp_path) == "[]\n"


def test_the_version(capsys):
    assert fiss.__version__ == version("fiss")
    command("--version")
    assert capsys.readouterr().out == f"fiss {version('fiss')}\n"
    command("run", "-h")
    assert "--method" in capsys.readouterr().out


EXAMPLE = """
assert run.path == fiss.open_run("runs/a").path and run.config.seed == 1
assert len(run.scores) == 4 and len(run.rounds) == 2 and run.rounds[-1].replies[-1].losses["compensation"] > 0
changed = run.config.replace(method=fiss.FBL(pod_logits=0), training={"epochs": 1}, base="runs/a")
other = fiss.run(changed, out="runs/b", progress=False)
assert other.config.method == fiss.FBL(pod_logits=0) and other.finished
assert fiss.preset("shapes").replace(training={"epochs": 1}).training.epochs == 1
assert run.model(task=-1)(__import__("torch").zeros(1, 3, 32, 32)).logits_BCHW.shape[1] == 10
assert fiss.resume(run.path).path == run.path
assert len(fiss.evaluate(run, view="full")) == 2
compared = fiss.compare([run, other])
assert len(compared.rows) == 2 and "<table>" in compared._repr_html_()
assert "srcdoc" in fiss.report([run], "report.html")._repr_html_()
assert "image/png" in fiss.picture([run, other])._repr_html_()
assert "<td>published</td>" in run._repr_html_()
seen = fiss.Predictor(run)("photo.png")
assert seen.mask.shape == (40, 48) and seen.probabilities.shape == (10, 40, 48) and len(seen.names) == 10
assert fiss.check_data("shapes").problems == ()
assert "shapes" in fiss.list_presets() and "fbl" in fiss.list_methods()
"""


@pytest.mark.slow
def test_the_example_in_a_fresh_interpreter(tiny, tmp_path):
    (tmp_path / "tiny.toml").write_text(to_toml(tiny))
    for name in ("photo.png", "photo.jpg"):
        save(tmp_path / name, picture())
    shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    assert '"shapes"' in shown
    shown = shown.replace('"shapes"', '"tiny.toml"').replace('"world.rounds": 2', '"world.rounds": 1')
    if find_spec("pandas") is None:
        shown = re.sub(r".*to_pandas.*\n", "", shown)
    first, *table = python(shown + EXAMPLE, tmp_path).splitlines()  # progress is shown to people only
    assert re.fullmatch(r"\d+\.\d+ \d+\.\d+", first)
    assert len(table) == (0 if find_spec("pandas") is None else 5)


def test_probabilities_and_grey_images(tiny, tmp_path):
    run = fiss.run(tiny, settings={"world.rounds": 1}, out=tmp_path / "r")
    predictor, grey = fiss.Predictor(run, "cpu"), picture()[..., 0]
    seen = predictor(grey)
    assert np.array_equal(seen.mask, predictor(np.stack([grey] * 3, -1)).mask)
    assert np.array_equal(seen.probabilities.argmax(0), seen.mask)
    assert np.allclose(seen.probabilities.sum(0), 1, atol=1e-5)
    assert sum(seen.shares.values()) == pytest.approx(1)
    with pytest.raises(fiss.UserError, match="16-bit or wider image"):
        predictor(grey.astype(float))


def test_the_callers_own_progress_and_a_stop(tiny, tmp_path):
    class Stops(fiss.Progress):
        """Stops in the second round."""

        said: list[str] = []  # noqa: RUF012

        def round(self, task, round, clients):
            self.said.append(f"round {round}")
            if round == 2:
                raise KeyboardInterrupt

    progress = Stops()
    with pytest.raises(KeyboardInterrupt, match=r"fiss resume .*r` goes on"):
        fiss.run(tiny, out=tmp_path / "r", progress=progress)
    assert progress.said == ["round 1", "round 2"]
    assert not fiss.open_run(tmp_path / "r").finished
    assert fiss.resume(tmp_path / "r", progress=False).finished


@pytest.mark.slow
def test_a_sweep(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done = fiss.sweep(tiny, ["finetune", "mib"], [1], settings={"world.rounds": 1}, out="s", progress=True)
    out = capsys.readouterr().out
    assert re.search(r"finished: tiny-mib-seed1  \d+\.\d  \d+\.\d", out)
    assert not done.failed
    assert [row[0] for row in fiss.compare(done.runs).rows] == ["finetune", "mib"]
    assert (tmp_path / "s" / "tiny.html").exists()
    again = fiss.sweep(tiny, ["mib"], [1], settings={"world.rounds": 1}, out="s")
    assert [job.detail for job in again.jobs] == ["was there", "was there"]
    with pytest.raises(fiss.UserError, match="a sweep has many methods"):
        fiss.sweep(tiny, settings={"method.start": "random"})
