"""The paper's tables, and many runs with one command."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import make_published
import pytest
from typer.testing import CliRunner

from fiss import methods
from fiss.cli import app, tables
from fiss.config import presets
from fiss.config.config import to_toml
from fiss.data import voc
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.reports import paper
from fiss.runs.folder import RunFolder
from fiss.runs.records import ScoreRecord
from fiss.simulation import experiment, sweep
from fiss.simulation.scenario import open_scenario


def invoke(*arguments):
    """A command of the command line; gives what it printed, raises what it raises."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "200"})
    return result.output


VOC = ("voc-15-1", "voc-4-4", "voc-8-2")
RECORD = Path(__file__).parents[3] / "shared" / "reference" / "results.json"


@pytest.mark.skipif(not RECORD.is_file(), reason="the full record of the published results is not here")
def test_published_numbers_are_those_of_the_record():
    assert paper.published() == make_published.extract(json.loads(RECORD.read_text()))


@pytest.mark.parametrize("name", VOC)
def test_published_numbers_agree_with_themselves(name):
    """Facts that a slip of the pen would break: means of classes, leads, the last of task-wise numbers."""
    record = paper.published()[name]
    final = record["paper"]["final"]["methods"]
    assert list(final) == list(sweep.PAPER)
    for method, row in final.items():
        assert len(row["iou_per_class"]) == 21
        assert sum(row["iou_per_class"]) / 21 == pytest.approx(row["miou"], abs=0.11)
        if method != "fbl":
            assert final["fbl"]["miou"] - row["miou"] == pytest.approx(row["fbl_improvement"], abs=0.051)
        if (name, method) != ("voc-15-1", "rcil"):  # the one that is another run
            assert row["iou_per_class"] == pytest.approx(record["logs"][method]["iou_per_class"], abs=0.051)
    for method, log in record["logs"].items():
        assert log["task_wise_miou"][-1] == pytest.approx(log["miou"])
        assert sum(log["iou_per_class"]) / 21 == pytest.approx(log["miou"], abs=0.01)
        for kind in ("task_wise_miou", "ablation_task_wise_miou"):
            printed = record["paper"].get(kind, {"methods": {}})["methods"].get(method)
            assert printed is None or printed == pytest.approx(log["task_wise_miou"], abs=0.051)
    for method, row in record["paper"].get("ablation_final", {"methods": {}})["methods"].items():
        parts = [key for key in row if key.startswith("miou_")]
        sizes = [
            int(last) - int(first) + 1 for first, last in (part.removeprefix("miou_").split("-") for part in parts)
        ]
        assert sum(sizes) == 21
        whole = sum(row[part] * size for part, size in zip(parts, sizes, strict=True)) / 21
        assert whole == pytest.approx(row["miou"], abs=0.11), method


def test_published_numbers_of_ade20k_agree_with_themselves():
    final = paper.published()["ade-100-10"]["paper"]["final"]["methods"]
    for method, row in final.items():
        groups = row["miou_per_group"]
        sizes = [int(b) - int(a) + 1 for a, b in (key.split("-") for key in groups)]
        assert sum(sizes) == 151
        mean = sum(v * n for v, n in zip(groups.values(), sizes, strict=True)) / 151
        assert mean == pytest.approx(row["miou"], abs=0.25 if method == "plop" else 0.11)  # PLOP's is known to be off


def fake_run(folder, preset, method, seed, miou, changed=False, **changes):
    """A run folder of that preset as if it had been played to the end."""
    chosen = methods.find(method) if isinstance(method, str) else method
    if changed:
        chosen = replace(chosen, relation_weight=7.0)
    config = replace(presets.preset(preset), method=chosen, seed=seed, **changes)
    run = RunFolder.create(folder, config)
    names = ("background", *voc.CLASSES)
    last = len(config.tasks.split) and {"15-1": 5, "4-4": 4, "8-2": 6}[config.tasks.split]
    for task in range(last + 1):
        value = miou + last - task
        iou = {name: value + (name == "cow") for name in names}
        score = ScoreRecord(round=task + 1, task=task, ends_task=True, view="published", miou=value, iou=iou)
        run.append("scores.jsonl", score)
    (folder / "state.json").write_text(json.dumps({"finished": True}))
    return folder


def test_measured_beside_published(tmp_path):
    runs = [
        fake_run(tmp_path / "a", "voc-4-4", "fbl", 1, 50.0),
        fake_run(tmp_path / "b", "voc-4-4", "fbl", 2, 52.0),
        fake_run(tmp_path / "c", "voc-4-4", "mib", 1, 30.0),
        fake_run(tmp_path / "k", "voc-4-4", "analytic", 1, 56.0),
        fake_run(tmp_path / "d", "voc-8-2", "mib", 1, 99.0),
        fake_run(tmp_path / "g", "voc-4-4-small", "mib", 2, 99.0),
        fake_run(tmp_path / "h", "voc-4-4", "fbl", 1, 99.0),
        fake_run(tmp_path / "i", "voc-4-4", "fbl", 3, 99.0, training=presets.shapes().training),
        fake_run(tmp_path / "j", "voc-4-4", "fbl", 4, 99.0, changed=True),
    ]
    (tmp_path / "e").mkdir()
    unfinished = fake_run(tmp_path / "f", "voc-4-4", "lwf", 1, 99.0)
    (unfinished / "state.json").unlink()
    classes, tasks, ablations, by_task, logs = paper.tables("voc-4-4", [*runs, tmp_path / "e", unfinished], "published")
    column = {name: i for i, name in enumerate(classes.head)}
    row = {cells[0]: cells for cells in classes.rows}
    assert row["cow"][column["fbl"]] == "52.0 ± 1.4 / 26.0"
    assert row["mIoU"][column["fbl"]] == "51.0 ± 1.4 / 43.9"
    assert row["mIoU"][column["mib"]] == "30.0 / 33.0"
    assert row["mIoU"][column["lwf"]] == "- / 23.8"
    assert row["Imp."][column["mib"]] == "21.0 / 10.9"
    assert row["mIoU"][column["analytic (ours)"]] == "56.0 / -"
    assert row["Imp."][column["analytic (ours)"]] == "-5.0 / -"
    said = "\n".join(classes.notes)
    for text in (
        f"d differs from voc-4-4 in tasks.split. `fiss table voc-8-2 {tmp_path / 'd'}` is for it",
        "not a run folder",
        "f is not finished",
        "g differs from voc-4-4 in model.encoder",
        "h, another run of fbl with seed 1",
        "i differs from voc-4-4 in training.epochs",
        "the method of " + str(tmp_path / "j") + " has fields that no published row stands for",
    ):
        assert text in said, text
    assert "marked best although MiB" in said
    task_rows = {cells[0]: cells for cells in tasks.rows}
    assert task_rows["fbl"][1:3] == ("55.0 ± 1.4 / 70.4", "54.0 ± 1.4 / 66.6")
    assert task_rows["analytic (ours)"][1] == "60.0 / -"
    assert "analytic (ours)" not in {cells[0] for cells in ablations.rows}
    assert {cells[0]: cells for cells in ablations.rows}["fbl"][1] == "51.1 ± 1.4 / 45.8"
    assert {cells[0] for cells in by_task.rows} >= {"fbl-without-relation"}
    assert "logs" in logs.title
    parsed = list(csv.reader(io.StringIO(classes.csv())))
    assert parsed[1] == list(classes.head)
    assert parsed[2 + 21] == list(row["mIoU"])


def test_a_method_of_a_users_own_stands_beside_the_published_ones(tmp_path, monkeypatch):
    """By its name, with nothing published; one with other fields is a row of its own, and nobody is taken for a
    published method whose name it has."""
    source = "from fiss.methods.finetune import Finetune\nfrom dataclasses import dataclass\n"
    for kind, name in (("Anchored", "anchored"), ("Other", "anchored"), ("Better", "fbl")):
        source += f"@dataclass(frozen=True)\nclass {kind}(Finetune):\n    name = '{name}'\n    strength: float = 1.0\n"
    (tmp_path / "anchored.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    own, other, better = (methods.find(f"anchored:{kind}") for kind in ("Anchored", "Other", "Better"))
    runs = [
        fake_run(tmp_path / "a", "voc-15-1", "fbl", 1, 50.0),
        fake_run(tmp_path / "b", "voc-15-1", "anchored:Anchored", 1, 41.0),
        fake_run(tmp_path / "c", "voc-15-1", "anchored:Anchored", 2, 43.0),
        fake_run(tmp_path / "d", "voc-15-1", replace(own, strength=5.0), 1, 20.0),
        fake_run(tmp_path / "e", "voc-15-1", other, 3, 99.0),
        fake_run(tmp_path / "f", "voc-15-1", better, 2, 60.0),
    ]
    found = paper.tables("voc-15-1", runs, "published")
    classes, by_task = found[0], found[-1]
    column = {name: i for i, name in enumerate(classes.head)}
    row = {cells[0]: cells for cells in classes.rows}
    assert list(column)[-3:] == ["anchored", "anchored, strength 5.0", "anchored:Better"]
    assert row["mIoU"][column["fbl"]] == "50.0 / 56.6"
    assert row["cow"][column["anchored"]] == "43.0 ± 1.4 / -"
    assert row["Imp."][column["anchored"]] == "8.0 / -"
    assert row["mIoU"][column["anchored, strength 5.0"]] == "20.0 / -"
    assert row["mIoU"][column["anchored:Better"]] == "60.0 / -"
    assert {cells[0]: cells for cells in by_task.rows}["anchored"][-1] == "42.0 ± 1.4 / -"
    assert f"left out: {runs[4]}, its method is called anchored as another one is." in classes.notes


def test_words_are_whole_where_there_is_room(tmp_path, monkeypatch):
    """At 80 columns the table of eight methods has headings and classes in one piece."""
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["table", "voc-15-1"], catch_exceptions=False, env={"COLUMNS": "80"})
    assert all(len(line) <= 80 for line in result.output.splitlines() if line[:1] in "┏┃│├")
    for word in ("finetune", "diningtable", "pottedplant", "background"):
        assert word in result.output
    lines = [("", "finetune", "fbl"), ("diningtable", "50.0 / 56.6", "-")]
    assert tables._whole_words(lines, 100) == [11, 11, 3]
    assert tables._whole_words(lines, 23) == [11, 9, 3]
    assert tables._whole_words(lines, 22) == [11, 8, 3]
    assert tables._whole_words(lines, 21) == [None] * 3


def test_the_table_command(tmp_path, capsys):
    run = fake_run(tmp_path / "a", "voc-15-1", "fbl", 1, 50.0)
    for form, sign in (("terminal", "┃"), ("markdown", "| mIoU |"), ("csv", "mIoU,")):
        out = invoke("table", "voc-15-1", str(run), "--format", form)
        assert sign in out
        assert "50.0 / 56.6" in out
    assert "- / 27.9" in invoke("table", "ade-100-10")
    with pytest.raises(UserError, match="voc-15-1-small"):
        paper.tables("voc-15-2", [], "published")
    with pytest.raises(UserError, match="published tables"):
        paper.tables("shapes", [], "published")


def test_small_presets_keep_the_protocol():
    for name in (*VOC, "ade-100-10"):
        large, small = presets.preset(name), presets.preset(f"{name}-small")
        assert small.name == f"{name}-small"
        assert small.model.encoder == "resnet50"
        assert small.augment.crop == small.evaluation.size == 256
        same = replace(
            small,
            name=large.name,
            model=large.model,
            augment=large.augment,
            evaluation=large.evaluation,
            training=replace(small.training, later_epochs=0, graphs=False),
        )
        assert same == large
    assert [presets.preset(f"{name}-small").training.later_epochs for name in VOC] == [0, 2, 2]
    renamed = replace(presets.preset("ade-100-10-small"), name="mine")
    (_, mib) = sweep.plan(renamed, ["mib"], [1], Path("runs"))
    assert mib.config.method == presets.method_for("ade20k", "mib") != methods.find("mib")  # whatever a run is called


def test_later_tasks_may_have_fewer_epochs(tiny, tmp_path):
    config = replace(tiny, training=replace(tiny.training, epochs=3, later_epochs=1))
    folder = experiment.start(config, tmp_path / "r", Progress())
    steps = [(r["task"], reply["steps"]) for r in folder.records("rounds.jsonl") for reply in r["replies"]]
    per_epoch = {task: {s for t, s in steps if t == task} for task in (0, 1)}
    assert all(s % 3 == 0 for s in per_epoch[0])
    assert any(s % 3 for s in per_epoch[1])
    assert sum(s for _, s in steps) == open_scenario(config, Progress()).steps()


def test_who_takes_part_in_a_sweep():
    assert sweep.contenders(["paper"]) == list(sweep.PAPER)
    assert sweep.contenders(["fbl", "paper"])[0] == "fbl"
    assert {"fbl-paper", "fbl-without-pod", "joint"} <= set(sweep.contenders(["all"]))
    with pytest.raises(UserError, match="fbl-without-pod"):
        sweep.contenders(["fbl-without-pad"])


@pytest.mark.slow
def test_a_sweep_shares_first_tasks_and_goes_on(tiny, tmp_path):
    config = tmp_path / "tiny.toml"
    config.write_text(to_toml(replace(tiny, evaluation=replace(tiny.evaluation, views=("published",)))))
    words = [
        "sweep",
        str(config),
        "--methods",
        "mib,rcil,fbl-without-pod",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "s"),
    ]
    command = [sys.executable, "-m", "fiss", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    base = tmp_path / "s" / "tiny-finetune-seed1"
    while not (base / "weights" / "task-0.safetensors").is_file() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)  # in the middle of it
    process.wait()
    for log in (tmp_path / "s").glob("*seed1"):  # its runs have stopped with it: nobody holds their locks
        with RunFolder(log).locked():
            pass
    out = invoke(*words)
    runs = sorted(p.name for p in (tmp_path / "s").glob("tiny-*"))
    names = ("fbl-without-pod", "finetune", "mib", "rcil")
    assert runs == [f"tiny-{name}-seed{seed}" for name in names for seed in (1,)]
    for name in runs:
        folder = RunFolder(tmp_path / "s" / name)
        assert folder.finished()
        shares = "finetune" not in name and "rcil" not in name
        assert bool(folder.config().base) == shares
        first = folder.records("rounds.jsonl")[0]["task"]
        assert first == (1 if shares else 0)
    assert "fbl-without-pod" in out
    assert (tmp_path / "s" / "tiny.html").is_file()
    assert "task 1" in out
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*.safetensors")}
    invoke(*words)  # all done: nothing is touched
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*.safetensors")}
    with pytest.raises(UserError, match=r"rcil-seed1 holds a run with other settings \(base\)"):  # it has its own
        invoke(*words, "--share")
    with pytest.raises(UserError, match=r"other settings \(training\.batch\)"):
        invoke(*words, "--set", "training.batch=3")


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_a_sweep(tiny, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(
        "from fiss.methods.finetune import Finetune\n"
        "class Broken(Finetune):\n"
        "    name = 'broken'\n"
        "    def losses(self, step):\n"
        "        raise ValueError('on purpose')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "tiny.toml"
    config.write_text(to_toml(tiny))
    words = ["sweep", str(config), "--methods", "broken:Broken,finetune", "--seeds", "3", "--out", str(tmp_path / "s")]
    with pytest.raises(UserError, match=r"1 of 2 runs failed: .*on purpose"):
        invoke(*words)
    assert RunFolder(tmp_path / "s" / "tiny-finetune-seed3").finished()


def test_seeds_are_numbers(tiny, tmp_path):
    with pytest.raises(UserError, match="whole numbers"):
        invoke("sweep", "shapes", "--seeds", "1,two", "--out", str(tmp_path))


def test_labels_know_the_coefficients_of_a_preset():
    """ADE20k has its own; a method with those is still called by its name, and one with others is not."""
    for name in ("fbl", "fbl-reference", "plop", "mib"):
        config = replace(presets.ade_100_10(), method=presets.method_for("ade20k", name))
        assert presets.exact_label(config) == presets.label(config) == name
    without = replace(presets.ade_100_10(), method=methods.ablate(presets.method_for("ade20k", "fbl"), "pod"))
    assert presets.exact_label(without) == "fbl-without-pod"
    assert presets.exact_label(replace(presets.ade_100_10(), method=methods.find("mib"))) is None
    assert presets.label(replace(presets.ade_100_10(), method=methods.find("mib"))) == "mib"


def test_what_a_sweep_refuses_and_keeps(tmp_path):
    shapes = presets.shapes()
    own = replace(shapes, method=replace(methods.find("fbl"), relation_weight=9.0))
    jobs = {job.name: job for job in sweep.plan(own, ["fbl", "mib", "rcil", "joint"], [1], tmp_path)}
    assert jobs["fbl"].config.method.relation_weight == 9.0
    (_, without) = sweep.plan(own, ["fbl-without-pod"], [1], tmp_path)
    assert without.config.method == methods.ablate(own.method, "pod")  # of the file's method, not of another
    assert jobs["mib"].base == jobs["finetune"].folder
    assert jobs["rcil"].base is jobs["joint"].base is None
    assert [job.name for job in sweep.plan(own, ["rcil"], [1], tmp_path)] == ["rcil"]  # nobody needs a base
    shared = sweep.plan(own, ["rcil"], [1], tmp_path, share=True)
    assert [(job.name, job.base is None) for job in shared] == [("finetune", True), ("rcil", False)]
    with pytest.raises(UserError, match="leave base and joint"):
        sweep.plan(replace(shapes, base="runs/x"), ["fbl"], [1], tmp_path)
    several = [
        job for preset in (shapes, replace(shapes, name="more")) for job in sweep.plan(preset, ["mib"], [1], tmp_path)
    ]
    sweep.check(several)
    assert [job.folder.name for job in several if job.name == "mib"] == ["shapes-mib-seed1", "more-mib-seed1"]
    with pytest.raises(UserError, match="would both be"):
        sweep.check([*several, *several])
    with pytest.raises(UserError, match="put this one into a config file"):
        invoke("sweep", "shapes", "--set", "method.mean_over=valid", "--out", str(tmp_path))


def test_the_live_table_of_a_sweep(tmp_path):
    from rich.console import Console

    from fiss.reports.display import sweep_table

    jobs = sweep.plan(presets.shapes(), ["fbl", "mib"], [1], tmp_path)
    board = [
        sweep.JobStatus(jobs[0], "finished", "was there", (50.0, 20.5)),
        sweep.JobStatus(jobs[1], "running", "task 1, 4 rounds done", (50.0,)),
        sweep.JobStatus(jobs[2], "failed", "ValueError: [on purpose]"),
    ]
    console = Console(width=160, record=True)
    console.print(sweep_table(board))
    text = console.export_text()
    for word in ("shapes-finetune-seed1", "20.5", "task 1, 4 rounds done", "[on purpose]", "task 1"):
        assert word in text
