"""Chromium without a window, spoken to over a pipe: what a page shows, and what it complains of."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)
SEGMENT = (
    "new Promise(made => Object.assign(document.createElement('canvas'), {width: 50, height: 40}).toBlob(made))"
    ".then(image => segment(new File([image], 'x.png')))"
)
"""An image dropped on the page."""


class Browser:
    """One page of a browser; a context."""

    def __init__(self, profile, width=1400, dark=False):
        self.profile, self.width, self.dark = profile, width, dark
        self.numbers, self.complaints, self.rest = itertools.count(1), [], b""

    def __enter__(self):
        (theirs_in, self.out), (self.back, theirs_out) = os.pipe(), os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]

        def pipes():
            saved = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(saved[0], 3)
            os.dup2(saved[1], 4)

        self.process = subprocess.Popen(
            command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for name in ("Page", "Runtime", "Log"):
            self.call(f"{name}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=self.width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if self.dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        os.close(self.out)
        os.close(self.back)

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _message(self):
        while b"\0" not in self.rest:
            assert select.select([self.back], [], [], 120)[0], "the browser does not answer"
            self.rest += os.read(self.back, 1 << 20)
        text, self.rest = self.rest.split(b"\0", 1)
        said = json.loads(text)
        kind, values = said.get("method"), said.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(values["exceptionDetails"])
        if kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.complaints.append(values["args"])
        if kind == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.complaints.append(values["entry"])
        return said

    def open(self, url):
        self.call("Page.navigate", url=url)

    def see(self, script):
        """What a script gives."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script, seconds=60):
        """Wait until a script gives something true; gives it."""
        end = time.monotonic() + seconds
        while not (found := self.see(script)):
            assert time.monotonic() < end, (script, self.complaints, self.see("document.body.innerText"))
            time.sleep(0.1)
        return found

    def picture(self, path):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
