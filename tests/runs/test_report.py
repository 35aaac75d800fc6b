"""The page about runs, as a browser shows it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from fiss import methods
from fiss.errors import UserError
from fiss.methods.fbl import FBL
from fiss.models.segmenter import Segmenter
from fiss.progress import Progress
from fiss.reports import pictures, report, timeline
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment
from fiss.simulation.scenario import open_scenario

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHECK = """<script>addEventListener("load", () => {
  document.body.setAttribute("data-seen", JSON.stringify({
    pictures: [...document.images].map(i => [i.alt, i.naturalWidth]),
    wide: document.documentElement.scrollWidth, window: innerWidth,
    text: document.body.innerText.length}));
});</script></body>"""


@pytest.fixture
def played(tiny, finished, tmp_path):
    """A few runs of the tiny world."""
    for name, seed in (("finetune", 5), ("mib", 5), ("fbl", 5), ("fbl", 6)):
        run = finished(replace(tiny, method=methods.find(name), seed=seed))
        shutil.copytree(run, tmp_path / "played" / f"{name}-{seed}")
    return tmp_path / "played"


def browse(page, width, tmp_path):
    """What Chromium says of the page at that width, and what it complains of."""
    copy = tmp_path / f"copy-{width}.html"
    copy.write_text(page.read_text().replace("</body>", CHECK))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=5000"
    done = subprocess.run(
        [
            CHROMIUM,
            *flags.split(),
            f"--user-data-dir={tmp_path}/{width}",
            f"--window-size={width},900",
            "--dump-dom",
            copy.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stderr[-2000:]
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(seen[1].replace("&quot;", '"')), complaints


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_it(played, tmp_path):
    page = tmp_path / "report.html"
    report.write(sorted(played.iterdir()), page, Progress())
    for width in (400, 1400):
        seen, complaints = browse(page, width, tmp_path)
        assert not complaints
        assert len(seen["pictures"]) >= 12
        assert all(across > 0 for _, across in seen["pictures"])
        assert seen["wide"] <= seen["window"]  # the page itself never scrolls sideways
        assert seen["text"] > 1000
    copy = tmp_path / "broken.html"  # the check notices what it is there for
    copy.write_text(page.read_text().replace("data:image/svg+xml;base64,", "data:image/svg+xml;base64,!", 1))
    seen, _ = browse(copy, 800, tmp_path)
    assert any(across == 0 for _, across in seen["pictures"])


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
    assert links.scripts == 0
    assert all(link.startswith("data:") for link in links.found)
    assert page.stat().st_size < 1.5e6 * 4  # ten runs of fifteen megabytes, four here
    for title in (
        "Which method forgot what",
        "Task by task",
        "Old against new",
        "IoU of every class",
        "taken for each other",
        "pixels that the last model calls background",
        "pixels that the last model calls a class",
        "Pictures",
        '<p class="legend">',
        "pseudo labels beside the truth",
        "Losses, time, traffic",
        "Clients and their data",
        "Configs",
    ):
        assert title in text, title
    notes = re.findall(r"<li>([^<]*)</li>", text.split("Please note")[1].split("</ul>")[0])
    known = ("The first task (6 classes) is too small", "in no validation image", "fewer images than a batch")
    assert all(any(text in note for text in known) for note in notes), notes
    assert re.search(r"<b>finetune</b>: \d+\.\d mIoU after its last task; it forgot", text)


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
    assert "<b>lwf</b>" in text
    with pytest.raises(UserError, match="No run to report"):
        report.write([runs / "empty"], page, Progress())


def test_a_first_task_alone(tiny, finished, tmp_path):
    report.write([finished(replace(tiny, joint=True))], tmp_path / "report.html", Progress())
    assert "only one task was learnt" in (tmp_path / "report.html").read_text()


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
