"""A deployment without its network: what a site answers, what a server takes, and what either refuses."""

import gc
import importlib.util
import json
import multiprocessing
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import fiss as command_line
from federated import DATA, TASKS, Local, config, drop, final, site_client, stage
from PIL import Image
from typer.testing import CliRunner

from fiss.cli.main import app
from fiss.cli.tables import federation_table
from fiss.config.config import to_toml
from fiss.config.presets import label, preset
from fiss.data.dataset import FileSplit
from fiss.data.reading import Reading
from fiss.data.sources import DataSpec
from fiss.data.transforms import AugmentSpec, ScoredImages, normalise
from fiss.deployment import provisioning, server, supervisor
from fiss.deployment.job_status import JobStatus
from fiss.deployment.server import ServerEvaluator, open_run, run_rounds
from fiss.deployment.service import UNIT
from fiss.deployment.site import SiteClient
from fiss.deployment.site_config import TEMPLATE, read_site, write_site
from fiss.deployment.site_folder import SiteFolder, describe
from fiss.deployment.status import server_values
from fiss.deployment.supervisor import FederationStatus
from fiss.errors import UserError
from fiss.federation import wire
from fiss.federation.messages import Order, Probe, ProbeResult, Reply, Snapshot
from fiss.federation.private_names import private
from fiss.federation.spec import FederationSpec
from fiss.flare import job
from fiss.labels import LabelSpace
from fiss.methods import find
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress
from fiss.runs.folder import RunFolder
from fiss.runs.run import load_model
from fiss.runs.scoring import Validation


def listed_fields():
    """The fields that docs/privacy.md lists, by message."""
    text = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    found, kind = {"both": set(), "probe_result": set(), "reply": set()}, "both"
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and set(cells[0]) != {"-"} and cells[0] != "message":
            kind = next((k for k in found if k in cells[0]), kind)
            found[kind] |= set(re.findall(r"`([\w/.]+)`", cells[1]))
    return {k: found["both"] | found[k] for k in ("probe_result", "reply")}


def test_what_leaves_a_site_is_what_the_page_lists(tmp_path):
    settings = config()
    stage(tmp_path, 0, ("a", "b"))
    sent = []

    class Spied(Local):
        def probe(self, probes):
            for probe in probes:
                sent.append(self.site_clients[probe.client](wire.from_probe(probe)))
                yield wire.to_probe_result(sent[-1])[0]

        def ask(self, orders):
            for order in orders:
                sent.append(self.site_clients[order.client](wire.from_order(order)))
                yield wire.to_reply(sent[-1])[0]

    run = open_run(settings, tmp_path / "run")
    engine = Spied({i: site_client(tmp_path, settings, name) for i, name in enumerate(("a", "b"))})
    run_rounds(run, engine, {0: "a", 1: "b"}, 2, Progress())
    stage(tmp_path, 1, ("a", "b"))
    run_rounds(run, engine, {0: "a", 1: "b"}, 4, Progress())
    fields = listed_fields()
    kinds, counted = set(), 0
    for message in sent:
        text = json.loads(message.text)
        kinds.add(text["kind"])
        names = set(text) | {"model/..." for name in message.arrays}
        assert names <= fields[text["kind"]] | {"model/..."}
        assert fields[text["kind"]] - {"model/..."} <= set(text)
        assert text["memory"] is None
        assert all(name.startswith("model/") for name in message.arrays)
        assert "scan" not in message.text  # no name of a file
        if text["kind"] == "reply" and text["report"]["pseudo_labels"]:
            counted += 1
            new = {DATA.classes[i - 1] for i in TASKS[1]}
            assert not any(new & set(epoch["offered"]) for epoch in text["report"]["pseudo_labels"])
    assert kinds == {"probe_result", "reply"}
    assert counted > 0


def test_the_server_may_have_images_of_its_own(tmp_path):
    stage(tmp_path, 0, ("a",))
    shutil.copytree(tmp_path / "a", tmp_path / "own")
    (tmp_path / "own" / "train.txt").write_text("scan000\n")
    (tmp_path / "own" / "val.txt").write_text("scan001\nscan002\nscan003\n")
    plain = config()
    settings = replace(plain, data=DataSpec("folder", root=str(tmp_path / "own")))
    run = open_run(settings, tmp_path / "run")
    run_rounds(run, Local({0: site_client(tmp_path, settings)}), {0: "a"}, 2, Progress())
    scores = run.scores()
    assert [(record.round, record.task, record.ends_task) for record in scores] == [(1, 0, False), (2, 0, True)]
    assert scores[-1].iou.keys() == {"background", *run.rounds()[-1].class_names}
    assert sum(value or 0 for value in scores[-1].iou.values()) > 0
    project, rounds = provisioning.Project("s", 1, ["a"]), run.rounds(finished=True)
    status = FederationStatus(tmp_path, project, None, rounds, JobStatus.read(run), scores[-1], False)
    table = federation_table(status, server_values(status))
    assert "mIoU after round 2" in list(table.columns[0].cells)
    (tmp_path / "own" / "val.txt").write_text("scan002\nscan003\n")  # the first shows no class, and does not count
    judge, server, said = ServerEvaluator(settings, Progress()), run.restore().server, []
    assert [replace(score, ends_task=True) for score in judge(server, 2, ())] == [scores[-1]]
    judge.progress = SimpleNamespace(notice=said.append)
    for names in (("hidden",), ("hidden",), ("hidden", "too")):
        assert not judge(replace(server, label_space=LabelSpace(((*names, *server.label_space.names),))), 1, ())
    assert [words.split(". ")[0].split("no class ")[1] for words in said] == ["'hidden'", "'too'"]  # once of each
    with pytest.raises(UserError, match=r"federation.toml was changed .*training.epochs"):
        open_run(replace(settings, training=replace(settings.training, epochs=2)), tmp_path / "run")
    (tmp_path / "own" / "masks" / "scan002.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match="scan002"):
        ServerEvaluator(settings, Progress())


def pixels_of(run, model, space, folder, stems, labelled):
    """Pixels in truth and prediction, and in either, by class: one pixel after the other."""
    both, either = defaultdict(int), defaultdict(int)
    names, size = ["background", *space.names], run.config().evaluation.size
    files = [folder / kind / f"{stem}.png" for kind in ("images", "masks") for stem in stems]
    split = FileSplit("val", tuple(stems), tuple(files[: len(stems)]), tuple(files[len(stems) :]))
    for i in range(len(stems)):
        image, mask = ScoredImages(split, size)[i, "published"]
        found = model(normalise(image[None])).logits_BCHW[0].argmax(0)
        for true, seen in zip(mask.flatten().tolist(), found.flatten().tolist(), strict=True):
            pair = [DATA.classes[true - 1] if true else "background", names[seen]]
            here, there = (name if name in labelled else "background" for name in pair)
            either[here] += 1
            either[there] += here != there
            both[here] += here == there
    return both, either


def test_sites_score_the_model_on_images_that_they_keep_from_training(tmp_path):
    """Where the server has none: pixels of all sites added up, each site's by the classes that it labels."""
    settings = config()
    for n, name in enumerate("abc"):
        drop(tmp_path / name, range(24 + 8 * n, 32 + 8 * n), TASKS[n % 2])
    (tmp_path / "a" / "val.txt").write_text("scan024\nscan025\n")
    clients = {
        n: site_client(tmp_path, settings, name, score=0.4 if name != "c" else 0) for n, name in enumerate("abc")
    }
    run = open_run(settings, tmp_path / "run")
    names = server.number_sites(run, list("abc"))
    run_rounds(run, Local(clients), names, 2, Progress())
    kept = {}
    for n, client in clients.items():
        stems = {held.name for held in client.site.held}
        kept[names[n]] = sorted({f"scan{i:03d}" for i in range(24 + 8 * n, 32 + 8 * n)} - stems)
    assert kept["a"] == ["scan024", "scan025"]
    assert 0 < len(kept["b"]) < 8
    assert not kept["c"]
    scores, snapshot = run.scores(), final(run)
    assert [(record.round, record.view) for record in scores] == [(1, "published"), (2, "published")]
    assert scores[-1].images == len(kept["a"]) + len(kept["b"])
    model = load_model(settings, snapshot, run.path, torch.device("cpu")).eval()
    totals = [defaultdict(int), defaultdict(int)]
    for name in "ab":
        labelled = {DATA.classes[i - 1] for i in clients["abc".index(name)].site.labelled}
        counted = pixels_of(run, model, snapshot.label_space, tmp_path / name, kept[name], labelled)
        for total, own in zip(totals, counted, strict=True):
            for key, count in own.items():
                total[key] += count
    for name, value in scores[-1].iou.items():
        assert value == pytest.approx(100 * totals[0][name] / totals[1][name]) if totals[1][name] else value is None
    assert sum(value or 0 for value in scores[-1].iou.values()) > 0
    run_rounds(run, Local(clients), names, 3, Progress())
    assert [record.round for record in run.scores()] == [1, 2, 3]
    with pytest.raises(UserError, match=r"nothing to draw, .* sites score the model on their own images"):
        Validation.of_run(run, Progress())
    message = clients[0](wire.from_probe(Probe(0, 4, snapshot.label_space, snapshot.weights)))
    text = json.loads(message.text)
    for wrong in ({"images": -1}, {"pixels": {"disc": [5, 4]}}, {"pixels": {"disc": [0.5, 4]}}):
        with pytest.raises(UserError, match="a score must be"):
            wire.to_probe_result(replace(message, text=json.dumps({**text, "score": {**text["score"], **wrong}})))


def test_only_versions_that_belong_together_talk_to_each_other():
    order, answer = Order(0, 0, LabelSpace(((),)), {}, None), ProbeResult(0)
    sent = wire.from_probe(Probe(0, 0, LabelSpace(((),)), {})), wire.from_order(order), wire.from_probe_result(answer)
    sent = (*sent, wire.from_reply(Reply(0, 1)))
    reads = wire.to_probe, partial(wire.to_order, teachers={}), wire.to_probe_result, wire.to_reply
    for message, read in zip(sent, reads, strict=True):
        text = json.loads(message.text)
        with pytest.raises(UserError, match=r"messages of version 2, .* reads version 1: .* update the older one"):
            read(replace(message, text=json.dumps({**text, "version": 2})))
        del text["version"]  # as fiss wrote them before there were versions
        read(replace(message, text=json.dumps(text)))


def test_a_round_that_is_played_again_is_answered_again(tmp_path):
    settings = config()
    stage(tmp_path, 0, ("a",))
    run = open_run(settings, tmp_path / "run")
    client = site_client(tmp_path, settings)
    run_rounds(run, Local({0: client}), {0: "a"}, 2, Progress())
    kept = shutil.copytree(run.path, tmp_path / "kept")
    run_rounds(run, Local({0: client}), {0: "a"}, 3, Progress())
    again = RunFolder(kept)
    run_rounds(again, Local({0: client}), {0: "a"}, 3, Progress())  # the server died and lost its third round
    for name, tensor in final(run).weights.items():
        assert torch.equal(final(again).weights[name], tensor)
    memory = json.loads(client.path.read_bytes())
    assert (memory["round"], memory["settled"]["epochs"], memory["now"]["epochs"]) == (2, 2, 3)


def test_a_backup_goes_on_with_a_site_that_is_further(tmp_path):
    """It says so, and trains as one without any memory would."""
    settings, said = config(), []
    stage(tmp_path, 0, ("a",))
    run = open_run(settings, tmp_path / "run")
    client = site_client(tmp_path, settings)
    run_rounds(run, Local({0: client}), {0: "a"}, 1, Progress())
    backups = [shutil.copytree(run.path, tmp_path / name) for name in ("backup", "same")]
    stage(tmp_path, 1, ("a",))  # it passed to new classes meanwhile
    run_rounds(run, Local({0: client}), {0: "a"}, 4, Progress())
    client.progress = Progress()
    client.progress.notice = said.append
    newcomer = SiteClient(tmp_path / "new", settings, read_site(tmp_path / "kits" / "a" / "site.toml"), Progress())
    for backup, one in zip(backups, (client, newcomer), strict=True):
        run_rounds(RunFolder(backup), Local({0: one}), {0: "a"}, 3, Progress())
    restored, same = (RunFolder(backup) for backup in backups)
    assert [record.round for record in restored.rounds()] == [1, 2, 3]
    assert restored.rounds()[-1].class_names == run.rounds()[-1].class_names
    assert all(torch.equal(final(same).weights[name], tensor) for name, tensor in final(restored).weights.items())
    (text,) = {one for one in said if "further" in one}
    assert text == f"{client.path} is of a run that was further than this one: the site begins anew."


def test_files_come_and_go_and_half_written_ones_wait(tmp_path):
    stage(tmp_path, 0, ("a",))
    said = []

    class Hears(Progress):
        def notice(self, text):
            said.append(text)

    (tmp_path / "site.toml").write_text('data = "a"\n[names]\ndisc = "circle"\n')
    spec = read_site(tmp_path / "site.toml")
    holdings = SiteFolder(spec, AugmentSpec(crop=32), torch.device("cpu"), Hears())
    first = holdings.rescan()
    assert (len(first.images), first.classes[0]) == (6, "circle")
    assert set(first.labelled) <= {1, 2, 3}
    assert holdings.rescan().checksum == first.checksum
    reader = holdings.readers[0]
    whole = (tmp_path / "a" / "masks" / "scan000.png").read_bytes()
    (tmp_path / "a" / "masks" / "scan000.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "a" / "images" / "lonely.png").write_bytes((tmp_path / "a" / "images" / "scan001.png").read_bytes())
    second = holdings.rescan()
    assert len(second.images) == 5
    assert second.checksum != first.checksum
    assert holdings.readers[0] is not reader
    holdings.rescan()
    assert len([text for text in said if text.startswith("left out until it changes: ") and "scan000.png" in text]) == 1
    (tmp_path / "a" / "masks" / "scan000.png").write_bytes(whole)
    assert holdings.rescan().checksum == first.checksum
    wrong = np.asarray(Image.open(tmp_path / "a" / "masks" / "scan001.png")).copy()
    wrong[0, 0] = 200
    Image.fromarray(wrong).save(tmp_path / "a" / "masks" / "scan001.png")
    assert len(holdings.rescan().images) == 5
    assert "mask ids [200] are not in classes.txt" in said[-1]


def test_an_image_of_16_bits_is_named_and_who_sets_the_window(tmp_path):
    stage(tmp_path, 0, ("a",))
    (tmp_path / "kit").mkdir()
    image = tmp_path / "a" / "images" / "scan000.png"
    Image.fromarray(np.asarray(Image.open(image).convert("L")).astype(np.uint16) * 200).save(image)
    (tmp_path / "kit" / "site.toml").write_text(TEMPLATE)
    spec = write_site(tmp_path / "kit", tmp_path / "a")
    said = describe(spec, Progress())
    assert said[0] == "6 images with masks"
    assert said[-1].startswith("1 of more than 8 bits per channel (scan000.png): as they are, they are never used")
    assert "the server sets" in said[-1]
    assert "`--set data.window=1%,99%`" in said[-1]
    heard, progress = [], Progress()
    progress.notice = heard.append
    SiteFolder(spec, AugmentSpec(crop=32), torch.device("cpu"), progress).rescan()
    (line,) = heard
    assert line.startswith("left out until it changes: ")
    assert "scan000.png: 16-bit or wider image, values from" in line
    assert "; save it with 8 bits, or the server sets for all sites which values matter, at `init`" in line
    windowed = SiteFolder(spec, AugmentSpec(crop=32), torch.device("cpu"), progress, how=Reading("1%,99%"))
    assert (len(windowed.rescan().images), len(heard)) == (6, 1)


@pytest.mark.slow
def test_processes_that_read_ahead_change_nothing_and_end_with_their_files(tmp_path):
    settings, ended = config(), {}
    for workers in (0, 1):
        root = tmp_path / str(workers)
        stage(root, 0, ("a",))
        run, client = open_run(settings, root / "run"), site_client(root, settings, workers=workers)
        for rounds in (1, 2):
            run_rounds(run, Local({0: client}), {0: "a"}, rounds, Progress())
            stage(root, rounds, ("a",))
        ended[workers] = final(run).weights
    assert all(torch.equal(ended[1][name], tensor) for name, tensor in ended[0].items())
    gc.collect()
    assert len(multiprocessing.active_children()) == 2  # to train and to look; those of the first files are gone
    del client, run
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dat = 'a'", "Did you mean 'data'"),
        ("batch = 4", "data is missing"),
        ("data = 'nowhere'", "images is not there"),
        ("data = 'a'\nbatch = 1", "must be 2 or more"),
        ("data = 'a'\nbatch = '4'\nworker = 2", "batch = \"4\": expected a whole number.\nUnknown key 'worker'"),
        ("data = 'a'\nworkers = -1", "must be 0 or more"),
        ("data = 'a'\nworkers = true", "expected a whole number"),
        ("data = 'a'\n[names]\ndisc = 3", "names.disc = 3: expected a string"),
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
        provisioning.init(tmp_path / "f", config(), "localhost", ["a", "a"], 9000)
    with pytest.raises(UserError, match="letters, digits"):
        provisioning.init(tmp_path / "f", config(), "localhost", ["a b"], 9000)
    with pytest.raises(UserError, match="no such folder for the server"):
        provisioning.init(
            tmp_path / "f", replace(config(), data=DataSpec("folder", root="nowhere")), "localhost", ["a"], 9000
        )
    with pytest.raises(UserError, match="not a federation"):
        provisioning.read_project(tmp_path)
    assert not (tmp_path / "f").exists()


def test_a_job_cannot_call_what_it_likes(tmp_path):
    (tmp_path / "site.toml").touch()
    with pytest.raises(UserError, match="not for a job to call"):
        job.server_function("os:system")
    with pytest.raises(UserError, match="not for a job to call"):  # where a site owns its data
        job.site_function(job.SIMULATION.site, tmp_path)
    for entry_points in (job.SIMULATION, job.DEPLOYMENT):
        assert callable(job.server_function(entry_points.server))
    assert callable(job.site_function(job.SIMULATION.site, tmp_path / "simulated"))
    assert callable(job.site_function(job.DEPLOYMENT.site, tmp_path))


def old_kit(kit, **also):
    """With the resources.json that fiss wrote before its modules were moved."""
    (kit / "local").mkdir(parents=True)
    listed = ["fiss.engines.flare", "nvflare.app_common.ccwf.CyclicClientController"]
    resources = {"format_version": 2, "class_allow_list": listed, "components": [{"id": "job_manager"}], **also}
    (kit / "local" / "resources.json").write_text(json.dumps(resources, indent=1))
    return kit


def test_kits_of_an_earlier_fiss_are_refused_and_upgraded(tmp_path):
    stage(tmp_path, 0, ("a",))
    folder = tmp_path / "fed"
    site, _ = old_kit(folder / "kits" / "a"), old_kit(folder / "kits" / "localhost", snapshot_persistor={"args": {}})
    (site / "site.toml").write_text(TEMPLATE)
    admin = folder / "kits" / "admin@fiss.org" / "local" / "resources.json"
    admin.parent.mkdir(parents=True)
    admin.write_text('{"format_version": 1}')
    (folder / "federation.toml").write_text(to_toml(config()))
    commands = {
        site: ["site", str(site), "--data", str(tmp_path / "a")],
        folder: ["run", str(folder), "--rounds", "1"],
    }
    pytest.importorskip("nvflare")
    for path, words in commands.items():
        refused = CliRunner().invoke(app, ["federation", *words]).exception
        assert isinstance(refused, UserError)
        assert f"`fiss federation upgrade {path}`" in str(refused)
    assert (site / "site.toml").read_text() == TEMPLATE
    assert not (folder / "run").exists()
    said = [CliRunner().invoke(app, ["federation", "upgrade", str(path)]).output for path in (site, folder, folder)]
    assert said[0] == f"{site}: fits now; start it again if it runs\n"
    assert [text.count("fits now") for text in said] == [1, 1, 0]
    assert [text.count("fits already") for text in said] == [0, 2, 3]
    resources = json.loads((site / "local" / "resources.json").read_bytes())
    assert resources["class_allow_list"] == [job.CLASSES, "nvflare.app_common.ccwf.CyclicClientController"]
    assert resources["components"] == [{"id": "job_manager"}]
    assert json.loads(admin.read_bytes()) == {"format_version": 1}
    provisioning.refuse_old_kits(folder)
    with pytest.raises(UserError, match="neither a start-up kit nor"):
        provisioning.upgrade(tmp_path)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (("--preset", "F"), "analytic"),
        (("--preset", "F", "--method", "mib"), "mib"),
        (("--preset", "folder-small"), "analytic"),
        ((), "fbl"),  # the preset folder names no method
    ],
)
def test_a_file_keeps_its_method_and_what_was_chosen_is_said(tmp_path, capsys, monkeypatch, options, method):
    pytest.importorskip("nvflare")
    monkeypatch.setattr(provisioning, "_provision", lambda *_: [])  # the config alone
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(preset("folder-small").replace(data={"root": str(tmp_path / "gone")})))
    options = [str(file) if option == "F" else option for option in options]
    if file in map(Path, options):
        command_line("federation", "init", tmp_path / "fed", "--site", "a", *options, code=2)
        assert "`--set data.root=`" in capsys.readouterr().err
    command_line("federation", "init", tmp_path / "fed", "--site", "a", *options, "--set", "data.root=")
    made = provisioning.config_of(tmp_path / "fed")
    network = f"network {made.model.architecture} on {made.model.encoder}, weights {made.model.weights}"
    said = f"Method {method}; {network}; nobody scores it until a site.toml has `score = 0.2`.\n"
    assert (label(made), made.data.root) == (method, "")
    assert said in capsys.readouterr().out


def test_a_new_kit_needs_no_upgrade(tmp_path):
    pytest.importorskip("nvflare")
    kits = provisioning.init(tmp_path / "fed", config(), "localhost", ["a"], 9000)
    assert provisioning.upgrade(tmp_path / "fed") == dict.fromkeys(sorted(kits), False)
    moved = (tmp_path / "fed").rename(tmp_path / "moved")
    provisioning.upgrade(moved)
    kits = [moved / kit.relative_to(tmp_path / "fed") for kit in kits]
    assert [f"WorkingDirectory={kit}\n" in (kit / UNIT).read_text() for kit in kits[:2]] == [True, True]
    assert not (kits[2] / UNIT).exists()
    for kit in kits[:2]:
        listed = json.loads((kit / "local" / "resources.json").read_bytes())["class_allow_list"]
        assert listed[0] == job.CLASSES
    assert importlib.util.find_spec(job.CLASSES)


class Scripted:
    """A transport whose sites answer as they are told to."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def exchange(self, messages, read, quorum, patience, silent):
        for site, message in messages:
            self.asked.append((site, message))
            said = self.answers[site](message)
            if not isinstance(said, str):
                try:
                    said = read(site, said)
                except Exception as error:
                    said = f"{type(error).__name__}: {error}"
            yield site, said


def test_a_site_that_cannot_be_understood_is_left_out():
    flare = pytest.importorskip("fiss.flare.engines")
    space = LabelSpace(((), ("x",)))
    weights = {"w": torch.ones(2)}

    def good(message):
        return wire.from_reply(Reply(0, 3, weights))

    answers = {
        "a": good,
        "b": good,  # speaks for another
        "c": lambda message: wire.Message("nonsense"),
        "d": lambda message: wire.Message(json.dumps({"kind": "reply", "client": 3, "surprise": 1})),
        "e": lambda message: "it did not answer in time",
        "f": lambda message: flare.TOO_LATE,
        "g": lambda message: wire.Message(good(message).text.replace('"images": 3', '"images": 1e300'), {}),
        "h": lambda message: wire.Message(good(message).text.replace('"losses": {}', '"losses": {"a": "b"}'), {}),
        "i": lambda message: wire.Message(good(message).text + " " * 2**24),
        "j": lambda message: wire.Message(
            good(message).text.replace('"losses": {}', '"losses": {"a": 1' + "0" * 400 + "}")
        ),
        "k": lambda message: wire.Message(
            good(message).text.replace('"report": {}', '"report": ' + "[" * 900 + "]" * 900)
        ),
        "l": lambda message: wire.Message(good(message).text.replace('"client": 0', '"client": true')),
    }
    engine = flare.FlareEngine(Scripted(answers), dict(enumerate("abcdefghijkl")), FederationSpec())
    teacher = Snapshot("after-0001", space, weights)
    orders = [Order(n, 4, space, weights, teacher) for n in range(12)]
    assert [reply.client for reply in engine.ask(orders)] == [0]
    assert set(engine.missing) == {1, 2, 3, 4, 6, 7, 8, 9, 10, 11}
    assert engine.late == {5: flare.TOO_LATE}
    assert "too long" in engine.missing[8]
    assert "speaks for another" in engine.missing[1]
    assert [reply.client for reply in engine.ask(orders)] == [0]
    sent = [message for site, message in engine.transport.asked if site == "a"]
    assert [any(name.startswith("teacher/") for name in message.arrays) for message in sent] == [True, False]
    answers["a"] = lambda message: wire.from_probe_result(ProbeResult(0))
    assert [said.client for said in engine.probe([Probe(0, 5, space, weights)])] == [0]
    answers["a"] = good
    list(engine.ask([Order(0, 5, space, {**weights, "new": torch.ones(1)}, teacher)]))
    site, message = engine.transport.asked[-1]
    assert (site, set(message.arrays)) == ("a", {"model/new"})  # one model each way in a round, no more


def test_a_round_ends_by_quorum_or_patience():
    """With a controller that lets sites answer, fail, run out of time, or say nothing."""
    flare = pytest.importorskip("fiss.flare.transport")
    cancelled = []

    class Controller:
        def __init__(self, behaviour):
            self.behaviour = behaviour

        def broadcast(self, task, fl_ctx, targets, min_responses):
            (site,) = targets
            how = self.behaviour[site]
            if how in ("answers", "fails", "raves", "empty"):
                result = {
                    "answers": lambda: flare.to_shareable(wire.Message(site)),
                    "raves": lambda: flare.to_shareable(wire.Message("what?")),
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

    def reading(site, message):
        if message.text != site:
            raise UserError("nonsense")
        return message

    def outcome(behaviour, **limits):
        transport = flare.Transport(Controller(behaviour), None, SimpleNamespace(triggered=False), list(behaviour))
        found = dict(transport.exchange([(site, wire.Message("hello")) for site in behaviour], reading, **limits))
        return {site: what if isinstance(what, str) else "answer" for site, what in found.items()}

    late = flare.TOO_LATE
    four = {"a": "answers", "b": "answers", "c": "silent", "d": "silent"}
    assert outcome(four, quorum=0.5) == {"a": "answer", "b": "answer", "c": late, "d": late}
    assert cancelled == ["c", "d"]
    gone = outcome(four, silent=lambda: ["c", "d"])  # no quorum, no patience: they are not waited for
    assert gone == {"a": "answer", "b": "answer", "c": flare.SILENT, "d": flare.SILENT}
    lies = outcome({"a": "raves", "b": "empty", "c": "answers", "d": "silent"}, quorum=0.25)  # they do not count
    assert lies["c"] == "answer"
    assert all("cannot be read" in lies[site] for site in "ab")
    mixed = outcome({"a": "answers", "b": "fails", "c": "runs out"}, patience=5)
    assert mixed["a"] == "answer"
    assert "its log says why" in mixed["b"]
    assert "in time" in mixed["c"]
    stopped = flare.Transport(Controller(four), None, SimpleNamespace(triggered=True), list(four))
    with pytest.raises(UserError, match="was stopped"):
        list(stopped.exchange([(site, wire.Message("hello")) for site in four], reading))


def test_what_never_reached_the_server_is_said_again(tmp_path):
    """A probe_result is lost on its way: the site's memory goes back to before it, and its monitor fires once more."""
    settings = config()
    stage(tmp_path, 0, ("a",))
    client = site_client(tmp_path, settings)

    class Lossy(Local):
        lost = -1

        def probe(self, probes):
            for probe in probes:
                message = client(wire.from_probe(probe, acknowledged=self.acknowledged.get(probe.client, -1)))
                if probe.round == self.lost:
                    self.late[probe.client] = "lost"
                else:
                    yield wire.to_probe_result(message)[0]

        def ask(self, orders):
            return super().ask([order for order in orders if order.client not in self.late])

    run = open_run(settings, tmp_path / "run")
    engine = Lossy({0: client})
    run_rounds(run, engine, {0: "a"}, 2, Progress())
    stage(tmp_path, 1, ("a",))
    engine.lost = 2
    run_rounds(run, engine, {0: "a"}, 4, Progress())
    records = run.rounds()
    assert [record.transitions for record in records] == [(), (), (), ("a",)]
    assert records[2].missing == {"a": "lost"}
    assert json.loads(client.path.read_bytes())["now"]["teacher"] == "after-0003"
    assert run.restore().server.teachers[0].name == "after-0003"


def test_a_transition_survives_a_round_that_was_not_kept(tmp_path, monkeypatch):
    """The disk is full when a round is to count; it is played again without the site, which comes back later."""
    settings = config()
    stage(tmp_path, 0, ("a", "b"))
    clients = {i: site_client(tmp_path, settings, name) for i, name in enumerate(("a", "b"))}

    class Acknowledging(Local):
        def probe(self, probes):
            for probe in probes:
                message = wire.from_probe(probe, acknowledged=self.acknowledged.get(probe.client, -1))
                yield wire.to_probe_result(self.site_clients[probe.client](message))[0]

    run, names = open_run(settings, tmp_path / "run"), {0: "a", 1: "b"}
    run_rounds(run, Acknowledging(clients), names, 2, Progress())
    stage(tmp_path, 1, ("a",))
    commit = RunFolder.commit
    monkeypatch.setattr(RunFolder, "commit", lambda *words: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        run_rounds(run, Acknowledging(clients), names, 3, Progress())
    monkeypatch.setattr(RunFolder, "commit", commit)
    run_rounds(run, Acknowledging(clients), {1: "b"}, 3, Progress())
    run_rounds(run, Acknowledging(clients), names, 4, Progress())
    records = run.rounds()
    assert ["".join(probe.client for probe in record.probes) for record in records] == ["ab", "ab", "b", "ab"]
    assert [record.transitions for record in records] == [(), (), (), ("a",)]
    assert run.restore().server.teachers[0].name == "after-0003"


def test_a_config_may_be_put_right_before_the_first_round(tmp_path):
    settings = config()
    open_run(settings, tmp_path / "run")
    server.number_sites(RunFolder(tmp_path / "run"), ["a"])
    other = replace(settings, seed=9)
    assert open_run(other, tmp_path / "run").config() == other


def test_what_a_site_calls_background_is_no_class(tmp_path):
    stage(tmp_path, 0, ("a",))
    site = tmp_path / "site.toml"
    for name in ("background", ""):
        site.write_text(f'data = "{tmp_path / "a"}"\n[names]\n"{DATA.classes[0]}" = "{name}"\n')
        with pytest.raises(UserError, match="no classes"):
            read_site(site)


def test_rcils_first_model_is_the_same_again():
    settings = replace(config(), method=find("rcil"))
    first, again = (server.initial_server(settings).weights for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


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

    run_rounds(run, Gone({}), {0: "a"}, 4, Progress())
    assert not (run.path / "state.json").exists()
    run_rounds(run, Local({0: site_client(tmp_path, settings)}), {0: "a"}, 1, Progress())
    with (run.path / "rounds.jsonl").open("a") as log:
        log.write('{"round": 1, "torn')
    assert supervisor.finished_rounds(run) == 1


def test_names_may_be_kept_from_the_server(tmp_path):
    with pytest.raises(UserError, match="the server would know the key"):
        open_run(config(private_names="secret"), tmp_path / "refused")
    settings = config()
    stage(tmp_path, 0, ("a",))
    kit = tmp_path / "kits" / "a"
    kit.mkdir(parents=True)
    (kit / "site.toml").write_text(f'data = "{tmp_path / "a"}"\ndevice = "cpu"\nkey = "secret"\n')
    run = open_run(settings, tmp_path / "run")
    run_rounds(
        run, Local({0: SiteClient(kit, settings, read_site(kit / "site.toml"), Progress())}), {0: "a"}, 1, Progress()
    )
    names = run.rounds()[0].class_names
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
    with pytest.raises(UserError, match="device = gpuu"):
        write_site(kit, tmp_path / "my data", "gpuu", 4)
    (kit / "site.toml").write_text(TEMPLATE.replace('"DATA"', "'/some where/else'"))
    for _ in range(2):
        spec = write_site(kit, tmp_path / "my data", "cpu", 4)
        assert (spec.data, spec.batch) == (str(tmp_path / "my data"), 4)
    named = TEMPLATE.replace("workers = 0", "") + f"{DATA.classes[0]} = 'liver'\n"  # of a kit older than this key
    (kit / "site.toml").write_text(named)
    spec = write_site(kit, tmp_path / "my data", "cpu", 4, workers=2)
    assert (spec.workers, spec.names) == (2, {DATA.classes[0]: "liver"})
    text = (kit / "site.toml").read_text()
    assert "# images per step; 0: as the federation says" in text
    assert text.index("workers = 2") < text.index("[names]  ")
    (kit / "site.toml").write_text(TEMPLATE)
    assert write_site(kit, tmp_path / "my data", "cpu", 4, workers=2).workers == 2
    again = write_site(kit, tmp_path / "my data")  # what is not given stays
    assert (again.device, again.batch, again.workers) == ("cpu", 4, 2)
    assert write_site(kit, tmp_path / "my data", workers=0) == replace(again, workers=0)
    holdings = SiteFolder(spec, AugmentSpec(crop=32), torch.device("cpu"), Progress())
    for path in (tmp_path / "my data" / "masks").iterdir():
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    before = holdings.rescan().checksum
    mask = next((tmp_path / "my data" / "masks").iterdir())
    pixels = np.asarray(Image.open(mask)).copy()
    pixels[:4] = 2
    Image.fromarray(pixels).save(mask)
    assert holdings.rescan().checksum != before
