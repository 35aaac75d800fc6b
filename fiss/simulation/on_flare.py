"""The simulated experiment on NVIDIA FLARE's simulator: the same loop, the same clients, and FLARE between them.

FLARE's server runs our loop with its checkpoints; its sites are workers that answer for the simulated clients, several
at a time. The run folder is the one that any run leaves, and its bits are the same.
"""

import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

import torch

from fiss.config.config import Config, from_toml, read_toml, to_toml
from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.messages import Memory, Snapshot
from fiss.federation.wire import Message
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.simulation import experiment
from fiss.simulation.scenario import open_scenario, with_absolute_paths


def simulate(config: Config, out: Path, workers: int, progress: Progress) -> RunFolder:
    """Start the run, or go on with it if it is there, with `workers` sites at a time."""
    if importlib.util.find_spec("nvflare") is None:
        raise UserError("NVIDIA FLARE is not installed: pip install 'fiss[flare]'.")
    config = with_absolute_paths(config)
    if (out / "config.toml").is_file() and RunFolder.open(out).config() != config:
        raise UserError(f"{out} holds a run with other settings; --out names another folder.")
    open_scenario(config, progress)  # what is wrong with it is said here, and not in a log
    with TemporaryDirectory(prefix="fiss-flare-") as folder:
        place = Path(folder)
        (place / "config.toml").write_text(to_toml(config), encoding="utf-8")
        arguments = {"config": str(place / "config.toml")}
        server = {"main": "fiss.simulation.on_flare:server", "arguments": {**arguments, "out": str(out.absolute())}}
        write_job(place / "job", server, {"main": "fiss.simulation.on_flare:worker", "arguments": arguments})
        (place / "work" / "local").mkdir(parents=True)  # FLARE builds no class that a site does not allow by name
        allowed = {"format_version": 2, "components": [], "class_allow_list": ["fiss.flare.transport"]}
        (place / "work" / "local" / "resources.json").write_text(json.dumps(allowed), encoding="utf-8")
        words = ["-m", "nvflare.cli", "simulator", str(place / "job"), "-w", str(place / "work")]
        words += ["-n", str(workers), *_at_once(workers, torch.cuda.device_count())]
        log = place / "log.txt"
        variables = os.environ | {"PYTHONUNBUFFERED": "1"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *words], stdout=file, stderr=file, env=variables, start_new_session=True
            )
            try:
                _follow(process, out, progress)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its sites are processes of their own
                process.wait()
        if not (out / "state.json").is_file() or not RunFolder.open(out).finished():
            kept = out.with_name(out.name + ".flare.log")
            kept.write_bytes(log.read_bytes())
            raise UserError(f"The run on FLARE did not finish; {kept} says why. Give the same command again to go on.")
    return RunFolder.open(out)


def _at_once(workers: int, gpus: int) -> list[str]:
    """FLARE's words for how many sites run at a time: one per GPU where there are several, else all of them."""
    return ["-gpu", ",".join(map(str, range(min(workers, gpus))))] if gpus > 1 else ["-t", str(workers)]


def _follow(process: "subprocess.Popen[bytes]", out: Path, progress: Progress) -> None:
    """Tell of every score until the process has ended."""
    told = 0
    while True:
        ended = process.poll() is not None
        if (out / "state.json").is_file():
            records = RunFolder.open(out).scores(finished=True)
            for record in records[told:]:
                progress.scored(record)
            told = len(records)
        if ended:
            return
        sleep(0.3)


def write_job(folder: Path, server: dict[str, Any], site: dict[str, Any]) -> None:
    """A FLARE job: three small files."""
    (folder / "app" / "config").mkdir(parents=True)
    plain = {"format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": []}
    relay = {"id": "relay", "path": "fiss.flare.transport.FissController", "args": server}
    desk = {"tasks": ["fiss"], "executor": {"path": "fiss.flare.transport.FissExecutor", "args": site}}
    meta = {"name": "fiss", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    for name, content in (
        ("app/config/config_fed_server.json", {**plain, "workflows": [relay]}),
        ("app/config/config_fed_client.json", {**plain, "executors": [desk]}),
        ("meta.json", meta),
    ):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def server(transport: Any, config: str, out: str) -> None:
    """In FLARE's server: the experiment, its clients reached through the transport."""
    from fiss.flare.transport import SimulatorEngine

    def connect(scenario: Any, trainer: Any, memories: dict[int, Memory], progress: Progress) -> Any:
        return SimulatorEngine(transport, memories, scenario.config.federation.transfer)

    if (Path(out) / "config.toml").is_file():
        experiment.resume(Path(out), Progress(), connect)
    else:
        experiment.start(read_toml(Path(config)), Path(out), Progress(), connect)


def worker(folder: Path, config: str) -> Callable[[Message], Message]:
    """At FLARE's sites: a function that answers for any simulated client."""
    scenario = open_scenario(read_toml(Path(config)), Progress())
    trainer = experiment.make_trainer(scenario, scenario.network(scenario.boundaries.first_space))
    memories: dict[int, Memory] = {}  # of the client at hand: they come and go with the messages
    clients = experiment.in_process(scenario, trainer, memories, Progress())
    teachers: dict[str, Snapshot] = {}

    def answered(message: Message) -> Message:
        if json.loads(message.text)["kind"] == "probe":
            probe, memory = wire.to_probe(message)
            memories[probe.client] = memory or Memory()
            (probe_result,) = clients.probe([probe])
            return wire.from_probe_result(probe_result, memories.pop(probe.client))
        order, memory = wire.to_order(message, teachers)
        memories[order.client] = memory or Memory()
        (reply,) = clients.ask([order])
        return wire.from_reply(reply, memories.pop(order.client), scenario.config.federation.transfer)

    return answered


def serve(transport: Any, out: str, until: int) -> None:
    """In FLARE's server, where sites own their data: rounds until a mark or their number ends them."""
    from fiss.deployment.server import lead, numbers
    from fiss.flare.transport import FlareEngine

    folder = RunFolder.open(Path(out))
    names = numbers(folder, transport.sites)
    lead(folder, FlareEngine(transport, names, folder.config().federation), names, until, LogProgress())


def attend(folder: Path, config: str) -> Callable[[Message], Message]:
    """At a site that owns its data: a function that answers for it."""
    from fiss.deployment.server import SiteClient
    from fiss.deployment.site_folder import read_site

    return SiteClient(folder / "fiss", from_toml(config), read_site(folder / "site.toml"), LogProgress())


class LogProgress(Progress):
    """Notices go to the process's own log."""

    def notice(self, text: str) -> None:
        """One line."""
        logging.getLogger("fiss").warning(text)
