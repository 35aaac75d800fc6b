"""FBL's losses alone, forward and backward, at 21 and at 151 classes, against the bare step of the same run.

python benchmarks/losses.py            # eager
python benchmarks/losses.py --compile  # both sides compiled

On a GPU the time is the device's, with all launched before it begins, as in a training loop; "alone" includes waiting
for the launches.
"""

from typing import Any

import common
import torch
from step import Sizes, plain_steps
from torch import Tensor

from fiss import methods
from fiss.methods.base import Step
from fiss.models.output import Output
from fiss.models.segmenter import enlarge
from fiss.ops import scatter


def outputs(sizes: Sizes, channels: int, seed: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Random stages, decoder's output and small logits of the published network's shapes, in bf16 on a GPU."""
    where, side = common.device(), sizes.side
    generator = torch.Generator(where).manual_seed(seed)
    kind = torch.bfloat16 if where.type == "cuda" else torch.float32
    shapes = [(256, side // 4), (512, side // 8), (1024, side // 16), (2048, side // 16)]

    def draw(depth: int, across: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(sizes.batch, depth, across, across, device=where, generator=generator) * scale
        return made.to(kind).contiguous(memory_format=torch.channels_last)

    return [draw(*shape) for shape in shapes], draw(256, side // 16), draw(channels, side // 16, 3.0)


def main() -> None:
    """Time and report."""
    given = common.arguments(
        __doc__ or "", lambda p: p.add_argument("--compile", action="store_true", help="both sides compiled")
    )
    limit, rows = common.ceilings(given.tiny), []
    for classes, old in ((21, 17), (151, 141)):
        sizes = Sizes(given.tiny, classes, old)
        count = 1 if given.tiny else 5
        bare = common.seconds(plain_steps(sizes, given.compile, count), given.tiny) / count
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for name, kernels in (("finetune", True), ("fbl", True), ("fbl", False)):
            if kernels or torch.cuda.is_available():
                rows.append(_measure(name, kernels, sizes, bare, limit["bytes_per_second"], given))
        how = "compiled" if given.compile else "eager"
        command = "python benchmarks/losses.py" + (" --compile" if given.compile else "")
        notes = {"batch": sizes.batch, "side": sizes.side, **limit}
        common.report(f"losses, bare step {how}", command, given, rows, notes)


def _measure(
    name: str, kernels: bool, sizes: Sizes, bare: float, bandwidth: float, given: common.Arguments
) -> dict[str, Any]:
    method, space, known = methods.find(name), sizes.space, sizes.known.channels
    stages, decoded, small = outputs(sizes, space.channels, 0)
    taught_stages, taught_decoded, taught_small = outputs(sizes, known, 1)
    leaves = [tensor.requires_grad_() for tensor in (*stages, decoded, small)]
    labels = sizes.batches()[1].to(common.device())
    state: dict[str, Any] = {}
    method.begin_epoch(state, 0, known, labels.device)

    def losses() -> None:
        size = labels.shape[-2:]
        student = Output(enlarge(small, size), small, decoded, stages[-1], tuple(stages))
        teacher = Output(
            enlarge(taught_small, size), taught_small, taught_decoded, taught_stages[-1], tuple(taught_stages)
        )
        terms = method.losses(Step(labels, student, teacher, space, known, 0, state))
        torch.stack(list(terms.values())).sum().backward()
        for leaf in leaves:
            leaf.grad = None

    there = scatter._works
    scatter._works = (lambda device: False) if not kernels else there  # type: ignore[assignment]
    alone, spent = common.seconds(losses, given.tiny), common.device_seconds(losses, given.tiny)
    gib = common.peak_gib(losses)
    scatter._works = there
    # The least that must be moved: the student's inputs forward, backward and as gradients; the teacher's once; logits
    # at full size written once and read once, the student's again going back.
    size = small.element_size()
    pixels = labels.numel()
    if name == "finetune":
        least = 3 * small.numel() * size + 2 * pixels + 3 * pixels * space.channels * size
    else:
        least = 3 * sum(t.numel() for t in leaves) * size + 2 * pixels + 3 * pixels * space.channels * size
        least += sum(t.numel() for t in (*taught_stages, taught_decoded, taught_small)) * size
        least += 2 * pixels * known * size
    return {
        "losses": f"{name}, {space.channels} classes" + ("" if kernels else ", without kernels"),
        "ms": 1000 * spent,
        "ms alone": 1000 * alone,
        "share of bare step": spent / bare,
        "bare ms": 1000 * bare,
        "GB moved at least": least / 1e9,
        "share of bandwidth": least / spent / bandwidth,
        "GiB": gib,
    }


if __name__ == "__main__":
    main()
