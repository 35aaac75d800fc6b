"""The commands that change a model without training: `fiss extend`, `fiss forget`, `fiss verify`."""

from pathlib import Path
from typing import Annotated

import typer

import fiss
from fiss.cli.reports import show

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")]
Out = Annotated[Path | None, typer.Option(help="The new folder; must not be there.")]


def extend(
    model: Annotated[
        Path, typer.Argument(help="A run folder, an extended model's, a model file, or a save_pretrained folder.")
    ],
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders with images/, masks/ and classes.txt.")
    ],
    out: Out = None,
    name: Annotated[
        list[str] | None, typer.Option(help="Under which name a folder contributes; once for each folder.")
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="Class names, where the model's have none.")] = None,
    device: Device = "auto",
) -> None:
    """Add classes to a model you have, in one pass over images with their masks; old classes stay."""
    from rich.markup import escape

    from fiss.cli.tables import extension_table

    done = fiss.extend(model, list(folders), out=out, names=name or (), classes=classes, device=device, progress=True)
    path = done.run.path
    if done.after is not None:
        show(extension_table(done))
    how = "solved from all that was ever counted" if done.strength is None else f"no ledger: lambda {done.strength:g}"
    show(f"{escape(str(path))}  [dim]the new model; {how}[/]")
    show(f"{escape(str(path / 'ledger.safetensors'))}  [dim]{done.ledger_bytes / 1e6:.1f} MB, for the next time[/]")
    if (path / "picture.png").is_file():
        show(f"{escape(str(path / 'picture.png'))}  [dim]held-out images before and after[/]")
    show(f"Next: fiss predict {escape(str(path))} IMAGE...")


def forget(
    model: Annotated[Path, typer.Argument(help="A run folder with sums, or an extended model's.")],
    site: Annotated[str, typer.Option(help="Whose contribution: its name, or the number of a client.")],
    images: Annotated[
        Path | None, typer.Option(help="Only these images of it: a text file, one name per line.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="With --images: the site's folder.")] = None,
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Take what a site contributed out of a model again, and certify it."""
    from rich.markup import escape

    done = fiss.forget(model, site, images=images, data=data, out=out, device=device, progress=True)
    _certified(done.certificate)
    certificate = escape(str(done.run.path / "certificate.json"))
    show(f"{escape(str(done.run.path))}  [dim]the new model[/]", f"{certificate}  [dim]what was done, checked[/]")
    show(f"Next: fiss verify {certificate}")


def verify(certificate: Annotated[Path, typer.Argument(help="A certificate.json that `fiss forget` wrote.")]) -> None:
    """Check a certificate of forgetting, byte by byte."""
    _certified(fiss.verify(certificate, progress=True))
    show("[green]as the certificate says[/]")


def _certified(certificate: dict[str, object]) -> None:
    from fiss.cli.tables import certificate_table

    show(certificate_table(certificate))
