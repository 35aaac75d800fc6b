"""Start-up kits: a federation's folder, made by FLARE's own provisioning, and what we add to it.

federation.toml   the config                     kits/NAME/     what the server, each site and the admin get
project.yml       who takes part, for FLARE      provision/     FLARE's own, with the federation's private key
run/              the run folder, once it runs
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import Any

import tomlkit

from fiss.config.config import Config, read_toml, to_dict, to_toml, with_settings
from fiss.config.identity import differences, with_absolute_paths
from fiss.config.presets import label
from fiss.deployment.server import check, refuse_changes
from fiss.deployment.service import write_unit
from fiss.deployment.site_config import TEMPLATE
from fiss.errors import UserError
from fiss.flare.job import allow_classes, allows_classes, require_flare
from fiss.runs.folder import RunFolder, write_atomically

ADMIN = "admin@fiss.org"
RESOURCES = Path("local") / "resources.json"
"""In each kit: what FLARE may build and where it keeps what."""
PRIVACY = {
    "scopes": [
        {
            "name": "site",
            "task_result_filters": [
                {
                    "path": "nvflare.app_common.filters.PercentilePrivacy",
                    "args": {"percentile": 10, "gamma": 0.01},
                }
            ],
        }
    ],
    "default_scope": "site",
}
"""The sample of privacy.json in a site's kit, in place of FLARE's, which names classes that do not exist."""
DISABLED = "disabled_clients.json"
LOGGING, LOG_BYTES = "log_config.json", 5_000_000
"""How FLARE logs: each of its four files has three older ones of so many bytes, and the console hears little."""
CONSOLE = "fiss.deployment.console.ConsoleHandler"
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")


@dataclass(frozen=True)
class Project:
    """Who takes part in a federation."""

    server: str
    port: int
    """The server's; the next one is the administrator's."""
    sites: Sequence[str]


def init(folder: Path, config: Config, server: str, sites: Sequence[str], port: int) -> list[Path]:
    """A new federation; gives the kits."""
    require_flare()
    check(config)
    config = with_absolute_paths(config)  # the server works in a folder of its own
    if config.data.root and not Path(config.data.root).is_dir():
        raise UserError(
            f"data.root = {config.data.root}: there is no such folder for the server to score on. "
            "Without images of its own: `--set data.root=`; sites can score instead (score in site.toml)."
        )
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is there already: `fiss federation add` adds a site to it.")
    _check_names([server, *sites])
    folder.mkdir(parents=True, exist_ok=True)
    text = to_toml(config).split("\n", 1)[1]
    head = "# A federation's config. [data], [tasks] and most of [world] are for simulations: here the sites'\n"
    head += "# folders say which images and classes there are.\n"
    write_atomically(folder / "federation.toml", (head + text).encode())
    _write_project(folder, Project(server, port, sites))
    return _provision(folder, [server, *sites, ADMIN])


def chosen(config: Config) -> str:
    """In a line: how a federation learns, and who scores its model."""
    network = f"{config.model.architecture} on {config.model.encoder}, weights {config.model.weights}"
    root = config.data.root
    scores = f"the server scores it on {root}" if root else "nobody scores it until a site.toml has `score = 0.2`"
    return f"Method {label(config)}; network {network}; {scores}."


def add(folder: Path, site: str) -> Path:
    """One more site, with a kit of the same federation."""
    require_flare()
    project = read_project(folder)
    if site in disabled_sites(folder):
        raise UserError(f"{site} was removed, and kits of that name are refused: choose another name.")
    _check_names([project.server, *project.sites, site])
    _write_project(folder, replace(project, sites=[*project.sites, site]))
    try:
        return _provision(folder, [site])[0]
    except UserError:
        _write_project(folder, project)
        raise


def read_project(folder: Path) -> Project:
    """Who takes part in the federation of that folder."""
    try:
        project = json.loads((folder / "project.yml").read_bytes())
        people = project["participants"]
        server = next(p for p in people if p["type"] == "server")
        return Project(server["name"], server["fed_learn_port"], [p["name"] for p in people if p["type"] == "client"])
    except (OSError, ValueError, KeyError, StopIteration) as error:
        raise UserError(f"{folder}: not a federation made by `fiss federation init` ({error}).") from error


def disabled_file(folder: Path) -> Path:
    """Where FLARE's server keeps the names of sites that it turns away."""
    return folder / "kits" / read_project(folder).server / DISABLED


def disabled_sites(folder: Path) -> list[str]:
    """Sites that were removed or have left."""
    path = disabled_file(folder)
    try:
        return list(json.loads(path.read_bytes())["disabled_clients"]) if path.is_file() else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged or foreign ({error}).") from error


def admin_kit(folder: Path) -> Path:
    """The administrator's kit."""
    return folder / "kits" / ADMIN


def config_of(folder: Path) -> Config:
    """The federation's config, checked."""
    config = read_toml(folder / "federation.toml")
    check(config)
    return config


def change_config(folder: Path, settings: Mapping[str, str]) -> Config:
    """Change keys of the federation's config; its comments stay."""
    path = folder / "federation.toml"
    before = config_of(folder)
    config = with_absolute_paths(with_settings(before, settings))
    check(config)
    if (folder / "run" / "state.json").is_file():
        refuse_changes(RunFolder.open(folder / "run").config(), config, path)
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    values = to_dict(config)
    for key in differences(before, config, ignoring=()):
        section, _, last = key.partition(".")
        if last:
            document[section][last] = values[section][last]
        else:
            document[section] = values[section]
    write_atomically(path, tomlkit.dumps(document).encode())
    return config


def upgrade(path: Path) -> dict[Path, bool]:
    """Make a kit of an earlier fiss, or all kits of a federation's folder, fit this one; gives whether each had to be
    changed."""
    changed = {}
    for kit in _kits(path):
        resources = _resources(kit)
        old = not allows_classes(resources)
        if old:
            write_atomically(kit / RESOURCES, json.dumps(allow_classes(resources), indent=1).encode())
        changed[kit] = _write_logging(kit) or old
        if kit.name != ADMIN:
            write_unit(kit)  # for the place where the kit lies now
    return changed


def refuse_old_kits(path: Path) -> None:
    """Stop where a kit, or one of a federation's folder, was made by an earlier fiss."""
    if any(not allows_classes(_resources(kit)) for kit in _kits(path)):
        raise UserError(f"{path}: made by an earlier fiss; `fiss federation upgrade {path}` makes it fit this one.")


def _kits(path: Path) -> list[Path]:
    """The kit of that name, or all kits in the federation's folder."""
    kits = (
        [path]
        if (path / RESOURCES).is_file()
        else sorted(found.parents[1] for found in path.glob(f"kits/*/{RESOURCES}"))
    )
    if not kits:
        raise UserError(f"{path}: neither a start-up kit nor a federation's folder with kits/ in it.")
    return kits


def _resources(kit: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((kit / RESOURCES).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{kit / RESOURCES}: damaged or foreign ({error}).") from error


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not NAME.fullmatch(name):
            raise UserError(f"{name}: a name has letters, digits, dots, hyphens and underscores, at most 63 of them.")
    if len(set(names)) != len(names):
        raise UserError(f"{', '.join(names)}: every name once.")


def _write_project(folder: Path, content: Project) -> None:
    """Write the project as JSON, which is also YAML."""
    write_atomically(folder / "project.yml", json.dumps(_project(content), indent=1).encode())


def _project(content: Project) -> dict[str, Any]:
    """The project as FLARE's provisioning reads it."""
    impl, server, port = "nvflare.lighter.impl", content.server, content.port
    point = {"sp_end_point": f"{server}:{port}:{port + 1}"}
    agent = {"path": "nvflare.ha.dummy_overseer_agent.DummyOverseerAgent", "overseer_exists": False, "args": point}
    people = [{"name": server, "type": "server", "org": "fiss", "fed_learn_port": port, "admin_port": port + 1}]
    people += [{"name": site, "type": "client", "org": "fiss"} for site in content.sites]
    people += [{"name": ADMIN, "type": "admin", "org": "fiss", "role": "project_admin"}]
    return {
        "api_version": 3,
        "name": "fiss",
        "description": "a federation of fiss",
        "participants": people,
        "builders": [
            {"path": f"{impl}.workspace.WorkspaceBuilder"},
            {
                "path": f"{impl}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc", "overseer_agent": agent},
            },
            {"path": f"{impl}.cert.CertBuilder"},
            {"path": f"{impl}.signature.SignatureBuilder"},
        ],
    }


def _provision(folder: Path, names: Sequence[str]) -> list[Path]:
    """Let FLARE make the kits, and take over those of that name. It is told of these sites alone: it would need the
    private keys of the others."""
    project, place = read_project(folder), folder / "provision"
    place.mkdir(exist_ok=True)
    place.chmod(0o700)
    asked = replace(project, sites=[name for name in project.sites if name in names])
    write_atomically(place / "asked.yml", json.dumps(_project(asked), indent=1).encode())
    words = ["-m", "nvflare.cli", "provision", "--force", "-p", str(place / "asked.yml"), "-w", str(place)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    made = sorted((folder / "provision" / "fiss").glob("prod_*"))
    if done.returncode or not made:
        raise UserError(f"FLARE's provisioning failed: {(done.stderr or done.stdout).strip()[-1000:]}")
    kits = []
    for name in names:
        kit = folder / "kits" / name
        if kit.exists():
            raise UserError(f"{kit} is there already.")
        shutil.copytree(made[-1] / name, kit)
        kit.chmod(0o700)
        _furnish(kit)
        kits.append(kit)
    return kits


def _furnish(kit: Path) -> None:
    """What FLARE's defaults lack: our classes are allowed, jobs have a place of their own, logs stay, and a new job
    starts at once; for a site its site.toml."""
    resources = allow_classes(json.loads((kit / "local" / "resources.json.default").read_bytes()))
    own = Path(gettempdir()) / f"fiss-{token_hex(8)}"  # FLARE's default is one place for all on a machine
    if "snapshot_persistor" in resources:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(own / "snapshots")
    if "allow_log_streaming" in resources:  # a site's log has names of files in it: it stays there
        resources["allow_log_streaming"] = False
        resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    for part in resources.get("components", ()):
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(own / "jobs")
        if part["id"] == "job_scheduler":
            part["args"] = {"max_jobs": 1, "min_schedule_interval": 1.0, "max_schedule_interval": 5.0}
    write_atomically(kit / RESOURCES, json.dumps(resources, indent=1).encode())
    _write_logging(kit)
    if (kit / "startup" / "fed_client.json").is_file():
        rules = json.loads((kit / "local" / "authorization.json.default").read_bytes())
        every = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
        allowed = dict.fromkeys(every, "any") | {"shell_commands": "none", "byoc": "none"}
        rules["permissions"] = {"project_admin": allowed}  # nobody reads a site's files or brings code to it
        write_atomically(kit / "local" / "authorization.json", json.dumps(rules, indent=1).encode())
        write_atomically(kit / "local" / "privacy.json.sample", json.dumps(PRIVACY, indent=1).encode())
        write_atomically(kit / "site.toml", TEMPLATE.encode())
    if kit.name != ADMIN:
        write_unit(kit)


def _write_logging(kit: Path) -> bool:
    """How this kit's side logs; gives whether it did so otherwise before."""
    default, path = kit / "local" / f"{LOGGING}.default", kit / "local" / LOGGING
    if not default.is_file():
        return False
    logs = json.loads(default.read_bytes())
    for handler in logs["handlers"].values():
        handler.update({"maxBytes": LOG_BYTES, "backupCount": 3} if "maxBytes" in handler else {})
    logs["handlers"]["consoleHandler"] |= {"class": CONSOLE, "level": "INFO"}
    text = json.dumps(logs, indent=1).encode()
    if path.is_file() and path.read_bytes() == text:
        return False
    write_atomically(path, text)
    return True
