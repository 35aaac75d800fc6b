"""The GPU kernels, run by Triton's interpreter on the CPU, against what plain PyTorch computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fiss.models.segmenter import _products
from fiss.ops import scatter

ROOT = Path(__file__).parents[2]


def run(arguments, **environment):
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("part", ["pixels", "counting", "strips", "method"])
def test_kernels_compute_what_pytorch_computes(part):
    pytest.importorskip("triton")
    out = run(["tests/support/interpreted.py", part], TRITON_INTERPRET="1", PYTHONWARNINGS="ignore")
    assert out.count("agree") >= 4


@pytest.mark.parametrize("shape", [(2, 3, 4, 6, 64, 96), (1, 2, 5, 7, 33, 21), (1, 1, 1, 1, 8, 8)])
def test_enlarging_by_products_is_bilinear_interpolation(shape):
    """The way a GPU takes, here on the CPU."""
    *size, height, width = shape
    small = torch.randn(size, dtype=torch.float64, requires_grad=True)
    ours, theirs = _products(small, (height, width)), F.interpolate(small, (height, width), mode="bilinear")
    assert torch.allclose(ours, theirs, atol=1e-5)  # where its weights lie is known to float32
    up = torch.randn_like(ours)
    (a,), (b,) = (torch.autograd.grad(z, small, up) for z in (ours, theirs))
    assert torch.allclose(a, b, atol=1e-5)


def test_a_model_may_be_scored_before_it_is_trained(monkeypatch):
    """What is kept of the way a GPU takes must not belong to inference mode."""
    from fiss.models import segmenter

    segmenter._bilinear.cache_clear()
    small = torch.randn(1, 2, 4, 4, requires_grad=True)
    with torch.inference_mode():
        _products(small, (8, 8))
    _products(small, (8, 8)).sum().backward()
    assert small.grad is not None


def test_kernels_that_do_not_work_are_not_used(monkeypatch):
    scatter._works.cache_clear()
    device = torch.device("cpu")  # Triton has no driver for it
    with pytest.warns(UserWarning, match="plain PyTorch is slower"):
        assert not scatter._works(device)
    scatter._works.cache_clear()
    monkeypatch.setattr(scatter, "find_spec", lambda name: None)
    assert not scatter._works(device)
    scatter._works.cache_clear()
    assert not scatter.has_kernels(torch.zeros(1))
