"""Small worlds for the tests: everything on one CPU thread, caches in a temporary folder."""

from dataclasses import replace

import pytest
import torch
from worlds import TINY_NETWORK

from fiss.config import presets
from fiss.config.config import Config
from fiss.data.sources import DataSpec
from fiss.data.transforms import AugmentSpec
from fiss.federation.spec import TaskSpec, WorldSpec
from fiss.methods import find
from fiss.monitors.rules import MonitorSpec
from fiss.training.spec import EvaluationSpec, TrainingSpec

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FISS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


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
