"""A real federation: server and sites are processes of their own that talk under mutual TLS on this machine."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TINY_NETWORK
from PIL import Image

from fiss import kits, presets, supervisor
from fiss.checkpoint import RunFolder
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import AugmentSpec
from fiss.deployment import Attendant, Judge, lead, numbers, open_run
from fiss.engines import wire
from fiss.errors import UserError
from fiss.federation.aggregate import FederationSpec
from fiss.federation.messages import Order, Probe, Reply, Sighting, Snapshot
from fiss.holdings import TEMPLATE, Holdings, read_site, write_site
from fiss.labels import LabelSpace
from fiss.listings import federation_table
from fiss.methods import find
from fiss.methods.monitors import MonitorSpec
from fiss.setup import private
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
        Image.fromarray(image).save(folder / "images" / f"scan{i:03d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"scan{i:03d}.png")


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

    def site(self, name):
        (self.folder / "kits" / name / "site.toml").write_text(
            f'data = "{self.root / name}"\ndevice = "cpu"\n', encoding="utf-8"
        )

    def run(self, rounds, least):
        words = ["-m", "fiss", "federation", "run", str(self.folder), "--rounds", str(rounds), "--sites", str(least)]
        with (self.root / "run.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored under nohup and `&`
            )

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
        self.attendants, self.missing, self.late, self.heard = attendants, {}, {}, {}

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


HOSTILE = """
import numpy as np
from fiss.engines import wire

plain, calls = wire.from_reply, []


def poisoned(reply, memory=None, transfer="float32"):
    packed = plain(reply, memory, transfer)
    calls.append(1)
    key = "model/encoder.conv1.weight"
    weight = packed.arrays[key]
    lie = len(calls)
    if lie == 1:
        packed.arrays[key] = np.full_like(weight, np.nan)
    elif lie == 2:
        packed.arrays[key] = weight[:1]
    elif lie == 3:
        packed.arrays["model/extra"] = weight
    elif lie == 4:
        del packed.arrays[key]
    elif lie == 5:
        packed.arrays[key] = weight + 1e4
    return packed


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
    settings = config(patience=20, largest=10)
    names = ("a", "b", "c")

    class WithoutC(Local):
        def ask(self, orders):
            return super().ask([order for order in orders if order.client != 2])

    plain = tmp_path / "plain"
    run = open_run(settings, plain / "run")
    stage(plain, 0, names)
    attendants = {}
    for number, name in numbers(run, names).items():
        (plain / "kits" / name).mkdir(parents=True)
        (plain / "kits" / name / "site.toml").write_text(f'data = "{plain / name}"\ndevice = "cpu"\n')
        spec = read_site(plain / "kits" / name / "site.toml")
        attendants[number] = Attendant(plain / "kits" / name, settings, spec, Watcher())
    lead(run, WithoutC(attendants), dict(enumerate(names)), 5, Watcher())

    with world(tmp_path / "net", settings, *names) as here:
        stage(here.root, 0, names)
        for name in names:
            here.site(name)
        (tmp_path / "sitecustomize.py").write_text(HOSTILE)
        here.start("localhost", "a", "b")
        here.start("c", environment=ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"})
        assert here.run(5, 3).wait(240) == 0
        said = [record["refused"] for record in here.records()]
        assert [list(refused) for refused in said] == [["c"]] * 5
        wrongs = ("not finite", "sent as", "such as extra", "such as encoder.conv1.weight", "times the others'")
        assert all(wrong in refused["c"] for wrong, refused in zip(wrongs, said, strict=True))
        unharmed, expected = final(RunFolder(here.folder / "run")), final(run)
        assert all(torch.equal(unharmed.weights[name], tensor) for name, tensor in expected.weights.items())

        # whoever has no kit of this federation does not get in, and that is logged
        port = kits.read_project(here.folder)["port"]
        kits.init(tmp_path / "net" / "other", settings, "localhost", ["x"], port)
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

        # a site dies in a round: the round ends without it, and it is back from the next job on
        running = here.run(60, 3)
        memory = here.folder / "kits" / "b" / "fiss" / "memory.json"

        def in_a_round():
            kept = json.loads(memory.read_bytes())
            return here.rounds() >= 6 and kept["round"] == here.rounds() and kept["now"] == kept["probed"]

        here.until(in_a_round)
        here.kill("b")
        here.until(lambda: any("b" in record["missing"] for record in here.records()))
        lost = next(record for record in here.records() if "b" in record["missing"])
        assert {reply["site"] for reply in lost["replies"]} <= {"a", "c"}
        here.start("b")
        here.until(lambda: "b" in [reply["site"] for reply in here.records()[-1]["replies"]])
        assert here.records()[-1]["round"] > lost["round"]
        assert "x" not in supervisor.survey(here.folder)["there"]
        supervisor.stop(here.folder)
        assert running.wait(60) == 0
        assert here.rounds() < 60


# Without a network


def test_the_tutorial_as_it_stands(tmp_path):
    """Every command of docs/deploy.md, with another port."""
    pytest.importorskip("nvflare")
    text = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text()
    commands = text.split("```sh\n")[1].split("```")[0].strip().split("\n")
    assert len(commands) <= 10
    stage(tmp_path, 0, ("north", "south"))
    here = World(tmp_path)
    try:
        for command in commands:
            command = command.replace("8102", str(free_port())) if "init" in command else command
            subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=180)
        assert len(list((tmp_path / "seen" / "masks").glob("*.png"))) == 6
        assert len(list((tmp_path / "seen" / "overlays").glob("*"))) == 6
        assert supervisor.progress(RunFolder(tmp_path / "demo" / "run"))["rounds"] == 3
    finally:
        here.kill_all(tmp_path / "demo")


def attendant(tmp_path, settings, name="a"):
    kit = tmp_path / "kits" / name
    kit.mkdir(parents=True)
    (kit / "site.toml").write_text(f'data = "{tmp_path / name}"\ndevice = "cpu"\n')
    return Attendant(kit / "fiss", settings, read_site(kit / "site.toml"), Watcher())


def listed_fields():
    """The fields that docs/privacy.md lists, by message."""
    text = (Path(__file__).parents[1] / "docs" / "privacy.md").read_text()
    found, kind = {"both": set(), "sighting": set(), "reply": set()}, "both"
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and set(cells[0]) != {"-"} and cells[0] != "message":
            kind = next((k for k in found if k in cells[0]), kind)
            found[kind] |= set(re.findall(r"`([\w/.]+)`", cells[1]))
    return {k: found["both"] | found[k] for k in ("sighting", "reply")}


def test_what_leaves_a_site_is_what_the_page_lists(tmp_path):
    settings = config()
    stage(tmp_path, 0, ("a", "b"))
    sent = []

    class Spied(Local):
        def probe(self, probes):
            for probe in probes:
                sent.append(self.attendants[probe.client](wire.from_probe(probe)))
                yield wire.to_sighting(sent[-1])[0]

        def ask(self, orders):
            for order in orders:
                sent.append(self.attendants[order.client](wire.from_order(order)))
                yield wire.to_reply(sent[-1])[0]

    run = open_run(settings, tmp_path / "run")
    engine = Spied({i: attendant(tmp_path, settings, name) for i, name in enumerate(("a", "b"))})
    lead(run, engine, {0: "a", 1: "b"}, 2, Watcher())
    stage(tmp_path, 1, ("a", "b"))
    lead(run, engine, {0: "a", 1: "b"}, 4, Watcher())
    fields = listed_fields()
    kinds, counted = set(), 0
    for packed in sent:
        text = json.loads(packed.text)
        kinds.add(text["kind"])
        names = set(text) | {"model/..." for name in packed.arrays}
        assert names <= fields[text["kind"]] | {"model/..."}
        assert fields[text["kind"]] - {"model/..."} <= set(text)
        assert text["memory"] is None
        assert all(name.startswith("model/") for name in packed.arrays)
        assert "scan" not in packed.text  # no name of a file
        if text["kind"] == "reply" and text["report"]["pseudo_labels"]:
            counted += 1
            new = {DATA.classes[i - 1] for i in TASKS[1]}
            assert not any(new & set(epoch["offered"]) for epoch in text["report"]["pseudo_labels"])
    assert kinds == {"sighting", "reply"}
    assert counted > 0


def test_the_server_may_have_images_of_its_own(tmp_path):
    stage(tmp_path, 0, ("a", "own"))
    (tmp_path / "own" / "train.txt").write_text("scan006\n")
    (tmp_path / "own" / "val.txt").write_text("scan007\nscan008\nscan009\n")
    plain = config()
    settings = replace(plain, data=DataSpec("folder", root=str(tmp_path / "own")))
    run = open_run(settings, tmp_path / "run")
    lead(run, Local({0: attendant(tmp_path, settings)}), {0: "a"}, 2, Watcher())
    scores = run.records("scores.jsonl")
    assert [record["round"] for record in scores] == [0, 1]
    assert scores[-1]["iou"].keys() == {"background", *run.records("rounds.jsonl")[-1]["classes"]}
    assert 0 < scores[-1]["iou"]["background"] <= 100
    known = {"folder": "f", "sites": ["a"], "there": None, "server": "s", "port": 1, "stopping": False}
    table = federation_table({**known, **supervisor.progress(run), "scores": scores[-1:]})
    assert "mIoU after round 2" in list(table.columns[0].cells)
    (tmp_path / "own" / "masks" / "scan008.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match="scan008"):
        Judge(settings, Watcher())


def test_a_round_that_is_played_again_is_answered_again(tmp_path):
    settings = config()
    stage(tmp_path, 0, ("a",))
    run = open_run(settings, tmp_path / "run")
    desk = attendant(tmp_path, settings)
    lead(run, Local({0: desk}), {0: "a"}, 2, Watcher())
    kept = shutil.copytree(run.path, tmp_path / "kept")
    lead(run, Local({0: desk}), {0: "a"}, 3, Watcher())
    again = RunFolder(kept)
    lead(again, Local({0: desk}), {0: "a"}, 3, Watcher())  # the server died and lost its third round
    for name, tensor in final(run).weights.items():
        assert torch.equal(final(again).weights[name], tensor)
    memory = json.loads(desk.path.read_bytes())
    assert (memory["round"], memory["settled"]["epochs"], memory["now"]["epochs"]) == (2, 2, 3)


def test_files_come_and_go_and_half_written_ones_wait(tmp_path):
    stage(tmp_path, 0, ("a",))
    said = []

    class Hears(Watcher):
        def notice(self, text):
            said.append(text)

    (tmp_path / "site.toml").write_text('data = "a"\n[names]\ndisc = "circle"\n')
    spec = read_site(tmp_path / "site.toml")
    holdings = Holdings(spec, AugmentSpec(crop=32), torch.device("cpu"), Hears())
    first = holdings.look_again()
    assert (len(first.images), first.classes[0]) == (6, "circle")
    assert set(first.labelled) <= {1, 2, 3}
    assert holdings.look_again().mark == first.mark
    reader = holdings.readers[0]
    whole = (tmp_path / "a" / "masks" / "scan000.png").read_bytes()
    (tmp_path / "a" / "masks" / "scan000.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "a" / "images" / "lonely.png").write_bytes((tmp_path / "a" / "images" / "scan001.png").read_bytes())
    second = holdings.look_again()
    assert len(second.images) == 5
    assert second.mark != first.mark
    assert holdings.readers[0] is not reader
    holdings.look_again()
    assert len([text for text in said if "left for the next round" in text and "scan000.png" in text]) == 1
    (tmp_path / "a" / "masks" / "scan000.png").write_bytes(whole)
    assert holdings.look_again().mark == first.mark
    wrong = np.asarray(Image.open(tmp_path / "a" / "masks" / "scan001.png")).copy()
    wrong[0, 0] = 200
    Image.fromarray(wrong).save(tmp_path / "a" / "masks" / "scan001.png")
    assert len(holdings.look_again().images) == 5
    assert "mask ids [200] are not in classes.txt" in said[-1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dat = 'a'", "Did you mean 'data'"),
        ("batch = 4", "data is missing"),
        ("data = 'nowhere'", "images is not there"),
        ("data = 'a'\nbatch = 1", "must be 2 or more"),
        ("data = 'a'\nbatch = '4'", "expected int"),
        ("data = 'a'\n[names]\ndisc = 3", "maps a class name"),
        ("data = 'a'\n[names]\ndisk = 'x'", "Did you mean 'disc'"),
        ("data = ", "site.toml"),
    ],
)
def test_a_site_file_that_is_wrong_says_so(tmp_path, text, says):
    stage(tmp_path, 0, ("a",))
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(UserError, match=says):
        read_site(tmp_path / "site.toml")


def test_what_makes_no_federation_is_refused(tmp_path):
    told = replace(config(), monitor=MonitorSpec("told"))
    with pytest.raises(UserError, match="a real site cannot know that"):
        open_run(told, tmp_path / "run")
    with pytest.raises(UserError, match="every name once"):
        kits.init(tmp_path / "f", config(), "localhost", ["a", "a"], 9000)
    with pytest.raises(UserError, match="letters, digits"):
        kits.init(tmp_path / "f", config(), "localhost", ["a b"], 9000)
    with pytest.raises(UserError, match="not a federation"):
        kits.read_project(tmp_path)
    assert not (tmp_path / "f").exists()


def test_a_job_cannot_call_what_it_likes():
    flare = pytest.importorskip("fiss.engines.flare")
    with pytest.raises(UserError, match="not for a job to call"):
        flare._named("os:system", flare.SITE_MAINS)


class Scripted:
    """A carrier whose sites answer as they are told to."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def exchange(self, messages, read, quorum, patience):
        for site, packed in messages:
            self.asked.append((site, packed))
            said = self.answers[site](packed)
            if not isinstance(said, str):
                try:
                    said = read(site, said)
                except Exception as error:
                    said = f"{type(error).__name__}: {error}"
            yield site, said


def test_a_site_that_cannot_be_understood_is_left_out():
    flare = pytest.importorskip("fiss.engines.flare")
    space = LabelSpace(((), ("x",)))
    weights = {"w": torch.ones(2)}

    def good(packed):
        return wire.from_reply(Reply(0, 3, weights))

    answers = {
        "a": good,
        "b": good,  # speaks for another
        "c": lambda packed: wire.Packed("nonsense"),
        "d": lambda packed: wire.Packed(json.dumps({"kind": "reply", "client": 3, "surprise": 1})),
        "e": lambda packed: "it did not answer in time",
        "f": lambda packed: flare.TOO_LATE,
        "g": lambda packed: wire.Packed(good(packed).text.replace('"images": 3', '"images": 1e300'), {}),
        "h": lambda packed: wire.Packed(good(packed).text.replace('"losses": {}', '"losses": {"a": "b"}'), {}),
        "i": lambda packed: wire.Packed(good(packed).text + " " * 2**24),
        "j": lambda packed: wire.Packed(
            good(packed).text.replace('"losses": {}', '"losses": {"a": 1' + "0" * 400 + "}")
        ),
        "k": lambda packed: wire.Packed(
            good(packed).text.replace('"report": {}', '"report": ' + "[" * 900 + "]" * 900)
        ),
        "l": lambda packed: wire.Packed(good(packed).text.replace('"client": 0', '"client": true')),
    }
    engine = flare.Deployed(Scripted(answers), dict(enumerate("abcdefghijkl")), FederationSpec())
    teacher = Snapshot("before-0001", space, weights)
    orders = [Order(n, 4, space, weights, teacher) for n in range(12)]
    assert [reply.client for reply in engine.ask(orders)] == [0]
    assert set(engine.missing) == {1, 2, 3, 4, 6, 7, 8, 9, 10, 11}
    assert engine.late == {5: flare.TOO_LATE}
    assert "too long" in engine.missing[8]
    assert "speaks for another" in engine.missing[1]
    assert [reply.client for reply in engine.ask(orders)] == [0]
    sent = [packed for site, packed in engine.carrier.asked if site == "a"]
    assert [any(name.startswith("teacher/") for name in packed.arrays) for packed in sent] == [True, False]
    answers["a"] = lambda packed: wire.from_sighting(Sighting(0))
    assert [said.client for said in engine.probe([Probe(0, 5, space, weights)])] == [0]
    answers["a"] = good
    list(engine.ask([Order(0, 5, space, {**weights, "new": torch.ones(1)}, teacher)]))
    site, packed = engine.carrier.asked[-1]
    assert (site, set(packed.arrays)) == ("a", {"model/new"})  # one model each way in a round, no more


def test_a_round_ends_by_quorum_or_patience():
    """With a controller that lets sites answer, fail, run out of time, or say nothing."""
    flare = pytest.importorskip("fiss.engines.flare")
    cancelled = []

    class Controller:
        def __init__(self, behaviour):
            self.behaviour = behaviour

        def broadcast(self, task, fl_ctx, targets, min_responses):
            (site,) = targets
            how = self.behaviour[site]
            if how in ("answers", "fails", "raves", "empty"):
                result = {
                    "answers": lambda: flare._shareable(wire.Packed(site)),
                    "raves": lambda: flare._shareable(wire.Packed("what?")),
                    "empty": flare.Shareable,
                    "fails": lambda: flare.make_reply(flare.ReturnCode.EXECUTION_EXCEPTION),
                }[how]()
                come = SimpleNamespace(client=SimpleNamespace(name=site), result=result)
                task.result_received_cb(client_task=come, fl_ctx=None)
            if how in ("answers", "runs out"):
                status = flare.TaskCompletionStatus
                task.completion_status = status.OK if how == "answers" else status.TIMEOUT
                task.task_done_cb(task=task, fl_ctx=None)

        def cancel_task(self, task):
            cancelled.append(task.props["site"])

    def reading(site, packed):
        if packed.text != site:
            raise UserError("nonsense")
        return packed

    def outcome(behaviour, **limits):
        carrier = flare.Carrier(Controller(behaviour), None, SimpleNamespace(triggered=False), list(behaviour))
        found = dict(carrier.exchange([(site, wire.Packed("hello")) for site in behaviour], reading, **limits))
        return {site: what if isinstance(what, str) else "answer" for site, what in found.items()}

    late = flare.TOO_LATE
    four = {"a": "answers", "b": "answers", "c": "silent", "d": "silent"}
    assert outcome(four, quorum=0.5) == {"a": "answer", "b": "answer", "c": late, "d": late}
    assert cancelled == ["c", "d"]
    lies = outcome({"a": "raves", "b": "empty", "c": "answers", "d": "silent"}, quorum=0.25)  # they do not count
    assert lies["c"] == "answer"
    assert all("cannot be read" in lies[site] for site in "ab")
    mixed = outcome({"a": "answers", "b": "fails", "c": "runs out"}, patience=5)
    assert mixed["a"] == "answer"
    assert "its log says why" in mixed["b"]
    assert "in time" in mixed["c"]
    stopped = flare.Carrier(Controller(four), None, SimpleNamespace(triggered=True), list(four))
    with pytest.raises(UserError, match="was stopped"):
        list(stopped.exchange([(site, wire.Packed("hello")) for site in four], reading))


def test_what_never_reached_the_server_is_said_again(tmp_path):
    """A sighting is lost on its way: the site's memory goes back to before it, and its monitor fires once more."""
    settings = config()
    stage(tmp_path, 0, ("a",))
    desk = attendant(tmp_path, settings)

    class Lossy(Local):
        lost = -1

        def probe(self, probes):
            for probe in probes:
                packed = desk(wire.from_probe(probe, heard=self.heard.get(probe.client, -1)))
                if probe.round == self.lost:
                    self.late[probe.client] = "lost"
                else:
                    yield wire.to_sighting(packed)[0]

        def ask(self, orders):
            return super().ask([order for order in orders if order.client not in self.late])

    run = open_run(settings, tmp_path / "run")
    engine = Lossy({0: desk})
    lead(run, engine, {0: "a"}, 2, Watcher())
    stage(tmp_path, 1, ("a",))
    engine.lost = 2
    lead(run, engine, {0: "a"}, 4, Watcher())
    records = run.records("rounds.jsonl")
    assert [record["transitions"] for record in records] == [[], [], [], ["a"]]
    assert records[2]["missing"] == {"a": "lost"}
    assert json.loads(desk.path.read_bytes())["now"]["teacher"] == "before-0003"
    assert run.restore().server.taught[0].name == "before-0003"


def test_a_round_in_which_nobody_is_there_is_none(tmp_path):
    settings = config()
    stage(tmp_path, 0, ("a",))
    run = open_run(settings, tmp_path / "run")

    class Gone(Local):
        def probe(self, probes):
            self.missing |= {probe.client: "away" for probe in probes}
            return []

        def ask(self, orders):
            return []

    lead(run, Gone({}), {0: "a"}, 4, Watcher())
    assert not (run.path / "state.json").exists()
    lead(run, Local({0: attendant(tmp_path, settings)}), {0: "a"}, 1, Watcher())
    with (run.path / "rounds.jsonl").open("a") as log:
        log.write('{"round": 1, "torn')
    assert supervisor.progress(run)["rounds"] == 1


def test_names_may_be_kept_from_the_server(tmp_path):
    with pytest.raises(UserError, match="the server would know the key"):
        open_run(config(private_names="secret"), tmp_path / "refused")
    settings = config()
    stage(tmp_path, 0, ("a",))
    kit = tmp_path / "kits" / "a"
    kit.mkdir(parents=True)
    (kit / "site.toml").write_text(f'data = "{tmp_path / "a"}"\ndevice = "cpu"\nkey = "secret"\n')
    run = open_run(settings, tmp_path / "run")
    lead(run, Local({0: Attendant(kit, settings, read_site(kit / "site.toml"), Watcher())}), {0: "a"}, 1, Watcher())
    names = run.records("rounds.jsonl")[0]["classes"]
    assert set(names) <= {private(name, "secret") for name in DATA.classes}
    assert names
    for path in run.path.rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes()


def test_a_folder_with_a_space_and_a_mask_of_the_same_size(tmp_path):
    stage(tmp_path, 0, ("my data",))
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "site.toml").write_text(TEMPLATE)
    with pytest.raises(UserError, match="--data"):
        write_site(kit, tmp_path / "nowhere", "cpu", 4)
    for _ in range(2):
        spec = write_site(kit, tmp_path / "my data", "cpu", 4)
        assert (spec.data, spec.batch) == (str(tmp_path / "my data"), 4)
    holdings = Holdings(spec, AugmentSpec(crop=32), torch.device("cpu"), Watcher())
    for path in (tmp_path / "my data" / "masks").iterdir():
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    before = holdings.look_again().mark
    mask = next((tmp_path / "my data" / "masks").iterdir())
    pixels = np.asarray(Image.open(mask)).copy()
    pixels[:4] = 2
    Image.fromarray(pixels).save(mask)
    assert holdings.look_again().mark != before


def test_one_interrupt_ends_a_run_that_waits(tmp_path):
    pytest.importorskip("nvflare")
    here = World(tmp_path)
    kits.init(here.folder, config(), "localhost", ["a"], free_port())
    with pytest.raises(UserError, match="nothing to stop"):
        supervisor.stop(here.folder)
    running = here.run(3, 1)
    here.until(lambda: "waiting for the server" in (tmp_path / "run.log").read_text(), 60)
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    assert "--rounds 3 --sites 1` goes on" in (tmp_path / "run.log").read_text().replace("\n", "")
