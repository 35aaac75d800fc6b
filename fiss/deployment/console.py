"""What a server's or site's process says on its console: in plain words, seldom, and never more than a bounded amount.

FLARE's own account of everything is in log.txt, which is rotated. A console goes where nobody rotates it, and FLARE
says there every ten seconds that a server cannot be reached.
"""

import logging
import os
import re
import sys
from pathlib import Path
from threading import Timer
from time import monotonic

from fiss.deployment.log import plain_log

MOST = 1_000_000
"""Characters that a process says at most."""
AGAIN = 3600.0
"""Seconds after which the same line is said once more."""
BACK = 25.0
"""Seconds without a complaint after which the server counts as reached; FLARE complains every ten."""
PLAIN = (
    (re.compile(r"Successfully registered client"), "connected to the server."),
    (re.compile(r"New client (\S+)@\S* joined"), "{} is connected."),
    (re.compile(r"Re-activate the client: (\S+) at"), "{} is connected again."),
    (re.compile(r"Client Name:(\S+) left"), "{} has gone."),
    (re.compile(r"^Server started"), "the server is started."),
    (
        re.compile(r"registration rejected: Client \S+ is disabled"),
        "this site was removed from the federation, and its kit is refused; another kit has another name.",
    ),
    (
        re.compile(r"Failed to send heartbeat.*error:client_quit"),  # the server answered, and refused it
        "the server turns this site away: it was removed from the federation. `touch shutdown.fl` in its kit stops it.",
    ),
    (re.compile(r"Reject disabled client (?:registration|heartbeat): (\S+)"), "{} was removed, and is turned away."),
)
GOODBYE, ENDS = re.compile("^MPM: Good Bye!"), 30.0
"""What FLARE's process says when its work is over, also where it failed, and the seconds in which it then has to end.
On a busy machine a site gives up its first start after 15 s while threads still come up; they kept it, deaf, for ever.
"""
AWAY = re.compile(r"no connection to server|cannot send to 'server'|Retrying \[\S+ ACTIVE grpc")
LOST = (
    "the server cannot be reached. It is tried again every ten seconds, nothing is lost. Does it run, and does the way "
)
LOST += "to it stand open? `fiss federation status {}` says which address is meant."


class ConsoleHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """The console handler that each kit's local/log_config.json names instead of FLARE's own."""

    def __init__(self, stream: object = None) -> None:
        super().__init__(sys.stdout)
        self.left, self.said = MOST, dict[str, float]()
        self.timer: Timer | None = None
        program = getattr(sys.modules["__main__"], "__spec__", None)
        self.whole = program is None or not program.name.endswith(("worker_process", "runner_process"))
        """Whether this is a side itself, and not one of its jobs, which are in the same trouble."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record in a line, if it says something new."""
        text = record.getMessage()
        if AWAY.search(text):
            self._away(record)
            return
        if GOODBYE.search(text):
            _end_soon()
        for pattern, words in PLAIN:
            if found := pattern.search(text):
                self._plainly(record, words.format(*found.groups()))
                return
        if record.levelno >= logging.WARNING:
            self._say(record)

    def _away(self, record: logging.LogRecord) -> None:
        if not self.whole:
            return
        if self.timer is None:
            self._plainly(record, LOST.format(_kit() or "KIT"))
        else:
            self.timer.cancel()
        self.timer = Timer(BACK, self._back)
        self.timer.daemon = True
        self.timer.start()

    def _back(self) -> None:
        self.timer = None
        self.said.clear()
        self._plainly(logging.LogRecord("fiss", logging.INFO, "", 0, "", None, None), "the server is reached again.")

    def _plainly(self, record: logging.LogRecord, text: str) -> None:
        """Say it on the console and in fiss.log."""
        if not self._is_news(text):
            return
        self._write(f"{logging.Formatter().formatTime(record, '%Y-%m-%d %H:%M:%S')}  {text}")
        if (kit := _kit()) is not None and (kit / "site.toml").is_file():
            plain_log(kit / "fiss").info(text)

    def _say(self, record: logging.LogRecord) -> None:
        if self._is_news(
            f"{record.name} {record.levelno} {re.sub(r'[0-9a-f-]*[0-9][0-9a-f-]*', '', record.getMessage())}"
        ):
            self._write(self.format(record))

    def _is_news(self, text: str) -> bool:
        now = monotonic()
        if now - self.said.get(text, -AGAIN) < AGAIN:
            return False
        if len(self.said) > 500:
            self.said.clear()
        self.said[text] = now
        return True

    def _write(self, text: str) -> None:
        if self.left <= 0:
            return
        self.left -= len(text)
        text += "" if self.left > 0 else "\nNo more is said here; log.txt goes on."
        self.stream.write(text + "\n")
        self.flush()


def _end_soon() -> None:
    """End this process, if it does not end by itself; FLARE's script starts it again unless it was to stop."""
    timer = Timer(ENDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _kit() -> Path | None:
    """The kit of this process, from the arguments that FLARE's scripts give it."""
    return Path(sys.argv[sys.argv.index("-m") + 1]) if "-m" in sys.argv[:-1] else None
