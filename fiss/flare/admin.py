"""The administrator's side of FLARE: which sites are connected, submitting jobs, ending them."""

import logging
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import TracebackType

from nvflare.fuel.flare_api.api_spec import InternalError, JobNotDone, NoConnection, SessionClosed
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

logging.getLogger().addHandler(logging.NullHandler())  # what FLARE says of its attempts is not for people
AWAY: tuple[type[BaseException], ...] = (NoConnection, SessionClosed, InternalError, ConnectionError, TimeoutError)
"""What is raised when the server cannot be reached."""
ENDED = "FINISHED"
"""How the status of a job that is over begins."""


class Admin:
    """A session with the server, by the administrator's kit."""

    def __init__(self, kit: Path, seconds: float) -> None:
        with redirect_stdout(StringIO()):
            self.session: Session = new_secure_session(kit.name, str(kit), timeout=seconds)

    def __enter__(self) -> "Admin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(Exception):  # the server may be gone
            self.session.close()

    def sites(self) -> dict[str, float]:
        """Connected sites, and when each was last heard of."""
        return {site.name: float(site.last_connect_time or 0) for site in self.session.get_connected_client_list()}

    def shut_down(self, site: str) -> bool:
        """Tell a site to shut down; False while a job is running, when FLARE does not. Whether it did is seen by who is
        connected: a site may be gone before it has answered."""
        try:
            self.session.shutdown("client", [site], wait=False)
        except JobNotDone:
            return False
        except InternalError as error:
            logging.getLogger("fiss").info("%s was told to shut down: %s", site, error)
        return True

    def disable(self, site: str) -> None:
        """Turn a site away from now on, whatever certificate it has."""
        self.session.disable_client(site)

    def submit(self, job: Path) -> str:
        """The number of a new job."""
        return str(self.session.submit_job(str(job.absolute())))

    def status(self, job: str) -> str:
        """The status of a job, such as SUBMITTED, RUNNING, FINISHED:COMPLETED."""
        return str(self.session.get_job_meta(job).get("status", ""))

    def forget(self, job: str) -> None:
        """Remove what FLARE keeps of a job that has ended."""
        with suppress(Exception):
            self.session.delete_job(job)

    def abort(self, job: str) -> None:
        """End a job."""
        with suppress(Exception):  # it may have ended by itself
            self.session.abort_job(job)
