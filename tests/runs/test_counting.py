"""Rounds count from 1 in a run's files, as on the screen. Folders that count from 0 are read, and go on as they do."""

import json

import pytest

from fiss.progress import Progress
from fiss.runs.counting import Counting
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment


class Stops(Progress):
    """In the fourth round."""

    def round(self, task, round, clients):
        if round == 4:
            raise KeyboardInterrupt


def count_from_0(path):
    """The folder as an earlier version wrote it."""
    folder = RunFolder(path)
    logs = {log: folder.records(log) for log in ("rounds.jsonl", "scores.jsonl")}
    state, splits = (json.loads((path / name).read_text()) for name in ("state.json", "splits.json"))
    for log, lines in logs.items():
        text = "".join(json.dumps(line | {"round": line["round"] - 1}) + "\n" for line in lines)
        (path / log).write_text(text)
        state["lengths"][log] = len(text)
    for one in splits["rounds"]:
        one["round"] -= 1
    for own in splits.get("stages", {}).values():
        for stage in own:
            stage[0] -= 1
    for own in splits.get("transitions", {}).values():
        own[:] = [round_ - 1 for round_ in own]
    (path / "splits.json").write_text(json.dumps(splits, separators=(",", ":")))
    names = {name: f"round-{int(name[6:]) - 1:04d}" for name in state["digests"] if name.startswith("round-")}
    for name in sorted(names):
        (path / "weights" / f"{name}.safetensors").rename(path / "weights" / f"{names[name]}.safetensors")
    state["digests"] = {names.get(name, name): digest for name, digest in state["digests"].items()}
    state["weights"] = names.get(state["weights"], state["weights"])
    (path / "state.json").write_text(json.dumps(state | {"format": 1}, indent=1))


def records(folder):
    """All but what a clock said, and the splits."""
    rounds = [{**vars(record), "seconds": 0, "images_per_second": 0} for record in folder.rounds()]
    return rounds, folder.scores(), folder.splits()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["tiny", "untold"])
def test_a_folder_that_counts_from_0_is_read_and_goes_on(which, request, finished, tmp_path):
    config, path = request.getfixturevalue(which), tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        experiment.start(config, path, Stops())
    count_from_0(path)
    assert [record.round for record in RunFolder(path).rounds()] == [1, 2, 3]
    experiment.resume(path, Progress())
    whole, ours = RunFolder(finished(config)), RunFolder(path)
    assert records(ours) == records(whole)
    numbers = [record.round for record in whole.rounds()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [line["round"] for line in ours.records("rounds.jsonl")] == list(range(len(numbers)))
    assert [line["round"] for line in whole.records("rounds.jsonl")] == numbers
    assert json.loads((path / "splits.json").read_text())["rounds"][0]["round"] == 0
    assert json.loads((whole.path / "splits.json").read_text())["rounds"][0]["round"] == 1
    kept = [{f.counting.round_of(p.stem) for p in (f.path / "weights").glob("round-*")} for f in (ours, whole)]
    assert kept[0] == kept[1] <= set(numbers)


def test_names_of_models_by_format(tmp_path):
    """Round 12, and the teacher that was kept after 12 rounds."""
    counting = Counting(tmp_path)
    assert counting.model_of(12) == "round-0012"
    assert [counting.round_of(name) for name in ("round-0012", "round-0012-without-a-b", "after-0012")] == [12] * 3
    (tmp_path / "state.json").write_text(json.dumps({"format": 1, "next_round": 12}, indent=1))
    assert counting.model_of(12) == "round-0011"
    assert [counting.round_of(name) for name in ("round-0011", "round-0011-without-a-b", "before-0012")] == [12] * 3
