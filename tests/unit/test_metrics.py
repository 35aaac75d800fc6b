import pytest
import torch

from fiss.metrics import confusion, from_background, iou, mean, summary, to_background


def test_confusion_by_hand():
    labels = torch.tensor([[[0, 0, 1], [1, 2, 255]]], dtype=torch.uint8)
    predicted = torch.tensor([[[0, 1, 1], [0, 2, 2]]])
    matrix = confusion(predicted, labels, 4)
    assert matrix.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    ious = iou(matrix)
    assert ious[:3] == pytest.approx([100 / 3, 100 / 3, 100.0], abs=1e-3)
    assert ious[3] is None  # class 3 is not in the ground truth
    assert mean(ious) == pytest.approx((100 / 3 + 100 / 3 + 100) / 3, abs=1e-3)


def test_what_the_background_takes_and_gives():
    matrix = torch.tensor([[6, 1, 3], [4, 4, 0], [0, 0, 0]])
    assert to_background(matrix) == [60.0, 50.0, None]
    assert from_background(matrix) == [60.0, 10.0, 30.0]
    assert from_background(torch.zeros(2, 2)) == [None, None]


def test_a_class_predicted_but_absent_does_not_count_but_hurts_others():
    matrix = torch.tensor([[2, 2], [0, 0]])
    assert iou(matrix) == [pytest.approx(50.0, abs=1e-3), None]


def test_the_published_epsilon():
    assert iou(torch.tensor([[1]]))[0] == pytest.approx(100 / (1 + 1e-6), abs=1e-9)


def test_an_empty_evaluation():
    assert mean([]) is None
    assert mean(iou(torch.zeros(2, 2))) is None


def test_means_by_hand():
    tasks = (("a", "b"), ("c",), ("d", "e"))
    ious = [90.0, 10.0, 30.0, 50.0, 20.0, 40.0]
    scores = summary(ious, "abcde", tasks, {"a": 60.0, "b": 20.0, "c": 70.0})
    assert scores["miou"] == 40.0
    assert scores["miou_foreground"] == 30.0
    assert scores["background"] == 90.0
    assert scores["old"] == 45.0  # 90 10 30 50
    assert scores["old_foreground"] == 30.0
    assert scores["new"] == 30.0
    assert scores["base"] == pytest.approx(130 / 3)
    assert scores["base_foreground"] == 20.0
    assert scores["forgetting"] == pytest.approx((50 - 10 + 20) / 3)  # b got better: that counts too


def test_the_first_task_has_nothing_old():
    scores = summary([80.0, 20.0], "a", [("a",)], {})
    assert scores["old"] is scores["new"] is scores["forgetting"] is None
    assert scores["miou"] == scores["base"] == 50.0
