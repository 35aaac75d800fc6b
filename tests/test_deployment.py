"""A real federation: server and sites are processes of their own that talk under mutual TLS on this machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY_NETWORK
from PIL import Image

from fiss import kits, presets, supervisor
from fiss.checkpoint import RunFolder
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import AugmentSpec
from fiss.deployment import Attendant, lead, numbers, open_run
from fiss.engines import wire
from fiss.federation.aggregate import FederationSpec
from fiss.holdings import read_site
from fiss.methods import find
from fiss.methods.monitors import MonitorSpec
from fiss.watch import Watcher

DATA = open_dataset(DataSpec("shapes", shapes_train=96, shapes_val=4, shapes_size=32))


def config(**federation):
    plain = presets.find("shapes")
    training = replace(plain.training, epochs=1, batch=4, threads=1, first_rate=0.05)
    return replace(
        plain,
        name="federation",
        method=find("fbl"),
        model=TINY_NETWORK,
        augment=AugmentSpec(crop=32),
        training=training,
        monitor=MonitorSpec("images", probed="all"),
        world=replace(plain.world, per_round=4),
        federation=FederationSpec(**federation),
    )


def drop(folder, images, ids):
    """Put images with masks of those classes into a site's folder, in place of what was there."""
    for name in ("images", "masks"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    (folder / "classes.txt").write_text("\n".join(DATA.classes) + "\n")
    for i in images:
        image, mask = DATA.train.read(i)
        mask = np.where(np.isin(mask, ids), mask, 0).astype(np.uint8)
        Image.fromarray(image).save(folder / "images" / f"{i:03d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{i:03d}.png")


TASKS = ((1, 2, 3), (4, 5), (6, 7))


def stage(root, task, names):
    """What the sites hold in a task."""
    for n, name in enumerate(names):
        drop(root / name, range(24 * task + 6 * n, 24 * task + 6 * n + 6), TASKS[task])


def free_port():
    for port in range(21000, 30000, 7):
        with socket.socket() as a, socket.socket() as b:
            try:
                a.bind(("127.0.0.1", port))
                b.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError


ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(Path(__file__).parents[1]),
}


class World:
    """Processes of a federation, and everything they hold."""

    def __init__(self, root):
        self.root, self.processes = root, {}

    @property
    def folder(self):
        return self.root / "fed"

    def start(self, *names, environment=None):
        for name in names:
            script = self.folder / "kits" / name / "startup" / "sub_start.sh"
            with (self.root / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    ["bash", str(script), "--once"], stdout=log, stderr=log, env=environment or ENVIRONMENT
                )

    def kill(self, name):
        """With everything that it started."""
        kit = str(self.folder / "kits" / name) + "/"
        for process in Path("/proc").iterdir():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode() + " "
            except (OSError, UnicodeDecodeError):
                continue
            if process.name.isdigit() and (kit in words or kit[:-1] + " " in words):
                with_suppressed_kill(int(process.name))
        self.processes.pop(name).wait()

    def site(self, name):
        (self.folder / "kits" / name / "site.toml").write_text(
            f'data = "{self.root / name}"\ndevice = "cpu"\n', encoding="utf-8"
        )

    def run(self, rounds, least):
        words = ["-m", "fiss", "federation", "run", str(self.folder), "--rounds", str(rounds), "--sites", str(least)]
        with (self.root / "run.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, env=ENVIRONMENT)

    def rounds(self):
        return supervisor.progress(RunFolder(self.folder / "run"))["rounds"]

    def records(self):
        return RunFolder(self.folder / "run").records("rounds.jsonl")

    def until(self, what, seconds=150):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():
                return
            time.sleep(0.2)
        raise AssertionError((self.root / "run.log").read_text()[-2000:])


def with_suppressed_kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def world(root, settings, *names):
    pytest.importorskip("nvflare")
    here = World(root)
    kits.init(here.folder, settings, "localhost", names, free_port())
    try:
        yield here
    finally:
        for name in list(here.processes):
            here.kill(name)


class Local:
    """The same sites in this process."""

    def __init__(self, attendants):
        self.attendants, self.missing = attendants, {}

    def probe(self, probes):
        for probe in probes:
            yield wire.to_sighting(self.attendants[probe.client](wire.from_probe(probe)))[0]

    def ask(self, orders):
        for order in orders:
            yield wire.to_reply(self.attendants[order.client](wire.from_order(order)))[0]


def in_process(root, settings, stages):
    """The same world without any network: (task, sites, rounds in all) after one another."""
    run = open_run(settings, root / "run")
    attendants = {}
    for task, names, until in stages:
        stage(root, task, names)
        known = numbers(run, names)
        for number, name in known.items():
            if number not in attendants:
                kit = root / "kits" / name
                kit.mkdir(parents=True)
                (kit / "site.toml").write_text(f'data = "{root / name}"\ndevice = "cpu"\n')
                attendants[number] = Attendant(kit / "fiss", settings, read_site(kit / "site.toml"), Watcher())
        lead(run, Local(attendants), known, until, Watcher())
    return run


def final(run):
    name = json.loads((run.path / "state.json").read_bytes())["weights"]
    return run.read_weights(name)


STAGES = ((0, ("a", "b", "c"), 2), (1, ("a", "b", "c"), 4), (2, ("a", "b", "c", "d"), 6))


def test_three_tasks_over_the_network_are_those_of_one_process(tmp_path):
    """New classes appear in folders, the server is killed and comes back, a site is added: the same bits."""
    settings = config(patience=120)
    expected = final(in_process(tmp_path / "plain", settings, STAGES))
    with world(tmp_path / "net", settings, "a", "b", "c") as here:
        stage(here.root, 0, ("a", "b", "c"))
        for name in ("a", "b", "c"):
            here.site(name)
        here.start("localhost", "a", "b", "c")
        assert here.run(2, 3).wait(180) == 0
        assert here.records()[0]["classes"] == sorted(DATA.classes[i - 1] for i in TASKS[0])

        stage(here.root, 1, ("a", "b", "c"))
        running = here.run(4, 3)
        here.until(lambda: here.rounds() == 3)
        here.kill("localhost")
        here.start("localhost")
        assert running.wait(240) == 0
        assert here.records()[2]["transitions"] == ["a", "b", "c"]

        stage(here.root, 2, ("a", "b", "c", "d"))
        kits.add(here.folder, "d")
        here.site("d")
        here.start("d")
        assert here.run(6, 4).wait(240) == 0
        assert {reply["site"] for reply in here.records()[-1]["replies"]} == {"a", "b", "c", "d"}
        assert here.records()[4]["transitions"] == ["a", "b", "c"]  # d has no past
        reached = final(RunFolder(here.folder / "run"))
        known = supervisor.survey(here.folder)
        assert set(known["there"]) == {"a", "b", "c", "d"}
    assert reached.label_space == expected.label_space
    assert len(reached.label_space.names) == 7
    for name, tensor in expected.weights.items():
        assert torch.equal(reached.weights[name], tensor), name
