"""One answer to "are these the same run?", as a table of cases."""

import pytest

from fiss.config import identity, presets
from fiss.config.config import Config, flat, to_dict, with_settings
from fiss.config.identity import (
    DECIDES,
    SAME_RESULT,
    SAME_ROW,
    SAME_RUN,
    config_digest,
    differences,
    row_key,
)
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.reports.comparison import labels
from fiss.runs.folder import RunFolder
from fiss.simulation import on_flare, sweep

# What is set differently, and whether it is then still the same run (to the bit), the same result, the same row.
CASES = [
    ("training.device", "cpu", True, True, True),
    ("training.workers", 3, True, True, True),
    ("training.cache", 0.5, True, True, True),
    ("training.threads", 1, False, True, True),
    ("training.compile", True, False, True, True),
    ("training.graphs", True, False, True, True),
    ("evaluation.batch", 7, False, True, True),
    ("data.root", "/data", False, False, True),
    ("model.weights", "a.safetensors", False, False, True),
    ("base", "runs/a", False, False, True),
    ("keep", 3, False, False, True),
    ("evaluation.every", "task", False, False, True),
    ("federation.private_names", "key", False, False, True),
    ("seed", 7, False, False, True),
    ("name", "other", False, False, False),
    ("joint", True, False, False, False),
    ("method.name", "fbl", False, False, False),
    ("method.start", "background", False, False, False),
    ("training.batch", 9, False, False, False),
    ("training.later_epochs", 1, False, False, False),
    ("training.precision", "bfloat16", False, False, False),
    ("world.lag", 1, False, False, False),
    ("model.options.decoder_channels", 64, False, False, False),
    ("monitor.name", "features", False, False, False),
    ("evaluation.views", ["full"], False, False, False),
]


@pytest.mark.parametrize(("key", "value", "run", "result", "row"), CASES, ids=[case[0] for case in CASES])
def test_what_a_key_decides(key, value, run, result, row):
    one = presets.shapes()
    other = with_settings(one, {key: value})
    assert (config_digest(one) == config_digest(other)) is run
    for ignoring, same in ((SAME_RUN, run), (SAME_RESULT, result), (SAME_ROW, row)):
        found = differences(one, other, ignoring=ignoring)
        assert bool(found) is not same
        assert same or key in found
    assert (not differences(one, other)) is result
    assert (row_key(one) == row_key(other)) is row
    assert differences(one, other, ignoring=()) != []


def test_the_table_names_keys_that_there_are():
    assert set(DECIDES) <= set(flat(to_dict(Config())))
    assert {*SAME_RUN, *SAME_RESULT, *SAME_ROW} == set(DECIDES.values())
    assert set(DECIDES) <= {case[0] for case in CASES}


def test_the_same_place_may_be_written_in_two_ways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    short, long = (
        with_settings(presets.shapes(), {"data.root": root, "base": base, "model.weights": weights})
        for root, base, weights in (
            ("~/data", "runs/a", "w.safetensors"),
            (str(tmp_path / "data"), str(tmp_path / "runs" / "a"), str(tmp_path / "w.safetensors")),
        )
    )
    assert differences(short, long, ignoring=()) == []
    assert differences(short, with_settings(long, {"data.root": "/data"})) == ["data.root"]
    assert identity.with_absolute_paths(short) == long
    imagenet = with_settings(long, {"model.weights": "imagenet"})
    assert identity.with_absolute_paths(imagenet) == imagenet


def test_what_is_ignored_may_be_a_key_a_section_or_a_word_of_the_table():
    one = presets.shapes()
    other = one.replace(seed=3, method="fbl", training={"batch": 9, "device": "cpu"}, world={"rounds": 2})
    assert differences(one, other, ignoring=("seed", "method", "training.batch", "place")) == ["world.rounds"]
    assert differences(one, one.replace(seed=1), one.replace(keep=4), ignoring=()) == ["seed", "keep"]
    assert differences() == differences(one) == []
    assert "method.pod_logits" in differences(one, other)  # also a key that only one of them has


def test_runs_of_the_first_version_can_be_resumed():
    """Digests as the first version wrote them: keys that came later count only where they differ from their default."""
    assert config_digest(presets.shapes()).startswith("d34dd1f641bef96d")
    assert config_digest(presets.voc_4_4()).startswith("cc5dd72b86fffa20")


def test_sweeps_flare_and_tables_ask_the_same_table(tmp_path, monkeypatch):
    """Threads, compile and graphs: not in a sweep, not in a table, but where a run goes on."""
    (job,) = sweep.plan(presets.shapes(), ["finetune"], [1], tmp_path)
    there = with_settings(job.config, {"training.threads": 1, "training.compile": True, "training.graphs": True})
    RunFolder.create(job.folder, there)
    sweep.check([job])
    (other,) = sweep.plan(presets.shapes().replace(training={"batch": 9}), ["finetune"], [1], tmp_path)
    with pytest.raises(UserError, match=r"other settings \(training\.batch\)"):
        sweep.check([other])
    assert labels([there, job.config, other.config]) == [f"finetune, training.batch {n}" for n in (8, 8, 9)]
    monkeypatch.setattr(on_flare, "require_flare", lambda: None)
    monkeypatch.setattr(on_flare, "open_scenario", lambda *_: (_ for _ in ()).throw(UserError("came so far")))
    with pytest.raises(UserError, match=r"other settings \(training\.compile, training\.graphs, training\.threads\)"):
        on_flare.simulate(job.config, job.folder, 1, None)
    with pytest.raises(UserError, match="came so far"):
        on_flare.simulate(there.replace(training={"device": "cpu", "workers": 2}), job.folder, 1, None)


def test_a_sweep_that_was_moved_is_found_again(tmp_path):
    jobs = sweep.plan(presets.shapes(), ["mib"], [1], tmp_path / "a")
    for job in jobs:
        RunFolder.create(job.folder, job.config)
    (tmp_path / "a").rename(tmp_path / "b")
    sweep.check(sweep.plan(presets.shapes(), ["mib"], [1], tmp_path / "b"))


def test_one_sweep_at_a_time(tmp_path):
    jobs = sweep.plan(presets.shapes(), ["finetune"], [1], tmp_path)

    class Tries(Progress):
        def jobs(self, board):
            with pytest.raises(UserError, match="another sweep is at work in it"):
                sweep.play(jobs, 1, Progress())
            raise KeyboardInterrupt

    for _ in range(2):  # the lock goes with the first
        with pytest.raises(KeyboardInterrupt):
            sweep.play(jobs, 0, Tries())
