"""A federation that lives: over the network on this machine, sites are stopped, killed, removed and given new rules."""

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from federated import config, stage
from test_network import ENVIRONMENT, world
from typer.testing import CliRunner

from fiss.cli.main import app
from fiss.deployment import certificates, supervisor
from fiss.monitors.rules import MonitorSpec

pytestmark = pytest.mark.network
PATIENT = {key: value for key, value in ENVIRONMENT.items() if key != "NVFLARE_DEAD_CLIENT_GRACE_PERIOD"}
"""FLARE's own minute before it gives a site up."""


def processes(kit):
    """Whatever runs with that kit: what it is, by number."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if process.name.isdigit() and any(word == str(kit) or word.startswith(f"{kit}/") for word in words):
            found[int(process.name)] = " ".join(words)
    return found


def start_for_good(here, name):
    """As start.sh does: with a script that keeps it going."""
    with (here.root / f"{name}.log").open("ab") as log:
        script = here.folder / "kits" / name / "startup" / "sub_start.sh"
        here.processes[name] = subprocess.Popen(["bash", str(script)], stdout=log, stderr=log, env=ENVIRONMENT)


def command(*words):
    done = CliRunner().invoke(app, ["federation", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_sites_are_stopped_and_removed_while_it_goes_on(tmp_path):
    """One site is asked in a round, and no monitor looks for new classes."""
    settings = replace(config(patience=600), monitor=MonitorSpec("never", probed="all"))
    settings = replace(settings, world=replace(settings.world, per_round=1))
    with world(tmp_path / "net", settings, "a", "b", "c") as here:
        stage(here.root, 0, ("a", "b", "first"))
        stage(here.root, 1, ("second",))
        (here.root / "c").symlink_to("first")
        for name in "abc":
            here.site(name)
        here.start("localhost", environment=PATIENT)
        for name in "abc":
            start_for_good(here, name)

        # a site is killed while its job begins: nothing of it stays, and the others' rounds go on
        kit = here.folder / "kits" / "b"
        here.until(lambda: len(supervisor.survey(here.folder).connected or ()) == 3)
        running = here.run(9, 2)
        here.until(lambda: any("worker_process" in words for words in processes(kit).values()))
        here.processes["b"].kill()  # nothing starts it again
        os.kill(next(pid for pid, words in processes(kit).items() if "client_train" in words), signal.SIGKILL)
        here.until(lambda: not processes(kit), 60)
        here.until(lambda: here.rounds() >= 2)
        (here.root / "new").symlink_to("second")
        (here.root / "new").replace(here.root / "c")  # all of its new images at once
        here.until(lambda: here.rounds() >= 4)

        # new certificates go with the next job, and so do other settings
        certificate = here.folder / "kits" / "c" / "startup" / "client.crt"
        old = certificate.read_bytes()
        command("renew", here.folder)
        certificate.write_bytes(old)  # the site has a kit of its own
        command("set", here.folder, "world.per_round=2")
        assert running.wait(200) == 0  # FLARE would wait a quarter of an hour for what b had to say
        assert certificate.read_text() == certificates.renewed(here.folder)["c"]["client.crt"] != old.decode()

        records = here.records()
        assert len(records) == 9
        (moved,) = [record for record in records if record.transitions]
        assert moved.transitions == ("c",)
        assert [reply.client for reply in moved.replies] == ["c"]
        lost = [record for record in records if record.missing]
        assert [list(record.missing) for record in lost] == [["b"]]  # waited for once, and not so long
        assert lost[0].seconds < 60
        assert [len(record.replies) for record in records][:4] == [1] * 4
        assert sorted(reply.client for reply in records[-1].replies) == ["a", "c"]

        # one site is stopped and comes back, another is removed and does not
        command("stop-site", here.folder, "c")
        here.until(lambda: not processes(here.folder / "kits" / "c"), 30)
        command("remove", here.folder, "b")
        for name in "bc":
            start_for_good(here, name)
        here.until(lambda: "c" in supervisor.survey(here.folder).connected, 60)
        here.until(lambda: "b was removed, and is turned away." in (here.root / "localhost.log").read_text(), 60)
        assert here.run(10, 2).wait(200) == 0
        assert sorted(reply.client for reply in here.records()[9].replies) == ["a", "c"]
        assert not here.records()[9].missing
