"""What people do to a federation that lives, and what it lives through; without its network."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import fiss as command_line
from federated import Local, config, drop, site_client, stage
from records import Simulated
from typer.testing import CliRunner

from fiss.cli.main import app
from fiss.config.config import to_toml
from fiss.deployment import job_status, log, server, supervisor
from fiss.deployment.console import ConsoleHandler
from fiss.deployment.job_status import JobStatus, silent_sites
from fiss.deployment.server import number_sites, open_run, run_rounds
from fiss.errors import UserError
from fiss.federation.loop import Participants
from fiss.methods import find
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.tail import CHECKED

ORPHAN = """
import os, subprocess, sys
child = "import os, time; from fiss.flare.parent import watch; watch(int(os.environ['P']), 0.2); time.sleep(60)"
environment = os.environ | {"P": str(os.getpid())}
print(subprocess.Popen([sys.executable, "-c", child], env=environment, stdout=subprocess.DEVNULL).pid)
"""


def test_a_process_ends_with_its_parent():
    pytest.importorskip("psutil")
    child = int(subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, check=True, text=True).stdout)
    end = time.monotonic() + 20
    while Path(f"/proc/{child}/status").exists() and time.monotonic() < end:
        if "zombie" in Path(f"/proc/{child}/status").read_text():
            break  # nobody waits for it here
        time.sleep(0.1)
    assert time.monotonic() < end


@pytest.mark.parametrize("monitor", ["never", "features"])
def test_a_class_that_nobody_knew_is_a_transition_and_its_holder_trains_first(tmp_path, monitor):
    """Twelve images at each of three sites, one site asked in a round; then c holds other classes."""
    settings = replace(config(), monitor=MonitorSpec(monitor, probed="all"))
    settings = replace(settings, world=replace(settings.world, per_round=1))
    names = ("a", "b", "c")
    for n, name in enumerate(names):
        drop(tmp_path / name, range(12 * n, 12 * n + 12), (1, 2))
    run = open_run(settings, tmp_path / "run")
    clients = {i: site_client(tmp_path, settings, name) for i, name in enumerate(names)}
    known = number_sites(run, names)
    run_rounds(run, Local(clients), known, 2, Progress())
    drawn = [run_with(run, settings, clients, known, until) for until in (3, 4)]  # nothing new: as drawn
    for n, name in enumerate(("b", "c")):
        drop(tmp_path / name, range(48 + 12 * n, 60 + 12 * n), (3 + n,))
    after = [run_with(run, settings, clients, known, until) for until in (5, 6, 7)]
    records = run.rounds()
    assert [record.transitions for record in records] == [(), (), (), (), ("b", "c"), (), ()]
    assert after[:2] == [("b",), ("c",)]  # each once, and then as drawn again
    draws = [("abc"[server.stream(settings.seed, "select", r).sample([0, 1, 2], 1)[0]],) for r in range(7)]
    assert [*drawn, after[2]] == [draws[2], draws[3], draws[6]]
    assert len(records[-1].class_names) == 4
    assert {"compensation", "relation"} <= records[4].replies[0].losses.keys()


def run_with(run, settings, clients, known, until):
    run_rounds(run, Local(clients), known, until, Progress())
    return run.rounds()[-1].selected


def test_whoever_has_new_classes_comes_before_others_that_were_drawn():
    there = Participants(0, (1, 4, 5), there=(0, 1, 2, 3, 4, 5), urgent=(3,))
    assert there.with_first([]).selected == (1, 3, 4)
    assert there.with_first([5, 0]).selected == (0, 3, 5)
    assert there.with_first([9]).selected == (1, 3, 4)  # it is not there
    assert there.with_first([0, 1, 2, 4]).selected == (0, 1, 2)
    drawn = Participants(0, (5, 1), there=(0, 1, 5))
    assert drawn.with_first([0]) is drawn  # a simulated run


class FakeAdmin:
    """FLARE's server in a few words: sites by when they were heard of, and what happens in each second of a job."""

    def __init__(self, sites, seconds):
        self.heard, self.seconds, self.aborted = sites, list(seconds), []

    def __call__(self, kit, seconds):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *words):
        pass

    def sites(self):
        return self.heard

    def submit(self, folder):
        self.meta = json.loads((folder / "meta.json").read_bytes())
        return "job"

    def status(self, job):
        return self.seconds.pop(0)()

    def forget(self, job):
        pass

    def abort(self, job):
        self.aborted.append(job)


@pytest.fixture
def series(tmp_path, monkeypatch):
    pytest.importorskip("nvflare")
    from fiss.flare import admin

    run = open_run(config(), tmp_path / "run")

    def make(sites, seconds, rounds=3):
        fake = FakeAdmin(sites, seconds)
        monkeypatch.setattr(admin, "Admin", fake)
        monkeypatch.setattr(supervisor, "sleep", lambda seconds: None)
        return supervisor._JobSeries(tmp_path, run, rounds, 1, Progress()), fake, run

    return make


def test_a_job_whose_rounds_are_over_is_not_waited_for(series, monkeypatch):
    """FLARE waits a quarter of an hour for what a site that was stopped had to say."""
    clock = [1.0]

    def begins():
        JobStatus(["a", "b"]).write(run)
        return "RUNNING"

    def ends():
        (run.path / job_status.JOB).unlink()
        return "RUNNING"

    def waits():
        clock[0] += 15
        return "RUNNING"

    monkeypatch.setattr(supervisor, "monotonic", lambda: clock[0])
    jobs, admin, run = series({"a": time.time()}, [lambda: "DISPATCHED", begins, ends, waits, waits])
    assert jobs.run_job() == ""
    assert admin.aborted == ["job"]
    assert not admin.seconds  # it was given time to end by itself
    assert admin.meta["deploy_map"] == {"app": ["server", "a"]}


def test_a_second_of_supervision_costs_the_same_after_a_thousand_rounds(tmp_path, monkeypatch):
    """It reads what was appended, shows it once, and reads no log from its beginning."""
    own, said = Simulated(tmp_path / "fed", 5, 40), []
    progress = Progress()
    progress.notice, progress.scored = said.append, said.append
    run = RunFolder(own.run)
    monkeypatch.setattr(RunFolder, "records", None)
    jobs = supervisor._JobSeries(own.folder, run, 99, 1, progress)
    jobs._show_new_rounds()
    assert said == []
    appended = own.play()
    with (own.run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 41')  # the next one does not count yet
    jobs._show_new_rounds()
    jobs._show_new_rounds()
    assert [getattr(one, "round", str(one)[:9]) for one in said] == ["round 41:", 41]
    assert sum(tail.read for tail in jobs.tails) <= appended + 2 * CHECKED
    assert supervisor.finished_rounds(run) == 41


def test_sites_that_are_not_heard_of_are_silent_for_a_round(series):
    """Of four, b has logged out and c was heard of two minutes ago; then all is quiet, which is the server's fault."""
    now = time.time()
    seen = []

    def second(sites):
        def what():
            if not (run.path / job_status.JOB).is_file():
                JobStatus(["a", "b", "c", "d"]).write(run)
            seen.append(silent_sites(run))
            admin.heard = sites
            return "RUNNING"

        return what

    quiet = {"a": now, "d": now, "c": now - 120}
    back = dict.fromkeys("abcd", now)
    jobs, admin, run = series(
        back, [second(quiet), second({}), second(quiet), second(back), lambda: "FINISHED:COMPLETED"]
    )
    assert jobs.run_job() == ""
    assert seen == [[], ["b", "c"], [], ["b", "c"]]
    assert silent_sites(run) == []
    (run.path / job_status.SILENT).write_text('["a"]')
    assert silent_sites(run) == ["a"]
    os.utime(run.path / job_status.SILENT, (now - 100, now - 100))  # the supervisor is gone
    assert silent_sites(run) == []


def test_why_a_job_failed(series, monkeypatch):
    failed = [lambda: "FINISHED:EXECUTION_EXCEPTION"]
    jobs, _, run = series({"a": time.time()}, failed * 3)
    assert jobs.run_job() == "a job ended as FINISHED:EXECUTION_EXCEPTION: the server's log says why"
    (run.path / server.PROBLEM).write_text(f"[Errno 28] No space left on device: '{run.path}/rounds.jsonl'")
    assert f"'{run.path}/rounds.jsonl'. Make room: it goes on by itself" in jobs.run_job()
    (run.path / server.PROBLEM).unlink()
    monkeypatch.setattr(supervisor, "disk_usage", lambda path: type("Usage", (), {"free": 9}))
    assert f"the disk of {run.path} is full. Make room" in jobs.run_job()


def test_what_may_change_while_a_federation_lives(tmp_path):
    settings = config()
    stage(tmp_path, 0, ("a",))
    folder = tmp_path / "fed"
    folder.mkdir()
    (folder / "federation.toml").write_text("# mine\n" + to_toml(settings))
    said = []
    progress = Progress()
    progress.notice = said.append
    run = open_run(settings, folder / "run", progress)
    run_rounds(run, Local({0: site_client(tmp_path, settings)}), {0: "a"}, 1, Progress())

    def changed(*pairs):
        return CliRunner().invoke(app, ["federation", "set", str(folder), *pairs], catch_exceptions=True)

    (run.path / job_status.JOB).write_text("{}")
    assert changed("world.per_round=2", "federation.patience=60", "evaluation.views=published").exit_code == 0
    assert (run.path / server.RENEW).exists()
    assert "# mine" in (folder / "federation.toml").read_text()
    assert run.config() == settings  # from the next job on
    text = (folder / "federation.toml").read_text()
    for pair in ("seed=1", "model.encoder=resnet34", "method.name=mib", "federation.weighting=images"):
        refused = changed(pair)
        assert isinstance(refused.exception, UserError)
        assert f"{pair.split('=')[0].split('.')[0]}" in str(refused.exception)
        assert "What may change: world.clients, world.per_round" in str(refused.exception)
    assert (folder / "federation.toml").read_text() == text

    from fiss.deployment.provisioning import config_of

    again = open_run(config_of(folder), folder / "run", progress)
    assert "world.per_round was 4 and is 2 from the next job on." in said
    assert (again.config().world.per_round, again.config().federation.patience) == (2, 60.0)
    assert again.config() == config_of(folder)
    run_rounds(again, Local({0: site(tmp_path, settings)}), {0: "a"}, 2, Progress())
    (line,) = [json.loads(line) for line in (run.path / "changes.jsonl").read_text().splitlines()]
    assert line["round"] == 2
    assert line["keys"]["world.per_round"] == [4, 2]
    said.clear()
    assert open_run(config_of(folder), folder / "run", progress).config().world.per_round == 2
    assert not said


def site(root, settings):
    from fiss.deployment.site import SiteClient
    from fiss.deployment.site_config import read_site

    return SiteClient(root / "kits" / "a" / "fiss", settings, read_site(root / "kits" / "a" / "site.toml"), Progress())


def test_a_folder_that_is_not_there_is_called_that(tmp_path):
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a run folder: it has no config"):
        RunFolder.open(tmp_path)


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """A federation of two sites, as `init` makes it."""
    pytest.importorskip("nvflare")
    from fiss.deployment import provisioning

    folder = tmp_path_factory.mktemp("kits") / "fed"
    provisioning.init(folder, config(), "localhost", ["a", "b"], 8002)
    return folder


@pytest.fixture
def federation(kits, tmp_path):
    return shutil.copytree(kits, tmp_path / "fed")


def test_new_certificates_for_the_same_keys(federation, tmp_path):
    """A site gets its own, and nothing from another federation; both trust each other before and after."""
    from cryptography import x509

    from fiss.deployment import certificates, provisioning

    def read(kit, name):
        return x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())

    before = certificates.valid_until(federation)
    assert set(before) == {"federation", "localhost", "a", "b", provisioning.ADMIN}
    now = datetime.now(UTC)
    assert certificates.expiring(federation) == []
    (said,) = certificates.expiring(federation, now + timedelta(331))
    assert all(f"{name} " in said for name in before)
    assert f"fiss federation renew {federation}" in said
    away = shutil.copytree(federation / "kits" / "a", tmp_path / "a")
    shutil.rmtree(federation / "kits" / "a")
    old = read(away, "client.crt"), read(away, "rootCA.pem")
    key = (away / "startup" / "client.key").read_bytes()
    time.sleep(1.1)  # they count seconds
    assert CliRunner().invoke(app, ["federation", "renew", str(federation)]).exit_code == 0
    assert all(end > before[name] for name, end in certificates.valid_until(federation).items())
    files = certificates.renewed(federation)
    assert "PRIVATE" not in json.dumps(files)
    assert certificates.install(away, {"b": files["b"]}) is None
    assert certificates.install(away, {}) is None
    assert certificates.install(away, files) == certificates.valid_until(federation)["a"]
    assert certificates.install(away, files) is None  # it has it
    assert (away / "startup" / "client.key").read_bytes() == key
    new = read(away, "client.crt"), read(away, "rootCA.pem")
    assert new[0].public_key() == old[0].public_key()
    assert new[0].subject == old[0].subject
    assert [e.value for e in new[0].extensions] == [e.value for e in old[0].extensions]
    new[0].verify_directly_issued_by(old[1])
    read(federation / "kits" / "localhost", "server.crt").verify_directly_issued_by(old[1])
    stranger = {"a": files["b"]}
    with pytest.raises(UserError, match="for another key"):
        certificates.install(away, stranger)
    assert provisioning.add(federation, "c").is_dir()  # FLARE takes its own new one


def test_a_site_is_warned_of_its_own_certificate(federation, tmp_path, monkeypatch, capsys):
    """In its status, and once in its log; and it gets a new one also when the old one has ended."""
    from fiss.deployment import certificates, entry_points

    def warned():
        command_line("federation", "status", kit, "--json")
        values = json.loads(capsys.readouterr().out)
        return values["certificate"], [text for text in values["warnings"] if "certificate" in text]

    kit = shutil.copytree(federation / "kits" / "a", tmp_path / "a")
    first = certificates.kit_until(kit)
    assert warned() == (f"{first:%Y-%m-%d}", [])
    shutil.rmtree(federation / "kits" / "a")
    monkeypatch.setattr(certificates, "DAYS", 20)
    soon = f"{certificates.renew(federation):%Y-%m-%d}"
    assert certificates.install(kit, certificates.renewed(federation)) is None  # it ends sooner
    for name in certificates.FILES:
        (kit / "startup" / name).write_text(certificates.renewed(federation)["a"][name])
    date, (said,) = warned()
    assert date == soon
    assert said.startswith(
        f"the certificate ends on {soon}: ask the server's people for `fiss federation renew FOLDER`"
    )
    assert f"bash {kit / 'startup' / 'start.sh'}" in said
    command_line("federation", "status", kit)
    assert "ask the server's people" in " ".join(re.sub("[^a-z' ]", " ", capsys.readouterr().out).split())
    drop(tmp_path / "images of a", range(4), (1, 2))
    (kit / "site.toml").write_text(f'data = "{tmp_path / "images of a"}"\ndevice = "cpu"\n')
    for _ in range(2):  # two jobs
        entry_points.site_client(kit, to_toml(config()), False)
    assert (kit / "fiss" / log.LOG).read_text().count(f"the certificate ends on {soon}") == 1

    (late,) = certificates.kit_warnings(kit, datetime.now(UTC) + timedelta(21))
    assert f"the certificate ended on {soon}" in late
    assert f"`fiss federation renew {kit} --with renewed.json`" in late
    (kit / "pid.fl").write_text("1")
    monkeypatch.setattr(certificates, "DAYS", 360)
    until = f"{certificates.renew(federation):%Y-%m-%d}"
    time.sleep(0.05)  # files count time in such steps
    command_line("federation", "renew", kit, "--with", federation / "renewed.json")
    assert f"valid until {until}" in capsys.readouterr().out
    date, (said,) = warned()
    assert (date, said.split(":")[0]) == (until, f"a new certificate, valid until {until}, is not in use yet")
    (kit / "pid.fl").write_text("2")  # started again
    os.utime(kit / "pid.fl", (time.time() + 1,) * 2)
    assert warned() == (until, [])
    command_line("federation", "renew", kit, "--with", federation / "renewed.json", code=2)
    assert "nothing in it is newer" in capsys.readouterr().err
    command_line("federation", "renew", kit, "--with", kit / "site.toml", code=2)
    assert "not renewed.json of a federation's folder" in capsys.readouterr().err


def test_logs_and_old_jobs_do_not_grow_without_end(federation):
    from fiss.deployment import entry_points

    kit = federation / "kits" / "a"
    for name in ("a", "localhost"):
        handlers = json.loads((federation / "kits" / name / "local" / "log_config.json").read_bytes())["handlers"]
        files = [handler for handler in handlers.values() if "filename" in handler]
        assert files
        assert all(handler["maxBytes"] * (handler["backupCount"] + 1) <= 20_000_000 for handler in files)
        (other,) = [handler for handler in handlers.values() if "filename" not in handler]
        assert other["class"] == f"{ConsoleHandler.__module__}.{ConsoleHandler.__name__}"
    before = {path.name for path in kit.iterdir()}
    for n in range(12):
        job = kit / f"{n:08x}-0000-4000-8000-000000000000"
        (job / "app").mkdir(parents=True)
        os.utime(job, (n, n))
    entry_points._forget_jobs(kit)
    with (kit / log.AUDIT).open("a") as audit:  # FLARE keeps it open
        for text in ("x" * (log.LONGEST_AUDIT + 1), "then"):
            audit.write(text)
            audit.flush()
            log.cut_audit(kit)
    assert (kit / log.AUDIT).read_text() == "then"
    assert (kit / f"{log.AUDIT}.1").stat().st_size == log.LONGEST_AUDIT + 1
    (kit / f"{log.AUDIT}.1").unlink()
    (kit / log.AUDIT).unlink()
    assert sorted(int(path.name[:8], 16) for path in kit.iterdir() if path.name not in before) == list(range(2, 12))


def test_no_private_key_of_a_site_stays_on_the_server(federation, tmp_path):
    from fiss.deployment import certificates, provisioning

    key = (federation / "kits" / "a" / "startup" / "client.key").read_bytes()

    def copies():
        return [p for p in federation.rglob("*") if p.is_file() and key[100:400] in p.read_bytes()]

    def in_state():
        return json.dumps(key.decode())[101:400] in (federation / certificates.STATE).read_text()

    assert len(copies()) >= 2
    assert in_state()
    (federation / "kits" / "b" / "pid.fl").write_text("1")
    with pytest.raises(UserError, match="is in use"):
        certificates.seal(federation, delete=False)
    (federation / "kits" / "b" / "pid.fl").unlink()
    passwords = certificates.seal(federation, delete=False)
    assert [Path(path).name for path in passwords] == ["a.sealed", "b.sealed"]
    assert not copies()
    assert not in_state()
    archive = federation / "kits" / "a.sealed"
    with pytest.raises(UserError, match="password is wrong"):
        certificates.unseal(archive, "guessed", tmp_path / "there")
    done = [
        "federation",
        "unseal",
        str(archive),
        "--out",
        str(tmp_path / "there"),
        "--password",
        passwords[str(archive)],
    ]
    assert CliRunner().invoke(app, done).exit_code == 0
    assert (tmp_path / "there" / "a" / "startup" / "client.key").read_bytes() == key
    assert provisioning.add(federation, "c").is_dir()
    assert certificates.seal(federation, delete=True) == {}
    assert not (federation / "kits" / "c").exists()
    assert certificates.renew(federation) > datetime.now(UTC)  # needs none of them


def test_whoever_was_removed_stays_out(federation):
    """Without a server the word is kept for its next start."""
    from fiss.deployment import operations, provisioning

    operations.remove(federation, "b", False, Progress())
    assert json.loads(provisioning.disabled_file(federation).read_bytes()) == {"disabled_clients": ["b"]}
    with pytest.raises(UserError, match="b was removed"):
        provisioning.add(federation, "b")
    with pytest.raises(UserError, match="Unknown site"):
        operations.remove(federation, "z", False, Progress())
    with pytest.raises(UserError, match="never took part"):
        operations.leave(federation, "a", True, Progress())
    with pytest.raises(UserError, match="does not answer"):
        operations.stop_site(federation, "a", Progress())


def test_a_site_that_leaves_without_a_server_was_not_told(federation, capsys):
    command_line("federation", "leave", federation, "b")
    said = " ".join(capsys.readouterr().out.split())
    assert "the server does not answer, so b was not told to stop" in said
    assert "`touch shutdown.fl` in the kit stops the site" in said
    assert said.endswith("b is refused from now on; its part in the model stays.")
    assert "has left" not in said
    assert "Start it first" not in said


class Stopping:
    """FLARE's side where sites are told to stop: one goes without an answer, one stays."""

    def __init__(self, kit, seconds):
        now = time.time()
        self.heard, self.told = {"a": now, "b": now, "c": now - 100}, []
        self.session = self

    def __enter__(self):
        return self

    def __exit__(self, *words):
        pass

    def sites(self):
        return self.heard

    def shutdown(self, kind, names, wait):
        from nvflare.fuel.flare_api.api_spec import InternalError, JobNotDone

        self.told += names
        if len(self.told) == 1:
            raise JobNotDone("a job is running")
        if names == ["a"]:
            del self.heard["a"]
        raise InternalError("failed to shut down all clients")


def test_a_site_that_is_told_to_stop(federation, monkeypatch):
    """It may be gone before it has answered; one that is not heard of is not waited for; one that stays is named."""
    from fiss.deployment import operations, provisioning
    from fiss.flare import admin

    kinds = {"shut_down": admin.Admin.shut_down}
    monkeypatch.setattr(admin, "Admin", type("Admin", (Stopping,), kinds))
    monkeypatch.setattr(operations, "sleep", lambda seconds: None)
    monkeypatch.setattr(operations, "LOGGED_OUT", 0.2)
    said = []
    progress = Progress()
    progress.notice = said.append
    operations.stop_site(federation, "a", progress)
    assert len(said) == 1
    assert "the end of the present round" in said[0]
    assert "a is stopped" in (federation / "run" / "fiss.log").read_text()
    provisioning.add(federation, "c")
    with pytest.raises(UserError, match="c is not connected"):
        operations.stop_site(federation, "c", progress)
    with pytest.raises(UserError, match="still heard of after"):
        operations.stop_site(federation, "b", progress)
    monkeypatch.setattr(operations, "refuse", lambda *words: None)
    assert operations.leave(federation, "a", False, progress)  # connected no more
    assert not operations.leave(federation, "b", False, progress)
    assert "still heard of after" in said[-1]


def test_what_a_site_contributed_is_taken_out(tmp_path, monkeypatch):
    """As if it had never been asked for sums."""
    settings = replace(config(), method=replace(find("analytic"), trunk_rounds=1))
    names = ("a", "b", "c")
    stage(tmp_path, 0, names)
    clients = {i: site_client(tmp_path, settings, name) for i, name in enumerate(names)}
    folder = tmp_path / "fed"
    folder.mkdir()
    run = open_run(settings, folder / "run")
    run_rounds(run, Local(clients), number_sites(run, names), 3, Progress())
    sums = run.restore().server.collected.ledger
    from fiss.deployment import operations, provisioning

    monkeypatch.setattr(provisioning, "read_project", lambda path: provisioning.Project("localhost", 1, names))
    monkeypatch.setattr(operations, "refuse", lambda *words: None)
    operations.remove(folder, "b", True, Progress())
    state = run.restore()
    kept = state.server.collected.ledger
    assert sorted(kept.contributions) == [n for n in sorted(sums.contributions) if not n.startswith("00001/")]
    assert len(kept.contributions) < len(sums.contributions)
    assert 1 not in state.server.collected.heard
    wanted = server.gathering_of(settings).solved(state.server.weights, kept, state.server.label_space)
    assert all((state.server.weights[name] == tensor).all() for name, tensor in wanted.items())
    assert len(list(run.path.glob("ledger-*"))) == 1
    del clients[1]
    run_rounds(run, Local(clients), {0: "a", 2: "c"}, 4, Progress())
    assert len(run.rounds()) == 4
    monkeypatch.setattr(RunFolder, "config", lambda self: config())
    with pytest.raises(UserError, match="cannot be taken out"):
        operations.remove(folder, "a", True, Progress())
