"""`fiss web`: the page in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from fiss.errors import UserError


def web(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER...]", help="Runs, folders of runs, federations. Default: runs."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0: any that is free.")] = 8765,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    control: Annotated[bool, typer.Option("--control", help="Let it start and stop federations and sites.")] = False,
    host: Annotated[
        str, typer.Option(help="The name or address of this machine it listens at; others then reach it.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="FISS_WEB_TOKEN", help="Who has it may see the page. Default: a new one.")
    ] = None,
) -> None:
    """Show runs and federations live in a browser, and segment images with their models."""
    try:
        from fiss.web.serve import serve
    except ImportError as error:
        raise UserError(f"The page needs a few more packages ({error.name}): pip install 'fiss[web]'.") from None

    serve(folders or [Path("runs")], port, open_, control, host, token)
