"""Records: to JSON and back, what earlier versions wrote, and lines that are damaged."""

import json
import sys
from types import SimpleNamespace

import pytest

from fiss.config.config import Config
from fiss.errors import UserError
from fiss.federation.loop import Participants, Round
from fiss.federation.messages import Reply
from fiss.monitors.accuracy import Seen, in_all
from fiss.monitors.rules import Evidence
from fiss.runs.folder import RunFolder
from fiss.runs.records import (
    HeldRecord,
    ProbeRecord,
    Records,
    ReplyRecord,
    RoundRecord,
    ScoreRecord,
    Splits,
    TaskRecord,
    from_json,
    probed,
    read_rounds,
    read_scores,
    to_json,
)

EVIDENCE = Evidence(6, 0.5, 0.01, 0.25, 0.02, (0.25, 0.75), True, False, 0.5, 1, 2)
REPLY = ReplyRecord(client=3, images=12, steps=4, samples=16, losses={"a": 0.5}, report={"kept": [1, 2]})


def a_round(**values):
    plain = {"round": 4, "task": 1, "clients": 9, "selected": (3, 1), "replies": (REPLY,), "seconds": 1.5}
    return RoundRecord(**plain | {"images_per_second": 10.7} | values)


def a_score(**values):
    plain = {"round": 4, "task": 1, "ends_task": False, "view": "full", "miou": 50.0}
    return ScoreRecord(**plain | {"iou": {"background": 90.0, "disc": None}} | values)


def through(record):
    return json.loads(json.dumps(to_json(record)))


def test_rounds_come_back_as_they_were_written():
    told = a_round()
    untold = a_round(probes=(ProbeRecord(client=3, transition=True, missing=2, evidence=EVIDENCE),), classes=5)
    nobody = a_round(probes=(), classes=0, replies=(), refused={"3": "odd"}, images_per_second=None)
    assert read_rounds(map(through, (told, untold, nobody)), "x") == (told, untold, nobody)
    keys = ["round", "task", "clients", "selected", "replies", "refused", "seconds", "images_per_second"]
    assert list(through(told)) == keys
    assert list(through(untold)) == [*keys[:4], "probes", "classes", *keys[4:]]
    probe = through(untold)["probes"][0]
    assert list(probe)[:5] == ["client", "transition", "missing", "images", "entropy"]
    assert list(through(REPLY)) == ["client", "images", "steps", "samples", "losses", "report", "transition"]
    assert [(p.round, p.client, p.fired) for p in probed([told, untold, nobody])] == [(4, 3, True)]
    assert untold.transitions == (3,)


def test_a_round_of_the_loop_is_named_where_sites_have_names():
    replies = (Reply(0, 5, {}, 2, 8, {"a": 1.0}), Reply(1, 0))
    result = Round(Participants(7, (1, 0)), None, (), replies, {1: "odd"})
    ours, theirs = RoundRecord.of(result, 2.0), RoundRecord.of(result, 2.0, {0: "x", 1: "y"}, missing={"z": "late"})
    assert (ours.selected, ours.replies[0].client, ours.refused) == ((1, 0), 0, {"1": "odd"})
    assert (theirs.selected, theirs.replies[0].client, theirs.refused) == (("y", "x"), "x", {"y": "odd"})
    assert (ours.images_per_second, RoundRecord.of(result, 0.0).images_per_second) == (4.0, None)
    assert "missing" not in to_json(ours)
    assert to_json(theirs)["missing"] == {"z": "late"}
    assert from_json(RoundRecord, through(theirs), "x") == theirs


def test_scores_come_back_as_they_were_written():
    seen = in_all({4: Seen(2, 1, 1, delay_probes=1 / 3, delay_rounds=1), 7: Seen(1, 1, delay_probes=1, delay_rounds=1)})
    records = (a_score(), a_score(round=5, ends_task=True, transitions=seen, entropy=None))
    assert read_scores(map(through, records), "x", "") == records
    assert list(through(records[0]))[:6] == ["round", "task", "ends_task", "view", "images", "miou"]
    assert "entropy" not in through(records[0])
    assert through(records[1])["entropy"] is None  # known to be unknown
    found = through(records[1])["transitions"]
    assert (found["delay_probes"], found["recall"], found["clients"]["4"]["delay_probes"]) == (0.667, 2 / 3, 0.333)
    assert list(found)[-1] == "clients"
    assert "clients" not in found["clients"]["4"]


def test_where_nobody_knew_the_tasks_the_last_score_before_growth_ends_one():
    lines = [a_score(round=r, task=t, ends_task=None, view=v) for r, t in ((0, 0), (1, 0), (2, 1)) for v in "fp"]
    assert all("ends_task" not in through(line) for line in lines)
    ends = [(s.round, s.view) for s in read_scores(map(through, lines), "x", "") if s.ends_task]
    assert ends == [(1, "f"), (1, "p"), (2, "f"), (2, "p")]


def test_splits_come_back_as_they_were_written(tmp_path):
    tasks = (TaskRecord(classes=("disc",), clients={2: HeldRecord(classes=("disc",), images=("i1", "i2"))}),)
    told = Splits(data="d", rounds=({"round": 0, "steps": None},), tasks=tasks)
    untold = Splits(
        data="d", tasks=tasks, present=((0, 2),), stages={2: ((0, 0, 0),)}, redrawn={"0/2/1": ("i3",)},
        transitions={2: (1,)},
    )  # fmt: skip
    for n, splits in enumerate((told, untold)):
        folder = RunFolder.create(tmp_path / str(n), Config())
        folder.write_splits(splits)
        assert folder.splits() == splits
        folder.write_splits(splits)
    assert (tmp_path / "0" / "splits.json").read_text() == (
        '{"data":"d","rounds":[{"round":0,"steps":null}],"tasks":[{"classes":["disc"],'
        '"clients":{"2":{"classes":["disc"],"images":["i1","i2"]}}}]}'
    )
    with pytest.raises(UserError, match="not those this run began with"):
        RunFolder(tmp_path / "0").write_splits(untold)


def test_what_json_cannot_say_is_none():
    record = a_round(replies=(ReplyRecord(client=0, images=1, losses={"a": float("nan"), "b": float("inf")}),))
    assert to_json(record)["replies"][0]["losses"] == {"a": None, "b": None}


def test_earlier_and_later_versions_are_read():
    probe = {"client": 1, "transition": False, "missing": 0, "images": 3, "entropy": 0.5, "entropy_error": 0.1}
    line = {"round": 0, "task": 0, "probes": [probe | {"missed": 0.1, "missed_error": 0.1, "chance": None}]}
    line |= {"replies": [{"client": 1, "images": 2, "to come": 1}], "seconds": 1, "to come": {}}
    (record,) = read_rounds([line], "x")
    assert record.probes[0].evidence == Evidence(3, 0.5, 0.1, 0.1, 0.1)
    assert record.replies[0].losses == {}
    (score,) = read_scores([{"round": 0, "task": 0, "ends_task": True, "view": "full", "miou": 1}], "x", "")
    assert (score.miou, score.from_background) == (1.0, {})


@pytest.mark.parametrize("log", ["rounds.jsonl", "scores.jsonl"])
@pytest.mark.parametrize(
    "text", ["{", "3", "[]", "{}", '{"round": "x"}', '{"round": 0, "replies": [1], "miou": {}}', "\xff"]
)
def test_a_damaged_line_is_said_to_be_damaged(tmp_path, log, text):
    folder = RunFolder.create(tmp_path / "r", Config())
    folder.append("rounds.jsonl", a_round())
    folder.append("scores.jsonl", a_score())
    with (folder.path / log).open("ab") as file:
        file.write(text.encode("latin-1") + b"\n")
    with pytest.raises(UserError, match=rf"{log}.*damaged or foreign"):
        folder.rounds() if log == "rounds.jsonl" else folder.scores()


def test_only_what_counts_is_read_while_others_write(tmp_path):
    folder = RunFolder.create(tmp_path / "r", Config())
    folder.append("rounds.jsonl", a_round())
    assert folder.rounds(finished=True) == ()
    length = (folder.path / "rounds.jsonl").stat().st_size
    (folder.path / "state.json").write_text(json.dumps({"lengths": {"rounds.jsonl": length}}))
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 1, "torn')
    assert folder.rounds(finished=True) == (a_round(),)


def test_splits_that_are_not_there_are_missed_in_a_simulation_only(tmp_path):
    folder = RunFolder.create(tmp_path / "r", Config())
    with pytest.raises(UserError, match=r"splits\.json: missing"):
        folder.splits()
    (folder.path / "sites.json").write_text("[]")
    assert folder.splits() is None


def test_a_table_needs_pandas(monkeypatch):
    records = Records([a_score()])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        records.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(json_normalize=lambda rows: rows))
    assert records.to_pandas()[0]["iou"] == {"background": 90.0, "disc": None}
