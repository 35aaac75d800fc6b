"""Files that are whole or not there, however a process ends."""

import os
from pathlib import Path

from fiss.errors import UserError, writing


def write_atomically(path: Path, data: bytes) -> None:
    """Write the whole file or nothing of it, even if the power fails."""
    part = path.with_name(path.name + ".part")
    with writing(path):
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def flush(path: Path) -> int:
    """Make sure a log is on the disk; gives its length."""
    if not path.is_file():
        return 0
    with writing(path), path.open("rb+") as file:
        os.fsync(file.fileno())
        return file.seek(0, os.SEEK_END)


def cut(path: Path, length: int) -> None:
    """Take away what a log has beyond its finished rounds."""
    size = path.stat().st_size if path.is_file() else 0
    if size < length:
        raise UserError(f"{path}: {size} bytes, state.json says {length}; lines of finished rounds are missing.")
    if size > length:
        with path.open("rb+") as file:
            file.truncate(length)
