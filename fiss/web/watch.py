"""What the page knows of a run: kept up to date from what is appended to its logs, ready to be sent.

A round is a few short keys, so that a thousand of them are a small message: r round, k task, s seconds, l losses, t who
trained, h images they hold, p who passed to new classes, m who took no part, f whose update was refused, c new classes,
b who brought them, d and u bytes to and from the sites. Sites are numbers in the order in which they appeared.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from fiss.config.config import Config
from fiss.config.presets import label
from fiss.deployment import certificates
from fiss.deployment.job_status import JOB, SEEN, JobStatus, Seen
from fiss.deployment.log import LOG
from fiss.deployment.provisioning import DISABLED, Project, config_of, disabled_sites, read_project
from fiss.deployment.server import STOP
from fiss.deployment.status import site_state, warnings
from fiss.errors import UserError
from fiss.runs.counting import Counting
from fiss.runs.folder import RunFolder
from fiss.runs.records import Client, RoundRecord, ScoreRecord, read_rounds, read_scores
from fiss.runs.tail import Tail

STATE = re.compile(rb'"(next_round|finished|weights)": ("[^"]*"|\w+)')
"""What is looked for in the first bytes of state.json, which may be long."""
LINES_KEPT = 200


def name_of(client: Client) -> str:
    """A site by its name, a simulated client by its number."""
    return f"client {client}" if isinstance(client, int) else client


@dataclass(frozen=True)
class Place:
    """How far a reader has come."""

    life: int = -1
    """A log that was cut back begins a new one, and so does a reader."""
    rounds: int = 0
    scores: int = 0
    lines: int = 0
    now: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Totals:
    """What the metrics sum up over all rounds."""

    seconds: float = 0.0
    sent: int = 0
    received: int = 0
    images: int = 0
    refused: int = 0
    missing: int = 0


@dataclass(eq=False)
class WatchedRun:
    """One run folder, and the federation it belongs to, if it does."""

    path: Path
    federation: Path | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    now: dict[str, Any] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    last: RoundRecord | None = None
    problem: str = ""

    def __post_init__(self) -> None:
        self.id = sha256(str(self.path.absolute()).encode()).hexdigest()[:12]
        self.tails = [Tail(self.path / name) for name in ("rounds.jsonl", "scores.jsonl", LOG)]
        self.sites: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.classes: list[str] = []
        self.life = self.logged = 0
        self._small: dict[Path, tuple[object, Any]] = {}

    @property
    def read(self) -> int:
        """Bytes of logs that were read so far."""
        return sum(tail.read for tail in self.tails)

    @property
    def config(self) -> Config:
        """What it goes by: its own, or before its first round the federation's."""
        path = self.path / "config.toml"
        if self.federation is None or path.is_file():
            found: Config = self._unchanged(path, lambda path: RunFolder.open(path.parent).config())
        else:
            found = self._unchanged(self.federation / "federation.toml", lambda path: config_of(path.parent))
        return found

    @property
    def name(self) -> str:
        """What people call it."""
        return (self.federation or self.path).name

    def refresh(self) -> None:
        """Read what was appended since the last time."""
        try:
            news = [tail.lines() for tail in self.tails]
            if any(began for began, _ in news[:2]):  # both logs are cut together
                for tail in self.tails[:2]:
                    tail.begin()
                self._forget()
                news = [tail.lines() for tail in self.tails[:2]] + news[2:]
            first = Counting(self.path).first
            self.rounds += [self._round(json.loads(line), first) for line in news[0][1]]
            self.scores += [self._score(json.loads(line), first) for line in news[1][1]]
            lines = [line.decode(errors="replace") for line in news[2][1]]
            self.lines = [*self.lines, *lines][-LINES_KEPT:]
            self.logged += len(lines)
        except (OSError, ValueError, UserError) as error:
            self.problem = f"its records cannot be read: {error}"
        self.now = self._now()

    def news(self, place: Place) -> tuple[dict[str, Any], Place]:
        """What a reader who has come that far does not know yet, and how far that is."""
        here = Place(self.life, len(self.rounds), len(self.scores), self.logged, self.now)
        anew = place.life != self.life
        if anew:
            place = Place()
        found = {
            "anew": anew,
            "rounds": self.rounds[place.rounds :],
            "scores": self.scores[place.scores :],
            "lines": self.lines[-(self.logged - place.lines) :] if self.logged > place.lines else [],
            "now": _changes(place.now, self.now),
        }
        return {key: value for key, value in found.items() if value}, here

    def summary(self) -> dict[str, Any]:
        """A line in the list of runs."""
        score = self.scores[-1] if self.scores else {}
        return {
            "id": self.id,
            "name": self.name,
            "path": str(self.federation or self.path),
            "federation": self.federation is not None,
            "method": label(self.config),
            "seed": self.config.seed,
            "round": self.now.get("next", 0),
            "finished": self.now.get("finished", False),
            "miou": score.get("miou"),
            "warnings": len(self.now.get("warnings", ())),
        }

    def _forget(self) -> None:
        self.life += 1
        self.rounds, self.scores, self.sites, self.held, self.classes = [], [], {}, {}, []
        self.totals, self.last, self.problem = Totals(), None, ""

    def _round(self, line: dict[str, Any], first: int) -> dict[str, Any]:
        (record,) = read_rounds([line], str(self.path / "rounds.jsonl"), first)
        self.last = record
        replies = [reply for reply in record.replies if reply.images]
        moved = [probe.client for probe in record.probes or () if probe.transition]
        moved += [reply.client for reply in record.replies if reply.transition and reply.client not in moved]
        held = {name_of(reply.client): reply.images for reply in replies}
        found: dict[str, Any] = {"r": record.round, "k": record.task, "s": record.seconds}
        if record.images_per_second:
            found["v"] = record.images_per_second
        before = len(self.sites)
        found |= {
            "l": {name: round(value, 5) for name, value in record.losses.items()},
            "t": [self._site(name) for name in held],
            "h": {self._site(name): n for name, n in held.items() if self.held.get(name) != n},
            "p": [self._site(name_of(client)) for client in moved],
            "m": {self._site(name): why for name, why in (record.missing or {}).items()},
            "f": {self._site(name_of(_number(name))): why for name, why in record.refused.items()},
        }
        found |= self._grown(record.class_names or ())
        if record.brought:
            found["b"] = {name: [self._site(site) for site in sites] for name, sites in record.brought.items()}
        if record.sent is not None:
            found |= {"d": record.sent, "u": record.received or 0}
        self.held |= held
        found["new"] = list(self.sites)[before:]
        sums = self.totals
        sums.seconds += record.seconds
        sums.sent += record.sent or 0
        sums.received += record.received or 0
        sums.images += sum(reply.samples for reply in replies)
        sums.refused += len(record.refused)
        sums.missing += len(record.missing or ())
        return {key: value for key, value in found.items() if value not in ([], {})}

    def _score(self, line: dict[str, Any], first: int) -> dict[str, Any]:
        view = self.config.evaluation.views[0]
        (record,) = read_scores([line], str(self.path / "scores.jsonl"), view, first)
        keys = ("round", "task", "view", "miou", "old", "new", "base", "forgetting")
        found = {key: value for key in keys if (value := getattr(record, key)) is not None}
        found["iou"] = {name: round(v, 1) for name, v in record.iou.items() if v is not None}
        found["ends"] = line.get("ends_task")
        return found | self._grown(tuple(name for name in _learnt(record) if name != "background"))

    def _grown(self, names: Sequence[str]) -> dict[str, Any]:
        new = [name for name in names if name not in self.classes]
        self.classes += new
        return {"c": new} if new else {}

    def _site(self, name: str) -> int:
        return self.sites.setdefault(name, len(self.sites))

    def _now(self) -> dict[str, Any]:
        """What does not grow: where the run stands at this moment."""
        found: dict[str, Any] = {"next": len(self.rounds), "finished": False}
        found |= self._unchanged(self.path / "state.json", _stands)
        found["models"] = self._unchanged(self.path / "weights", _models)
        run = RunFolder(self.path)
        job = self._unchanged(self.path / JOB, lambda _: JobStatus.read(run)) if self.federation else JobStatus()
        problems = [self.problem] if self.problem else []
        try:
            problems += warnings(self.federation or self.path, job, self.last)
        except OSError as error:
            problems.append(str(error))
        if self.federation is not None:
            seen = self._unchanged(self.path / SEEN, lambda _: Seen.read(self.path))
            connected = seen.connected if seen.fresh else None
            project = self._unchanged(self.federation / "project.yml", lambda path: _project(path.parent))
            members, server = (project.sites, project.server) if project else ((), "")
            gone = self._unchanged(self.federation / "kits" / server / DISABLED, self._removed)
            ends = self._unchanged(self.federation / certificates.STATE, self._certificates)
            problems += certificates.warnings(self.federation, ends, gone)
            found |= {
                "round": job.round + 1,
                "doing": job.doing if job.waiting else "",
                "waiting": len(job.waiting),
                "since": job.since,
                "supervised": seen.fresh,
                "stopping": (self.path / STOP).exists(),
                "sites": {
                    name: site_state(name, job, connected, self.last, gone)
                    for name in dict.fromkeys([*members, *self.sites])
                },
                "certificates": {name: f"{end:%Y-%m-%d}" for name, end in ends.items() if name in members},
            }
        return found | {"warnings": problems}

    def _removed(self, _: Path) -> Sequence[str]:
        try:
            return disabled_sites(self.federation) if self.federation else ()
        except UserError:
            return ()

    def _certificates(self, _: Path) -> Mapping[str, datetime]:
        """Until when they are valid; none where provision/ or the package that reads them is elsewhere."""
        try:
            return certificates.valid_until(self.federation) if self.federation else {}
        except (UserError, ImportError):
            return {}

    def _unchanged(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """What `read` gives; asked again only when the file has changed."""
        try:
            stat = path.stat()
            mark: object = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError:
            mark = None
        if path not in self._small or self._small[path][0] != mark:
            self._small[path] = mark, read(path)
        return self._small[path][1]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any] | None:
    """The keys that are different; of the sites those."""
    found = {key: value for key, value in now.items() if before.get(key) != value}
    if "sites" in found:
        old = before.get("sites", {})
        found["sites"] = {name: state for name, state in found["sites"].items() if old.get(name) != state}
    return found or None


def _stands(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = {key.decode(): json.loads(value) for key, value in STATE.findall(file.read(600))}
        return {"next": found["next_round"], "finished": found["finished"], "model": found["weights"]}
    except (OSError, ValueError, KeyError):
        return {}  # no round is finished yet


def _models(path: Path) -> list[str]:
    return sorted(file.stem for file in path.glob("*.safetensors"))


def _number(name: str) -> Client:
    return int(name) if name.isdecimal() else name


def _learnt(record: ScoreRecord) -> list[str]:
    return [name for name, value in record.iou.items() if value is not None]


def _project(federation: Path) -> Project | None:
    try:
        return read_project(federation)
    except UserError:
        return None
