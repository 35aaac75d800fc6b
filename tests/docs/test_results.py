"""The pages of docs/results say what the recorded runs say."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from worlds import picture, save

import fiss
from fiss.data import voc
from fiss.progress import Progress
from fiss.reports import comparison, paper, report
from fiss.runs.folder import RunFolder
from fiss.runs.records import ScoreRecord

RESULTS = Path(__file__).parents[2] / "docs" / "results"
sys.path.insert(0, str(RESULTS))
import collect  # noqa: E402
import folders  # noqa: E402
import heldout  # noqa: E402
import teeth  # noqa: E402

NAMES = (  # longest first
    ("fbl without adaptive pseudo labels", "fbl-without-pseudo-labels"),
    ("fbl without relation consistency", "fbl-without-relation"),
    ("fbl without compensation", "fbl-without-compensation"),
    ("fbl without POD", "fbl-without-pod"),
    ("mib, distillation 100", "mib-100"),
)


SIX = {"training.later_epochs": "0"}  # as published; the small presets of 4-4 and 8-2 have two


def method(cell):
    """A row's method: its first word, or one of the longer names."""
    text = re.sub(r"[*_`]", "", cell).strip()
    return next((name for words, name in NAMES if text.startswith(words)), text.split(",")[0].split()[0])


@pytest.fixture(scope="module")
def page():
    return (RESULTS / "voc.md").read_text()


@pytest.fixture(scope="module")
def recorded():
    return json.loads((RESULTS / "voc.json").read_text())["runs"]


@pytest.mark.parametrize("setting", ["15-1", "4-4", "8-2"])
def test_every_row_of_voc_is_a_recorded_run(page, recorded, setting):
    heading, *rows = table(page, f"\n## {setting}")
    six = table(page, "### Six local epochs, as published")[1:] if setting == "8-2" else []
    tasks = [i for i, cell in enumerate(heading) if cell.isdigit()]
    runs = [run for run in recorded if run["preset"] == f"voc-{setting}-small" and run["seed"] == 2023]
    found = []
    for row in rows + six:
        values = [number(row[i]) for i in tasks if row[i]]  # joint has one task: the last cell
        wanted = changes(row[0]) | (SIX if row in six else {})
        run = next(r for r in runs if r["method"] == method(row[0]) and written(r["changed"]) == wanted)
        assert values == pytest.approx(run["miou"], abs=0.051), row[0]
        found.append(run)
    assert all(found.count(run) == 1 for run in runs)


def test_the_summary_is_of_the_last_tasks(page, recorded):
    summary = page.split("\n## ")[0]
    rows = [line for line in summary.splitlines() if re.match(r"\| .*\d\.\d", line)]
    seen = 0
    for line in rows:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = name.removeprefix("after the last task: ")
        for setting, six, cell in zip(("15-1", "4-4", "8-2", "8-2"), ({}, {}, {}, SIX), cells, strict=True):
            task = 0 if name.startswith("all methods") else -1
            chosen = "finetune" if task == 0 else method(name)
            runs = [r for r in recorded if r["preset"] == f"voc-{setting}-small" and r["seed"] == 2023]
            if cell not in ("–", "not run"):
                wanted = changes(name) | (six if task else {})
                run = next(r for r in runs if r["method"] == chosen and written(r["changed"]) == wanted)
                assert number(cell.split()[0]) == pytest.approx(run["miou"][task], abs=0.051), line
                seen += 1
    assert seen == 34
    own = re.search(r"all methods but rcil \((.*?)\)", summary)
    rcil = [r for r in recorded if r["method"] == "rcil" and r["seed"] == 2023 and not r["changed"]]
    assert [float(v) for v in own[1].split(", ")] == pytest.approx([r["miou"][0] for r in rcil], abs=0.051)


def test_what_is_said_of_the_run_that_was_cut_off_is_recorded(page):
    (run,) = json.loads((RESULTS / "voc.json").read_text())["cut off"]
    assert (run["preset"], run["method"], written(run["changed"])) == ("voc-4-4-small", "fbl", SIX)
    said = re.findall(r"FBL with six has (.*?) and (.*?) after tasks|FBL has (.*?) after task 1 and (.*?) after", page)
    assert [[float(v) for v in pair if v] for pair in said] == [pytest.approx(run["miou"][1:], abs=0.051)] * 2


def changes(name):
    """What a row's name says between backticks was changed."""
    return dict(pair.split("=") for word in re.findall(r"`(.*)`", name) for pair in word.split())


def written(changed):
    """As --set takes them."""
    return dict(setting.split("=") for setting in heldout.settings(changed))


def table(page, heading):
    """The heading and the rows of a section's table."""
    section = page.split(f"{heading}\n")[1].split("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [rows[0], *rows[2:]]


def number(cell):
    return float(re.sub(r"[*]", "", cell))


def by_seed(cells, mean, recorded_score):
    """How many of a row's cells are recorded scores; its mean is there if all are."""
    seen = {seed: number(cell) for seed, cell in zip((2023, 2024, 2025), cells, strict=True) if cell != "not run"}
    assert list(seen.values()) == pytest.approx([recorded_score(seed) for seed in seen], abs=0.051)
    assert (mean != "") == (len(seen) == 3)
    assert not mean or number(mean) == pytest.approx(sum(seen.values()) / 3, abs=0.06)
    return len(seen)


def test_the_seeds_are_recorded_runs(page, recorded):
    own = [run for run in recorded if run["preset"] == "voc-15-1-small" and not run["changed"]]
    last = {(run["method"], run["seed"]): run["miou"][-1] for run in own}
    rows = table(page, "### Three seeds")[1:]
    seen = [by_seed(cells, mean, lambda s, n=name: last[method(n), s]) for name, *cells, mean in rows]
    assert seen == [3, 3, 3]


def test_the_first_task_of_4_4_is_of_recorded_runs(page, recorded):
    alone = json.loads((RESULTS / "voc.json").read_text())["first tasks"]
    monitored = json.loads((RESULTS / "monitors.json").read_text())["runs"]
    finetune = next(r for r in recorded if r["preset"] == "voc-4-4-small" and r["method"] == "finetune")
    everyone = [r for r in monitored if r["preset"] == "voc-4-4-small" and r["world"] == "synchronous"]
    groups = (
        [finetune, *(r for r in alone if r["monitor"] == "told")],
        [r for r in alone if r["monitor"] == "oracle"],
        [r for r in everyone if r["monitor"] == "oracle"],
    )
    rows = table(page, "### The first task of 4-4")[1:]
    scores = [{run["seed"]: run["miou"][0] for run in group} for group in groups]
    seen = [by_seed(cells, mean, of.get) for (_, _, *cells, mean), of in zip(rows, scores, strict=True)]
    assert seen == [len(of) for of in scores] == [3, 1, 3]


@pytest.mark.parametrize("setting", ["15-1", "4-4", "8-2"])
def test_the_published_tables_hold_what_is_recorded(recorded, setting, tmp_path):
    """Also that folders made of the record can be read: scores are kept to two places there, so that a cell may be
    rounded otherwise."""
    preset = f"voc-{setting}-small"
    runs = [r for r in recorded if r["preset"] == preset and r["seed"] == 2023 and not r["changed"]]
    made = paper.tables(preset, [folders.write(run, tmp_path) for run in runs], "published")
    section = (RESULTS / "voc-tables.md").read_text().split(f"## {setting}\n")[1].split("\n## ")[0]
    shown = [[c.strip() for c in line[1:-1].split("|")] for line in section.splitlines() if line[:1] == "|"]
    wanted = [list(map(str.strip, row)) for one in made for row in (one.head, ("---",) * len(one.head), *one.rows)]
    assert len(shown) == len(wanted) > 30
    for ours, theirs in zip(shown, wanted, strict=True):
        numbers = [[float(v) for cell in row for v in re.findall(r"-?\d+\.\d", cell)] for row in (ours, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.101)
        words = [[re.sub(r"\d+\.\d", "", cell) for cell in row] for row in (ours, theirs)]
        assert words[0] == words[1]


@pytest.mark.slow
def test_every_recorded_run_becomes_a_folder_that_a_report_can_read(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["folders.py", str(RESULTS / "voc.json"), str(tmp_path / "out")])
    runpy.run_path(str(RESULTS / "folders.py"), run_name="__main__")
    made = sorted((tmp_path / "out").iterdir())
    assert len(made) == len(recorded)
    six = [path for path in made if "later_epochs=0" in path.name]
    report.write(six, tmp_path / "report.html", Progress())
    page = (tmp_path / "report.html").read_text()
    assert page.count('alt="mIoU after each task"') == 1
    assert all(str(path) in page for path in six)


def test_folders_of_the_record_compare_as_the_runs_did(recorded, tmp_path):
    own = [r for r in recorded if r["preset"] == "voc-4-4-small" and not r["changed"]]
    runs = [r for r in own if r["method"] in ("mib", "fbl", "joint")]
    made = comparison.compare([folders.write(run, tmp_path) for run in runs], "published")
    assert [row[0] for row in made.rows] == ["mib", "fbl", "joint"]
    for run, row in zip(runs[:2], made.rows, strict=False):
        last, tasks = run["iou"][-1], voc.CLASSES
        best = {name: max(iou[name] for iou in run["iou"][:-1] if name in iou) for name in tasks[:16]}
        old, new, lost = (sum(v) / len(v) for v in (
            [last["background"], *(last[name] for name in tasks[:16])],
            [last[name] for name in tasks[16:]],
            [best[name] - last[name] for name in tasks[:16]],
        ))  # fmt: skip
        assert [float(v) for v in row[-3:]] == pytest.approx([old, new, lost], abs=0.051)


def test_the_choice_is_of_recorded_runs(page):
    runs = [run for run in json.loads((RESULTS / "heldout.json").read_text())["runs"] if run["finished"]]
    rows = table(page, "## Chosen on held-out training images")[1:]
    groups = {}
    for name, *cells in rows:
        wanted = {"tasks.split": runs[0]["changed"]["tasks.split"], **changes(name)}
        scores = [number(cell) for cell in cells]
        same = [r for r in runs if r["method"] == method(name) and written(r["changed"]) == wanted]
        found = [r for r in same if scores[:-1] == pytest.approx(r["miou"], abs=0.051)]
        assert len(found) == 1, name  # a variant may have been run again
        mean = sum(found[0]["miou"][1:]) / len(found[0]["miou"][1:])
        assert scores[-1] == pytest.approx(mean, abs=0.051), name
        groups.setdefault(heldout.group((method(name), changes(name))), []).append((mean, "**" in name))
    assert len(rows) == sum(run["method"] != "finetune" for run in runs)  # that is the common first task
    assert all(max(found)[1] and sum(bold for _, bold in found) == 1 for found in groups.values())


def fake_run(path, miou):
    """A finished run folder with nothing but scores."""
    path.mkdir(parents=True)
    (path / "config.toml").touch()
    (path / "state.json").write_text('{"finished": true}')
    for task, value in enumerate(miou):
        score = ScoreRecord(round=task, task=task, ends_task=True, view="published", miou=value)
        RunFolder(path).append("scores.jsonl", score)


def test_of_each_method_the_best_mean_of_later_tasks_is_chosen(tmp_path):
    for variant, miou in (
        (("fbl", {}), [90, 50, 40, 30]),
        (("fbl-reference", {}), [10, 50, 41, 30]),
        (("fbl", {"method.rejected": "old"}), [10, 60, 60, 60]),
        (("rcil", {}), [10, 20, 20, 20]),
    ):
        assert variant in heldout.VARIANTS
        fake_run(tmp_path / heldout.name(variant), miou)
    (tmp_path / "plop").mkdir()  # not finished
    best = {method: rows[0] for method, rows in heldout.ranking(tmp_path).items()}
    assert best == {
        "fbl": (121 / 3, ("fbl-reference", {})),
        "fbl, ours": (60, ("fbl", {"method.rejected": "old"})),
        "rcil": (20, ("rcil", {})),
    }


def test_variants_have_folders_of_their_own_and_settings_that_are_understood(tmp_path):
    base, *jobs = heldout.jobs(Path("data"), Path("resnet50.safetensors"), tmp_path, ["training.workers=2"])
    assert base.base is None
    assert base.config.training.workers == 2
    assert len({job.folder for job in jobs}) == len(heldout.VARIANTS)
    for job, (method, changes) in zip(jobs, heldout.VARIANTS, strict=True):
        assert job.base == base.folder == Path(job.config.base)
        assert collect.nearest(job.config) == method
        assert collect.changed(job.config) == {**changes, "tasks.split": base.config.tasks.split}


@pytest.mark.slow
def test_teeth_are_played_row_by_row(tmp_path, monkeypatch, capsys):
    """Four steps of an untrained trunk; a row from another machine stays, and what is finished is not played again."""
    names = [f"FDI-{quarter}{tooth}" for quarter in "1234" for tooth in range(1, 9)]
    for i in range(22):
        save(tmp_path / "data" / "images" / f"{i}.png", picture(64, 64, seed=i))
        save(
            tmp_path / "data" / "masks" / f"{i}.png",
            np.arange(64, dtype=np.uint8).reshape(8, 8).repeat(8, 0).repeat(8, 1) % 33,
        )
    for name, lines in {"classes": names, "train": range(20), "val": range(20, 22)}.items():
        (tmp_path / "data" / f"{name}.txt").write_text("\n".join(map(str, lines)))
    iou = [{"background": 90.0} | {names[k]: 8.0 - 2 * (step - k) for k in range(step + 1)} for step in range(4)]
    other = {"name": "fbl", "finished": True, "hardware": "elsewhere", "miou": [4, 3, 2, 1], "iou": iou}
    (tmp_path / "out" / "rows").mkdir(parents=True)
    (tmp_path / "out" / "rows" / "fbl.json").write_text(json.dumps(other | {"seconds": [1, 2], "megabytes": 5}))
    command = ["teeth.py", str(tmp_path / "data"), "-", str(tmp_path / "out"), "--tiny", "--only", "untrained"]
    monkeypatch.setattr(sys, "argv", command)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            teeth.main()
        assert not ended.value.code
        lines = capsys.readouterr().out.splitlines()
        assert lines[2] == "| fbl | 4.0 | 3.0 | 2.0 | 1.0 | 4.0 | 3 | 5 | elsewhere |"  # falls by 6, 4 and 2
        played = json.loads((tmp_path / "out" / "teeth.json").read_text())["runs"][1]
        assert lines[3].startswith(f"| {played['name']} | {played['miou'][0]:.1f} | ")
        assert (len(played["miou"]), len(played["iou"][-1]), played["rounds"]) == (4, 33, 1)
        assert "CPUs" in played["hardware"]
    assert (tmp_path / "out" / "teeth-untrained.png").is_file()
    assert len(fiss.open_run(tmp_path / "out" / "runs" / "untrained").folder.origins()) == 1
