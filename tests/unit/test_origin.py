"""Which program on which machine a run's numbers come from."""

import hashlib
import subprocess
from dataclasses import replace

import pytest
import torch

from fiss import methods
from fiss.methods.finetune import Finetune
from fiss.progress import Progress
from fiss.reports.report import write
from fiss.runs import provenance
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit(tmp_path, monkeypatch):
    monkeypatch.delenv("FISS_COMMIT", raising=False)
    monkeypatch.setattr(provenance, "SOURCE", tmp_path / "site-packages")
    git(tmp_path, "init", "-q")
    for folder in ("site-packages", "fiss"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    assert provenance.commit() == ""  # of somebody's own repository around an installed package, and not ours
    monkeypatch.setattr(provenance, "SOURCE", tmp_path)
    head = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert provenance.commit() == head
    (tmp_path / "new.txt").write_text("not the program")
    assert provenance.commit() == head
    (tmp_path / "site-packages" / "a.py").write_text("2")
    assert provenance.commit() == head
    (tmp_path / "fiss" / "b.py").write_text("a new method")
    assert provenance.commit() == f"{head} and changes"
    (tmp_path / "fiss" / "b.py").unlink()
    (tmp_path / "fiss" / "a.py").write_text("2")
    assert provenance.commit() == f"{head} and changes"
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() == ""
    monkeypatch.setenv("FISS_COMMIT", "abc1234")
    assert provenance.commit() == "abc1234"


def test_every_start_is_recorded(tiny, tmp_path, monkeypatch):
    class Stop(Progress):
        def step(self, images, losses):
            raise KeyboardInterrupt

    monkeypatch.setenv("FISS_COMMIT", "first")
    with pytest.raises(KeyboardInterrupt):
        experiment.start(tiny, tmp_path / "r", Stop())
    monkeypatch.setenv("FISS_COMMIT", "second")
    folder = experiment.resume(tmp_path / "r", Progress())
    records = folder.origins()
    assert [r["commit"] for r in records] == ["first", "second"]
    assert all(r["torch"] == torch.__version__ and r["device"] and r["began"] for r in records)
    write([folder.path], tmp_path / "report.html", Progress())
    assert "<td>second</td>" in (tmp_path / "report.html").read_text()
    experiment.resume(tmp_path / "r", Progress())  # finished: nobody works in it
    assert len(folder.origins()) == 2


OWN = """
from fiss.methods.finetune import Finetune


class Mine(Finetune):
    name = "mine"
"""


def test_the_file_of_a_users_method_is_recorded_and_a_change_is_said(tiny, tmp_path, monkeypatch):
    """A notice and no refusal; the same file again says nothing, nor does a method of the package."""

    class Stop(Progress):
        said: list[str] = []  # noqa: RUF012

        def notice(self, text):
            self.said.append(text)

        def step(self, images, losses):
            raise KeyboardInterrupt

    path = tmp_path / "mine_alone.py"
    path.write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = replace(tiny, method=methods.find("mine_alone:Mine"))
    with pytest.raises(KeyboardInterrupt):
        experiment.start(config, tmp_path / "r", Stop())
    first = hashlib.sha256(OWN.encode()).hexdigest()
    for text, changed in ((OWN, 0), (OWN + "# better\n", 1)):
        path.write_text(text)
        with pytest.raises(KeyboardInterrupt):
            experiment.resume(tmp_path / "r", Stop())
        assert sum("mine_alone:Mine was changed" in said for said in Stop.said) == changed
    records = RunFolder(tmp_path / "r").origins()
    assert [r["method_sha256"] for r in records[:2]] == [first, first]
    assert records[2]["method_sha256"] == hashlib.sha256((OWN + "# better\n").encode()).hexdigest()
    assert "was changed" in records[2]["notices"][-1]
    assert "method" not in provenance.origin(torch.device("cpu"), methods.find("fbl"))
    nowhere = type("Cell", (Finetune,), {"name": "cell", "__module__": "no_such_module"})()
    assert provenance.origin(torch.device("cpu"), nowhere)["method"] == "no_such_module:Cell"  # of a notebook: no file


def test_older_runs_and_damaged_records(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.origins() == []
    for text in ("[{", "null", "{}", "[1]"):
        (tmp_path / "origin.json").write_text(text)
        assert folder.origins() == []  # no result depends on it
    folder.add_origin({"commit": "a"})
    assert folder.origins() == [{"commit": "a"}]
