"""What operators see: status at the server and at a site, one log per side, units and the Containerfile."""

import json
import logging
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from command_line import fiss
from federated import Local, config, final, site_client, stage
from rooms import ROOT

from fiss.config.config import to_toml
from fiss.deployment import console, entry_points, job_status, log, provisioning, server, status, supervisor
from fiss.deployment.job_status import JobStatus, Seen
from fiss.deployment.log import LOG, SharedLog, plain_log
from fiss.deployment.server import open_run, run_rounds
from fiss.deployment.service import UNIT, write_unit
from fiss.deployment.site_status import Followed, SiteStatus
from fiss.errors import UserError
from fiss.federation.wire import Message
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.records import ReplyRecord, RoundRecord

NAMES = {0: "a", 1: "b"}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Two sites over two rounds, what job.json said meanwhile, and what the sites said of themselves."""
    root = tmp_path_factory.mktemp("fed")
    stage(root, 0, NAMES.values())
    settings, said = config(), []
    run = open_run(settings, root / "run")
    clients = {}
    for number, name in NAMES.items():
        site_client(root, settings, name)  # writes its kit
        clients[number] = entry_points.site_client(root / "kits" / name, to_toml(settings), False)

    class Watched(Local):
        def ask(self, orders):
            for reply in super().ask(orders):
                said.append((JobStatus.read(run), SiteStatus.read(root / "kits" / "b" / "fiss")))
                yield reply

    server.number_sites(run, list(NAMES.values()))
    run_rounds(run, Watched(clients), NAMES, 2, Progress())
    project = {"participants": [{"type": "server", "name": "localhost", "fed_learn_port": 1},
        {"type": "client", "name": "a"}, {"type": "client", "name": "b"}]}  # fmt: skip
    (root / "project.yml").write_text(json.dumps(project))
    return root, run, said


def test_job_json_says_whom_a_round_waits_for(played):
    _, run, said = played
    waits = [(job.round, job.doing, list(job.waiting)) for job, _ in said]
    assert waits == [(r, job_status.TRAINS, left) for r in (0, 1) for left in (["a", "b"], ["b"])]
    assert said[0][0].sites == ("a", "b")
    first, second = run.rounds()
    assert first.brought == {"disc": ("a",), "ring": ("b",), "square": ("a",)}
    assert second.brought is None
    assert "brought" not in run.records("rounds.jsonl")[1]
    model = sum(tensor.numel() * tensor.element_size() for tensor in final(run).weights.values())
    assert 4 * model < second.sent < 4.1 * model  # a probe and an order for each of two sites
    assert 2 * model < second.received < 2.1 * model


def test_status_at_the_server(played, capsys):
    root, run, _ = played
    fiss("federation", "status", root, "--json")
    values = json.loads(capsys.readouterr().out)
    assert values["rounds"] == 2
    assert values["classes"] == list(run.rounds()[-1].class_names)
    assert not values["answers"]
    assert values["sites"]["a"] == {"state": "unknown", "last_round": 2, "images": 6, "share": 0.5}
    fiss("federation", "status", root)
    assert "50 %" in capsys.readouterr().out


def test_states_and_warnings(tmp_path, monkeypatch):
    job = JobStatus(["a", "b", "c", "d", "e"], {"c": 1.0}, 4, job_status.TRAINS, ["a"], time.time() - 3000)
    reply = ReplyRecord(client="b", images=3)
    last = RoundRecord(round=4, replies=(reply,), refused={"d": "not finite"}, missing={"e": "too late"}, seconds=1.0)
    there = dict.fromkeys("abde", 0.0)
    seen = {name: status.site_state(name, job, there, last) for name in "abcdef"}
    assert seen == {"a": "working", "b": "there", "c": "gone", "d": "refused", "e": "late", "f": "gone"}
    assert status.site_state("f", job, None, last) == "unknown"
    assert status.site_state("b", job, there, last, ["b"]) == "removed"
    twice = replace(last, replies=(reply, replace(reply, losses={}), ReplyRecord(client="a", images=9)))
    assert supervisor.describe_round(twice).startswith("round 4: b, a ")
    trained = [replace(reply, client=name, losses={"ce": loss}) for name, loss in (("a", 0.25), ("b", 0.75))]
    mixed = replace(last, replies=(*trained, reply, replace(reply, losses={"ce": None})))  # sums, and a loss of NaN
    assert "  ce 0.500  " in supervisor.describe_round(mixed)
    own = provisioning.Project("s", 1, ["a", "b"])
    whole = supervisor.FederationStatus(tmp_path, own, there, [twice], JobStatus(), None, False, ["a"])
    sites = status.server_values(whole)["sites"]
    assert [(site["state"], site["share"]) for site in sites.values()] == [("removed", 0.75), ("there", 0.25)]
    assert set(seen.values()) | {"removed", "unknown"} == set(status.STATES)
    found = status.warnings(tmp_path, job, last)
    assert [words.split(":")[0] for words in found] == ["round 5 has waited 50 minutes for a", "round 4", "round 4"]
    assert status.warnings(tmp_path, replace(job, waiting=()), replace(last, refused={}, missing={})) == []
    assert status.warnings(tmp_path, JobStatus(), replace(last, replies=(), refused={}, missing={})) == [
        "round 4: nobody trained"
    ]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 10**6))
    assert "free on this disk" in status.warnings(tmp_path, JobStatus(), None)[0]


def test_a_site_says_where_it_stands(played, capsys):
    root, _, said = played
    assert [own.doing for _, own in said] == ["waits for the server", "waits for the server"] * 2
    kit = root / "kits" / "b"
    fiss("federation", "status", kit, "--json")
    values = json.loads(capsys.readouterr().out)
    assert (values["site"], values["round"], values["rounds"], values["trained"], values["images"]) == ("b", 2, 2, 2, 6)
    assert values["classes"] == ["ring"]
    assert values["known"] == ["disc", "ring", "square"]
    assert values["doing"] == "is not started"
    assert values["warnings"] == [f"not started: bash {kit / 'startup' / 'start.sh'}"]
    assert re.search(r"round 2: trained on 6 images in \d+ s: segmentation \d", values["log"][-1])
    fiss("federation", "status", kit)
    text = capsys.readouterr().out
    assert "trained in" in text
    assert "no GPU in use" in text
    fiss("federation", "status", root / "run", code=2)
    assert "neither a federation's folder nor a site's start-up kit" in capsys.readouterr().err


def test_a_failed_answer_is_told(tmp_path):
    def fails(message):
        assert SiteStatus.read(tmp_path).doing == "looks at its data"
        raise UserError("masks are gone")

    probe = {"kind": "probe", "round": 7, "label_space": [["x"], ["y"]]}
    with pytest.raises(UserError):
        Followed(fails, tmp_path, list)(Message(json.dumps(probe)))
    own = SiteStatus.read(tmp_path)
    assert (own.problem, own.round, own.known) == ("masks are gone", 7, ("x", "y"))
    assert "round 8: could not answer: masks are gone" in (tmp_path / LOG).read_text()


def test_a_log_is_bounded_and_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "LARGEST", 400)
    monkeypatch.setattr(log, "KEPT", 2)
    both = SharedLog(tmp_path / LOG), SharedLog(tmp_path / LOG)  # as two processes would have
    for number in range(60):
        record = logging.LogRecord("x", logging.INFO, "", 0, "line %d", (number,), None)
        both[number % 2].emit(record)
    files = sorted(tmp_path.glob("fiss.log*"))
    assert [path.name for path in files] == ["fiss.log", "fiss.log.1", "fiss.log.2", "fiss.log.lock"]
    assert all(path.stat().st_size <= 400 for path in files)
    lines = [line for path in reversed(files[:3]) for line in path.read_text().splitlines()]
    numbers = [int(line.split()[-1]) for line in lines]
    assert numbers == list(range(numbers[0], 60))  # none lost, none in another's file
    told = []
    inner = type("Inner", (Progress,), {"notice": lambda self, text: told.append(text)})()
    log.Logged(inner, tmp_path / "own").notice("two\nlines")
    assert told == ["two\nlines"]
    assert (tmp_path / "own" / LOG).read_text().endswith("  two lines\n")
    assert plain_log(tmp_path / "own") is plain_log(tmp_path / "own")


@pytest.mark.parametrize("content", ["{", "[]", '{"round": "seven"}', '{"round": null, "doing": 3}', '{"known": 1}'])
def test_a_status_that_another_fiss_wrote_is_ignored_with_a_line(tmp_path, capsys, content):
    kit = tmp_path / "kits" / "a"
    stage(tmp_path, 0, "a")
    site_client(tmp_path, config())
    (kit / "fiss").mkdir()
    own = kit / "fiss" / "status.json"
    own.write_text(content)
    fiss("federation", "status", kit, "--json")
    assert f"{own} is ignored" in json.loads(capsys.readouterr().out)["warnings"][-1]
    entry_points.site_client(kit, to_toml(config()), False)  # it starts all the same
    assert f"{own} is ignored" in (kit / "fiss" / LOG).read_text()
    own.write_text('{"round": 3, "doing": "trains", "from a later fiss": 1}')
    fiss("federation", "status", kit, "--json")
    values = json.loads(capsys.readouterr().out)
    assert (values["round"], values["warnings"]) == (4, [f"not started: bash {kit / 'startup' / 'start.sh'}"])
    (kit / "job.json").write_text('{"round": 4, "later": 1, "sites": ["a"]}')
    assert JobStatus.read(RunFolder(kit)) == JobStatus(("a",), round=4)


def test_an_outage_is_said_once_and_a_console_is_bounded(tmp_path, monkeypatch, capsys):
    """FLARE complains twice in ten seconds; the rest of what it says goes to log.txt alone."""
    (tmp_path / "site.toml").touch()
    monkeypatch.setattr("sys.argv", ["client_train", "-m", str(tmp_path), "-s", "fed_client.json"])
    monkeypatch.setattr(console, "BACK", 0.3)
    handler = console.ConsoleHandler()

    def says(text, level=logging.WARNING):
        handler.emit(logging.LogRecord("CoreCell", level, "", 0, text, None, None))

    for _ in range(50):
        says("[ME=a O=? D=server] no connection to server")
        says("[ME=a O=a] cannot send to 'server': target_unreachable", logging.ERROR)
        says("Retrying [CH00001 ACTIVE grpc://localhost:1] in 10 seconds", logging.INFO)
        says("re-challenge after 2.0 seconds", logging.INFO)
    time.sleep(0.6)
    says("Client Name:north left.  Total clients: 3", logging.INFO)
    says("Failed to send heartbeat. Will try again. Exception: FLCommunicationError: error:client_quit", logging.INFO)
    for number in range(20):
        says(f"round {number} failed")
    said = capsys.readouterr().out.splitlines()
    assert [line[21:].split(".")[0] for line in said] == [
        "the server cannot be reached", "the server is reached again", "north has gone",
        "the server turns this site away: it was removed from the federation", "",
    ]  # fmt: skip
    assert f"fiss federation status {tmp_path}" in said[0]
    assert said[4] == "round 0 failed"
    assert len((tmp_path / "fiss" / LOG).read_text().splitlines()) == 4
    monkeypatch.setattr(console, "AGAIN", 0.0)
    handler.left = 1000
    for _ in range(500):
        says("x" * 100)
    assert len(capsys.readouterr().out) < 1300


FAREWELL = """
import logging, threading, time
from fiss.deployment import console

console.ENDS = 0.5
logging.basicConfig(level=logging.INFO, handlers=[console.ConsoleHandler()])
threading.Thread(target=time.sleep, args=(600,)).start()
logging.getLogger("MPM").info("MPM: Good Bye!")
"""


def test_a_process_that_said_goodbye_ends():
    """A thread that came up late would keep it, and the script that starts it again would wait."""
    ended = subprocess.run([sys.executable, "-c", FAREWELL], timeout=300, check=False)
    assert ended.returncode == 1


def test_who_is_seen_is_noted(tmp_path):
    seen = Seen().noted(tmp_path, {"a": 1.0})
    assert Seen.read(tmp_path) == seen
    assert seen.fresh
    assert seen.noted(tmp_path, {"a": 2.0}) is seen  # no news yet
    assert seen.noted(tmp_path, {"a": 2.0, "b": 2.0}).connected.keys() == {"a", "b"}
    assert not Seen(1.0).fresh
    assert not Seen.read(tmp_path / "nowhere").fresh


WHY = {"waiting for 2 site(s), 0 there": "waiting for 2", "": "no site answers within 60 s (federation.patience)"}


@pytest.mark.parametrize("problem", WHY)
def test_a_supervisor_writes_the_log(tmp_path, monkeypatch, problem):
    provisioned = tmp_path / "fed"
    provisioned.mkdir()
    monkeypatch.setattr(supervisor, "require_flare", lambda: None)
    monkeypatch.setattr(provisioning, "config_of", lambda folder: config(patience=60))
    monkeypatch.setattr(provisioning, "refuse_old_kits", lambda folder: None)
    monkeypatch.setattr(supervisor._JobSeries, "run_job", lambda self: problem)
    (provisioned / "federation.toml").touch()
    pytest.importorskip("nvflare")
    with pytest.raises(UserError, match="no progress"):
        supervisor.supervise(provisioned, 1, 1, Progress(), patience=0.1)
    assert WHY[problem] in (provisioned / "run" / LOG).read_text()


@pytest.mark.parametrize(("name", "what"), [("fed_server.json", "the server k"), ("fed_client.json", "the site k")])
def test_units(tmp_path, name, what):
    kit = tmp_path / "k"
    (kit / "startup").mkdir(parents=True)
    for file in (name, "sub_start.sh"):
        (kit / "startup" / file).touch()
    text = write_unit(kit).read_text()
    assert f"Description=fiss federation, {what}" in text
    assert f"ExecStart=/bin/bash {kit}/startup/sub_start.sh" in text
    assert "KillMode=control-group" in text
    if shutil.which("systemd-analyze"):
        unit = shutil.copy(kit / UNIT, tmp_path / "fiss-k.service")
        told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert not [line for line in told.stderr.splitlines() if "fiss-k.service" in line]
        unit.write_text(text.replace("ExecStart=", "ExecBegin="))  # it would say so
        told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert "fiss-k.service" in told.stderr


def complaints(text):
    """What a linter of container files says, for the rules that matter here."""
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    parts = [line.split(None, 1) for line in lines if line.strip()]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "CMD", "ENV", "LABEL"}
    found = [f"{word}: unknown" for word, _ in parts if word not in known]
    found += ["the first is not FROM"] * (parts[0][0] != "FROM")
    for word, rest in parts:
        if word == "FROM" and (":" not in rest or rest.endswith(":latest")):
            found.append("FROM without a version")
        if word == "RUN" and "apt-get install" in rest:
            wanted = ("--no-install-recommends", "-y", "rm -rf /var/lib/apt/lists", "apt-get update")
            found += [f"apt-get: {part} is missing" for part in wanted if part not in rest]
        if word == "RUN" and "pip install" in rest and "--no-cache-dir" not in rest:
            found.append("pip keeps a cache")
        if word == "RUN" and re.search(r"\b(sudo|curl|wget)\b", rest):
            found.append("RUN fetches, or asks to be root")
        if word in ("CMD", "VOLUME") and not isinstance(json.loads(rest), list):
            found.append(f"{word} is no list")
        if word == "WORKDIR" and not rest.startswith("/"):
            found.append("WORKDIR is relative")
        if word == "COPY":
            found += [f"{name} is not there" for name in rest.split()[:-1] if not (ROOT / name).exists()]
            found += ["a kit is copied"] * ("kits" in rest)
    users = [rest for word, rest in parts if word == "USER"]
    return found + ["it runs as root"] * (not users or users[-1] in ("root", "0"))


def test_the_containerfile():
    text = (ROOT / "Containerfile").read_text()
    assert "was never built" in text
    assert complaints(text) == []
    for old, new in (
        ("python:3.12-slim-bookworm", "python"), ("--no-cache-dir ", ""), ("USER fiss\n", ""),
        ("COPY fiss ", "COPY x "),
        ("--no-install-recommends ", ""), ("WORKDIR /", "WORKDIR "), ("CMD [", 'CMD "x" #['),
    ):  # fmt: skip
        try:
            assert complaints(text.replace(old, new)), old
        except ValueError:
            assert old == "CMD ["
