"""What was changed in the config of a run that goes on: one line for each time, the present config follows from them.

config.toml stays as the run began; its digest says that rounds belong together.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fiss.config.config import Config, flat, to_dict, with_settings
from fiss.errors import UserError
from fiss.runs.files import write_atomically

CHANGES = "changes.jsonl"


def read_changes(folder: Path) -> list[dict[str, Any]]:
    """Each with `time`, the `round` from which on it may hold, and `keys`: the value before and after."""
    path = folder / CHANGES
    try:
        return [json.loads(line) for line in path.read_text().split("\n") if line] if path.is_file() else []
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged or foreign ({error}).") from error


def with_changes(begun: Config, folder: Path) -> Config:
    """The config as it is now."""
    settings: dict[str, Any] = {}
    for change in read_changes(folder):
        settings |= {key: after for key, (_, after) in change["keys"].items()}
    return with_settings(begun, settings) if settings else begun


def change(folder: Path, before: Config, after: Config, keys: list[str], round_: int) -> dict[str, tuple[Any, Any]]:
    """From now on these keys have the values of `after`; gives the old and the new ones."""
    old, new = flat(to_dict(before)), flat(to_dict(after))
    values = {key: (old.get(key), new.get(key)) for key in keys}
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "round": round_, "keys": values}
    text = "".join(json.dumps(one) + "\n" for one in [*read_changes(folder), line])
    write_atomically(folder / CHANGES, text.encode())
    return values
