"""`fiss data import`: our folder, made of data of another kind."""

from pathlib import Path
from typing import Annotated

import typer

import fiss
from fiss.data.imports import KINDS

HELP = (
    "Make a folder that fiss reads of data of another kind. It may be killed and given again.\n\nKinds:\n\n"
    + "\n\n".join(f"{kind}: {text}." for kind, text in KINDS.items())
)


def import_(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="One of those above.")],
    source: Annotated[Path, typer.Argument(help="Where the data lie; nothing is changed there.")],
    dest: Annotated[Path, typer.Argument(help="The folder to make.")],
    images: Annotated[str, typer.Option(help="Folder of the images, if not SOURCE/images.")] = "",
    masks: Annotated[str, typer.Option(help="Folder of the masks, if not SOURCE/masks.")] = "",
    classes: Annotated[str, typer.Option(help="File of names, a line each; of kind colour: name R G B.")] = "",
    map_: Annotated[str, typer.Option("--map", help="Values of masks: 128=tumour,255=ignore.")] = "",
    window: Annotated[
        str, typer.Option(help="What is black and white in images of more than 8 bits: LOW,HIGH or 1%,99%.")
    ] = "",
    axis: Annotated[int, typer.Option(help="Of volumes: 0, 1 or 2, across which slices are taken.")] = 2,
    every: Annotated[int, typer.Option(help="Take every n-th frame, page, slice or row.")] = 1,
    columns: Annotated[str, typer.Option(help="Of huggingface: IMAGE,MASK.")] = "",
    ids: Annotated[str, typer.Option(help="Of cityscapes: train (19 classes) or all.")] = "train",
    group: Annotated[
        str, typer.Option(help="Images in whose names this regular expression finds the same stay in one part.")
    ] = "",
    validation: Annotated[
        float | None, typer.Option(help="Share for validation. Default: the source's own parts, else 0.2.")
    ] = None,
) -> None:
    """Import; then say what was dropped, and what to do next."""
    from rich.console import Console
    from rich.markup import escape

    from fiss.cli.tables import listed
    from fiss.data.dataset import shortened

    try:
        made = fiss.import_data(
            kind, source, dest, progress=True, images=images, masks=masks, classes=classes, map=map_, window=window,
            axis=axis, every=every, columns=columns, ids=ids, group=group, validation=validation,
        )  # fmt: skip
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on.")
        raise typer.Exit(130) from None
    console = Console()
    for title, groups in (("dropped", made.dropped), ("good to know", made.notes)):
        rows = [(text, f"{len(names) or ''}", shortened(names, 3)) for text, names in groups.items()]
        if rows:
            console.print(listed(title, ("what", "how many", "such as"), rows))
    classes_ = f"{len(made.classes)} class{'es' * (len(made.classes) > 1)}: {shortened(made.classes)}"
    console.print(
        escape(f"{dest}: {made.train} training and {made.val} validation images, {classes_}."), soft_wrap=True
    )
    console.print(escape(f"The same is in {dest / 'import.md'}. Next: fiss data check {dest}"), soft_wrap=True)
