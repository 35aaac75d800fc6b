"""A real federation: server and sites are processes of their own that talk under mutual TLS on this machine."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import CHROMIUM, SEGMENT, Browser
from federated import DATA, TASKS, Local, config, final, site_client, stage
from ports import free_port, wait_for_port

from fiss.deployment import provisioning, supervisor
from fiss.deployment.server import number_sites, open_run, run_rounds
from fiss.deployment.site import SiteClient
from fiss.deployment.site_config import read_site
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.runs.folder import RunFolder

pytestmark = pytest.mark.network

ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "15",  # a minute without it; a site's job is heard of every ten seconds
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
        self.kill_all(self.folder / "kits" / name)
        self.processes.pop(name).wait()

    def kill_all(self, folder):
        """Whatever runs with that folder."""
        kit = f"{folder}/"
        for process in Path("/proc").iterdir():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode() + " "
            except (OSError, UnicodeDecodeError):
                continue
            if process.name.isdigit() and (kit in words or kit[:-1] + " " in words):
                with suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)

    def site(self, name, workers=0):
        (self.folder / "kits" / name / "site.toml").write_text(
            f'data = "{self.root / name}"\ndevice = "cpu"\nworkers = {workers}\n', encoding="utf-8"
        )

    def run(self, rounds, least, *also):
        words = ["-m", "fiss", "federation", "run", str(self.folder), "--rounds", str(rounds), "--sites", str(least)]
        with (self.root / "run.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words, *also],
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored under nohup and `&`
            )

    def rounds(self):
        return supervisor.finished_rounds(RunFolder(self.folder / "run"))

    def records(self):
        return RunFolder(self.folder / "run").rounds()

    def until(self, what, seconds=150):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():
                return
            time.sleep(0.2)
        raise AssertionError((self.root / "run.log").read_text()[-2000:])


@contextmanager
def world(root, settings, *names):
    pytest.importorskip("nvflare")
    here = World(root)
    provisioning.init(here.folder, settings, "localhost", names, free_port())
    try:
        yield here
    finally:
        for name in list(here.processes):
            here.kill(name)


def in_process(root, settings, stages):
    """The same world without any network: (task, sites, rounds in all) after one another."""
    run = open_run(settings, root / "run")
    site_clients = {}
    for task, names, until in stages:
        stage(root, task, names)
        known = number_sites(run, names)
        for number, name in known.items():
            if number not in site_clients:
                site_clients[number] = site_client(root, settings, name)
        run_rounds(run, Local(site_clients), known, until, Progress())
    return run


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
        assert here.records()[0].class_names == tuple(sorted(DATA.classes[i - 1] for i in TASKS[0]))

        stage(here.root, 1, ("a", "b", "c"))
        running = here.run(4, 3)
        here.until(lambda: here.rounds() == 3)
        here.kill("localhost")
        here.start("localhost")
        assert running.wait(240) == 0
        assert here.records()[2].transitions == ("a", "b", "c")

        stage(here.root, 2, ("a", "b", "c", "d"))
        provisioning.add(here.folder, "d")
        here.site("d", workers=1)
        here.start("d")
        assert here.run(6, 4).wait(240) == 0
        assert {reply.client for reply in here.records()[-1].replies} == {"a", "b", "c", "d"}
        assert here.records()[4].transitions == ("a", "b", "c")  # d has no past
        reached = final(RunFolder(here.folder / "run"))
        known = supervisor.survey(here.folder)
        assert set(known.connected) == {"a", "b", "c", "d"}
    assert reached.label_space == expected.label_space
    assert len(reached.label_space.names) == 7
    for name, tensor in expected.weights.items():
        assert torch.equal(reached.weights[name], tensor), name


HOSTILE = """
import numpy as np
from fiss.federation import wire

plain, calls = wire.from_reply, []


def poisoned(reply, **also):
    message = plain(reply, **also)
    calls.append(1)
    key = "model/encoder.conv1.weight"
    weight = message.arrays[key]
    lie = len(calls)
    if lie == 1:
        message.arrays[key] = np.full_like(weight, np.nan)
    elif lie == 2:
        message.arrays[key] = weight[:1]
    elif lie == 3:
        message.arrays["model/extra"] = weight
    elif lie == 4:
        del message.arrays[key]
    elif lie == 5:
        message.arrays[key] = weight + 1e4
    return message


wire.from_reply = poisoned
"""


def knock(port, certificate):
    """From outside, without a certificate or with one that another federation signed."""
    bare = ssl.create_default_context()
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        bare.load_cert_chain(*certificate)
    with (
        socket.create_connection(("localhost", port)) as plain,
        bare.wrap_socket(plain, server_hostname="localhost") as channel,
    ):
        channel.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if not channel.recv(100):
            raise ConnectionError("closed")


def test_sites_that_lie_die_or_do_not_belong(tmp_path):
    settings = config(patience=600, largest=10)
    names = ("a", "b", "c")

    class WithoutC(Local):
        def ask(self, orders):
            return super().ask([order for order in orders if order.client != 2])

    plain = tmp_path / "plain"
    run = open_run(settings, plain / "run")
    stage(plain, 0, names)
    site_clients = {}
    for number, name in number_sites(run, names).items():
        (plain / "kits" / name).mkdir(parents=True)
        (plain / "kits" / name / "site.toml").write_text(f'data = "{plain / name}"\ndevice = "cpu"\n')
        spec = read_site(plain / "kits" / name / "site.toml")
        site_clients[number] = SiteClient(plain / "kits" / name, settings, spec, Progress())
    run_rounds(run, WithoutC(site_clients), dict(enumerate(names)), 5, Progress())

    with world(tmp_path / "net", settings, *names) as here:
        stage(here.root, 0, names)
        for name in names:
            here.site(name)
        (tmp_path / "sitecustomize.py").write_text(HOSTILE)
        here.start("localhost", "a", "b")
        here.start("c", environment=ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"})
        assert here.run(5, 3).wait(240) == 0
        said = [record.refused for record in here.records()]
        assert [list(refused) for refused in said] == [["c"]] * 5
        wrongs = ("not finite", "sent as", "such as extra", "such as encoder.conv1.weight", "times the others'")
        assert all(wrong in refused["c"] for wrong, refused in zip(wrongs, said, strict=True))
        unharmed, expected = final(RunFolder(here.folder / "run")), final(run)
        assert all(torch.equal(unharmed.weights[name], tensor) for name, tensor in expected.weights.items())

        # whoever has no kit of this federation does not get in, and that is logged
        port = provisioning.read_project(here.folder).port
        provisioning.init(tmp_path / "net" / "other", settings, "localhost", ["x"], port)
        shutil.move(tmp_path / "net" / "other" / "kits" / "x", here.folder / "kits" / "x")
        here.start("x")
        foreign = here.folder / "kits" / "x" / "startup"
        for certificate, says in (
            (None, "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
            ((foreign / "client.crt", foreign / "client.key"), "CERTIFICATE_VERIFY_FAILED"),
        ):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                knock(port, certificate)
            here.until(lambda says=says: says in (here.root / "localhost.log").read_text(), 30)
        here.until(lambda: "CERTIFICATE_VERIFY_FAILED" in (here.root / "x.log").read_text(), 60)

        # a site dies in a round and is back at once: the round ends without it, and it takes part from the next job on
        running = here.run(60, 3)
        memory = here.folder / "kits" / "b" / "fiss" / "memory.json"

        def in_a_round():
            kept = json.loads(memory.read_bytes())
            return here.rounds() >= 6 and kept["round"] == here.rounds() and kept["now"] == kept["probed"]

        here.until(in_a_round)
        here.kill("b")
        here.start("b")
        here.until(lambda: any("b" in record.missing for record in here.records()))
        lost = next(record for record in here.records() if "b" in record.missing)
        assert {reply.client for reply in lost.replies} <= {"a", "c"}
        assert "started anew" in lost.missing["b"]
        here.until(lambda: "b" in [reply.client for reply in here.records()[-1].replies])
        assert here.records()[-1].round > lost.round
        assert "x" not in supervisor.survey(here.folder).connected
        supervisor.stop(here.folder)
        assert running.wait(60) == 0
        assert here.rounds() < 60


LISTENING = """
import json, os
import numpy as np
from nvflare.private.fed.client.client_runner import ClientRunner

plain = ClientRunner._send_task_result


def kept(self, result, task_id, fl_ctx):
    if result.get("text"):
        weights, kind = result.get("DXO", {}), json.loads(result["text"])["kind"]
        said = {"kind": weights.get("kind", ""), "filters": weights.get("meta", {}).get("filter_history", [])}
        path = os.path.join(os.environ["HEARD"], kind)
        with open(path + ".json", "w") as file:
            json.dump(said | {"text": result["text"]}, file)
        np.savez(path + ".npz", **{name.replace("/", ":"): a for name, a in weights.get("data", {}).items()})
    return plain(self, result, task_id, fl_ctx)


ClientRunner._send_task_result = kept
"""


def test_privacy_filters_act_on_what_leaves_or_nothing_does(tmp_path):
    """A site with a filter, one whose filter is for other data, and one without."""
    path = "nvflare.app_common.filters"
    filters = {
        "a": {"path": f"{path}.PercentilePrivacy", "args": {"percentile": 50, "gamma": 0.001}},
        "b": {"path": f"{path}.statistics_privacy_filter.StatisticsPrivacyFilter", "args": {"result_cleanser_ids": []}},
    }
    with world(tmp_path / "net", config(patience=120), "a", "b", "c") as here:
        stage(here.root, 0, ("a", "b", "c"))
        (tmp_path / "sitecustomize.py").write_text(LISTENING)
        here.start("localhost")
        for name in ("a", "b", "c"):
            here.site(name)
            if name in filters:
                privacy = {"scopes": [{"name": "x", "task_result_filters": [filters[name]]}], "default_scope": "x"}
                (here.folder / "kits" / name / "local" / "privacy.json").write_text(json.dumps(privacy))
            (tmp_path / name).mkdir()
            ears = {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}", "HEARD": str(tmp_path / name)}
            here.start(name, environment=ENVIRONMENT | ears)
        assert here.run(1, 3).wait(180) == 0
        (record,) = here.records()
        logs = "".join(log.read_text() for log in (here.folder / "kits" / "b").rglob("*.txt"))
    heard = {name: json.loads((tmp_path / name / "reply.json").read_bytes()) for name in ("a", "c")}
    assert (heard["a"]["kind"], heard["a"]["filters"]) == ("WEIGHT_DIFF", ["PercentilePrivacy"])
    assert (heard["c"]["kind"], heard["c"]["filters"]) == ("WEIGHTS", [])
    with np.load(tmp_path / "a" / "reply.npz") as arrays:
        changes = np.concatenate([arrays[name].ravel() for name in arrays.files])
    assert np.abs(changes).max() <= 0.001 * json.loads(heard["a"]["text"])["steps"] * 1.0001
    assert 0.4 < (changes == 0).mean() < 0.75
    assert [path.name for path in (tmp_path / "b").iterdir() if path.suffix == ".json"] == ["probe_result.json"]
    assert sorted(reply.client for reply in record.replies) == ["a", "c"]
    assert "its log says why" in record.missing["b"]
    assert "filters ['StatisticsPrivacyFilter'] are asked for, and [] acted" in logs
    assert not record.refused


# Without a network


@contextmanager
def shown(root):
    """The page of what is below a folder, in a process of its own, and a browser that looks at it; nothing without a
    browser."""
    if CHROMIUM is None:
        yield None
        return
    port, token = free_port(), "a-token-that-is-long-enough"
    words = [sys.executable, "-m", "fiss", "web", str(root), "--port", str(port), "--token", token]
    page = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        with Browser(root / "profile") as browser:
            wait_for_port(port)
            browser.open(f"http://127.0.0.1:{port}/?token={token}")
            yield browser
            assert not browser.complaints
    finally:
        page.terminate()
        page.wait(30)


STATES = "[...document.querySelectorAll('#sites .state')].map(cell => cell.textContent).join(', ')"


def test_the_tutorial_as_it_stands(tmp_path):
    """Every command of docs/deploy.md, with another port; a browser follows them from init to the last round."""
    pytest.importorskip("nvflare")
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    commands = text.split("```sh\n")[1].split("```")[0].strip().split("\n")
    assert len(commands) <= 10
    stage(tmp_path, 0, ("north", "south"))
    here = World(tmp_path)
    try:
        with shown(tmp_path) as browser:
            for command in commands:
                command = command.replace("8102", str(free_port())) if "init" in command else command
                subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=180)
                if browser and "init" in command:
                    browser.until("document.querySelector('#name')?.textContent === 'demo'")
                    browser.until(f"{STATES} === '? unknown, ? unknown'")
                    assert browser.see("document.querySelectorAll('#losses polyline').length") == 0
                if browser and " run " in command:
                    browser.until("document.querySelector('#fact-rounds dd span').textContent === '3'")
                    browser.until(f"{STATES} === '● there, ● there'")
                    browser.until("document.querySelectorAll('#losses polyline').length > 0")
                    browser.see(SEGMENT)
                    browser.until("document.querySelector('#seen').textContent.includes(' %')")
        assert len(list((tmp_path / "seen" / "masks").glob("*.png"))) == 6
        assert len(list((tmp_path / "seen" / "overlays").glob("*"))) == 6
        assert supervisor.finished_rounds(RunFolder(tmp_path / "demo" / "run")) == 3
    finally:
        here.kill_all(tmp_path / "demo")


def test_one_interrupt_ends_a_run_that_waits(tmp_path):
    pytest.importorskip("nvflare")
    here = World(tmp_path)
    provisioning.init(here.folder, config(), "localhost", ["a"], free_port())
    with pytest.raises(UserError, match="nothing to stop"):
        supervisor.stop(here.folder)
    (here.folder / "run").mkdir()
    (here.folder / "run" / "job.json").touch()  # of a job whose supervisor is gone
    supervisor.stop(here.folder)
    shutil.rmtree(here.folder / "run")
    running = here.run(3, 1)
    here.until(lambda: "waiting for the server" in (tmp_path / "run.log").read_text(), 60)
    running.send_signal(signal.SIGHUP)  # as Ctrl-C
    assert running.wait(30) == 130
    assert "--rounds 3 --sites 1` goes on" in (tmp_path / "run.log").read_text().replace("\n", "")
