"""What the page may do if it was started with `--control`: commands of `fiss federation`, as a person gives them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from fiss.deployment.provisioning import NAME, read_project
from fiss.errors import UserError, unknown
from fiss.runs.folder import RunFolder

SECONDS = 120.0
"""How long a command that ends by itself may take."""
MOST_ROUNDS = 1_000_000
AT_ONCE = 2.0
"""Seconds that a command is watched that may last: what is wrong with it is mostly said at once."""
STARTED, STOPPED = "web-run.log", "web-stop-site.log"
"""In the federation's folder: what a run that the page started says, and a site that is being stopped."""


def act(federation: Path, action: str, values: dict[str, Any]) -> str:
    """Start, stop, or stop a site; gives what there is to say. `values` must repeat the federation's name, so that
    nothing happens by a slip."""
    if values.get("confirm") != federation.name:
        raise UserError(f"Not confirmed: type the federation's name, {federation.name}.")
    if action == "start":
        return _start(federation, values)
    if action == "stop":
        return _command("stop", str(federation))
    if action == "stop-site":
        site = str(values.get("site"))
        if site not in read_project(federation).sites or not NAME.fullmatch(site):
            raise unknown("site", site, read_project(federation).sites)
        log = federation / STOPPED
        later = f"{site} is stopped after the present round; {log} has what is said of it."
        return _lasting(log, later, "stop-site", str(federation), site)
    raise unknown("action", action, ("start", "stop", "stop-site"))


def _start(federation: Path, values: dict[str, Any]) -> str:
    rounds, sites = values.get("rounds"), values.get("sites", 1)
    if not (type(rounds) is int and type(sites) is int and 0 < rounds <= MOST_ROUNDS and 0 < sites <= MOST_ROUNDS):
        raise UserError("rounds and sites must be whole numbers, 1 or more.")
    done = RunFolder(federation / "run").stands()[0]
    if rounds <= done:
        raise UserError(f"{done} rounds are finished already; ask for more of them.")
    words = ["run", str(federation), "--rounds", str(rounds), "--sites", str(sites)]
    log = federation / STARTED
    later = f"It trains until there are {rounds} rounds; {log} has what it says."
    return _lasting(log, later, *words)


def _lasting(log: Path, later: str, *words: str) -> str:
    """A command that goes on without the page; gives what it says if it ends at once, and otherwise `later`."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            _words(*words), stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        process.wait(AT_ONCE)
    except subprocess.TimeoutExpired:
        return later
    said = log.read_text(errors="replace").strip()[-1000:] or "It ended at once."
    if process.returncode or words[0] == "run":
        raise UserError(said)
    return said


def _command(name: str, *arguments: str) -> str:
    try:
        done = subprocess.run(_words(name, *arguments), capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"`fiss federation {name}` did not end in {SECONDS:.0f} s; give it at the server.") from error
    if done.returncode:
        raise UserError((done.stderr or done.stdout).strip()[-1000:])
    return done.stdout.strip()[-1000:]


def _words(*words: str) -> list[str]:
    return [sys.executable, "-m", "fiss", "federation", *words]
