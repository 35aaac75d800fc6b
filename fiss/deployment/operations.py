"""What people do to a federation that lives: stop a site, let one go for good, refuse one.

FLARE stops a site only between jobs. So a command holds the federation: the present job ends after its round, and the
next one waits until the command is done. The hold is a lock; it goes with the process that has it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from fiss.deployment import provisioning
from fiss.deployment.log import plain_log
from fiss.deployment.provisioning import disabled_sites
from fiss.deployment.server import gathering_of
from fiss.deployment.supervisor import HOLD, connected_sites, renew_job
from fiss.errors import UserError, unknown
from fiss.flare.job import require_flare
from fiss.progress import Progress
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.lock import locked

if TYPE_CHECKING:
    from fiss.flare.admin import Admin

LOGGED_OUT = 60.0
"""Seconds in which a site that was stopped is gone."""


def stop_site(folder: Path, site: str, progress: Progress) -> None:
    """Shut a site down after the present round; started again it takes part again."""
    _known(folder, site)
    with _held(folder), _admin(folder) as admin:
        if site not in connected_sites(admin):
            raise UserError(f"{site} is not connected, so there is nothing to stop.")
        _stop(folder, admin, site, progress)
    plain_log(folder / "run").info("%s is stopped; start.sh in its kit starts it again.", site)


class ServerAwayError(UserError):
    """The server of a federation does not answer."""


def leave(folder: Path, site: str, take_out: bool, progress: Progress) -> bool:
    """A site goes for good, after the present round: it is shut down, its kit is refused from then on, and with
    `take_out` what it contributed is taken out of the sums. Gives whether it is known to be gone."""
    number, gone = _number(folder, site, take_out), False
    with _held(folder):
        try:
            with _admin(folder) as admin:
                if site in connected_sites(admin):
                    _stop(folder, admin, site, progress)
            gone = True
        except ServerAwayError:
            progress.notice(
                f"the server does not answer, so {site} was not told to stop: its kit is refused from the server's "
                "next start on, and `touch shutdown.fl` in the kit stops the site."
            )
        except UserError as error:
            progress.notice(str(error))
        refuse(folder, site)
        if take_out:
            _take_out(folder, number, site, progress)
    return gone


def remove(folder: Path, site: str, take_out: bool, progress: Progress) -> None:
    """Refuse a site's kit at once and from then on; what it still answers in the present round counts."""
    number = _number(folder, site, take_out)
    refuse(folder, site)
    renew_job(folder)
    if take_out:
        with _held(folder):
            _take_out(folder, number, site, progress)


def refuse(folder: Path, site: str) -> None:
    """FLARE's server turns the kit of that site away, and keeps doing so; without a server from its next start on."""
    from fiss.flare.admin import AWAY, Admin

    _known(folder, site)
    try:
        with Admin(provisioning.admin_kit(folder), 10.0) as admin:
            admin.disable(site)
    except AWAY:
        path = provisioning.disabled_file(folder)
        refused = sorted({*disabled_sites(folder), site})
        write_atomically(path, json.dumps({"disabled_clients": refused}, indent=2).encode())


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """No job begins while this lasts."""
    lock, tries = folder / HOLD, 10
    lock.touch()
    with ExitStack() as stack:
        while tries:
            tries -= 1
            try:
                stack.enter_context(locked(lock, f"{folder}: another command is at work on its sites; wait for it."))
                break
            except UserError:  # `run` looks at it for a moment
                if not tries:
                    raise
                sleep(0.2)
        yield


@contextmanager
def _admin(folder: Path) -> Iterator["Admin"]:
    require_flare()
    from fiss.flare.admin import AWAY, Admin

    try:
        with Admin(provisioning.admin_kit(folder), 10.0) as admin:
            yield admin
    except AWAY as error:
        raise ServerAwayError(
            f"{folder}: the server does not answer ({type(error).__name__}). Start it first."
        ) from error


def _stop(folder: Path, admin: "Admin", site: str, progress: Progress) -> None:
    _between_jobs(folder, lambda: admin.shut_down(site), progress)
    end = monotonic() + LOGGED_OUT
    while site in connected_sites(admin):
        if monotonic() > end:
            raise UserError(
                f"{site} was told to stop, and is still heard of after {LOGGED_OUT:.0f} s: look at its log, or stop it "
                "there (`touch shutdown.fl` in its kit). Others go on."
            )
        sleep(1.0)


def _between_jobs(folder: Path, done: Callable[[], bool], progress: Progress) -> None:
    """Try until no job is running any more."""
    noticed = False
    while not done():
        renew_job(folder)
        if not noticed:
            progress.notice("a site is stopped between two jobs: the end of the present round is waited for.")
        noticed = True
        sleep(2.0)


def _take_out(folder: Path, number: int, site: str, progress: Progress) -> None:
    """Sums without those of a site, and the classifier that comes of them."""
    run = RunFolder.open(folder / "run")

    def done() -> bool:
        try:
            with run.locked():
                state = run.restore()
                assert state is not None
                gathering = gathering_of(run.config())
                assert gathering is not None
                server = gathering.without(state.server, number)
                run.commit(
                    replace(state, server=server), f"{run.counting.model_of(state.next_round)}-without-{site}", 2
                )
        except UserError as error:
            if "another process" in str(error):
                return False
            raise
        return True

    _between_jobs(folder, done, progress)


def _number(folder: Path, site: str, take_out: bool) -> int:
    """The number of a site; with `take_out` of one whose contribution can be taken out."""
    _known(folder, site)
    run = folder / "run"
    known = json.loads((run / "sites.json").read_bytes()) if (run / "sites.json").is_file() else []
    number = known.index(site) if site in known else -1
    if not take_out:
        return number
    if number < 0:
        raise UserError(f"{site} never took part, so there is nothing to take out.")
    if (method := RunFolder.open(run).config().method).collection is None:
        raise UserError(
            f"--take-out: what images did to trained weights cannot be taken out of them ({type(method).__name__}). "
            "Only a method that adds up sums keeps each site's contribution: analytic."
        )
    return number


def _known(folder: Path, site: str) -> None:
    if site not in (sites := provisioning.read_project(folder).sites):
        raise unknown("site", site, sites)
