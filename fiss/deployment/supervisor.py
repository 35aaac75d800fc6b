"""Keeps a federation going: a series of FLARE jobs, each from the last finished round on.

The sites of a FLARE job are fixed when it starts. So when a site joins or comes back, the present job is ended after
its round and the next one is submitted; and when the server was away, it is submitted once it is there again.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

from fiss.config.config import to_toml
from fiss.deployment import provisioning
from fiss.deployment.server import JOB, RENEW, STOP, ServerEvaluator, open_run
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.records import RoundRecord
from fiss.simulation.on_flare import write_job

if TYPE_CHECKING:
    from fiss.flare.admin import Admin

FRESH = 40.0
"""Seconds since a site was last heard of after which it does not count as there."""
FIRST_WAIT, LONGEST_WAIT = 5.0, 3600.0


def supervise(folder: Path, rounds: int, least: int, progress: Progress, patience: float = 600.0) -> RunFolder:
    """Run until there are `rounds` rounds, or `stop` is asked for; `least` sites must be there to start. After
    `patience` seconds without a server, without so many sites, or without any progress, it gives up."""
    config = provisioning.config_of(folder)
    if config.data.root:
        ServerEvaluator(config, progress)  # what is wrong with the server's images is said here, and not in a log
    run = open_run(config, folder / "run")
    with _alone(folder):
        for mark in (STOP, RENEW):
            (run.path / mark).unlink(missing_ok=True)
        trouble, said, series = 0.0, "", _Series(folder, run, rounds, least, progress)
        while not _done(run, rounds):
            before, problem = standing(run)["rounds"], ""
            try:
                problem = series.one_job()
            except _away() as error:
                problem = f"waiting for the server ({type(error).__name__})"
            if standing(run)["rounds"] > before:
                trouble = 0.0
            else:  # also if a job ended well, because none of its sites answered
                trouble, problem = trouble or monotonic(), problem or "no site answers"
            if problem and problem != said:
                progress.notice(problem)
            said = problem
            if trouble and monotonic() - trouble > patience:
                raise UserError(
                    f"{folder}: no progress for {patience:.0f} s ({problem}). Start server and sites "
                    "(startup/start.sh in their kits) and give the same command again; nothing is lost."
                )
            sleep(1.0)
        (run.path / STOP).unlink(missing_ok=True)
    return run


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One supervisor at a time; the lock goes with the process, however that ends."""
    with (folder / "federation.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{folder}: another `fiss federation run` is at work in it.") from error
        yield


def _away() -> tuple[type[BaseException], ...]:
    """What FLARE raises when the server cannot be reached; it may come back."""
    from fiss.flare.admin import AWAY

    return AWAY


def stop(folder: Path) -> None:
    """Ask for an end after the present round."""
    provisioning.read_project(folder)
    try:
        with _alone(folder):
            running = False
    except UserError:
        running = True
    if not running and not (folder / "run" / JOB).is_file():  # a job may outlive who began it
        raise UserError(f"{folder}: no `fiss federation run` is at work in it, so there is nothing to stop.")
    write_atomically(folder / "run" / STOP, b"")


def _done(run: RunFolder, rounds: int) -> bool:
    return (run.path / STOP).exists() or standing(run)["rounds"] >= rounds


def standing(run: RunFolder) -> dict[str, Any]:
    """How far it is: the rounds that count, as many as there are, and who is in the present job."""
    rounds = run.rounds(finished=True) if (run.path / "state.json").is_file() else ()
    return {
        "rounds": len(rounds),
        "last": rounds[-1] if rounds else None,
        "job": _present(run),
        "records": rounds,
    }


def _present(run: RunFolder) -> dict[str, Any]:
    """The present job: its sites, and who is missing since when; empty if none has begun."""
    try:
        return dict(json.loads((run.path / JOB).read_bytes()))
    except (OSError, ValueError):
        return {}


def survey(folder: Path) -> dict[str, Any]:
    """All there is to know: of the run, and of the sites that the server sees now."""
    project = provisioning.read_project(folder)
    try:
        from fiss.flare.admin import Admin

        with Admin(provisioning.admin_kit(folder), 10.0) as admin:
            there: dict[str, float] | None = _there(admin)
    except Exception:  # no server, no FLARE: the run folder still says where it stands
        there = None
    run = folder / "run"
    return {
        "folder": folder,
        **project,
        **standing(RunFolder(run)),
        "there": there,
        "scores": RunFolder(run).scores(finished=True)[-1:],
        "stopping": (run / STOP).exists(),
    }


class _Series:
    """One job after another."""

    def __init__(self, folder: Path, run: RunFolder, rounds: int, least: int, progress: Progress) -> None:
        self.folder, self.run, self.rounds, self.least, self.progress = folder, run, rounds, least, progress
        self.waits: dict[str, float] = {}
        """How long a site must have been missing before a job is ended for it: longer each time it was in vain."""

    def one_job(self) -> str:
        """Submit a job and wait for its end; gives what was wrong, if anything."""
        from fiss.flare.admin import ENDED, Admin

        run = self.run
        with Admin(provisioning.admin_kit(self.folder), 10.0) as admin:
            there = _there(admin)
            if len(there) < self.least:
                return f"waiting for {self.least} site(s), {len(there)} there"
            (run.path / RENEW).unlink(missing_ok=True)
            (run.path / JOB).unlink(missing_ok=True)
            told = standing(run)["rounds"]
            with TemporaryDirectory(prefix="fiss-job-") as place:
                config = to_toml(run.config())
                out = {"out": str(run.path.absolute()), "until": self.rounds}
                server = {"main": "fiss.simulation.on_flare:serve", "arguments": out}
                write_job(
                    Path(place) / "job",
                    server,
                    {"main": "fiss.simulation.on_flare:attend", "arguments": {"config": config}},
                )
                job = admin.submit(Path(place) / "job")
            self.progress.notice(f"a job with {', '.join(sorted(there))}.")
            status = ""
            try:
                while not status.startswith(ENDED):
                    sleep(1.0)
                    status = admin.status(job)
                    told = self._tell(told)
                    if not (run.path / RENEW).exists() and self._changed(_there(admin)):
                        write_atomically(run.path / RENEW, b"")
            finally:
                if not status.startswith(ENDED):
                    admin.abort(job)
            self._tell(told)
            return "" if status.endswith("COMPLETED") else f"a job ended as {status}; the server's log says why"

    def _changed(self, there: dict[str, float]) -> bool:
        """Whether a site is there that the present job does not have, or that it lost and that was heard of since."""
        job = _present(self.run)
        for name, heard in there.items() if job else ():
            if name not in job["sites"]:
                return True
            wait = self.waits.get(name, FIRST_WAIT)
            if name in job["missing"] and heard > job["missing"][name] + wait:
                self.waits[name] = min(2 * wait, LONGEST_WAIT)
                return True
        return False

    def _tell(self, told: int) -> int:
        """Show rounds that are new; gives how many there are."""
        records = standing(self.run)["records"]
        for record in records[told:]:
            self.progress.notice(line(record))
            for reply in record.replies:
                self.waits.pop(str(reply.client), None)
        return max(told, len(records))


def _there(admin: "Admin") -> dict[str, float]:
    now = time()
    return {name: heard for name, heard in admin.sites().items() if now - heard < FRESH}


def line(record: RoundRecord) -> str:
    """A round in a line."""
    losses: dict[str, float] = {}
    replies = [reply for reply in record.replies if reply.images]
    for reply in replies:
        for name, value in reply.losses.items():
            losses[name] = losses.get(name, 0.0) + (value or 0.0) / len(replies)
    parts = [f"round {record.round + 1}: {', '.join(str(reply.client) for reply in replies) or 'nobody'}"]
    parts += [f"{name} {value:.3f}" for name, value in losses.items()]
    parts += [f"new classes at {', '.join(map(str, record.transitions))}"] if record.transitions else []
    parts += [f"missing: {name} ({why})" for name, why in (record.missing or {}).items()]
    parts += [f"refused: {name} ({why})" for name, why in record.refused.items()]
    return "  ".join([*parts, f"{record.classes} classes  {record.seconds:.0f} s"])
