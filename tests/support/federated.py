"""What tests of a real federation share: its config, its sites and what lies in their folders."""

import json
import shutil
from dataclasses import replace

import numpy as np
from PIL import Image
from worlds import TINY_NETWORK

from fiss.config import presets
from fiss.data.sources import DataSpec, open_dataset
from fiss.data.transforms import AugmentSpec
from fiss.deployment.site import SiteClient
from fiss.deployment.site_config import read_site
from fiss.federation import wire
from fiss.federation.spec import FederationSpec
from fiss.methods import find
from fiss.monitors.rules import MonitorSpec
from fiss.progress import Progress

DATA = open_dataset(DataSpec("shapes", shapes_train=96, shapes_val=4, shapes_size=32))


def config(**federation):
    plain = presets.preset("shapes")
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


class Local:
    """The same sites in this process."""

    def __init__(self, site_clients):
        self.site_clients, self.missing, self.late, self.acknowledged = site_clients, {}, {}, {}
        self.traffic = (0, 0)

    def probe(self, probes):
        for probe in probes:
            yield wire.to_probe_result(self._carried(probe.client, wire.from_probe(probe)))[0]

    def ask(self, orders):
        for order in orders:
            yield wire.to_reply(self._carried(order.client, wire.from_order(order)))[0]

    def _carried(self, client, message):
        answer = self.site_clients[client](message)
        self.traffic = (self.traffic[0] + message.size, self.traffic[1] + answer.size)
        return answer


class Carried:
    """The transport to sites in this process, and what went to them."""

    def __init__(self, site_clients):
        self.site_clients, self.messages = site_clients, []
        self.sent = self.received = 0

    def exchange(self, messages, read, quorum, patience, silent=tuple):
        for site, message in messages:
            self.messages.append(message)
            self.sent += message.size
            answer = self.site_clients[site](message)
            self.received += answer.size
            yield site, read(site, answer)


def final(run):
    name = json.loads((run.path / "state.json").read_bytes())["weights"]
    return run.read_weights(name)


def site_client(tmp_path, settings, name="a", workers=0, score=0.0):
    kit = tmp_path / "kits" / name
    kit.mkdir(parents=True)
    (kit / "site.toml").write_text(
        f'data = "{tmp_path / name}"\ndevice = "cpu"\nworkers = {workers}\nscore = {score}\n'
    )
    return SiteClient(kit / "fiss", settings, read_site(kit / "site.toml"), Progress())
