"""Small worlds for the tests: everything on one CPU thread, caches in a temporary folder, the longest tests first."""

import fcntl
import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from worlds import TINY_NETWORK

from fiss.config import presets
from fiss.config.config import Config, to_toml
from fiss.data.sources import DataSpec
from fiss.data.transforms import AugmentSpec
from fiss.federation.spec import TaskSpec, WorldSpec
from fiss.methods import find
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.simulation import experiment
from fiss.training.spec import EvaluationSpec, TrainingSpec

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start

LONGEST_FIRST = ("network", "slow", "benchmark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: workers are given the tests in this order."""
    items.sort(key=lambda item: next((i for i, mark in enumerate(LONGEST_FIRST) if item.get_closest_marker(mark)), 9))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _cache(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FISS_CACHE", str(shared / "cache"))


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Random tensors of a test are the same in every run, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def finished(shared: Path, _cache: None) -> Callable[[Config], Path]:
    """A function from a config to the folder of its uninterrupted run, made once for all tests and workers; a test that
    would change it copies it."""

    def run(config: Config) -> Path:
        path = shared / hashlib.sha256(to_toml(config).encode()).hexdigest()[:16]
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                half = path.with_suffix(".half")
                experiment.start(config, half, Progress())
                half.rename(path)
        return path

    return run


@pytest.fixture
def tiny() -> Config:
    """Two clients of three, two tasks of two rounds, a step takes milliseconds."""
    return replace(
        presets.shapes(),
        name="tiny",
        seed=5,
        data=DataSpec("shapes", shapes_train=24, shapes_val=6, shapes_size=32),
        tasks=TaskSpec("disc, ring, square, triangle, star, cross; crescent, arrow, ell"),
        world=WorldSpec(clients=3, joiners=1, per_round=2, rounds=2, class_ratio=0.5, sample_ratio=0.5),
        model=TINY_NETWORK,
        augment=AugmentSpec(crop=32),
        training=TrainingSpec(epochs=1, batch=4, first_rate=0.05, later_rate=0.01, threads=1, device="cpu"),
        evaluation=EvaluationSpec(("published", "full"), size=32, batch=6),
    )


@pytest.fixture
def untold(tiny):
    world = WorldSpec(
        clients=4, joiners=1, per_round=2, rounds=3, class_ratio=0.5, sample_ratio=0.5, lag=1, stay=0.2, join="any",
        away=0.1, refresh=0.1,
    )  # fmt: skip
    monitor = MonitorSpec("images", probed="all", sample=6)
    return replace(tiny, world=world, monitor=monitor, method=find("fbl"), keep=1)
