import pytest

from fiss.errors import UserError
from fiss.labels import LabelSpace, TaskStream

VOC = tuple(f"c{i}" for i in range(1, 21))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("15-1", [15, 1, 1, 1, 1, 1]),
        ("4-4", [4] * 5),
        ("8-2", [8, 2, 2, 2, 2, 2, 2]),
        ("20-1", [20]),
        ("all", [20]),
        ("10-5", [10, 5, 5]),
    ],
)
def test_settings_of_the_paper(text, sizes):
    stream = TaskStream.parse(text, VOC)
    assert [len(task) for task in stream.tasks] == sizes
    assert stream.seen(len(sizes) - 1) == tuple(range(1, 21))


def test_channels_count_the_background_once():
    space = TaskStream.parse("8-2", VOC).label_space(2)
    assert space.sizes == (9, 2, 2)
    assert space.channels == 13
    assert space.channel("c11") == 11
    assert list(space.group_channels(0)) == list(range(1, 9))
    assert list(space.group_channels(2)) == [11, 12]


def test_ade():
    stream = TaskStream.parse("100-10", tuple(f"a{i}" for i in range(1, 151)))
    assert stream.label_space(5).sizes == (101, 10, 10, 10, 10, 10)


def test_lists_and_orders():
    assert TaskStream.parse("cat, dog; 3", ("dog", "cat", "owl")).tasks == ((2, 1), (3,))
    stream = TaskStream.parse("1-1", ("dog", "cat", "owl"), order=("owl", "1", "cat"))
    assert stream.tasks == ((3,), (1,), (2,))
    assert stream.label_space(1).names == ("owl", "dog")
    assert stream.label_space(1).channel("dog") == 2


@pytest.mark.parametrize(
    ("text", "order", "says"),
    [
        ("15-2", (), "does not fit 20 classes"),
        ("25-1", (), "does not fit"),
        ("0-1", (), "does not fit"),
        ("15", (), "neither"),
        ("c1, c1; c2", (), "twice: c1"),
        ("c1;;c2", (), "task without classes"),
        ("c1, kat; c2", (), "Unknown class 'kat'"),
        ("1, 21", (), "Unknown class '21'"),
        ("²; 3", (), "Unknown class '²'"),
        ("c1; c2", VOC, "tasks.order goes with"),
        ("15-1", ("c1",), "misses c2"),
        ("15-1", (*VOC, "c1"), "names a class twice"),
    ],
)
def test_what_does_not_fit_is_refused(text, order, says):
    with pytest.raises(UserError, match=says):
        TaskStream.parse(text, VOC, order)


def test_a_label_space_only_grows():
    space = LabelSpace((("a",),))
    assert space.grow(["b", "c"]).groups == (("a",), ("b", "c"))
    assert space.groups == (("a",),)
    with pytest.raises(UserError, match="twice"):
        space.grow(["a"])
    with pytest.raises(UserError, match="too many"):
        space.grow([f"n{i}" for i in range(254)])
