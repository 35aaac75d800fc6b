"""What FLARE's own analytics receivers hear of a real federation."""

import sys

import pytest
from federated import config, stage
from test_network import world

from fiss.deployment import supervisor
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.tracking import KINDS, round_values, score_values

pytestmark = pytest.mark.network


def tensorboard(here):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (folder,) = (here.folder / "run" / "tensorboard").iterdir()  # the server's alone: no site sends anything for it
    found = reading.EventAccumulator(str(folder), {"scalars": 0}).Reload()
    return [(name, one.step, one.value) for name in found.Tags()["scalars"] for one in found.Scalars(name)]


def test_its_receiver_holds_what_the_records_hold(tmp_path):
    """With scores of sites, that come a round later than the losses."""
    pytest.importorskip("tensorboard")
    with world(tmp_path / "net", config(patience=120), "a", "b") as here:
        stage(here.root, 0, ("a", "b"))
        for name in ("a", "b"):
            here.site(name)
            with (here.folder / "kits" / name / "site.toml").open("a") as file:
                file.write("score = 0.4\n")
        here.start("localhost", "a", "b")
        assert here.run(2, 2, "--track", "tensorboard").wait(240) == 0
        run = RunFolder(here.folder / "run")
        assert [score.round for score in run.scores()] == [1, 2]
        wanted = [(name, r.round, value) for r in run.rounds() for name, value in round_values(r).items()]
        wanted += [(name, s.round, value) for s in run.scores() for name, value in score_values(s).items()]
        assert {"loss/segmentation", "published/miou", "bytes/sent"} <= {name for name, _, _ in wanted}
        here.until(lambda: len(tensorboard(here)) >= len(wanted), 20)
        heard = sorted(tensorboard(here))
        assert [one[:2] for one in heard] == [one[:2] for one in sorted(wanted)]
        assert [one[2] for one in heard] == pytest.approx([one[2] for one in sorted(wanted)], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tracker_that_is_not_there_is_refused_before_any_job(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "tensorboard.summary" if kind == "tensorboard" else kind, None)
    with world(tmp_path / "net", config(), "a") as here:
        with pytest.raises(UserError, match=f"pip install {kind}"):
            supervisor.supervise(here.folder, 1, 1, Progress(), track=kind)
        assert not (here.folder / "run").exists()
