"""What there is: `fiss presets`, `fiss methods`, and what is in a data set."""

from pathlib import Path
from typing import Annotated

import typer

import fiss
from fiss.cli.names import complete_methods, complete_presets
from fiss.cli.reports import show
from fiss.errors import UserError


def presets(
    name: Annotated[str, typer.Argument(help="Show this one in full, as TOML.", autocompletion=complete_presets)] = "",
) -> None:
    """List the presets, or show one as TOML."""
    from fiss.cli.tables import preset_table

    if name:
        from fiss.config.config import to_toml

        print(to_toml(fiss.preset(name)), end="")
    else:
        show(preset_table())


def methods(
    name: Annotated[str, typer.Argument(help="Show the fields of this one.", autocompletion=complete_methods)] = "",
) -> None:
    """List the methods and say which to use, or show the fields of one."""
    from fiss.cli.tables import field_table, method_table

    show(field_table(name) if name else method_table())


def data_check(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A data set: VOC 2012, ADE20k, or images/, masks/, classes.txt; or `shapes`."
        ),
    ],
    window: Annotated[str, typer.Option(help="data.window, for images beyond 8 bits: low,high or 1%,99%.")] = "",
    channels: Annotated[int, typer.Option(min=1, help="model.channels: of the images.")] = 3,
    sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the contact sheet: each class in small pictures.")
    ] = None,
    every: Annotated[bool, typer.Option("--every", help="Name every file of a problem, not three.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Suspicions too make the exit status 2.")] = False,
) -> None:
    """Validate a data set: what is in it, what is wrong (exit status 2), and what is suspicious."""
    from fiss.cli.tables import data_table, finding_lines

    found = fiss.check_data(path, progress=True, window=window, channels=channels)
    show(data_table(found), *finding_lines(found, every))
    if sheet is not None:
        from fiss.reports.display import shown
        from fiss.reports.sheet import write

        with shown(True) as display:
            write(found, sheet, display)
        show(f"the contact sheet: {sheet}")
    if found.problems:
        raise UserError(f"{len(found.problems)} problem(s) in {path}.")
    if found.suspicions and strict:
        raise UserError(f"{len(found.suspicions)} suspicion(s) about {path}, and --strict.")
