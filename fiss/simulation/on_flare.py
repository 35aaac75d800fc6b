"""The simulated experiment on NVIDIA FLARE's simulator: the same loop, the same clients, and FLARE between them.

FLARE's server runs our loop with its checkpoints; its sites are workers that answer for the simulated clients, several
at a time. The run folder is the one that any run leaves, and its bits are the same.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import TYPE_CHECKING

import torch

from fiss.config.config import Config, read_toml, to_toml
from fiss.config.identity import SAME_RUN, differences, with_absolute_paths
from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.loop import Engine
from fiss.federation.messages import Memory, Snapshot
from fiss.federation.wire import Message
from fiss.flare.job import SIMULATION, allow_classes, require_flare, write_job
from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter
from fiss.progress import Progress
from fiss.runs.folder import RunFolder, write_atomically
from fiss.runs.tracking import Tracked, tracker
from fiss.simulation import experiment
from fiss.simulation.advice import warnings
from fiss.simulation.scenario import Scenario, open_scenario

if TYPE_CHECKING:
    from fiss.flare.transport import Transport


def simulate(config: Config, out: Path, workers: int, progress: Progress, track: str = "") -> RunFolder:
    """Start the run, or go on with it if it is there, with `workers` sites at a time; losses and scores go to what
    `track` names too."""
    require_flare()
    receiver = tracker(track, out, out.name)
    config = with_absolute_paths(config)
    there = RunFolder.open(out).config() if (out / "config.toml").is_file() else config
    if odd := differences(there, config, ignoring=SAME_RUN):
        raise UserError(f"{out} holds a run with other settings ({', '.join(odd)}); --out names another folder.")
    fresh = not config.base and not (out / "config.toml").is_file()
    scenario = open_scenario(config, progress, fresh)  # what is wrong with it is said here, and not in a log
    for notice in warnings(scenario) if fresh else ():
        progress.notice(notice)
    with TemporaryDirectory(prefix="fiss-flare-") as folder:
        place = Path(folder)
        write_atomically(place / "config.toml", to_toml(config).encode())
        arguments = {"config": str(place / "config.toml")}
        write_job(place / "job", SIMULATION, {**arguments, "out": str(out.absolute())}, arguments, None, receiver)
        (place / "work" / "local").mkdir(parents=True)
        allowed = allow_classes({"format_version": 2, "components": [], "class_allow_list": []})
        write_atomically(place / "work" / "local" / "resources.json", json.dumps(allowed).encode())
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
            write_atomically(kept, log.read_bytes())
            raise UserError(f"The run on FLARE did not finish; {kept} says why. Give the same command again to go on.")
    return RunFolder.open(out)


def _at_once(workers: int, gpus: int) -> list[str]:
    """FLARE's words for how many sites run at a time: one per GPU where there are several, else all of them."""
    return ["-gpu", ",".join(map(str, range(min(workers, gpus))))] if gpus > 1 else ["-t", str(workers)]


def _follow(process: "subprocess.Popen[bytes]", out: Path, progress: Progress) -> None:
    """Tell every round and score until the process has ended."""
    shown = noticed = 0
    while True:
        ended = process.poll() is not None
        rounds = RunFolder(out).rounds(finished=True)
        for played in rounds[noticed:]:
            progress.played(played)
        noticed = len(rounds)
        records = RunFolder(out).scores(finished=True)
        for record in records[shown:]:
            progress.scored(record)
        shown = len(records)
        if ended:
            return
        sleep(0.3)


def run_server(transport: "Transport", config: str, out: str) -> None:
    """Run in FLARE's server: the experiment, with clients reached through the transport."""
    from fiss.flare.engines import SimulatorEngine
    from fiss.flare.tracking import Analytics

    def connect(scenario: Scenario, _: Segmenter, memories: dict[int, Memory], *__: object) -> Engine:
        return SimulatorEngine(transport, memories, scenario.config.federation.transfer)

    with closing(Analytics(transport.controller, transport.fl_ctx)) as analytics:
        progress = Tracked(Progress(), analytics)
        if (Path(out) / "config.toml").is_file():
            experiment.resume(Path(out), progress, connect)
        else:
            experiment.start(read_toml(Path(config)), Path(out), progress, connect)


def client_worker(folder: Path, config: str, differences: bool) -> Callable[[Message], Message]:
    """At FLARE's sites: a function that answers for any simulated client."""
    if differences:
        raise UserError("Simulated clients have no privacy filters.")
    scenario = open_scenario(read_toml(Path(config)), Progress())
    student = scenario.network(scenario.boundaries.first_space)
    memories: dict[int, Memory] = {}  # of the client at hand: they come and go with the messages
    clients = experiment.in_process(scenario, student, memories, 0, Progress())
    teachers: dict[str, Snapshot] = {}
    model: Weights | None = None  # the one that came last

    def answer(message: Message) -> Message:
        nonlocal model
        if json.loads(message.text)["kind"] == "probe":
            probe, memory = wire.to_probe(message, model)
            model = probe.weights
            memories[probe.client] = memory or Memory()
            (probe_result,) = clients.probe([probe])
            return wire.from_probe_result(probe_result, memories.pop(probe.client))
        order, memory = wire.to_order(message, teachers, model)
        model = order.weights
        memories[order.client] = memory or Memory()
        (reply,) = clients.ask([order])
        return wire.from_reply(reply, memories.pop(order.client), scenario.config.federation.transfer)

    return answer
