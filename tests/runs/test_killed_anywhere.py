"""Killed in every write, and in training with every method, where tasks are announced and where they are not."""

from dataclasses import replace

import pytest
from killing import KillAtStep, die_in_fsync, killed, result

from fiss.methods import METHODS, find
from fiss.progress import Progress
from fiss.simulation import experiment

pytestmark = pytest.mark.long

WRITES = {"tiny": 30, "untold": 48}


@pytest.mark.parametrize(("world", "at"), [(world, at + 1) for world, count in WRITES.items() for at in range(count)])
def test_in_every_write(world, at, request, finished, tmp_path, monkeypatch):
    config = request.getfixturevalue(world)

    def work():
        die_in_fsync(at, monkeypatch)
        experiment.start(config, tmp_path / "r", Progress())

    assert killed(work)
    if (tmp_path / "r").exists():
        experiment.resume(tmp_path / "r", Progress())
    else:  # killed before there was anything to go on with
        experiment.start(config, tmp_path / "r", Progress())
    assert result(tmp_path / "r") == result(finished(config))


@pytest.mark.parametrize("step", [5, 8, 11])
@pytest.mark.parametrize("world", list(WRITES))
@pytest.mark.parametrize("name", list(METHODS))
def test_in_training_with_every_method(name, world, step, request, finished, tmp_path):
    config = replace(request.getfixturevalue(world), method=find(name))
    assert killed(lambda: experiment.start(config, tmp_path / "r", KillAtStep(step)))
    experiment.resume(tmp_path / "r", Progress())
    assert result(tmp_path / "r") == result(finished(config))
