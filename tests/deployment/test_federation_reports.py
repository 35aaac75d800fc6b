"""The run folder of a real federation, read by all that reads run folders."""

import json
import shutil
from dataclasses import replace

import pytest
from command_line import fiss
from federated import DATA, Local, config, site_client, stage

from fiss.data.sources import DataSpec
from fiss.deployment import server
from fiss.deployment.server import open_run, run_rounds
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.reports import comparison, report
from fiss.runs.folder import RunFolder
from fiss.runs.scoring import rescore
from fiss.simulation import experiment

NAMES = {0: "a", 1: "b"}


def played(root, own_images):
    """Two sites over four rounds; new classes come in the third."""
    stage(root, 0, NAMES.values())
    settings = config()
    if own_images:
        shutil.copytree(root / "a", root / "own")
        for i in range(24, 30):  # of the second task
            shutil.copy(_drawn(root, i, "images"), root / "own" / "images")
            shutil.copy(_drawn(root, i, "masks"), root / "own" / "masks")
        (root / "own" / "train.txt").write_text("scan000\n")
        (root / "own" / "val.txt").write_text("".join(f"scan{i:03d}\n" for i in (1, 2, 3, 24, 25, 26)))
        settings = replace(settings, data=DataSpec("folder", root=str(root / "own")))
    run = open_run(settings, root / "run")
    engine = Local({n: site_client(root, settings, name) for n, name in NAMES.items()})
    server.number_sites(run, list(NAMES.values()))
    run_rounds(run, engine, NAMES, 2, Progress())
    stage(root, 1, NAMES.values())
    run_rounds(run, engine, NAMES, 4, Progress())
    return run


def _drawn(root, i, kind):
    if not (root / "more").exists():
        stage(root / "more", 1, ("a",))
    return root / "more" / "a" / kind / f"scan{i:03d}.png"


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    return played(tmp_path_factory.mktemp("scored"), True)


@pytest.fixture(scope="module")
def unscored(tmp_path_factory):
    return played(tmp_path_factory.mktemp("unscored"), False)


def test_its_records_are_those_of_a_simulation(scored, tiny, tmp_path):
    rounds, scores = scored.rounds(), scored.scores()
    assert [record.task for record in rounds] == [0, 0, 1, 1]
    assert [(score.task, score.ends_task) for score in scores] == [(0, False), (0, True), (1, False), (1, True)]
    assert rounds[2].transitions == ("a", "b")
    assert {reply.client for record in rounds for reply in record.replies} == {"a", "b"}
    assert scored.splits() is None
    last = scores[-1]
    assert None not in (last.miou, last.old, last.new, last.base, last.forgetting)
    assert last.to_background.keys() == last.iou.keys() - {"background"} == set(rounds[-1].class_names)
    assert last.old == pytest.approx(
        sum(v for name, v in last.iou.items() if name in scores[0].iou and v is not None)
        / sum(v is not None for name, v in last.iou.items() if name in scores[0].iou)
    )
    simulated = experiment.start(tiny, tmp_path / "r", Progress())
    theirs = (simulated.records("scores.jsonl")[0], simulated.records("rounds.jsonl")[0])
    ours = (scored.records("scores.jsonl")[0], scored.records("rounds.jsonl")[0])
    assert list(ours[0]) == [key for key in theirs[0] if key != "ends_task"]  # nobody knows that yet
    assert set(ours[1]) - set(theirs[1]) == {
        "probes",
        "classes",
        "class_names",
        "missing",
        "brought",
        "sent",
        "received",
    }
    assert set(theirs[1]) <= set(ours[1])


def test_it_can_be_scored_again(scored, unscored):
    assert tuple(rescore(scored.path, ("published",), Progress())) == scored.ends()
    with pytest.raises(UserError, match="no images of its own"):
        list(rescore(unscored.path, ("published",), Progress()))


def test_every_command_that_reads_runs_reads_it(scored, unscored, tmp_path, capsys):
    fiss("eval", scored.path, "--view", "full", "--json")
    assert [json.loads(line)["task"] for line in capsys.readouterr().out.splitlines()] == [0, 1]
    (table,) = [comparison.compare([scored.path], "published")]
    ends = scored.ends()
    assert table.rows[0][2:4] == tuple(f"{score.miou:.1f}" for score in ends)
    assert table.rows[0][4] == f"{ends[-1].old:.1f}"
    fiss("compare", scored.path)
    fiss("picture", scored.path, "--out", tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 10_000
    fiss("predict", scored.path, scored.path.parent / "own" / "images" / "scan001.png", "--out", tmp_path / "masks")
    for run in (scored, unscored):
        (fired,) = comparison.monitors([run.path])
        assert fired.rows == (("a", "4", "3"), ("b", "4", "3"))
        fiss("monitors", run.path)
    for command in (("compare", unscored.path), ("picture", unscored.path), ("eval", unscored.path)):
        fiss(*command, code=2)
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert "has no images of its own" in said
    fiss("resume", scored.path, code=2)
    assert "`fiss federation run` goes on" in capsys.readouterr().err


def test_the_report_shows_what_there_is(scored, unscored, tmp_path):
    page = tmp_path / "report.html"
    for run in (scored, unscored):
        report.write([run.path], page, Progress())
        text = page.read_text()
        for title in ("Losses, time, traffic", "Clients and their data", "rounds and transitions", "Configs"):
            assert title in text, title
        for title in ("fbl ends at ", "IoU of every class", '"seen":{"fbl":'):
            assert (title in text) == (run is scored), title
        assert ("Please note" in text) == (run is unscored)
    assert "has no images of its own" in text
    report.write([scored.path, unscored.path], page, Progress())
    assert "fbl" in page.read_text()


def test_a_folder_of_an_earlier_version_is_read(scored, unscored, tmp_path):
    """Sites under `site`, probes as two lists of names, classes by name; scores with IoU alone."""
    old = shutil.copytree(scored.path, tmp_path / "run")
    rounds = []
    for record in scored.rounds():
        replies = [
            {"images": r.images, "steps": r.steps, "samples": r.samples, "losses": dict(r.losses),
             "report": dict(r.report), "transition": r.transition, "site": r.client}
            for r in record.replies
        ]  # fmt: skip
        heard = list(dict.fromkeys(probe.client for probe in record.probes))
        line = {"round": record.round, "selected": record.selected, "classes": record.class_names, "heard": heard}
        line |= {"transitions": record.transitions, "replies": replies, "refused": {}, "missing": {}, "seconds": 1.0}
        rounds.append(json.dumps(line))
    (old / "rounds.jsonl").write_text("\n".join(rounds) + "\n")
    scores = [json.dumps({"round": s.round, "miou": s.miou, "iou": dict(s.iou)}) for s in scored.scores()]
    (old / "scores.jsonl").write_text("\n".join(scores) + "\n")
    again = RunFolder(old)
    for ours, theirs in zip(again.rounds(), scored.rounds(), strict=True):
        assert (ours.task, ours.classes, ours.class_names) == (theirs.task, theirs.classes, theirs.class_names)
        assert (ours.replies, ours.transitions) == (theirs.replies, theirs.transitions)
    seen = [(s.round, s.task, s.ends_task, s.view, s.miou) for s in scored.scores()]
    assert [(s.round, s.task, s.ends_task, s.view, s.miou) for s in again.scores()] == seen
    report.write([old], tmp_path / "report.html", Progress())
    comparison.compare([old], "published")
    assert set(scored.rounds()[-1].class_names) <= set(DATA.classes)
