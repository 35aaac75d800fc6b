"""Reads what was appended to a log and nothing else, so that a look at it costs the same however long it is."""

from pathlib import Path

CHECKED = 64
"""Bytes before the place read to that are read again: a log that was cut and grew anew is noticed by them."""


class Tail:
    """A log of lines that grows at its end; one that was cut back begins anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = 0
        """Bytes read so far from the disk, for who wants to know what this costs."""
        self.begin()

    def begin(self) -> None:
        """Read from the first line on."""
        self.place, self.last = 0, b""

    def skip(self, end: int) -> None:
        """What lies before that byte is known."""
        self.begin()
        if end and self.path.is_file():
            with self.path.open("rb") as file:
                file.seek(max(0, end - CHECKED))
                self.last = file.read(min(end, CHECKED))
            self.place = end

    def lines(self, end: int | None = None) -> tuple[bool, list[bytes]]:
        """Whether the log began anew since the last look, and its new lines that are whole; with `end` only those
        before that byte."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            size = 0
        size = size if end is None else min(size, end)
        if size == self.place:
            return False, []
        anew = size < self.place
        if not anew:
            with self.path.open("rb") as file:
                file.seek(self.place - len(self.last))
                found = file.read(size - self.place + len(self.last) if end is not None else -1)
            self.read += len(found)
            anew = not found.startswith(self.last)
        if anew:
            self.begin()
            return True, self.lines(end)[1]
        new = found[len(self.last) :]
        whole = new[: new.rfind(b"\n") + 1]
        self.place += len(whole)
        self.last = (self.last + whole)[-CHECKED:]
        return False, [line for line in whole.split(b"\n") if line]
