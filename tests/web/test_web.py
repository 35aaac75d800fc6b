"""The page: what it reads, what it sends, to whom, and what a browser makes of it."""

import asyncio
import io
import json
import re
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import uvicorn
from browser import CHROMIUM, SEGMENT, Browser
from command_line import fiss
from PIL import Image
from ports import free_port
from records import Simulated
from starlette.testclient import TestClient
from worlds import picture

from fiss import methods
from fiss.cli import web as command
from fiss.deployment import certificates
from fiss.errors import UserError
from fiss.runs.tail import CHECKED, Tail
from fiss.web import control, pictures
from fiss.web.app import Site, make_app, news
from fiss.web.metrics import metrics
from fiss.web.shelf import Shelf
from fiss.web.watch import Place, WatchedRun

TOKEN = "a-token-that-is-long-enough"
OWN = {"x-fiss-token": TOKEN}


def browser_of(shelf, **more):
    """Who has opened the printed address."""
    client = TestClient(make_app(Site(shelf, TOKEN, 80, **more)), base_url="http://localhost")
    assert client.get(f"/?token={TOKEN}").status_code == 200
    return client


@pytest.fixture
def shelf(tiny, finished, tmp_path):
    """Two runs of the tiny world."""
    for name in ("finetune", "fbl"):
        shutil.copytree(finished(replace(tiny, method=methods.find(name))), tmp_path / "runs" / name)
    return Shelf([tmp_path / "runs"], least=0)


def test_a_tail_reads_what_is_new(tmp_path):
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == (False, [])
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.lines() == (False, [b"one", b"two"])
    with path.open("ab") as file:
        file.write(b"ee\n" + b"x" * 10_000 + b"\n")
    assert tail.lines()[1] == [b"three", b"x" * 10_000]
    read = tail.read
    assert tail.lines() == (False, [])
    assert tail.read == read  # nothing new: nothing is read
    with path.open("ab") as file:
        file.write(b"four\n")
    assert tail.lines() == (False, [b"four"])
    assert tail.read == read + CHECKED + len(b"four\n")
    path.write_bytes(b"one\n")  # cut back
    assert tail.lines() == (True, [b"one"])
    path.write_bytes(b"eins\nzwei\n")  # cut back and grown anew since
    assert tail.lines() == (True, [b"eins", b"zwei"])
    path.unlink()
    assert tail.lines() == (True, [])


def update(folder, sites, rounds):
    """Bytes read and sent for one more round, and what was appended."""
    own = Simulated(folder, sites, rounds)
    run = WatchedRun(own.run, folder)
    run.refresh()
    _, place = run.news(Place())
    before = run.read
    appended = own.play()
    run.refresh()
    sent, _ = run.news(place)
    assert [score["round"] for score in sent["scores"]] == [one["r"] for one in sent["rounds"]] == [rounds + 1]
    return run.read - before, len(json.dumps(sent)), appended


def test_an_update_costs_the_same_after_a_thousand_rounds(tmp_path):
    small, large = update(tmp_path / "small", 3, 10), update(tmp_path / "large", 100, 1000)
    for read, _, appended in (small, large):
        assert read <= appended + 2 * CHECKED  # what was appended, and nothing else
    assert large[1] <= 3 * small[1]


def test_a_federation_is_told(tmp_path):
    own = Simulated(tmp_path / "fed", 4, 4)
    run = WatchedRun(own.run, own.folder)
    run.refresh()
    whole, place = run.news(Place())
    assert whole["anew"]
    assert [one["r"] for one in whole["rounds"]] == [1, 2, 3, 4]
    assert whole["rounds"][0]["c"] == ["class 0", "class 1", "class 2"]
    assert whole["rounds"][3]["c"] == ["class 3", "class 4", "class 5"]
    names = [name for one in whole["rounds"] for name in one.get("new", ())]
    assert sorted(names) == own.names
    assert names[whole["rounds"][3]["b"]["class 3"][0]] in own.names
    assert whole["now"]["sites"] == dict.fromkeys(own.names, "unknown")
    assert run.news(place)[0] == {}
    own.play(refused={"site-001": "not finite"}, missing={"site-002": "it was too late"})
    (own.run / "job.json").write_text(json.dumps({"sites": own.names, "waiting": ["site-003"], "round": 5, "since": 0}))
    run.refresh()
    new, place = run.news(place)
    assert new["now"]["sites"] == {
        "site-000": "there", "site-001": "refused", "site-002": "late", "site-003": "working"
    }  # fmt: skip
    assert [words.split(" has waited")[0].split(":")[0] for words in new["now"]["warnings"]] == [
        "round 6",
        "round 5",
        "round 5",
    ]
    assert new["rounds"][0]["f"] == {names.index("site-001"): "not finite"}
    lines = (own.run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (own.run / "rounds.jsonl").write_bytes(b"".join(lines[:3]))  # as `restore` cuts it
    run.refresh()
    new, place = run.news(place)
    assert (new["anew"], len(new["rounds"]), len(new["scores"])) == (True, 3, 5)
    with (own.run / "rounds.jsonl").open("a") as file:
        file.write("no record\n")
    run.refresh()
    assert "cannot be read" in run.news(place)[0]["now"]["warnings"][0]


def test_a_federation_is_there_from_init_on(tmp_path, monkeypatch):
    """With its sites, their certificates, and who was removed; before any run folder is there."""
    monkeypatch.setattr(
        certificates, "valid_until", lambda folder: dict.fromkeys(["site-000", "s"], datetime(2027, 5, 1, tzinfo=UTC))
    )
    own = Simulated(tmp_path / "fed", 3, 0)
    shutil.rmtree(own.run)
    (own.folder / "kits" / "s").mkdir(parents=True)
    (own.folder / "kits" / "s" / "disabled_clients.json").write_text('{"disabled_clients": ["site-001"]}')
    shelf = Shelf([tmp_path], least=0)
    shelf.refresh()
    (run,) = shelf.runs.values()
    now = run.news(Place())[0]["now"]
    assert now["sites"] == {"site-000": "unknown", "site-001": "removed", "site-002": "unknown"}
    assert now["certificates"] == {"site-000": "2027-05-01"}
    assert (now["next"], now["warnings"]) == (0, [])
    assert (run.summary()["name"], run.summary()["method"]) == ("fed", "fbl")
    monkeypatch.setattr(certificates, "WARN_DAYS", 100_000)
    shelf.refresh()
    assert "fiss federation renew" in run.news(Place())[0]["now"]["warnings"][0]
    client = browser_of(shelf)
    for path in (f"/runs/{run.id}/strip", f"/compare?run={run.id}", f"/report?run={run.id}", f"/runs/{run.id}/config"):
        assert client.get(path).status_code in (200, 400), path


def test_news_come_as_events(tmp_path):
    own = Simulated(tmp_path / "fed", 3, 2)
    shelf = Shelf([tmp_path], least=0)
    (run,) = shelf.runs.values()

    async def hear():
        site = Site(shelf, TOKEN, 80, every=0.01)
        events = news(site, run)
        first = json.loads((await anext(events)).removeprefix("data: "))
        own.play()
        second = json.loads((await anext(events)).removeprefix("data: "))
        shutil.rmtree(own.folder)
        shelf.search()
        third = json.loads((await anext(events)).removeprefix("data: "))
        await events.aclose()
        return first, second, third

    first, second, third = asyncio.run(hear())
    assert (len(first["run"]["rounds"]), first["runs"][0]["name"]) == (2, "fed")
    assert [one["r"] for one in second["run"]["rounds"]] == [3]
    assert "anew" not in second["run"]
    assert third["gone"] == [run.id]


def test_who_may_see_it(tmp_path):
    shelf = Shelf([tmp_path])
    app = make_app(Site(shelf, TOKEN, 80))
    stranger = TestClient(app, base_url="http://localhost")
    for path in ("/", "/page.js", "/drawing.js", "/events", "/metrics", "/?token=wrong", f"/metrics?token={TOKEN}"):
        assert stranger.get(path).status_code == 401, path
    assert stranger.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "localhost:81", ""):  # a name that was made to point here
        assert stranger.get("/", headers={"host": host, "authorization": f"Bearer {TOKEN}"}).status_code == 421, host
    for host in ("localhost", "localhost:80", "127.0.0.1:80"):
        assert stranger.get("/metrics", headers={"host": host, "authorization": f"Bearer {TOKEN}"}).status_code == 200
    answer = stranger.get(f"/?token={TOKEN}", follow_redirects=False)
    assert answer.status_code == 303
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    page = browser_of(shelf).get("/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<style|<script>|style=|\son\w+=", page.text)  # the policy would refuse it
    for name in ("/", "/page.js", "/drawing.js", "/page.css"):
        text = browser_of(shelf).get(name).text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(", text), name
    everybody = TestClient(make_app(Site(shelf, "", 80)), base_url="http://localhost")
    assert everybody.get("/metrics").status_code == 200
    assert everybody.post("/runs/x/stop").status_code == 403


def test_what_changes_something_needs_more(tmp_path, monkeypatch):
    own = Simulated(tmp_path / "fed", 2, 2)
    shelf = Shelf([tmp_path])
    (run,) = shelf.runs.values()
    done = []
    monkeypatch.setattr(control, "_command", lambda *words: done.append(words) or "It ends.")
    reader, steward = browser_of(shelf), browser_of(shelf, control=True)
    stop, sure = f"/runs/{run.id}/stop", {"confirm": "fed"}
    assert "Read only" in reader.post(stop, json=sure, headers=OWN).json()["error"]
    assert steward.post(stop, json=sure).status_code == 403  # the cookie alone is not enough
    assert steward.post(stop, json=sure, headers={"x-fiss-token": "wrong"}).status_code == 403
    assert steward.post(stop, json=sure, headers=OWN | {"origin": "http://evil.example"}).status_code == 403
    assert steward.get(stop).status_code == 405
    assert done == []
    for values in ({}, {"confirm": "Fed"}, []):
        assert steward.post(stop, json=values, headers=OWN).status_code == 400
    assert done == []
    answer = steward.post(stop, json=sure, headers=OWN | {"origin": "http://localhost"})
    assert answer.json() == {"answer": "It ends."}
    monkeypatch.setattr(control, "_words", lambda *words: ["sh", "-c", f"echo {words[0]} {words[2]}"])
    site = sure | {"site": "site-001"}
    assert steward.post(f"/runs/{run.id}/stop-site", json=site, headers=OWN).json() == {"answer": "stop-site site-001"}
    monkeypatch.setattr(control, "AT_ONCE", 0.1)
    monkeypatch.setattr(control, "_words", lambda *words: ["sleep", "2"])  # a round that lasts
    answer = steward.post(f"/runs/{run.id}/stop-site", json=site, headers=OWN).json()["answer"]
    assert "after the present round" in answer
    monkeypatch.setattr(control, "AT_ONCE", 2.0)
    for path, more, words in (
        ("stop-site", {"site": "../x"}, "Unknown site"), ("start", {"rounds": 2}, "2 rounds are finished"),
        ("start", {"rounds": "9"}, "whole numbers"), ("erase", {}, "Unknown action"),
    ):  # fmt: skip
        answer = steward.post(f"/runs/{run.id}/{path}", json=sure | more, headers=OWN)
        assert words in answer.json()["error"]
    assert done == [("stop", str(own.folder))]
    monkeypatch.setattr(control, "_words", lambda *words: ["sh", "-c", f"echo {words[0]} {words[3]}; exit 2"])
    with pytest.raises(UserError, match="run 5"):
        control.act(own.folder, "start", sure | {"rounds": 5})
    monkeypatch.setattr(control, "_words", lambda *words: ["sleep", "3"])
    assert "until there are 5 rounds" in control.act(own.folder, "start", sure | {"rounds": 5})


def test_a_command_of_its_own(monkeypatch):
    monkeypatch.setattr(control, "_words", lambda *words: ["sh", "-c", f"echo {' '.join(words)}"])
    assert control._command("stop", "f") == "stop f"
    monkeypatch.setattr(control, "_words", lambda *words: ["sh", "-c", "echo no such thing >&2; exit 2"])
    with pytest.raises(UserError, match="no such thing"):
        control._command("stop", "f")
    monkeypatch.setattr(control, "SECONDS", 0.1)
    monkeypatch.setattr(control, "_words", lambda *words: ["sleep", "2"])
    with pytest.raises(UserError, match="did not end in"):
        control._command("stop", "f")


LINE = re.compile(r'[a-zA-Z_:][\w:]*\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*\} (-?\d+(\.\d+)?(e[+-]?\d+)?|NaN)')


def test_metrics_are_what_prometheus_reads(tmp_path):
    own = Simulated(tmp_path / 'a "fed" of\\one\nline', 3, 5)
    shelf = Shelf([tmp_path])
    shelf.refresh()
    text = metrics(shelf.runs.values())
    kinds, seen = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert line.split()[2] not in kinds  # once for each, before its samples
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
            assert kind == ("counter" if name.endswith("_total") else "gauge")
        else:
            assert LINE.fullmatch(line), line
            name = line.split("{")[0]
            assert name in kinds
            assert line.rsplit(" ", 1)[0] not in seen
            seen.add(line.rsplit(" ", 1)[0])
            assert list(kinds)[-1] == name  # one group for each
    values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert values["fiss_rounds_finished"] == 5
    assert values["fiss_sent_bytes_total"] == 5 * 9_400_000
    assert values["fiss_images_total"] == 5 * 3 * 60
    assert 'state="unknown"} 3.0' in text
    assert 'run="a \\"fed\\" of\\\\one\\nline"' in text
    assert (
        browser_of(Shelf([own.folder])).get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    )


def test_runs_and_their_pictures(shelf, monkeypatch):
    client, (fbl, other) = browser_of(shelf), shelf.runs.values()
    shelf.refresh()
    assert (fbl.name, fbl.summary()["method"], fbl.summary()["finished"]) == ("fbl", "fbl", True)
    assert client.get(f"/runs/{fbl.id}/config").text.startswith("#")
    columns = client.get(f"/runs/{fbl.id}/strip").json()["columns"]
    assert [head for head, _ in columns] == ["image", "truth", "task 0", "task 1"]
    assert all(tile.startswith("data:image/png;base64,") for _, tiles in columns for tile in tiles)
    monkeypatch.setattr(pictures.Strip, "of", None)  # nothing is drawn twice
    assert client.get(f"/runs/{fbl.id}/strip").json()["columns"] == columns
    table = client.get(f"/compare?run={fbl.id}&run={other.id}").json()
    assert {row[0] for row in table["rows"]} == {"fbl", "finetune"}
    assert client.get("/compare").status_code == 400
    assert "no such run" in client.get("/runs/x/strip").json()["error"]

    data = io.BytesIO()
    Image.fromarray(picture(50, 60)).save(data, "png")
    seen = client.post(f"/runs/{fbl.id}/segment?model=task-1", content=data.getvalue(), headers=OWN).json()
    assert sum(seen["shares"].values()) == pytest.approx(1)
    assert seen["picture"].startswith("data:image/png;base64,")
    for content, model, words in (
        (b"no image", "task-1", "no image"), (data.getvalue(), "task-9", "no model"),
        (data.getvalue(), "../config", "no model"), (b"x" * 20_000_001, "task-1", "20 MB"),
    ):  # fmt: skip
        answer = client.post(f"/runs/{fbl.id}/segment?model={model}", content=content, headers=OWN)
        assert answer.status_code == 400
        assert words in answer.json()["error"]
    monkeypatch.setattr(pictures, "MOST_PIXELS", 2999)
    answer = client.post(f"/runs/{fbl.id}/segment?model=task-1", content=data.getvalue(), headers=OWN)
    assert "60 x 50 pixels are too many" in answer.json()["error"]
    assert client.post(f"/runs/{fbl.id}/segment?model=task-1", content=b"x").status_code == 403


def test_the_report_is_shut_in(shelf, monkeypatch):
    fbl, _ = shelf.runs.values()
    monkeypatch.setattr("fiss.web.app.report.write", lambda paths, out, progress: out.write_text(f"<p>{paths[0].name}"))
    answer = browser_of(shelf).get(f"/report?run={fbl.id}")
    assert answer.text == "<p>fbl"
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts; script-src 'sha256-" in policy  # its own script alone, in a frame of no origin
    assert "same-origin" not in policy
    assert "script-src 'unsafe" not in policy


def test_the_command(tmp_path, monkeypatch, capsys):
    started = []
    monkeypatch.setattr("fiss.web.serve.uvicorn.Server.run", lambda self, sockets: started.append(sockets[0]))
    Simulated(tmp_path / "fed", 2, 1)
    fiss("web", tmp_path, "--port", 0)
    assert re.match(r"1 run at http://127.0.0.1:\d+/\?token=[\w-]{32}\n", capsys.readouterr().out)
    assert started[0].getsockname()[0] == "127.0.0.1"
    port = started[0].getsockname()[1]
    for words, said in (
        ((tmp_path, "--port", port), "is not to be had"), ((tmp_path / "none",), "no such folder"),
        ((tmp_path, "--token", "short"), "16 letters"), ((tmp_path, "--token", "", "--control"), "16 letters"),
        ((tmp_path, "--token", "", "--host", "0.0.0.0"), "16 letters"),
    ):  # fmt: skip
        fiss("web", *words, code=2)
        assert said in capsys.readouterr().err
    started[0].close()
    monkeypatch.setitem(__import__("sys").modules, "fiss.web.serve", None)
    with pytest.raises(UserError, match=r"pip install 'fiss\[web\]'"):
        command.web([tmp_path])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_it(shelf, tmp_path):
    own = Simulated(tmp_path / "runs" / "fed", 12, 5)
    shelf.search()
    port = free_port()
    site = Site(shelf, TOKEN, port, every=0.1, control=True)
    server = uvicorn.Server(uvicorn.Config(make_app(site), port=port, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    rounds = "document.querySelector('#fact-rounds dd span')?.textContent"
    try:
        with Browser(tmp_path / "profile", 390) as page:
            page.open(f"http://127.0.0.1:{port}/?token={TOKEN}")
            page.until(f"{rounds} === '5'")
            assert page.see("document.querySelector('#name').textContent") == "fed"
            page.until("document.querySelector('#strip-note').textContent.includes('no images of its own')", 120)
            own.play(refused={"site-003": "not finite"})  # is seen without being asked for
            page.until(f"{rounds} === '6'")
            page.until("document.querySelector('#warnings li')?.textContent.includes('site-003 was refused')")
            states = "[...document.querySelectorAll('#sites .state')].map(c => c.textContent)"
            assert page.until(states).count("✕ refused") == 1
            assert page.see("document.querySelectorAll('#losses polyline').length") == 2
            assert page.see("document.documentElement.scrollWidth <= innerWidth")  # never scrolls sideways
            (fbl,) = [key for key, run in shelf.runs.items() if run.name == "fbl"]
            page.see(f"location.hash = 'run={fbl}'")
            page.until("document.querySelectorAll('#strip img').length === 12", 120)
            assert page.see("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
            page.see(SEGMENT)
            page.until("document.querySelectorAll('#seen figure img').length === 3", 120)
            page.until("document.querySelector('#seen').textContent.includes(' %')")
            page.open(f"http://127.0.0.1:{port}/report?run={fbl}")
            page.until("document.querySelectorAll('#pictures canvas').length === 9", 120)  # its script may run
            assert not page.complaints
            page.see("console.error('as it would be')")
            page.see("1")
            assert page.complaints
    finally:
        server.should_exit = True
        thread.join(30)
