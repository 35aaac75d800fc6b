"""A federation that is treated badly for many rounds: what happens to it is drawn from a seed.

Sites join late, are killed and come back, lose their disk's space, get new classes, leave and are removed; the server
is killed, and moved to another folder. At the end every round is there, nothing hangs, and the curves of memory and
logs are printed and written down.

    python tests/deployment/soak.py OUT --rounds 60 --sites 6 --seed 1

A site's full disk is a small file system in memory, which needs the rights to mount one (root).
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fiss.config import presets
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import AugmentSpec
from fiss.deployment import provisioning, supervisor
from fiss.deployment.log import LOG
from fiss.federation.spec import FederationSpec
from fiss.methods import find
from fiss.models.segmenter import ModelSpec
from fiss.monitors.rules import MonitorSpec
from fiss.runs.folder import RunFolder

ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "15",
}
DATA = open_dataset(DataSpec("shapes", shapes_train=400, shapes_val=4, shapes_size=32))
GROUPS = ((1, 2, 3), (4, 5), (6, 7), (8, 9))


def settings(clients: int) -> presets.Config:
    """A network so small that a round is mostly what surrounds training."""
    options = {
        "encoder_depth": 3,
        "encoder_output_stride": 16,
        "decoder_channels": 16,
        "decoder_atrous_rates": (1, 2, 3),
    }
    plain = presets.preset("shapes")
    return replace(
        plain,
        name="federation",
        method=find("fbl"),
        model=ModelSpec("deeplabv3plus", "resnet18", "none", options),
        augment=AugmentSpec(crop=32),
        training=replace(plain.training, epochs=1, batch=4, threads=1, first_rate=0.05),
        monitor=MonitorSpec("images", probed="all"),
        world=replace(plain.world, per_round=clients, clients=clients),
        federation=FederationSpec(patience=300, quorum=1.0),  # sites start anew with each job, also on a loaded machine
    )


class Soak:
    """The federation, and what is done to it."""

    def __init__(self, out: Path, rounds: int, sites: int, seed: int) -> None:
        self.out, self.rounds, self.random = out.absolute(), rounds, random.Random(seed)
        self.names = [f"site{n}" for n in range(sites)]
        self.there = self.names[: max(2, sites - 2)]
        self.group = 0
        self.folder = self.out / "fed"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.curves: list[dict[str, float]] = []
        self.peak: dict[str, float] = {}
        self.events: list[str] = []
        self.spans: dict[str, list[int]] = {}
        """From which round on a site must be heard of again, and from which on never again."""
        self.disk: Path | None = None

    def happened(self, what: str) -> None:
        """Written down, and said."""
        line = f"round {self.done():3d}  {what}"
        self.events.append(line)
        print(line, flush=True)

    def done(self) -> int:
        """Finished rounds."""
        run = self.folder / "run"
        return supervisor.finished_rounds(RunFolder(run)) if (run / "state.json").is_file() else 0

    # What a federation is made of

    def images(self, name: str) -> None:
        """A site's folder with images of the present classes, in place of what was there."""
        folder, n = self.out / name, self.names.index(name)
        for kind in ("images", "masks"):
            shutil.rmtree(folder / kind, ignore_errors=True)
            (folder / kind).mkdir(parents=True)
        (folder / "classes.txt").write_text("\n".join(DATA.classes) + "\n")
        for i in range(60 * self.group + 8 * n, 60 * self.group + 8 * n + 8):
            image, mask = DATA.train.read(i)
            mask = np.where(np.isin(mask, GROUPS[self.group]), mask, 0).astype(np.uint8)
            Image.fromarray(mask).save(folder / "masks" / f"scan{i:03d}.png")
            Image.fromarray(image).save(folder / "images" / f"scan{i:03d}.png")

    def start(self, name: str) -> None:
        """A server's or site's kit, as start.sh does: FLARE's process may fail at its first start on a busy machine."""
        kit = self.folder / "kits" / name
        (kit / "shutdown.fl").unlink(missing_ok=True)
        if name != "localhost":
            (kit / "site.toml").write_text(f'data = "{self.out / name}"\ndevice = "cpu"\nscore = 0.25\n')
        with (self.out / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["bash", str(kit / "startup" / "sub_start.sh")], stdout=log, stderr=log, env=ENVIRONMENT
            )

    def kill(self, name: str) -> None:
        """With everything that it started."""
        for pid in self.of(self.folder / "kits" / name):
            os.kill(pid, signal.SIGKILL)
        if process := self.processes.pop(name, None):
            process.wait()

    @staticmethod
    def of(folder: Path) -> list[int]:
        """Processes whose command names that folder."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode() + " "
            except (OSError, UnicodeDecodeError):
                continue
            if process.name.isdigit() and (f"{folder}/" in words or f"{folder} " in words):
                found.append(int(process.name))
        return found

    def supervise(self) -> None:
        """`fiss federation run`."""
        words = ["-m", "fiss", "federation", "run", str(self.folder), "--rounds", str(self.rounds), "--sites", "2"]
        with (self.out / "run.log").open("ab") as log:
            self.supervisor = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, env=ENVIRONMENT)

    # What happens to it

    def a_site_is_killed(self) -> None:
        """And comes back after a while."""
        name = self.random.choice([n for n in self.there if n in self.processes])
        self.kill(name)
        away = self.random.uniform(0, 20)
        self.happened(f"{name} killed, back in {away:.0f} s")
        time.sleep(away)
        self.start(name)

    def the_server_is_killed(self) -> None:
        """And comes back."""
        self.kill("localhost")
        self.happened("server killed and started again")
        self.start("localhost")

    def a_site_joins(self) -> None:
        """One that was not there before."""
        name = self.names[len(self.there)]
        self.there = [*self.there, name]
        provisioning.add(self.folder, name)
        self.images(name)
        self.start(name)
        self.spans[name] = [self.done(), self.rounds]
        self.happened(f"{name} joins")

    def new_classes(self) -> None:
        """In the folders of all."""
        self.group += 1
        for name in self.there:
            self.images(name)
        self.happened(f"new classes {', '.join(DATA.classes[i - 1] for i in GROUPS[self.group])}")

    def a_disk_is_full(self) -> None:
        """A site can write nothing."""
        name = self.there[0]
        self.kill(name)
        self.disk = self.folder / "kits" / name / "fiss"
        self.disk.mkdir(exist_ok=True)
        kept = {path.name: path.read_bytes() for path in self.disk.iterdir() if path.is_file()}
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(self.disk)], check=True)
        for file, content in kept.items():
            (self.disk / file).write_bytes(content)
        try:
            (self.disk / "filler").write_bytes(b"\0" * 2**20)
        except OSError:
            self.happened(f"the disk of {name} is full")
        self.start(name)

    def the_disk_has_space_again(self) -> None:
        """And the site takes part again."""
        assert self.disk is not None
        (self.disk / "filler").unlink()
        self.spans[self.there[0]] = [self.done(), self.rounds]
        self.happened("the disk has space again")

    def the_server_moves(self) -> None:
        """To another folder, with all kits; everything is started again there."""
        supervisor.stop(self.folder)
        assert self.supervisor is not None
        self.supervisor.wait(300)
        for name in list(self.processes):
            self.kill(name)
        self.close()
        self.folder = self.folder.rename(self.out / "moved")
        self.happened("moved to another folder")
        for name in ("localhost", *self.there):
            self.start(name)
        self.supervise()

    def a_site_is_removed(self) -> None:
        """For good."""
        name = self.there[1]
        subprocess.run(
            [sys.executable, "-m", "fiss", "federation", "remove", str(self.folder), name], env=ENVIRONMENT, check=True
        )
        self.there = [n for n in self.there if n != name]
        self.spans[name] = [0, self.done() + 1]  # the present round may still count
        self.happened(f"{name} removed")

    def a_site_leaves(self) -> None:
        """By itself, for good, after the present round."""
        name = self.there[-1]
        subprocess.run(
            [sys.executable, "-m", "fiss", "federation", "leave", str(self.folder), name], env=ENVIRONMENT, check=True
        )
        self.there = [n for n in self.there if n != name]
        self.spans[name][1] = self.done() + 1
        self.happened(f"{name} left")

    def close(self) -> None:
        """Give back the small file system."""
        if self.disk is not None:
            subprocess.run(["umount", str(self.disk)], check=False)
            self.disk = None

    # The whole

    def sides(self) -> tuple[tuple[str, Path], ...]:
        """Whose memory and logs are followed: the server and the first site."""
        return ("server", self.folder / "kits" / "localhost"), ("site", self.folder / "kits" / self.names[0])

    def watch(self) -> None:
        """The most memory of the server's and of a site's processes since the last round."""
        for name, folder in self.sides():
            used = sum(resident(pid) for pid in self.of(folder))
            self.peak[f"{name}_mb"] = max(self.peak.get(f"{name}_mb", 0.0), used)

    def measure(self) -> None:
        """After a round: that memory, and what logs and consoles weigh, with those of old jobs."""
        point: dict[str, float] = {"round": self.done(), "seconds": time.time(), **self.peak}
        self.peak = {}
        for name, folder in self.sides():
            logs = [path for path in folder.rglob("*") if "log" in path.name or path.suffix == ".txt"]
            logs += [self.out / f"{folder.name}.log"] + ([self.folder / "run" / LOG] if name == "server" else [])
            point[f"{name}_logs_mb"] = sum(path.stat().st_size for path in logs if path.is_file()) / 1e6
        self.curves.append(point)

    def play(self) -> None:
        """Everything, at rounds that the seed draws."""
        provisioning.init(self.folder, settings(len(self.names)), "localhost", self.there, 21500)
        for name in self.there:
            self.images(name)
        for name in ("localhost", *self.there):
            self.start(name)
        self.supervise()
        share = lambda part: round(part * self.rounds)  # noqa: E731
        once = {
            share(0.1): self.a_site_joins, share(0.2): self.new_classes, share(0.3): self.a_site_joins,
            share(0.38): self.a_disk_is_full, share(0.47): self.the_disk_has_space_again,
            share(0.55): self.new_classes, share(0.65): self.the_server_moves, share(0.75): self.a_site_is_removed,
            share(0.8): self.a_site_leaves, share(0.85): self.new_classes,
        }  # fmt: skip
        often = self.random.sample(range(2, self.rounds - 2), max(1, self.rounds // 10))
        due = [*once.items(), *((at, self.a_site_is_killed) for at in often), (share(0.5), self.the_server_is_killed)]
        due.sort(key=lambda pair: pair[0])
        last, since = -1, time.monotonic()
        while (done := self.done()) < self.rounds:
            while due and due[0][0] <= done:
                due.pop(0)[1]()
            self.watch()
            if done != last:
                self.measure()
                last, since = done, time.monotonic()
            assert time.monotonic() - since < 1200, f"no round for twenty minutes after round {done}"
            time.sleep(1)
        assert self.supervisor is not None
        self.happened(f"`run` ended with {self.supervisor.wait(120)}")

    def report(self) -> None:
        """The curves, by tenths of the rounds, and the records held against each other."""
        records = RunFolder(self.folder / "run").rounds()
        assert [record.round for record in records] == list(range(1, self.rounds + 1)), (
            "a round is missing or there twice"
        )
        assert all(record.replies for record in records), "a round without any answer"
        for name, (since, until) in self.spans.items():
            took = [record.round - 1 for record in records if name in [reply.client for reply in record.replies]]
            assert since >= until - 2 or any(since <= n < until for n in took), f"{name} was never heard of again"
            assert all(n <= until for n in took), f"{name} took part though it was gone"
        print("| round | server, MB | a site, MB | the server's logs, MB | a site's logs, MB |")
        parts = [
            self.curves[i : i + max(1, self.rounds // 10)] for i in range(0, self.rounds, max(1, self.rounds // 10))
        ]
        for part in filter(None, parts):
            most = {key: max(point.get(key, 0.0) for point in part) for key in part[-1]}
            print(
                f"| {most['round']:.0f} | {most['server_mb']:.0f} | {most['site_mb']:.0f} "
                f"| {most['server_logs_mb']:.2f} | {most['site_logs_mb']:.2f} |"
            )
        (self.out / "soak.json").write_text(json.dumps({"events": self.events, "curves": self.curves}, indent=1))
        print(f"classes at the end: {', '.join(records[-1].class_names)}")


def resident(pid: int) -> float:
    """Megabytes of memory of a process."""
    try:
        words = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    except (OSError, IndexError):
        return 0.0
    return int(words[0]) / 1024


def main() -> None:
    """Play it, and end every process whatever happens."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    words.out.mkdir(parents=True)
    soak = Soak(words.out, words.rounds, words.sites, words.seed)
    try:
        soak.play()
        soak.report()
    finally:
        for pid in soak.of(soak.folder):
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        soak.close()


if __name__ == "__main__":
    main()
