"""What one more round costs the page, with few sites and rounds and with many; the records are simulated.

python tests/support/update_cost.py
"""

import json
import sys
import threading
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import thread_time

import uvicorn

sys.path.insert(0, str(Path(__file__).parent))

from browser import Browser
from ports import free_port, wait_for_port
from records import Simulated

from fiss.web.app import Site, make_app
from fiss.web.shelf import Shelf
from fiss.web.watch import Place

TOKEN, UPDATES = "a-token-that-is-long-enough", 30
DRAW = "hear(%s); draw(); document.body.offsetHeight"


def busy(page: Browser) -> float:
    """Milliseconds of a processor that the page has used so far."""
    return next(
        1000 * one["value"] for one in page.call("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration"
    )


def measure(folder: Path, sites: int, rounds: int) -> list[float]:
    """Medians of an update: bytes read and sent, milliseconds of a processor at the server and in the browser."""
    own, found = Simulated(folder / "fed", sites, rounds), []
    shelf, port = Shelf([folder], least=0), free_port()
    site = Site(shelf, TOKEN, port, every=1e6)  # sends no news of its own
    server = uvicorn.Server(uvicorn.Config(make_app(site), port=port, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        with Browser(folder / "profile") as page:
            wait_for_port(port)
            page.open(f"http://127.0.0.1:{port}/?token={TOKEN}")
            page.until(f"document.querySelector('#fact-rounds dd span')?.textContent === '{rounds}'")
            page.call("Performance.enable", timeDomain="threadTicks")
            (run,) = shelf.runs.values()
            _, place = run.news(Place())
            for _ in range(UPDATES):
                own.play()
                before, began = run.read, thread_time()
                run.refresh()
                sent, place = run.news(place)
                text = json.dumps({"run": {"id": run.id, **sent}}, separators=(",", ":"))
                spent = 1000 * (thread_time() - began)
                drawn = busy(page)
                page.see(DRAW % text)
                found.append((run.read - before, len(text), spent, busy(page) - drawn))
            assert page.see("document.querySelector('#fact-rounds dd span').textContent") == str(rounds + UPDATES)
            assert not page.complaints
    finally:
        server.should_exit = True
        thread.join(30)
    return [median(column) for column in zip(*found, strict=True)]


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        few, many = measure(Path(place) / "few", 3, 10), measure(Path(place) / "many", 100, 1000)
    names = "bytes read", "bytes sent", "milliseconds at the server", "milliseconds of drawing in Chromium"
    print("| | 3 sites, 10 rounds | 100 sites, 1,000 rounds | times |\n| --- | --- | --- | --- |")
    for name, small, large in zip(names, few, many, strict=True):
        digits = 0 if "bytes" in name else 1
        print(f"| {name} | {small:,.{digits}f} | {large:,.{digits}f} | {large / small:.1f} |")
