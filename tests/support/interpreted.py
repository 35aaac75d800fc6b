"""Run by test_kernels.py under TRITON_INTERPRET=1: every kernel on CPU tensors against plain PyTorch."""

import sys

import torch
import torch.nn.functional as F

from fiss import methods
from fiss.labels import LabelSpace
from fiss.losses import pod
from fiss.losses.pod import _Strips
from fiss.methods.base import Step
from fiss.methods.fbl import FBL
from fiss.models import output as outputs
from fiss.models.output import Output
from fiss.ops import kernels, scatter
from fiss.ops.scatter import class_sums

torch.set_num_threads(1)
torch.manual_seed(0)


def near(a, b, tolerance):
    assert a.shape == b.shape
    away = float((a.double() - b.double()).abs().max()) / (1 + float(b.double().abs().max()))
    assert away <= tolerance, away


def pixels():
    for batch, channels, height, width in ((2, 5, 7, 9), (1, 21, 13, 11), (1, 70, 4, 6), (1, 151, 3, 7)):
        for kind, tolerance in ((torch.float32, 5e-6), (torch.bfloat16, 1e-2)):
            logits = (torch.randn(batch, channels, height, width) * 3).to(kind).requires_grad_()
            labels = torch.randint(0, channels, (batch, height, width), dtype=torch.uint8)
            labels[:, 0] = 255
            up = torch.randn(labels.shape)
            ours = kernels.CrossEntropy.apply(logits, labels)
            theirs = F.cross_entropy(logits.float(), labels.long(), ignore_index=255, reduction="none")
            near(ours, theirs, 5e-6)
            (a,), (b,) = (torch.autograd.grad((z * up).sum(), logits, retain_graph=True) for z in (ours, theirs))
            near(a, b, tolerance)
            classes = channels + 3  # more classes than the teacher has channels
            theirs = theirs, class_sums(logits.float().softmax(1), labels, classes)
            ours = kernels.CrossEntropyAndSums.apply(logits, labels, classes)
            near(ours[0], theirs[0], 5e-6)
            near(ours[1], theirs[1], 5e-6)
            near(kernels.class_sums(logits, labels, classes), theirs[1], 5e-6)
            ups = torch.randn(labels.shape), torch.randn(classes, channels)
            (a,), (b,) = (torch.autograd.grad(z, logits, ups, retain_graph=True) for z in (ours, theirs))
            near(a, b, tolerance)
            (a,), (b,) = (torch.autograd.grad(z[1], logits, ups[1], retain_graph=True) for z in (ours, theirs))
            near(a, b, tolerance)
            entropy, best = kernels.entropy(logits)
            log_p = logits.detach().float().log_softmax(1)
            near(entropy, -(log_p.exp() * log_p).sum(1), 5e-6)
            assert torch.equal(best.long(), log_p.max(1).indices)
            print(batch, channels, kind, "agrees")
    sure = torch.zeros(1, 4, 2, 2)
    sure[:, 1] = 800.0  # probabilities of exactly 0 and 1
    entropy, best = kernels.entropy(sure)
    assert entropy.abs().max() == 0
    assert (best == 1).all()
    lost = torch.randn(2, 4, 5, 5)
    lost[:, 2] -= 75.0  # a class that has collapsed
    lost.requires_grad_()
    labels = torch.randint(0, 4, (2, 5, 5), dtype=torch.uint8)
    both = kernels.CrossEntropyAndSums.apply(lost, labels, 4)[1], class_sums(lost.softmax(1), labels, 4)
    (a,), (b,) = (torch.autograd.grad(z[:, 2].log().sum(), lost) for z in both)
    assert a[:, 2].sum() > 3
    near(a, b, 5e-6)


def counting():
    for kind in (torch.uint8, torch.int32, torch.int64):
        for size in (1, 22, 200, 40000):
            index = torch.randint(0, min(size, 256), (5000,)).to(kind)
            values = torch.randn(5000)
            assert torch.equal(
                kernels.AddUp.apply(index, size, None).long(), torch.bincount(index.long(), minlength=size)
            )
            values.requires_grad_()
            ours = kernels.AddUp.apply(index, size, values)
            theirs = torch.zeros(size).index_add(0, index.long(), values)
            near(ours, theirs, 1e-5)
            up = torch.randn(size)
            (a,), (b,) = (torch.autograd.grad(z, values, up) for z in (ours, theirs))
            assert torch.equal(a, b)
        print(kind, "agrees")
    whole = kernels.AddUp.apply(torch.arange(12) % 3, 3, torch.arange(12))
    assert whole.tolist() == [18, 22, 26]
    print("whole numbers agree")


def strips():
    for shape, scale in (((2, 5, 8, 12), 4), ((1, 130, 8, 4), 2), ((1, 3, 40, 36), 1), ((2, 7, 4, 4), 4)):
        for kind in (torch.float32, torch.bfloat16):
            student, teacher = (
                torch.randn(shape).to(kind).contiguous(memory_format=torch.channels_last) for _ in range(2)
            )
            student.requires_grad_()
            ours, theirs = (function.apply(student, teacher, scale) for function in (kernels.Strips, _Strips))
            ups = [torch.randn_like(part) for part in ours]
            for a, b in zip(ours, theirs, strict=True):
                near(a, b, 1e-5)
            (a,), (b,) = (torch.autograd.grad(parts, student, ups) for parts in (ours, theirs))
            near(a, b, 1e-5 if kind == torch.float32 else 1e-2)
            assert a.is_contiguous(memory_format=torch.channels_last)
            same = kernels.Strips.apply(student, student.detach().clone(), scale)
            assert all(float(part.abs().max()) == 0 for part in same)
            print(shape, kind, "agrees")


def method():
    """Whole methods, with and without kernels: the same terms, the same gradients."""
    space = LabelSpace((("a", "b", "c"), ("d", "e")))
    named = [methods.find(name) for name in ("finetune", "plop", "fbl", "fbl-paper", "fbl-reference")]
    for chosen in [*named, FBL(rejected="old")]:
        results = []
        for on in (False, True):
            torch.manual_seed(0)
            outputs.has_kernels = pod.has_kernels = scatter.has_kernels = lambda tensor, on=on: on  # type: ignore[assignment]
            student, teacher = ([torch.randn(2, d, 8, 8) for d in (c, c, 5, 6, 7)] for c in (6, 4))
            leaves = [
                tensor.contiguous(memory_format=torch.channels_last if i > 1 else torch.contiguous_format)
                for i, tensor in enumerate(student)
            ]
            leaves = [tensor.requires_grad_() for tensor in leaves]
            maps = [tensor.contiguous(memory_format=torch.channels_last) for tensor in teacher[2:]]
            step = Step(
                torch.randint(0, 6, (2, 8, 8), dtype=torch.uint8) * torch.randint(0, 2, (2, 8, 8), dtype=torch.uint8),
                Output(leaves[0], leaves[1], leaves[2], leaves[3], (leaves[4],)),
                Output(teacher[0].contiguous(), teacher[1], maps[0], maps[1], (maps[2],)),
                space,
                4,
                0,
                {},
            )
            if chosen.needs_preview:
                chosen.preview(step)
            chosen.begin_epoch(step.state, step.epoch, step.teacher_channels, torch.device("cpu"))
            terms = chosen.losses(step)
            gradients = torch.autograd.grad(sum(terms.values()), leaves, allow_unused=True)
            results.append((terms, gradients))
        for key, value in results[0][0].items():
            near(value, results[1][0][key], 1e-5)
        for a, b in zip(results[0][1], results[1][1], strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                near(a, b, 1e-5)
        print(chosen, "agrees")


if __name__ == "__main__":
    {"pixels": pixels, "counting": counting, "strips": strips, "method": method}[sys.argv[1]]()
