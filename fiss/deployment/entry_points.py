"""What the FLARE job of a real federation calls; `fiss/flare/job.py` has their names."""

import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fiss.config.config import from_toml
from fiss.deployment.certificates import install, kit_warnings
from fiss.deployment.job_status import silent_sites
from fiss.deployment.log import Logged, cut_audit
from fiss.deployment.server import PROBLEM, number_sites, run_rounds
from fiss.deployment.site import SiteClient
from fiss.deployment.site_config import read_site
from fiss.deployment.site_status import Followed
from fiss.errors import UserError
from fiss.federation.wire import Message
from fiss.progress import Progress
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.tracking import Tracked

if TYPE_CHECKING:
    from fiss.flare.transport import Transport

JOB_NAME, KEPT_JOBS = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), 10
"""What FLARE calls the folder of a job, and how many a site keeps."""
TOLD = "told.txt"
"""Beside a site's log: the warnings that it was given when the last job began."""


def run_server(transport: "Transport", out: str, until: int) -> None:
    """Run in FLARE's server: play rounds in the run folder `out`, until there are so many or a mark ends them."""
    from fiss.flare.engines import FlareEngine
    from fiss.flare.tracking import Analytics

    folder = RunFolder.open(Path(out))
    names = number_sites(folder, transport.sites)
    engine = FlareEngine(transport, names, folder.config().federation, lambda: silent_sites(folder))
    (folder.path / PROBLEM).unlink(missing_ok=True)
    try:
        with closing(Analytics(transport.controller, transport.fl_ctx)) as analytics:
            run_rounds(folder, engine, names, until, Tracked(Logged(LogProgress(), folder.path), analytics))
    except (OSError, UserError) as error:
        with suppress(OSError):  # the disk may be full
            write_atomically(folder.path / PROBLEM, str(error).encode())
        raise


def site_client(
    folder: Path,
    config: str,
    differences: bool,
    certificates: Mapping[str, Mapping[str, str]] | None = None,
) -> Callable[[Message], Message]:
    """At a site, whose kit is `folder`: what answers for it, with `differences` of weights where it has filters; new
    `certificates` are by the names of the sites."""
    spec, own = read_site(folder / "site.toml"), folder / "fiss"
    progress = Logged(LogProgress(), own)
    _forget_jobs(folder)
    cut_audit(folder)
    if until := install(folder, certificates or {}):
        progress.notice(f"a new certificate, valid until {until:%Y-%m-%d}, is used from the next start on.")
    _tell_once(own / TOLD, kit_warnings(folder), progress)
    client = SiteClient(own, from_toml(config), spec, progress, differences)
    return Followed(client, own, client.labelled_classes)


def _tell_once(told: Path, warnings: Sequence[str], progress: Progress) -> None:
    """Say what was not said when the last job began."""
    before = told.read_text().splitlines() if told.is_file() else []
    for text in warnings:
        if text not in before:
            progress.notice(text)
    write_atomically(told, "\n".join(warnings).encode())


def _forget_jobs(kit: Path) -> None:
    """FLARE keeps a folder of every job; the last ones are enough."""
    jobs = [path for path in kit.iterdir() if path.is_dir() and JOB_NAME.fullmatch(path.name)]
    for path in sorted(jobs, key=lambda path: path.stat().st_mtime)[:-KEPT_JOBS]:
        shutil.rmtree(path, ignore_errors=True)


class LogProgress(Progress):
    """Notices go to the process's own log."""

    def notice(self, text: str) -> None:
        """One line."""
        logging.getLogger("fiss").warning(text)
