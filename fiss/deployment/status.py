"""Where a federation stands, at the server and at a site, as plain values: for tables, `--json` and the web page."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import Any

from fiss.deployment.certificates import kit_until, kit_warnings
from fiss.deployment.job_status import JobStatus
from fiss.deployment.log import LOG
from fiss.deployment.site_config import read_site
from fiss.deployment.site_status import SiteStatus, started
from fiss.deployment.supervisor import FederationStatus
from fiss.errors import UserError
from fiss.runs.records import RoundRecord

STATES = ("there", "working", "late", "gone", "refused", "removed", "unknown")
LEAST_SPACE = 2**30
"""Bytes below which a disk is called nearly full."""
LONG = 900.0
"""Seconds after which it is worth a word that a round waits."""
LINES = 10
"""Of the log, in a status."""


def site_state(
    name: str,
    job: JobStatus,
    connected: Mapping[str, float] | None,
    last: RoundRecord | None,
    removed: Collection[str] = (),
) -> str:
    """One of `STATES`; `connected` is None where nobody knows who is. `removed` sites are turned away."""
    if name in removed:
        return "removed"
    if name in job.waiting:
        return "working"
    if name in job.missing or (connected is not None and name not in connected):
        return "gone"
    if last is not None and name in last.refused:
        return "refused"
    if last is not None and name in (last.missing or {}):
        return "late"
    return "there" if connected is not None or name in job.sites else "unknown"


def warnings(folder: Path, job: JobStatus, last: RoundRecord | None) -> list[str]:
    """What a person should look at, at the server; the most urgent first."""
    found = low_space(folder)
    if job.waiting and time() - job.since > LONG:
        who, minutes = ", ".join(job.waiting[:5]), (time() - job.since) / 60
        found.append(f"round {job.round + 1} has waited {minutes:.0f} minutes for {who}")
    if last is not None:
        number = last.round
        found += [f"round {number}: the update of {name} was refused: {why}" for name, why in last.refused.items()]
        found += [f"round {number}: {name} took no part: {why}" for name, why in (last.missing or {}).items()]
        if not any(reply.images for reply in last.replies):
            found.append(f"round {number}: nobody trained")
    return found


def low_space(folder: Path) -> list[str]:
    """A warning if the disk is nearly full."""
    free = shutil.disk_usage(folder).free
    return [f"{folder}: only {free / 2**30:.1f} GiB are free on this disk"] if free < LEAST_SPACE else []


def server_values(status: FederationStatus) -> dict[str, Any]:
    """All that is known at the server."""
    rounds, job = status.rounds, status.job
    last = rounds[-1] if rounds else None
    took = {reply.client: (record, reply) for record in rounds for reply in record.replies if reply.images}
    sites = {}
    for name in status.project.sites:
        record, reply = took.get(name, (None, None))
        held = {other.client: other.images for other in record.replies} if record else {}  # some answer twice
        sites[name] = {
            "state": site_state(name, job, status.connected, last, status.removed),
            "last_round": record.round if record else None,
            "images": reply.images if reply else None,
            "share": reply.images / sum(held.values()) if reply else None,
        }
    moved = [record for record in rounds if record.transitions]
    return {
        "folder": str(status.folder),
        "server": f"{status.project.server}:{status.project.port}",
        "answers": status.connected is not None,
        "rounds": len(rounds),
        "doing": f"round {job.round + 1}: sites {job.doing}" if job.waiting else "",
        "waiting": list(job.waiting),
        "stopping": status.stopping,
        "classes": list((last.class_names if last else None) or ()),
        "sites": sites,
        "last_transition": {"round": moved[-1].round, "sites": list(moved[-1].transitions)} if moved else None,
        "score": {"round": status.score.round, "miou": status.score.miou, "iou": dict(status.score.iou)}
        if status.score
        else None,
        "warnings": [*warnings(status.folder, job, last), *status.warnings],
        "log": log_lines(status.folder / "run"),
    }


def site_values(kit: Path) -> dict[str, Any]:
    """All that is known at a site."""
    if not (kit / "site.toml").is_file():
        raise UserError(f"{kit}: neither a federation's folder nor a site's start-up kit.")
    own, found = SiteStatus.read(kit / "fiss"), low_space(kit)
    running = started(kit)
    try:
        read_site(kit / "site.toml")
    except UserError as error:
        found.append(str(error))
    found += kit_warnings(kit)
    if not running:
        found.append(f"not started: bash {kit / 'startup' / 'start.sh'}")
    if own.problem and own.round < 0:
        found.append(own.problem)
    elif own.problem:
        found.append(f"round {own.round + 1}: it could not answer: {own.problem}")
    values = asdict(own) | {
        "round": own.round + 1,
        "site": kit.name,
        "started": running,
        "warnings": found,
        "log": log_lines(kit / "fiss"),
        "certificate": f"{until:%Y-%m-%d}" if (until := kit_until(kit)) else None,
    }
    return values | {"doing": own.doing if running else "is not started"}


def log_lines(folder: Path, count: int = LINES) -> Sequence[str]:
    """The last lines of a side's log."""
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 300 * count))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
