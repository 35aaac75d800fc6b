"""A model as one file that runs without fiss: ONNX, or a program of torch.export.

Normalisation is part of it: images go in as bytes. Sizes are free where the network allows it, which is tried on images
of several sizes; else the file is for one size. Nothing is written that does not agree with our own predictions.

B batch, C classes, H W the image's size.
"""

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fiss.data.reading import RGB
from fiss.data.transforms import MEAN, STD
from fiss.errors import UserError, unknown
from fiss.models.segmenter import Segmenter
from fiss.predict.card import model_card
from fiss.predict.palette import class_colours
from fiss.predict.predictor import Predictor
from fiss.progress import Progress
from fiss.runs.folder import write_atomically
from fiss.runs.provenance import fiss_version
from fiss.runs.run import Where, path_of

OPSET = 18
AGREE = 0.999
"""Share of the pixels in which the file has to say what the model says."""
USUAL = 512
"""Side of images where neither the user nor the model says one."""
Runs = Callable[[Tensor], Tensor]
"""From images of bytes to masks."""


@dataclass(frozen=True)
class Export:
    """What was written.

    Args:
        path: The file.
        card: The model card beside it.
        takes: What images it takes, in words.

    Example:
        >>> fiss.export("runs/demo/fbl").card.read_text()
    """

    path: Path
    card: Path
    takes: str


class _Standalone(nn.Module):
    """From images of bytes to the channel of every pixel, and logits."""

    def __init__(self, model: Segmenter) -> None:
        super().__init__()
        self.model = model
        for name, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1) * 255, persistent=False)

    def forward(self, image_B3HW: Tensor) -> tuple[Tensor, Tensor]:
        """Filled up at the right and below, as the network wants it, and cut again."""
        (height, width), divisor = image_B3HW.shape[2:], self.model.divisor
        more = [(side + divisor - 1) // divisor * divisor - side for side in (width, height)]
        padded = F.pad(image_B3HW.float(), (0, more[0], 0, more[1])) if divisor > 1 else image_B3HW.float()
        logits = self.model((padded - self.mean) / self.std).logits_BCHW[:, :, :height, :width]  # type: ignore[operator]
        return logits.argmax(1).to(torch.uint8), logits


def export(
    model: Where, out: Path | None, size: tuple[int, int] | None, kind: str, classes: Path | None, progress: Progress
) -> Export:
    """Write the file and its card; both must not be there yet."""
    if kind not in ("onnx", "pt2"):
        raise unknown("format", kind, ("onnx", "pt2"))
    if kind == "onnx" and (missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name)]):
        raise UserError(f"{', '.join(missing)} not installed: pip install 'fiss[export]'; --format pt2 needs neither.")
    predictor = Predictor(model, "cpu", classes)
    if predictor.how != RGB:
        raise UserError("Only models of 8-bit RGB images can be exported; this one has data.window or model.channels.")
    path, name = path_of(model), predictor.file.parent.parent.name
    out = out or Path(f"{path.resolve().name if path.is_dir() else f'{name}-{path.stem}'}.{kind}")
    card = out.with_suffix(".md")
    for file in (out, card):
        if file.exists():
            raise UserError(f"{file} is there already and is not written over: --out names another.")
    standalone = _Standalone(predictor.model).eval()
    fixed = size or (predictor.size or USUAL,) * 2
    for sizes in ([None] if size is None else []) + [fixed]:
        try:
            data, runs = _written(standalone, sizes, kind, about := _about(predictor, sizes, kind), progress)
            agreed = _agreement(standalone, runs, sizes, progress)
        except Exception as error:  # exporters raise whatever their layers raise
            agreed, why = 0.0, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        else:
            why = f"agrees with the model in {100 * agreed:.1f} % of the pixels only"
        if agreed >= AGREE:
            write_atomically(out, data)
            write_atomically(card, model_card(predictor, about, out.name, agreed).encode())
            return Export(out, card, str(about["takes"]))
        if sizes is None:
            progress.notice(f"not for images of any size, so for {fixed[0]}x{fixed[1]} only ({why})")
    raise UserError(f"{path}: this network cannot be written as {kind} ({why}).")


def _about(predictor: Predictor, size: tuple[int, int] | None, kind: str) -> dict[str, Any]:
    """What stands in the file besides the network."""
    any_size = "any height and width" if size is None else f"height {size[0]} and width {size[1]}"
    return {
        "takes": f"RGB bytes (batch, 3, height, width), {any_size}",
        "format": kind,
        "fixed": size,
        "size": predictor.size,
        "names": predictor.names,
        "palette": class_colours(predictor).tolist(),
        "mean": MEAN,
        "std": STD,
        "fiss": fiss_version(),
    }


def _written(
    standalone: _Standalone, size: tuple[int, int] | None, kind: str, about: dict[str, Any], progress: Progress
) -> tuple[bytes, Runs]:
    """The file's bytes, and what they compute."""
    progress.notice(f"writing {kind} for images of " + ("any size" if size is None else f"{size[0]}x{size[1]}"))
    example = torch.zeros((2, 3, *(size or _odd(standalone, 0))), dtype=torch.uint8)
    free = torch.export.Dim.DYNAMIC
    shapes = {"image_B3HW": {0: free, **({2: free, 3: free} if size is None else {})}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        if kind == "onnx":
            return _onnx(standalone, example, shapes, about)
        program = torch.export.export(standalone, (example,), dynamic_shapes=shapes)
        file = io.BytesIO()
        torch.export.save(program, file, extra_files={"fiss.json": json.dumps(about)})
        file.seek(0)
        again = torch.export.load(file).module()
    return file.getvalue(), lambda images: again(images)[0]


def _onnx(standalone: _Standalone, example: Tensor, shapes: Any, about: dict[str, Any]) -> tuple[bytes, Runs]:
    import onnx
    import onnxruntime

    program = torch.onnx.export(
        standalone,
        (example,),
        input_names=["image"],
        output_names=["mask", "logits"],
        dynamo=True,
        dynamic_shapes=shapes,
        opset_version=OPSET,
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    del proto.graph.value_info[:]  # sizes between the layers, in the exporter's own words
    for value in (*proto.graph.input, *proto.graph.output):
        sides = value.type.tensor_type.shape.dim
        for side, word in zip((sides[0], *sides[-2:]), ("batch", "height", "width"), strict=True):
            if not side.dim_value:
                side.dim_param = word
    onnx.helper.set_model_props(
        proto, {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
    )
    onnx.checker.check_model(proto, full_check=True)
    data: bytes = proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return data, lambda images: torch.tensor(session.run(["mask"], {"image": images.numpy()})[0])


def _odd(standalone: _Standalone, more: int) -> tuple[int, int]:
    """A size that the network has to be filled up for, so that nothing is taken for granted of it."""
    side = max(64, 4 * standalone.model.divisor)
    return side + 5 + more, side + 19 + 3 * more


def _agreement(standalone: _Standalone, runs: Runs, size: tuple[int, int] | None, progress: Progress) -> float:
    """The least share of equal pixels over a few images: smooth ones, as noise decides nothing clearly."""
    tried = [(1, *size), (3, *size)] if size else [(1, *_odd(standalone, n)) for n in (0, 8, 59)] + [(2, 96, 128)]
    draw, shares = torch.Generator().manual_seed(0), []
    progress.start("comparing with our predictions", len(tried))
    for count, *sides in tried:
        coarse = torch.rand((count, 3, 6, 6), generator=draw) * 255
        images = F.interpolate(coarse, sides, mode="bicubic").clamp(0, 255).to(torch.uint8)
        with torch.no_grad():
            shares.append(float((standalone(images)[0] == runs(images)).float().mean()))
        progress.advance()
    progress.finish()
    return min(shares)
