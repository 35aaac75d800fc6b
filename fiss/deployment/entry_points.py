"""What the FLARE job of a real federation calls; `fiss/flare/job.py` has their names."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fiss.config.config import from_toml
from fiss.deployment.log import Logged
from fiss.deployment.server import number_sites, run_rounds
from fiss.deployment.site import SiteClient
from fiss.deployment.site_config import read_site
from fiss.deployment.site_status import Followed
from fiss.federation.wire import Message
from fiss.progress import Progress
from fiss.runs.folder import RunFolder

if TYPE_CHECKING:
    from fiss.flare.transport import Transport


def run_server(transport: "Transport", out: str, until: int) -> None:
    """In FLARE's server: rounds in the run folder `out`, until there are so many or a mark ends them."""
    from fiss.flare.transport import FlareEngine

    folder = RunFolder.open(Path(out))
    names = number_sites(folder, transport.sites)
    engine = FlareEngine(transport, names, folder.config().federation)
    run_rounds(folder, engine, names, until, Logged(LogProgress(), folder.path))


def site_client(folder: Path, config: str, differences: bool) -> Callable[[Message], Message]:
    """At a site, whose kit is `folder`: what answers for it, with `differences` of weights where it has filters."""
    spec = read_site(folder / "site.toml")
    own = folder / "fiss"
    client = SiteClient(own, from_toml(config), spec, Logged(LogProgress(), own), differences)
    return Followed(client, own, client.labelled_classes)


class LogProgress(Progress):
    """Notices go to the process's own log."""

    def notice(self, text: str) -> None:
        """One line."""
        logging.getLogger("fiss").warning(text)
