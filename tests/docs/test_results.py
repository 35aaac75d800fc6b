"""The pages of docs/results are what the records make of them."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from worlds import mask, picture, save

import fiss
from fiss.data import voc
from fiss.progress import Progress
from fiss.reports import comparison, report
from fiss.runs.folder import RunFolder
from fiss.runs.records import ScoreRecord

RESULTS = Path(__file__).parents[2] / "docs" / "results"
sys.path.insert(0, str(RESULTS))
import charts  # noqa: E402
import collect  # noqa: E402
import folders  # noqa: E402
import frozen  # noqa: E402
import heldout  # noqa: E402
import make  # noqa: E402
import photos  # noqa: E402
import tables  # noqa: E402
import teeth  # noqa: E402


@pytest.fixture(scope="module")
def recorded():
    return json.loads((RESULTS / "voc.json").read_text())["runs"]


@pytest.mark.parametrize("page", make.pages(), ids=lambda path: path.name)
def test_what_was_made_is_what_the_records_give(page):
    assert make.written(page.read_text()) == page.read_text(), "python docs/results/make.py writes it"


def test_charts_are_what_the_records_give():
    for path, chart in make.figures().items():
        assert path.read_text() == chart, "python docs/results/make.py writes it"


def test_pages_have_blocks_and_show_every_chart():
    text = "".join(page.read_text() for page in make.pages())
    assert len(make.MARKS.findall(text)) > 30
    assert all(f"({path.name})" in text for path in RESULTS.glob("*.svg"))


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Records that may be changed."""
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(tables, "HERE", tmp_path)
    tables.runs.cache_clear()
    yield tmp_path
    tables.runs.cache_clear()


def test_new_runs_appear_and_replace_those_before_the_faults(records, recorded):
    """A record of the closed form, and one of FBL again, put beside the others."""
    fbl = next(r for r in recorded if (r["preset"], r["method"], r["changed"]) == ("voc-4-4-small", "fbl", {}))
    iou = [dict.fromkeys(task, 50.0) for task in fbl["iou"]]
    again = {**fbl, "iou": iou, "miou": [50.0] * len(iou)}
    own = {**again, "method": "analytic"}
    frozen = {**own, "changed": {"method.trunk": "pretrained"}}
    (records / "voc-new.json").write_text(json.dumps({"runs": [frozen, own, again]}))
    rows = {line.split(" | ")[0].strip("| "): line for line in tables.main().splitlines()}
    assert "| 50.0 / 43.9 |" in rows["**FBL** †"]  # 15-1 and 8-2 are still those of before
    assert "| not run | 50.0 | not run |" in rows["**closed form** (ours), the first task trained"]
    assert "closed form, the first task trained | not run | 50.0 | not run |" in tables.short()
    assert "closed form" in tables.curves("4-4", "tasks")
    closed, four, whole = tables.closed(), tables.tasks("4-4"), tables.published("4-4")
    assert closed.count("\n") == 3 + 6
    assert "`method.trunk=pretrained` |" in closed
    assert "| **closed form** (ours), the first task trained | 50.0 |" in four
    assert re.search(r"^\| \*\*FBL\*\* \| \S*50.0", four, re.M)  # without the mark
    assert "analytic (ours)" in whole


def test_a_chart_has_a_curve_and_a_name_for_each_method():
    chart = charts.lines("<&>", {"a": [0, 50, None], "b": [None, None, None], "c": [100, 50, 25]})
    assert "&lt;&amp;&gt;" in chart
    assert re.findall(r">([abc])</text>", chart) == ["a", "c"]
    heights = [float(y) for y in re.findall(r'y="([\d.]+)">[ac]<', chart)]
    assert heights[1] - heights[0] >= 17  # names do not lie on each other


@pytest.mark.slow
def test_every_recorded_run_becomes_a_folder_that_a_report_can_read(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["folders.py", str(RESULTS / "voc.json"), str(tmp_path / "out")])
    runpy.run_path(str(RESULTS / "folders.py"), run_name="__main__")
    made = sorted((tmp_path / "out").iterdir())
    assert len(made) == len(recorded)
    six = [path for path in made if "later_epochs=0" in path.name]
    report.write(six, tmp_path / "report.html", Progress())
    page = (tmp_path / "report.html").read_text()
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


def fake_run(path, miou):
    """A finished run folder with nothing but scores."""
    path.mkdir(parents=True)
    (path / "config.toml").touch()
    (path / "state.json").write_text('{"finished": true}')
    for task, value in enumerate(miou):
        score = ScoreRecord(round=task + 1, task=task, ends_task=True, view="published", miou=value)
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


@pytest.mark.slow
def test_a_photo_model_learns_five_more_classes(tmp_path, monkeypatch):
    """Both ways, on photos that are bands of colour: no photo is counted twice, and the pictures are there."""
    root = tmp_path / "VOC2012"
    lists = {"train_aug": range(60), "val": range(60, 85)}
    for name, numbers in lists.items():
        for i in numbers:
            save(root / "JPEGImages" / f"{i}.jpg", picture(32, 32, seed=i))
            ids = (0, 1 + i % 15, 16 + i % 5) if i % 2 else (0, 1 + i % 15)
            save(root / "SegmentationClassAug" / f"{i}.png", mask(*ids, height=32, width=32))
        (root / "ImageSets" / "Segmentation").mkdir(parents=True, exist_ok=True)
        (root / "ImageSets" / "Segmentation" / f"{name}.txt").write_text("\n".join(map(str, numbers)))
    words = (
        "photos.py",
        str(root),
        "-",
        str(tmp_path / "out"),
        "--tiny",
        "--first",
        "20",
        "--each",
        "2",
        "--scored",
        "3",
    )
    monkeypatch.setattr(sys, "argv", list(words))
    photos.main()
    ways = json.loads((tmp_path / "out" / "photos.json").read_text())["ways"]
    assert [step["step"] for step in ways["alone"]] == ["the fifteen", *photos.LATER]
    assert [len(step["iou"]) for step in ways["drawn"]] == [16, 17, 18, 19, 20, 21]
    assert (tmp_path / "out" / "alone" / "sheep" / "classes.txt").read_text() == "sheep"
    assert (tmp_path / "out" / "drawn" / "sheep" / "classes.txt").read_text().split()[1] == "aeroplane"
    assert (tmp_path / "out" / "drawn-tvmonitor" / "picture.png").is_file()
    counted = [f for name in ("first", "alone") for f in (tmp_path / "out" / name).rglob("train.txt")]
    stems = [stem for file in counted for stem in file.read_text().split()]
    assert len(stems) == len(set(stems)) > 20


@pytest.mark.slow
def test_images_counted_once_by_weight_are_those_that_sites_count(tmp_path, monkeypatch, capsys):
    """What frozen.py adds up image by image gives the scores of `fiss run`, where each site counts what it holds."""
    root = tmp_path / "VOC2012"
    for name, numbers in {"train_aug": range(80), "val": range(80, 120)}.items():
        for i in numbers:
            picked = mask(0, 1 + i % 20, 1 + (i * 7 + i // 20) % 20, height=48, width=48)
            colours = np.stack([picked * k % 251 for k in (12, 40, 77)], -1)
            save(root / "JPEGImages" / f"{i}.jpg", (colours + picture(48, 48, seed=i) // 3).astype(np.uint8))
            save(root / "SegmentationClassAug" / f"{i}.png", picked)
        (root / "ImageSets" / "Segmentation").mkdir(parents=True, exist_ok=True)
        (root / "ImageSets" / "Segmentation" / f"{name}.txt").write_text("\n".join(map(str, numbers)))
    tiny = frozen.Trunk("resnet18", "", {"encoder_output_stride": 16}, 48, 3, ("stage2", "stage3", "stage4"))
    fields = {"maps": ("stage2", "stage3", "stage4"), "projection": 40}
    monkeypatch.setattr(frozen, "TRUNKS", {"tiny": tiny})
    monkeypatch.setattr(frozen, "CHOSEN", {"tiny": fields})
    monkeypatch.setattr(frozen, "SETTINGS", ("8-2",))
    monkeypatch.setattr(sys, "argv", ["frozen.py", str(root), "-", str(tmp_path), "--trunks", "tiny"])
    frozen.main()
    tasks, everything = map(json.loads, (tmp_path / "tiny.jsonl").read_text().splitlines())
    run = fiss.run(tiny.config("8-2", Path("-"), root, fields, 2023), out=tmp_path / "run", progress=False)
    assert [score.miou for score in run.scores] == pytest.approx(tasks["miou"], abs=0.3)
    assert collect.one(tmp_path / "run").keys() <= tasks.keys()
    assert len(everything["miou"]) == 1
    assert len(tasks["iou"][-1]) == 21
    monkeypatch.setattr(frozen, "by_sites", lambda s: frozen.once(s.tasks, s.train.presence, range(80)))
    (tmp_path / "tiny.jsonl").unlink()
    frozen.main()  # other sums, other scores
    others = json.loads((tmp_path / "tiny.jsonl").read_text().splitlines()[0])
    assert max(abs(a - b) for a, b in zip(others["miou"], tasks["miou"], strict=True)) > 1
