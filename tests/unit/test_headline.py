"""Who won and who forgot, in words."""

import pytest

from fiss.reports.headline import headline, standings, told
from fiss.runs.records import ScoreRecord


def ended(joint=False, **scores):
    """Methods by name, each with the last scores of its seeds: (mIoU, forgetting)."""
    return {
        name: (joint, [ScoreRecord(round=0, task=1, view="published", miou=m, forgetting=f, new=1.0) for m, f in seeds])
        for name, seeds in scores.items()
    }


@pytest.mark.parametrize(("rows", "words"), [
    ({}, "No run is finished yet."),
    (ended(fbl=[(40, 5)]), "fbl ends at 40.0 mIoU and forgot 5.0 points of the old classes."),
    (ended(fbl=[(40, None)]), "fbl ends at 40.0 mIoU; it learnt one task only, so there is nothing to forget yet."),
    (ended(a=[(10, 30), (20, 40)], b=[(50, 2)]),
     "b ends best, with 50.0 mIoU; a forgot most: 35.0 points of the old classes."),
    (ended(a=[(10, 30)], b=[(50, 31)]),
     "b ends best, with 50.0 mIoU, though it forgot most: 31.0 points of the old classes."),
    (ended(a=[(50, 0)], b=[(49.7, -1)], c=[(9, 0.3)]),
     "a and b are level, with 50.0 mIoU; none forgot anything to speak of."),
    (ended(a=[(50, 9)]) | ended(True, all=[(70, None)]),
     "a ends at 50.0 mIoU and forgot 9.0 points of the old classes."),
])  # fmt: skip
def test_the_headline(rows, words):
    assert headline(standings(rows)) == words


def test_every_method_has_its_sentence():
    lines = list(told(standings(ended(a=[(10, 0.2)], b=[(50, 2)]) | ended(True, c=[(70, None)]))))
    assert len(lines) == 4
    assert lines[1:] == [
        "c had all images at once, which is the upper bound: 70.0 mIoU.",
        "b ends at 50.0 mIoU and forgot 2.0 points of the old classes.",
        "a ends at 10.0 mIoU and forgot next to nothing.",
    ]
