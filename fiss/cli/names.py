"""Names at the command line: commands that nobody knows, and what the shell completes."""

from pathlib import Path
from typing import Any

from typer.core import TyperGroup

import fiss
from fiss.errors import UserError, unknown


class Commands(TyperGroup):
    """A group of commands that names the nearest one of all for one it does not have."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name."""
        found = super().get_command(ctx, cmd_name)
        if found is None and not ctx.resilient_parsing and not cmd_name.startswith("-"):
            if Path(cmd_name).is_dir():
                raise UserError(
                    f"{cmd_name} is a folder and no command. `fiss start {cmd_name}` proposes a run with it."
                )
            raise unknown("command", cmd_name, _names(ctx.find_root().command))
        return found


def _names(group: Any, before: str = "") -> list[str]:
    """All commands, those of groups with the group's name before theirs."""
    found: list[str] = []
    for name, command in group.commands.items():
        found += _names(command, f"{name} ") if hasattr(command, "commands") else [before + name]
    return found


def complete_presets(incomplete: str) -> list[tuple[str, str]]:
    """Presets that begin so."""
    return [(name, text) for name, text in fiss.list_presets().items() if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[tuple[str, str]]:
    """Methods that begin so."""
    return [(name, text) for name, text in fiss.list_methods().items() if name.startswith(incomplete)]
