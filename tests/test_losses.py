"""Every loss against a slow loop written from its equation, and its gradient against finite differences."""

import math

import pytest
import torch

from fiss.losses.segmentation import cross_entropy


def slow_cross_entropy(logits, labels, over):
    total, valid = 0.0, 0
    for b in range(logits.shape[0]):
        for y in range(logits.shape[2]):
            for x in range(logits.shape[3]):
                if int(labels[b, y, x]) == 255:
                    continue
                values = [float(v) for v in logits[b, :, y, x]]
                top = max(values)
                norm = top + math.log(sum(math.exp(v - top) for v in values))
                total += norm - values[int(labels[b, y, x])]
                valid += 1
    return total / labels.numel() if over == "all" else total / max(valid, 1)


def case(name):
    random = torch.Generator().manual_seed(0)
    shape = {"one pixel": (1, 3, 1, 1), "one class": (2, 1, 3, 2), "many": (1, 151, 2, 3)}.get(name, (2, 4, 3, 5))
    logits = torch.randn(shape, generator=random, dtype=torch.float64) * 3
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=random)
    if name == "some ignored":
        labels[0, 0] = 255
    if name == "all ignored":
        labels[:] = 255
    if name == "certain":
        logits[:, 0] = 1000.0
    return logits, labels


CASES = ["random", "some ignored", "all ignored", "one pixel", "one class", "many", "certain"]


@pytest.mark.parametrize("over", ["all", "valid"])
@pytest.mark.parametrize("name", CASES)
def test_cross_entropy_equals_the_slow_loop(name, over):
    logits, labels = case(name)
    assert float(cross_entropy(logits, labels, over)) == pytest.approx(
        slow_cross_entropy(logits, labels, over), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("over", ["all", "valid"])
@pytest.mark.parametrize("name", CASES)
def test_cross_entropy_gradient_equals_finite_differences(name, over):
    logits, labels = case(name)
    if name == "many":
        logits = logits[:, :9].clone()
        labels = labels % 9
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: cross_entropy(z, labels, over), (logits,), eps=1e-6, atol=1e-7)


def test_cross_entropy_widens_half_precision_and_takes_byte_labels():
    logits, labels = case("random")
    loss = cross_entropy(logits.bfloat16(), labels.to(torch.uint8))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(cross_entropy(logits.bfloat16().double(), labels)), rel=1e-5)
