"""Keeps a federation going: a series of FLARE jobs, each from the last finished round on.

The sites of a FLARE job are fixed when it starts. So when a site joins or comes back, the present job is ended after
its round and the next one is submitted; and when the server was away, it is submitted once it is there again.
"""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

from fiss import kits
from fiss.checkpoint import RunFolder, write_atomically
from fiss.config import to_toml
from fiss.deployment import JOB, RENEW, STOP, open_run
from fiss.errors import UserError
from fiss.flaring import write_job
from fiss.watch import Watcher

if TYPE_CHECKING:
    from fiss.engines.flare_admin import Admin

FRESH = 40.0
"""Seconds since a site was last heard of after which it does not count as there."""


def supervise(folder: Path, rounds: int, least: int, watcher: Watcher, patience: float = 600.0) -> RunFolder:
    """Run until there are `rounds` rounds, or `stop` is asked for; `least` sites must be there to start. After
    `patience` seconds without a server, or without so many sites, it gives up."""
    run = open_run(kits.config_of(folder), folder / "run")
    for mark in (STOP, RENEW):
        (run.path / mark).unlink(missing_ok=True)
    deadline, said = monotonic() + patience, ""
    while not _done(run, rounds):
        problem = ""
        try:
            if _one_job(folder, run, rounds, least, watcher):
                deadline = monotonic() + patience
            else:
                problem = f"waiting for {least} site(s)"
        except UserError:
            raise
        except Exception as error:  # whatever FLARE raises when the server is away: it may come back
            problem = f"waiting for the server ({type(error).__name__})"
        if problem and problem != said:
            watcher.notice(problem)
        said = problem
        if monotonic() > deadline:
            raise UserError(
                f"{folder}: for {patience:.0f} s there was no server with {least} site(s). Start them "
                "(startup/start.sh in their kits) and give the same command again; nothing is lost."
            )
        sleep(1.0)
    return run


def stop(folder: Path) -> None:
    """Ask for an end after the present round."""
    run = RunFolder.open(folder / "run")
    write_atomically(run.path / STOP, b"")


def _done(run: RunFolder, rounds: int) -> bool:
    return (run.path / STOP).exists() or progress(run)["rounds"] >= rounds


def progress(run: RunFolder) -> dict[str, Any]:
    """How far it is: finished rounds, the last of them, and who is in the present job."""
    count, last, job = 0, {}, {}
    with suppress(OSError, ValueError, KeyError):
        count = int(json.loads((run.path / "state.json").read_bytes())["next_round"])
    records = run.records("rounds.jsonl") if (run.path / "rounds.jsonl").is_file() else []
    if count and len(records) >= count:
        last = records[count - 1]
    with suppress(OSError, ValueError):
        job = json.loads((run.path / JOB).read_bytes())
    return {"rounds": count, "last": last, "job": job}


def survey(folder: Path) -> dict[str, Any]:
    """All there is to know: of the run, and of the sites that the server sees now."""
    project = kits.read_project(folder)
    try:
        from fiss.engines.flare_admin import Admin

        with Admin(kits.admin_kit(folder), 3.0) as admin:
            there: dict[str, float] | None = _there(admin)
    except Exception:  # no server, no FLARE: the run folder still says where it stands
        there = None
    run = folder / "run"
    known: dict[str, Any] = {"rounds": 0, "last": {}, "job": {}}
    if (run / "config.toml").is_file():
        known = progress(RunFolder(run))
    records = RunFolder(run).records("rounds.jsonl")[: known["rounds"]] if known["rounds"] else []
    return {"folder": folder, **project, **known, "there": there, "records": records, "stopping": (run / STOP).exists()}


def _one_job(folder: Path, run: RunFolder, rounds: int, least: int, watcher: Watcher) -> bool:
    """Submit a job and wait for its end; gives whether any round was finished."""
    from fiss.engines.flare_admin import ENDED, Admin

    with Admin(kits.admin_kit(folder), 10.0) as admin:
        there = _there(admin)
        if len(there) < least:
            return False
        (run.path / RENEW).unlink(missing_ok=True)
        (run.path / JOB).unlink(missing_ok=True)
        before = told = progress(run)["rounds"]
        with TemporaryDirectory(prefix="fiss-job-") as place:
            config = to_toml(run.config())
            server = {"main": "fiss.flaring:serve", "arguments": {"out": str(run.path.absolute()), "until": rounds}}
            write_job(Path(place) / "job", server, {"main": "fiss.flaring:attend", "arguments": {"config": config}})
            job = admin.submit(Path(place) / "job")
        watcher.notice(f"a job with {', '.join(sorted(there))}.")
        ended = False
        try:
            while not ended:
                sleep(1.0)
                ended = admin.status(job).startswith(ENDED)
                told = _tell(run, told, watcher)
                if not ended and _changed(run, _there(admin)):
                    write_atomically(run.path / RENEW, b"")
        finally:
            if not ended:
                admin.abort(job)
        return bool(_tell(run, told, watcher) > before)


def _there(admin: "Admin") -> dict[str, float]:
    now = time()
    return {name: heard for name, heard in admin.sites().items() if now - heard < FRESH}


def _changed(run: RunFolder, there: dict[str, float]) -> bool:
    """Whether a site is there that the present job does not have, or that it lost and that was heard of since."""
    job = progress(run)["job"]
    if not job:
        return False  # it has not begun
    return any(
        name not in job["sites"] or (name in job["missing"] and heard > job["missing"][name] + 5)
        for name, heard in there.items()
    )


def _tell(run: RunFolder, told: int, watcher: Watcher) -> int:
    """Show rounds that are new; gives how many there are."""
    count: int = progress(run)["rounds"]
    for record in run.records("rounds.jsonl")[told:count] if count > told else ():
        watcher.notice(line(record))
    return max(count, told)


def line(record: dict[str, Any]) -> str:
    """A round in a line."""
    losses: dict[str, float] = {}
    replies = [reply for reply in record["replies"] if reply["images"]]
    for reply in replies:
        for name, value in reply["losses"].items():
            losses[name] = losses.get(name, 0.0) + (value or 0.0) / len(replies)
    parts = [f"round {record['round'] + 1}: {', '.join(reply['site'] for reply in replies) or 'nobody'}"]
    parts += [f"{name} {value:.3f}" for name, value in losses.items()]
    parts += [f"new classes at {', '.join(record['transitions'])}"] if record["transitions"] else []
    parts += [f"missing: {name} ({why})" for name, why in record["missing"].items()]
    parts += [f"refused: {name} ({why})" for name, why in record["refused"].items()]
    return "  ".join([*parts, f"{len(record['classes'])} classes  {record['seconds']:.0f} s"])
