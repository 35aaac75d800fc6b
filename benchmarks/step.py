"""One training step of every method against the bare step: the same network in a plain loop, in the same run.

python benchmarks/step.py            # eager
python benchmarks/step.py --compile  # both sides compiled
python benchmarks/step.py --graphs   # ours with its launches recorded
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import common
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fiss import methods
from fiss.config import presets
from fiss.data.label_maps import evaluation_table
from fiss.labels import LabelSpace
from fiss.models.graphs import record
from fiss.models.segmenter import ModelSpec, Segmenter, build
from fiss.progress import Progress
from fiss.training.batches import Epoch
from fiss.training.device import autocast, place
from fiss.training.fit import TrainingPlan, fit
from fiss.training.spec import TrainingSpec
from fiss.training.trainer import Trainer, set_training

METHODS = ("finetune", "lwf", "ilt", "mib", "plop", "fbl", "rcil")


class Sizes:
    """How large everything is."""

    def __init__(self, tiny: bool, classes: int = 21, old: int = 17, small: bool = False) -> None:
        self.tiny, self.small = tiny, small
        gpu = torch.cuda.is_available() and not tiny
        self.batch, self.side = (24, 256 if small else 512) if gpu else (4, 64)
        network = presets.PUBLISHED_NETWORK if gpu else presets.SMALL_NETWORK
        if gpu and small:
            network = replace(network, encoder="resnet50")
        self.network: ModelSpec = replace(network, weights="none")
        names = tuple(f"class{i}" for i in range(1, classes))
        self.names, self.known = names, LabelSpace((names[: old - 1],))
        self.space = self.known.grow(names[old - 1 :])

    def batches(self) -> tuple[Tensor, Tensor]:
        """Noise, and a mask with background, two new classes and an ignored border."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (self.batch, 3, self.side, self.side), generator=generator, dtype=torch.uint8)
        masks = torch.zeros(self.batch, self.side, self.side, dtype=torch.uint8)
        masks[:, self.side // 4 : self.side // 2] = len(self.names)
        masks[:, -self.side // 6 :, : self.side // 3] = self.known.channels
        masks[:, :2] = 255
        if torch.cuda.is_available():
            images, masks = images.pin_memory(), masks.pin_memory()
        return images, masks


def plain_steps(sizes: Sizes, compiled: bool, count: int = 1) -> Callable[[], object]:
    """Bare steps: the library's own network, cross-entropy, SGD, nothing else."""
    import segmentation_models_pytorch as smp

    where, spec = common.device(), TrainingSpec()
    network = smp.create_model(
        sizes.network.architecture, sizes.network.encoder, None, classes=sizes.space.channels, **sizes.network.options
    )
    network = network.to(where).to(memory_format=torch.channels_last).train()
    forward = torch.compile(network) if compiled else network
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4)
    images, masks = sizes.batches()
    images = images.to(where).float().contiguous(memory_format=torch.channels_last) / 128 - 1
    labels = masks.to(where).long()

    def steps() -> None:
        for _ in range(count):
            with autocast(spec, where):
                logits = forward(images)
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(logits.float(), labels, ignore_index=255).backward()
            optimizer.step()

    return steps


@cache
def network(kind: str, tiny: bool, small: bool, taught: bool, how: str) -> Segmenter:
    """The student, or the teacher, wired as the method of that name wants it; made when first asked for."""
    sizes = Sizes(tiny, small=small)
    model = build(sizes.network, (sizes.known if taught else sizes.space).sizes, 0)
    methods.find(kind).adapt_network(model)
    if how.startswith("compiled"):
        model.compile()
    place(model, common.device())
    if how.endswith("recorded") and common.device().type == "cuda":
        images = sizes.batches()[0].to(common.device()).float().contiguous(memory_format=torch.channels_last)
        with autocast(TrainingSpec(), common.device()):
            if taught:
                model.eval()
            else:
                set_training(model, methods.find(kind), 2, TrainingSpec())
            record(model, images)
    return model


def our_steps(sizes: Sizes, name: str, how: str, count: int) -> tuple[Callable[[], object], Trainer, Segmenter | None]:
    """Steps of `fit` with that method in the second task; also its trainer, and the teacher if it has one."""
    method = methods.find(name)
    spec = TrainingSpec(batch=sizes.batch, epochs=1)
    kind = "rcil" if name.startswith("rcil") else "finetune"
    student = network(kind, sizes.tiny, sizes.small, False, how)
    teacher = network(kind, sizes.tiny, sizes.small, True, how) if method.needs_teacher else None
    trainer = Trainer(student, teacher, None, spec)  # type: ignore[arg-type]
    ready = trainer.teach(teacher.weights(), sizes.known.sizes) if teacher is not None else None
    plan = TrainingPlan(sizes.space, evaluation_table(sizes.names, sizes.space), lambda step: 1e-3, 0, False)
    epochs = [Epoch([sizes.batches()] * count)]

    def steps() -> None:
        fit(trainer, ready, method, plan, epochs, Progress())

    return steps, trainer, ready


def main() -> None:
    """Time everything and report."""
    given = common.arguments(__doc__ or "", lambda p: _options(p))
    sizes, count = Sizes(given.tiny, small=given.small), 1 if given.tiny else 5
    how = " and ".join(["compiled"] * given.compile + ["recorded"] * given.graphs) or "eager"
    rows: list[dict[str, Any]] = []
    bare = plain_steps(sizes, given.compile, count)
    with FlopCounterMode(display=False) as counter:
        plain_steps(sizes, False)()
    limit = common.ceilings(given.tiny)
    flops = float(counter.get_total_flops())
    base = common.seconds(bare, given.tiny) / count
    rows.append(
        {
            "step": "bare",
            "ms": 1000 * base,
            "images/s": sizes.batch / base,
            "x bare": 1.0,
            "GiB": common.peak_gib(bare),
            "share of peak flops": flops / base / limit["flops"],
        }
    )
    del bare
    notes = {
        "batch": sizes.batch,
        "side": sizes.side,
        "classes": sizes.space.channels,
        "flops of a step": flops,
        **limit,
    }
    options = [f" --{name}" for name in ("compile", "graphs", "small") if getattr(given, name)]
    command = "python benchmarks/step.py" + "".join(options)
    title = f"training step, {how}" + (", small" if given.small else "")
    finetune, finetune_gib = 0.0, None
    for name in given.methods:
        steps, trainer, teacher = our_steps(sizes, name, how, count)
        spent = common.seconds(steps, given.tiny) / count
        gib = common.peak_gib(steps)
        row = {"step": name, "ms": 1000 * spent, "images/s": sizes.batch / spent, "x bare": spent / base, "GiB": gib}
        if name == "finetune":
            finetune, finetune_gib = spent, gib
        if finetune:
            row["x finetune"] = spent / finetune
            row["GiB x finetune"] = gib / finetune_gib if gib and finetune_gib else None
        if teacher is not None and finetune:
            images = sizes.batches()[0].to(common.device()).float().contiguous(memory_format=torch.channels_last)

            def forward(teacher: Segmenter = teacher, images: Tensor = images, trainer: Trainer = trainer) -> None:
                with autocast(trainer.spec, trainer.device), torch.no_grad():
                    teacher(images)

            row["teacher ms"] = 1000 * common.seconds(forward, given.tiny)
            row["limit x finetune"] = 1 + row["teacher ms"] / 1000 / finetune if name != "rcil" else None
        rows.append(row)
        del steps, trainer, teacher
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        common.report(title, command, given, rows, notes)  # after every row: a run may be cut off


def _options(parser: Any) -> None:
    parser.add_argument("--compile", action="store_true", help="both sides compiled")
    parser.add_argument("--graphs", action="store_true", help="the launches of our networks recorded")
    parser.add_argument("--small", action="store_true", help="ResNet-50 at 256 x 256, as in the small presets")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="which methods, finetune first")


if __name__ == "__main__":
    main()
