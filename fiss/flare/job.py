"""A FLARE job as three small files, and what one may build and call.

Only this file knows the names of our FLARE classes and of the functions that a job calls. It needs no FLARE itself.
"""

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fiss.errors import UserError
from fiss.runs.folder import write_atomically

CLASSES = "fiss.flare.transport"
"""The module of our controller and executor: FLARE builds no class that a kit does not allow by name."""
TASK, TRACKER = "fiss", "tracker"
"""What FLARE calls the one task of our jobs, and the component that `--track` puts into them."""


@dataclass(frozen=True)
class EntryPoints:
    """What a job calls, each as `package.module:function`."""

    server: str
    """Called with the transport to the sites and its arguments: plays the rounds."""
    site: str
    """Called with the site's folder and its arguments: gives the function that answers messages."""


SIMULATION = EntryPoints("fiss.simulation.on_flare:run_server", "fiss.simulation.on_flare:client_worker")
DEPLOYMENT = EntryPoints("fiss.deployment.entry_points:run_server", "fiss.deployment.entry_points:site_client")


def server_function(path: str) -> Callable[..., Any]:
    """The function that a job names for the server."""
    return _function(path, SIMULATION.server, DEPLOYMENT.server)


def site_function(path: str, folder: Path) -> Callable[..., Any]:
    """The function that a job names for the site of that folder; only the real one where a site owns its data."""
    return _function(path, DEPLOYMENT.site, *([] if (folder / "site.toml").is_file() else [SIMULATION.site]))


def _function(path: str, *allowed: str) -> Callable[..., Any]:
    """Whoever may submit a job must not be able to run anything else."""
    if path not in allowed:
        raise UserError(f"{path} is not for a job to call here.")
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def require_flare() -> None:
    """Refuse to go on where FLARE is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise UserError("NVIDIA FLARE is not installed: pip install 'fiss[flare]'.")


def allows_classes(resources: Mapping[str, Any]) -> bool:
    """Whether a participant with this content of resources.json builds our classes; the administrator builds none."""
    return CLASSES in resources.get("class_allow_list", [CLASSES])


def allow_classes(resources: Mapping[str, Any]) -> dict[str, Any]:
    """That content of resources.json with our classes on its list, in place of those of an earlier fiss."""
    if "class_allow_list" not in resources:
        return dict(resources)
    others = [name for name in resources["class_allow_list"] if not name.startswith("fiss.")]
    return {**resources, "class_allow_list": [CLASSES, *others]}


def write_job(
    folder: Path,
    entry_points: EntryPoints,
    server: Mapping[str, Any],
    site: Mapping[str, Any],
    sites: Iterable[str] | None = None,
    tracker: Mapping[str, Any] | None = None,
) -> None:
    """A job that calls these entry points with the arguments `server` and `site`; for these sites, or for all that
    FLARE knows. A `tracker` is what `fiss.runs.tracking.tracker` gives."""
    (folder / "app" / "config").mkdir(parents=True)
    plain = {"format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": []}
    controller = {
        "id": "controller",
        "path": f"{CLASSES}.FissController",
        "args": {"entry_point": entry_points.server, "arguments": server},
    }
    executor = {"path": f"{CLASSES}.FissExecutor", "args": {"entry_point": entry_points.site, "arguments": site}}
    components = [{"id": TRACKER, "path": f"{CLASSES}.Tracker", "args": tracker}] if tracker else []
    where = ["@ALL"] if sites is None else ["server", *sorted(sites)]
    meta = {"name": "fiss", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": where}}
    for name, content in (
        ("app/config/config_fed_server.json", {**plain, "workflows": [controller], "components": components}),
        ("app/config/config_fed_client.json", {**plain, "executors": [{"tasks": [TASK], "executor": executor}]}),
        ("meta.json", meta),
    ):
        write_atomically(folder / name, json.dumps(content, indent=1).encode())
