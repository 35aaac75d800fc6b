"""Who holds the lock: one process at a time works in a folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fiss.errors import UserError


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Hold a file, or say the message where another process does; the lock goes with the process, however that ends."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(message) from error
        yield
