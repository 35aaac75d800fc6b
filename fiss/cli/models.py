"""Commands that use a trained model: `fiss predict`, `fiss export`."""

from pathlib import Path
from typing import Annotated, Any

import typer

import fiss
from fiss.cli.reports import show

Model = Annotated[
    Path,
    typer.Argument(
        help="A run folder, a model file with the run's config.toml, or a folder that segmentation_models_pytorch's "
        "save_pretrained wrote."
    ),
]
Classes = Annotated[Path | None, typer.Option(help="Class names, where the model's are private or it has none.")]


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Where masks/, overlays/ and classes.txt go.")] = Path("predictions"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over masks that are there.")] = False,
    ids: Annotated[str, typer.Option(help="In the masks: data, those of the data's classes.txt; or model.")] = "data",
    tile: Annotated[
        int, typer.Option(min=0, help="Look at images at their own size, in overlapping squares of so many pixels.")
    ] = 0,
    unsure: Annotated[
        float, typer.Option(min=0, max=1, help="Also unsure/: white where no class has that probability.")
    ] = 0,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also probabilities/: NAME.npy, (classes, height, width).")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    classes: Classes = None,
) -> None:
    """Segment new images: masks, and overlays with the classes' names."""
    from fiss.cli.tables import prediction_table
    from fiss.data.dataset import files_by_stem
    from fiss.predict.pictures import write
    from fiss.reports.display import shown

    found = [file for path in images for file in (files_by_stem(path)[0].values() if path.is_dir() else [path])]
    with shown(True) as display:
        predictor = fiss.Predictor(model, device, classes, tile)
        wanted: dict[str, Any] = {"unsure": unsure, "probabilities": probabilities, "overwrite": overwrite, "ids": ids}
        records = write(predictor, found, out, display, **wanted)
        show(prediction_table(records, str(out)))


def export(
    model: Model,
    out: Annotated[Path | None, typer.Option(help="The file. Default: the model's name, in this folder.")] = None,
    size: Annotated[
        str, typer.Option(metavar="HxW", help="One size for all images, such as 512x640. Default: any, where it can.")
    ] = "",
    format_: Annotated[str, typer.Option("--format", help="onnx, or pt2: of torch.export.")] = "onnx",
    classes: Classes = None,
) -> None:
    """Write a model as ONNX, with its classes, normalisation and a model card beside it."""
    done = fiss.export(model, out, size=size, format=format_, classes=classes, progress=True)
    show(f"{done.path}  [dim]{done.takes}[/]", f"{done.card}  [dim]its model card[/]")
