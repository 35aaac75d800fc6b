"""The page about runs, as a browser shows it."""

import base64
import io
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser
from PIL import Image

from fiss import methods
from fiss.errors import UserError
from fiss.methods.fbl import FBL
from fiss.models.segmenter import Segmenter
from fiss.progress import Progress
from fiss.reports import figures, pictures, report, timeline
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment
from fiss.simulation.scenario import open_scenario


@pytest.fixture
def played(tiny, finished, tmp_path):
    """A few runs of the tiny world."""
    for name, seed in (("finetune", 5), ("mib", 5), ("fbl", 5), ("fbl", 6)):
        run = finished(replace(tiny, method=methods.find(name), seed=seed))
        shutil.copytree(run, tmp_path / "played" / f"{name}-{seed}")
    return tmp_path / "played"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_it_and_a_reader_can_choose(played, tmp_path):
    page = tmp_path / "report.html"
    report.write(sorted(played.iterdir()), page, Progress())
    painted = "[...document.querySelectorAll('#pictures canvas')].filter(c => c.pixels).length"
    for width, dark in ((400, True), (1400, False)):
        with Browser(tmp_path / f"profile-{width}", width, dark) as browser:
            browser.open(page.as_uri())
            browser.until(f"{painted} === 15")  # three images, their truth, three methods
            assert browser.see("document.documentElement.scrollWidth <= innerWidth")  # never scrolls sideways
            bright = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).every(c => c > 128)"
            assert browser.see(bright) != dark
            assert browser.see("document.querySelectorAll('#curves polyline').length") == 3
            told = "document.querySelector('#tip').textContent"
            point = "new PointerEvent('pointermove', {clientX: b.left + b.width / 2, clientY: b.top + b.height / 2})"
            over = "(s => { const e = document.querySelector(s), b = e.getBoundingClientRect(); e.dispatchEvent(%s) })"
            browser.see(f"{over % point}('#pictures canvas')")
            assert re.match(r"at this pointtruth \w+fbl \w+finetune \w+mib \w+$", browser.see(told))
            browser.see(f"{over % point}('#curves svg')")
            assert re.match(r"after task \d(\w+ \d+\.\d){3}$", browser.see(told))
            move = "Object.assign(document.querySelector('#task'), {value: 0}).dispatchEvent(new Event('input'))"
            before = browser.see("document.querySelector('#classes').textContent")
            browser.see(move)
            assert browser.see("document.querySelector('#shown').textContent") == "after task 0"
            assert browser.see("document.querySelector('#classes').textContent") != before
            browser.see("document.querySelector('#methods input').click()")
            assert browser.see("document.querySelectorAll('#curves polyline').length") == 2
            assert browser.see("document.querySelector('#classes tr').textContent") == "classfinetunemib"
            browser.see("document.querySelector('#classes button').click()")
            assert browser.see("document.querySelector('#which').textContent") == "IoU of background"
            browser.see("for (const one of document.querySelectorAll('details')) one.open = true")
            browser.until("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
            assert browser.see("document.images.length") >= 5
            assert browser.see("document.documentElement.scrollWidth <= innerWidth")
            assert not browser.complaints


def test_a_picture_keeps_its_colours():
    flat = np.array([[[0, 0, 0], [230, 159, 0]], [[1, 2, 3], [255, 255, 255]]], np.uint8)
    kind, text = figures.shot(flat).split(",")
    assert kind == "data:image/png;base64"
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")) == flat).all()
    photo = np.random.default_rng(0).integers(0, 256, (40, 700, 3), np.uint8)
    kind, text = figures.shot(photo).split(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(text))).width == figures.SIDE


class Links(HTMLParser):
    """Everything a page would fetch."""

    def __init__(self):
        super().__init__()
        self.found, self.scripts = [], 0

    def handle_starttag(self, tag, attributes):
        self.found += [value for key, value in attributes if key in ("src", "href") and value]
        self.scripts += tag == "script"


def test_one_page_without_network(played, tmp_path):
    page = tmp_path / "report.html"
    report.write(sorted(played.iterdir()), page, Progress())
    text = page.read_text()
    links = Links()
    links.feed(text)
    assert links.scripts == 2  # the numbers, and what draws them
    assert all(link.startswith("data:") for link in links.found)
    assert page.stat().st_size < 1.5e6 * 4  # ten runs of fifteen megabytes, four here
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    (group,) = data["pictures"]  # of the same images
    assert [list(row["seen"]) for row in group["rows"]] == [["fbl", "finetune", "mib"]] * 3
    for method in data["methods"]:
        runs = [run for run in sorted(played.iterdir()) if run.name.startswith(method["label"])]
        ends = [RunFolder(run).ends("published")[-1] for run in runs]
        assert method["miou"][-1] == pytest.approx(np.mean([end.miou for end in ends]), abs=0.006)
        assert method["iou"]["background"][-1] == pytest.approx(np.mean([e.iou["background"] for e in ends]), abs=0.006)
    for title in (
        "IoU of every class",
        "ld against new",
        '<p class="legend">',
        "Pseudo labels beside the truth",
        "Task by task, in numbers",
        "Losses, time, traffic",
        "Clients and their data",
        "Configs",
    ):
        assert title in text, title
    notes = re.findall(r"<li>([^<]*)</li>", text.split("Please note")[1].split("</ul>")[0])
    assert len(notes) == len(set(notes)) <= 4  # said once of all runs
    known = ("The first task (6 classes) is too small", "in no validation image", "fewer images than a batch")
    assert all(any(text in note for text in known) for note in notes), notes
    assert re.search(r"<h1>\w+ ends best, with \d+\.\d mIoU; ", text)


def test_pseudo_labels_are_drawn_with_the_student_of_the_run_as_it_trains(tiny, finished, monkeypatch):
    """In fbl-paper its entropies decide, with the statistics of the batch; the teacher's are its own."""
    folder = RunFolder.open(finished(replace(tiny, method=methods.find("fbl-paper"))))
    steps = []
    relabel, forward, modes = FBL.relabel, Segmenter.forward, []
    monkeypatch.setattr(FBL, "relabel", lambda self, step: steps.append(step) or relabel(self, step))
    monkeypatch.setattr(Segmenter, "forward", lambda self, x: modes.append(self.training) or forward(self, x))
    headings, rows, _ = pictures.pseudo_label_tiles(folder)
    assert len(rows[0]) == len(headings) == 4
    (step,) = steps
    assert modes == [True, False]  # student, teacher
    validation = open_scenario(folder.config(), Progress()).validation
    for output, name in zip((step.teacher, step.student), list(folder.last_models().values())[-2:], strict=True):
        model, space = validation.model(folder, name)
        assert output.logits_BCHW.shape[1] == space.channels
        assert torch.equal(output.small_BChw, model.classifier(output.decoded_BDhw))
    entropy, thresholds = step.student.entropy[0], step.state["thresholds"]
    accepted = entropy <= thresholds[step.teacher.entropy[1]]
    shown = methods.find("fbl-paper").relabel(step)[0]
    old = (step.labels_BHW == 0) & (step.teacher.entropy[1] > 0)
    assert torch.equal(shown[old] > 0, accepted[old])


def test_what_is_wrong_is_said_and_the_rest_is_shown(played, tmp_path, tiny):
    runs = tmp_path / "runs"
    shutil.copytree(played, runs)
    (runs / "mib-5" / "scores.jsonl").write_text("{not json\n")
    (runs / "fbl-6" / "state.json").unlink()
    shutil.rmtree(runs / "finetune-5" / "weights")
    other = replace(tiny, method=methods.find("lwf"), training=replace(tiny.training, batch=3))
    experiment.start(other, runs / "lwf-5", Progress())
    (runs / "empty").mkdir()
    page = tmp_path / "report.html"
    report.write(sorted(runs.iterdir()), page, Progress())
    text = page.read_text()
    for note in (
        "mib-5 cannot be read and is left out",
        "fbl-6 is not finished",
        "empty is not a run folder",
        "differ in more than their method: training.batch",
        "finetune-5: no pictures",
    ):
        assert note in text, note
    assert ">lwf</td>" in text
    with pytest.raises(UserError, match="No run to report"):
        report.write([runs / "empty"], page, Progress())


def test_a_first_task_alone(tiny, finished, tmp_path):
    report.write([finished(replace(tiny, joint=True))], tmp_path / "report.html", Progress())
    text = (tmp_path / "report.html").read_text()
    assert re.search(r"<h1>joint had all images at once, which is the upper bound: \d+\.\d mIoU.</h1>", text)


def test_names_cannot_break_the_page(played, tmp_path):
    run = tmp_path / "<b>&amp;"
    shutil.copytree(played / "finetune-5", run)
    report.write([run], tmp_path / "report.html", Progress())
    text = (tmp_path / "report.html").read_text()
    assert "<b>&amp;</summary>" not in text
    assert "&lt;b&gt;&amp;amp;" in text
    assert RunFolder(run).finished()


def test_rounds_are_counted_as_on_the_screen(tiny, finished, monkeypatch):
    """From 1, and a dashed line stands between the last round of a task and the first of the next."""
    rounds, drawn = RunFolder.open(finished(replace(tiny, method=methods.find("mib")))).rounds(), []
    monkeypatch.setattr(timeline, "svg", lambda figure, _: drawn.append(figure.axes[0]) or "")
    timeline.calendar("mib", rounds)
    timeline.losses({"mib": rounds})
    trained, *_, boundary = drawn[0].lines
    assert set(trained.get_xdata()) == {1, 2, 3, 4}
    assert list(boundary.get_xdata()) == [2.5, 2.5]
    assert list(drawn[1].lines[0].get_xdata()) == [1, 2, 3, 4]
