"""Keeps a federation going: a series of FLARE jobs, each from the last finished round on.

The sites of a FLARE job are fixed when it starts. So when a site joins or comes back, the present job is ended after
its round and the next one is submitted; and when the server was away, it is submitted once it is there again.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

from fiss.config.config import to_toml
from fiss.deployment import provisioning
from fiss.deployment.certificates import expiring, renewed
from fiss.deployment.job_status import JOB, SILENT, JobStatus, Seen
from fiss.deployment.log import Logged, cut_audit
from fiss.deployment.provisioning import Project
from fiss.deployment.server import PROBLEM, RENEW, STOP, ServerEvaluator, open_run
from fiss.errors import UserError
from fiss.flare.job import DEPLOYMENT, require_flare, write_job
from fiss.progress import Progress
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.lock import locked
from fiss.runs.records import RoundRecord, ScoreRecord, read_rounds, read_scores
from fiss.runs.tail import Tail
from fiss.runs.tracking import tracker

if TYPE_CHECKING:
    from fiss.flare.admin import Admin

HOLD = "hold.lock"
"""Whoever locks it in the federation's folder keeps the next job from beginning."""
RECENT = 40.0
"""Seconds since a site was last heard of after which it does not count as connected."""
FIRST_WAIT, LONGEST_WAIT = 5.0, 3600.0
LEAST_FREE = 1 << 20
"""Bytes: with less the disk is full."""
ENDING = 20.0
"""Seconds that FLARE is given to end a job whose rounds are over. By itself it waits a quarter of an hour for what a
site that has gone had to say."""


def supervise(
    folder: Path, rounds: int, least: int, progress: Progress, patience: float = 600.0, track: str = ""
) -> RunFolder:
    """Run until there are `rounds` rounds, or `stop` is asked for; `least` sites must be there to start. After
    `patience` seconds without a server, without so many sites, or without any progress, it gives up. Losses and scores
    go to what `track` names too."""
    require_flare()
    receiver = tracker(track, folder / "run", folder.absolute().name)
    from fiss.flare.admin import AWAY

    config = provisioning.config_of(folder)
    provisioning.refuse_old_kits(folder)
    if config.data.root:
        ServerEvaluator(config, progress)  # what is wrong with the server's images is said here, and not in a log
    with _alone(folder):
        run = open_run(config, folder / "run", progress)
        progress = Logged(progress, run.path)
        for text in expiring(folder):
            progress.notice(text)
        for mark in (STOP, RENEW):
            (run.path / mark).unlink(missing_ok=True)
        jobs, stalled_since, shown = _JobSeries(folder, run, rounds, least, progress, receiver), 0.0, ""
        while not (run.path / STOP).exists() and (before := finished_rounds(run)) < rounds:
            try:
                if _is_held(folder):
                    sleep(1.0)
                    continue
                open_run(provisioning.config_of(folder), run.path, progress)  # it may have been changed
                problem = jobs.run_job()
            except AWAY as error:  # it may come back
                problem = f"waiting for the server ({type(error).__name__})"
            except (UserError, OSError) as error:  # a wrong key, a full disk: it goes on when that is put right
                problem = str(error)
            if finished_rounds(run) > before:
                stalled_since = 0.0
            else:  # also if a job ended well, because none of its sites answered
                stalled_since, problem = stalled_since or monotonic(), problem or _nobody(run)
            if problem and problem != shown:
                progress.notice(problem)
            shown = problem
            if stalled_since and monotonic() - stalled_since > patience:
                raise UserError(
                    f"{folder}: no progress for {patience:.0f} s ({problem}). Start server and sites "
                    "(startup/start.sh in their kits) and give the same command again; nothing is lost."
                )
            sleep(1.0)
        (run.path / STOP).unlink(missing_ok=True)
    return run


def _nobody(run: RunFolder) -> str:
    """What to say of a job without a round. Each begins its sites anew, which may take longer than they are given."""
    patience = run.config().federation.patience
    return "no site answers" + (f" within {patience:.0f} s (federation.patience)" if patience else "")


def _alone(folder: Path) -> AbstractContextManager[None]:
    """One supervisor at a time."""
    lock = folder / "run.lock"  # a file that is never replaced
    lock.touch()
    return locked(lock, f"{folder}: another `fiss federation run` is at work in it.")


def _is_held(folder: Path) -> bool:
    """Whether a command is at work on the sites, so that no job may begin."""
    (folder / HOLD).touch()
    try:
        with locked(folder / HOLD, ""):
            return False
    except UserError:
        return True


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


def renew_job(folder: Path) -> bool:
    """Let the present job end after its round, so that the next one begins; gives whether there is one."""
    there = (folder / "run" / JOB).is_file()
    if there:
        write_atomically(folder / "run" / RENEW, b"")
    return there


def finished_rounds(run: RunFolder) -> int:
    """How many rounds count."""
    return run.stands()[0]


@dataclass(frozen=True)
class FederationStatus:
    """All there is to know of a federation."""

    folder: Path
    project: Project
    connected: Mapping[str, float] | None
    """Sites that the server sees now, and when each was last heard of; None if it does not answer."""
    rounds: Sequence[RoundRecord]
    """Records of the finished ones."""
    job: JobStatus
    score: ScoreRecord | None
    """Record of the last one."""
    stopping: bool
    removed: Sequence[str] = ()
    """Sites that left or were removed."""
    warnings: Sequence[str] = ()


def survey(folder: Path) -> FederationStatus:
    """What is known of the run, and of the sites that the server sees now."""
    project = provisioning.read_project(folder)
    try:
        from fiss.flare.admin import Admin

        with Admin(provisioning.admin_kit(folder), 10.0) as admin:
            connected: dict[str, float] | None = connected_sites(admin)
    except Exception:  # no server, no FLARE: the run folder still says where it stands
        connected = None
    run = RunFolder(folder / "run")
    scores = run.scores(finished=True)
    return FederationStatus(
        folder,
        project,
        connected,
        run.rounds(finished=True),
        JobStatus.read(run),
        scores[-1] if scores else None,
        (run.path / STOP).exists(),
        provisioning.disabled_sites(folder),
        expiring(folder),
    )


class _JobSeries:
    """One job after another."""

    def __init__(
        self,
        folder: Path,
        run: RunFolder,
        rounds: int,
        least: int,
        progress: Progress,
        receiver: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.run, self.rounds, self.least, self.progress = folder, run, rounds, least, progress
        self.receiver = receiver
        lengths = run.stands()[1]
        self.tails = [Tail(run.path / log) for log in lengths]
        for tail in self.tails:  # what is there already was shown
            tail.skip(lengths[tail.path.name])
        self.view = run.config().evaluation.views[0]
        self.seen = Seen()
        self.waits: dict[str, float] = {}
        """How long a site must have been missing before a job is ended for it: longer each time it was in vain."""

    def run_job(self) -> str:
        """Submit a job and wait for its end; gives what was wrong, if anything."""
        from fiss.flare.admin import ENDED, Admin

        with Admin(provisioning.admin_kit(self.folder), 10.0) as admin:
            connected = connected_sites(admin)
            self.seen = self.seen.noted(self.run.path, connected)
            if len(connected) < self.least:
                return f"waiting for {self.least} site(s), {len(connected)} there"
            for mark in (RENEW, JOB):
                (self.run.path / mark).unlink(missing_ok=True)
            job, status, before = self._submit(admin, connected), "", finished_rounds(self.run)
            self.progress.notice(f"a job with {', '.join(sorted(connected))}.")
            began, over_since = False, 0.0
            try:
                while not status.startswith(ENDED):
                    sleep(1.0)
                    status = admin.status(job)
                    for kit in self.folder.glob("kits/*"):
                        cut_audit(kit)
                    self._show_new_rounds()
                    connected = connected_sites(admin)
                    self.seen = self.seen.noted(self.run.path, connected)
                    if there := (self.run.path / JOB).is_file():
                        self._watch_sites(connected)
                    elif began or finished_rounds(self.run) > before:
                        over_since = over_since or monotonic()
                        if monotonic() - over_since > ENDING:
                            break
                    began = began or there
            finally:
                (self.run.path / SILENT).unlink(missing_ok=True)
                if not status.startswith(ENDED):
                    admin.abort(job)
            self._show_new_rounds()
            if over_since or status.endswith("COMPLETED"):
                admin.forget(job)  # not of one that failed: its log says why
                return ""
            return f"a job ended as {status}: {self._problem()}"

    def _problem(self) -> str:
        """Why the last job failed, as far as it could say so."""
        path = self.run.path
        found = (path / PROBLEM).read_text() if (path / PROBLEM).is_file() else ""
        if disk_usage(path).free < LEAST_FREE or os.strerror(ENOSPC) in found:
            found = f"{found or f'the disk of {path} is full'}. Make room: it goes on by itself, and no finished round"
            return f"{found} is lost"
        return found or "the server's log says why"

    def _submit(self, admin: "Admin", sites: Iterable[str]) -> str:
        """The job that goes on from the last finished round, with those sites."""
        with TemporaryDirectory(prefix="fiss-job-") as place:
            server = {"out": str(self.run.path.absolute()), "until": self.rounds}
            site: dict[str, Any] = {"config": to_toml(self.run.config())}
            site |= {"certificates": new} if (new := renewed(self.folder)) else {}
            write_job(Path(place) / "job", DEPLOYMENT, server, site, sites, self.receiver)
            return admin.submit(Path(place) / "job")

    def _watch_sites(self, connected: Mapping[str, float]) -> None:
        """Tell the job which of its sites are silent, and end it after its round where others have come."""
        job = JobStatus.read(self.run)
        silent = [name for name in job.sites if name not in connected]
        if silent and len(silent) < len(job.sites):  # else it is the server that hears nothing
            write_atomically(self.run.path / SILENT, json.dumps(silent).encode())
        else:
            (self.run.path / SILENT).unlink(missing_ok=True)
        if not (self.run.path / RENEW).exists() and self._sites_changed(job, connected):
            write_atomically(self.run.path / RENEW, b"")

    def _sites_changed(self, job: JobStatus, connected: Mapping[str, float]) -> bool:
        """Whether a site is there that the present job does not have, or that it lost and that was heard of since."""
        for name, heard in connected.items() if job.sites else ():
            if name not in job.sites:
                return True
            wait = self.waits.get(name, FIRST_WAIT)
            if name in job.missing and heard > job.missing[name] + wait:
                self.waits[name] = min(2 * wait, LONGEST_WAIT)
                return True
        return False

    def _show_new_rounds(self) -> None:
        """Reads what was appended, so that a look costs the same after a thousand rounds."""
        lengths = self.run.stands()[1]
        found = [tail.lines(lengths[tail.path.name]) for tail in self.tails]
        rounds, scores = ([] if anew else [json.loads(line) for line in lines] for anew, lines in found)
        for record in read_rounds(rounds, str(self.tails[0].path), self.run.counting.first):
            self.progress.notice(describe_round(record))
            self.progress.played(record)
            for reply in record.replies:
                self.waits.pop(str(reply.client), None)
        for score in read_scores(scores, str(self.tails[1].path), self.view, self.run.counting.first):
            self.progress.scored(score)


def connected_sites(admin: "Admin") -> dict[str, float]:
    """The sites that FLARE has heard of in the last seconds, and when."""
    now = time()
    return {name: heard for name, heard in admin.sites().items() if now - heard < RECENT}


def describe_round(record: RoundRecord) -> str:
    """A round in a line."""
    names = dict.fromkeys(str(reply.client) for reply in record.replies if reply.images)  # some answer twice
    parts = [f"round {record.round}: {', '.join(names) or 'nobody'}"]
    parts += [f"{name} {value:.3f}" for name, value in record.losses.items()]
    parts += [f"new classes at {', '.join(map(str, record.transitions))}"] if record.transitions else []
    parts += [f"missing: {name} ({why})" for name, why in (record.missing or {}).items()]
    parts += [f"refused: {name} ({why})" for name, why in record.refused.items()]
    return "  ".join([*parts, f"{record.classes} classes  {record.seconds:.0f} s"])
