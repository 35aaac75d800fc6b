"""Exports, as people ask for them: with a bar, and sizes as text."""

from pathlib import Path

from fiss.errors import UserError
from fiss.predict.export import Export
from fiss.predict.export import export as write
from fiss.progress import Progress
from fiss.reports.display import shown
from fiss.runs.run import Run


def export(
    model: Run | str | Path,
    out: str | Path | None = None,
    *,
    size: str | tuple[int, int] = "",
    format: str = "onnx",
    classes: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Export:
    """Write a model as one file that runs without fiss, and a model card beside it.

    Args:
        model: A run or its folder, whose newest model it is; a model file with the run's config.toml beside or above;
            or a folder written by segmentation_models_pytorch's `save_pretrained`.
        out: The file, which must not be there. Default: the model's name, in the present folder.
        size: Height and width of all images, (512, 640) or "512x640". Default: any size, where the network allows it.
        format: onnx, or pt2: a program of torch.export.
        classes: A file of class names, one per line, where the model's are private or it has none.
        progress: As for `fiss.run`.

    Returns:
        The file, its card, and what images it takes. It was compared with the model's own predictions.

    Example:
        >>> fiss.export("runs/demo/fbl", "fbl.onnx").takes
    """
    sides = size.lower().split("x") if isinstance(size, str) else size
    try:
        numbers = tuple(int(side) for side in sides if side)
    except ValueError:
        numbers = (0,)
    if (size and not numbers) or len(numbers) > 2 or any(side < 1 for side in numbers):
        raise UserError(f"--size {size}: expected HEIGHTxWIDTH in pixels, such as 512x640.")
    pair = (numbers[0], numbers[-1]) if numbers else None
    names = None if classes is None else Path(classes)
    with shown(progress) as display:
        return write(model, None if out is None else Path(out), pair, format, names, display)
