"""The run folder: what is in it, and how it survives being killed at any moment.

Every file is written beside its place and moved there in one step. `state.json` is written last in a round and says
how long the two logs are and which weights belong to it, with their digests; whatever lies beyond that is from a round
that did not finish, and is cut off on resume.

    config.toml     the complete config            splits.json    who was selected, who held which images
    rounds.jsonl    one line per round             scores.jsonl   one line per evaluation
    changes.jsonl   what was changed in the config since, in a real federation
    state.json      where the run stands, and every client's memory
    origin.json     program, machine and time, for each time it was begun or gone on with
    ledger-N.safetensors    sums by client, where features are added up
    weights/        task-T.safetensors after each task, round-R.safetensors for the last rounds, from 1,
                    after-R: the model after R rounds, where it is somebody's teacher
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fiss.config.config import Config, read_toml, to_toml
from fiss.config.identity import config_digest
from fiss.errors import UserError, writing
from fiss.federation.messages import Memory, Server, Snapshot
from fiss.labels import LabelSpace
from fiss.models.classifier import Weights
from fiss.runs.changes import with_changes
from fiss.runs.counting import FORMAT, Counting
from fiss.runs.files import cut, flush
from fiss.runs.files import write_atomically as write_atomically
from fiss.runs.lock import locked
from fiss.runs.records import (
    Records,
    RoundRecord,
    ScoreRecord,
    Splits,
    from_json,
    read_rounds,
    read_scores,
    renumbered,
    to_json,
)
from fiss.runs.sums import SumsFiles, remembered

LOGS = ("rounds.jsonl", "scores.jsonl")


@dataclass(frozen=True)
class State:
    """Where a run stands between two rounds."""

    next_round: int
    server: Server
    memories: dict[int, Memory]
    finished: bool


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sums = SumsFiles(path)
        self.counting = Counting(path)

    @classmethod
    def create(cls, path: Path, config: Config) -> "RunFolder":
        """A new run folder that holds its config; an existing one is never written into."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(
                f"{path} is there already and is not written over: `fiss resume {path}` goes on with it, "
                "--out names another."
            )
        part = path.with_name(f"{path.name}.{os.getpid()}.part")  # made beside its place: it is whole or not there
        try:
            if part.exists():
                shutil.rmtree(part)
            (part / "weights").mkdir(parents=True)
            write_atomically(part / "config.toml", to_toml(config).encode())
            part.replace(path)
        except OSError as error:
            raise UserError(f"{path}: the run folder cannot be made ({error}).") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder."""
        if not (path / "config.toml").is_file():
            why = " is not a run folder: it has no config.toml." if path.exists() else ": there is no such folder."
            raise UserError(f"{path}{why}")
        return cls(path)

    @property
    def deployed(self) -> bool:
        """Whether the folder is a real federation's."""
        return (self.path / "sites.json").is_file()

    def config(self) -> Config:
        """The config the run was started with, and what was changed in it since."""
        return with_changes(self._begun(), self.path)

    def _begun(self) -> Config:
        return read_toml(self.path / "config.toml")

    def locked(self) -> AbstractContextManager[None]:
        """Only one process works in a run folder."""
        message = f"{self.path}: another process is working in it; wait for it, or stop it."
        return locked(self.path / "config.toml", message)

    # Splits

    def splits(self) -> Splits | None:
        """Who was selected, who held what; None in a real federation, where nobody knows that."""
        path = self.path / "splits.json"
        if self.deployed and not path.is_file():
            return None
        try:
            splits: Splits = from_json(Splits, json.loads(path.read_bytes()), str(path))
            return renumbered(splits, 1 - self.counting.first)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: missing, damaged or foreign ({error}).") from error

    def write_splits(self, splits: Splits) -> None:
        """Keep the splits, or make sure that they are those the run began with."""
        stored, path = to_json(renumbered(splits, self.counting.first - 1)), self.path / "splits.json"
        data = json.dumps(stored, separators=(",", ":")).encode()
        if not path.is_file():
            write_atomically(path, data)
        elif path.read_bytes() != data:
            raise UserError(
                f"{path}: the data set, or the draws from it, are not those this run began with; results would not "
                "belong together. Restore the data, or start a new run."
            )

    # Origin

    def origins(self) -> list[dict[str, Any]]:
        """Which program on which machine worked in it, and when; none where that was not kept or cannot be read: no
        result depends on it."""
        try:
            found = json.loads((self.path / "origin.json").read_bytes())
        except (OSError, ValueError):
            return []
        return [record for record in found if isinstance(record, dict)] if isinstance(found, list) else []

    def add_origin(self, record: Mapping[str, Any]) -> None:
        """One more that works in it."""
        write_atomically(self.path / "origin.json", json.dumps([*self.origins(), record], indent=1).encode())

    # Logs

    def append(self, log: str, record: RoundRecord | ScoreRecord) -> None:
        """One more line; it counts once the state is committed."""
        stored = replace(record, round=record.round - 1 + self.counting.first)
        line, path = json.dumps(to_json(stored), allow_nan=False), self.path / log
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def rounds(self, finished: bool = False) -> Records[RoundRecord]:
        """Every round; `finished`: only those that count, while somebody else works in the folder."""
        return read_rounds(self.records("rounds.jsonl", finished), str(self.path / "rounds.jsonl"), self.counting.first)

    def scores(self, finished: bool = False) -> Records[ScoreRecord]:
        """Every evaluation; `finished`: only those that count."""
        lines = self.records("scores.jsonl", finished)
        view = self.config().evaluation.views[0] if lines else ""
        return read_scores(lines, str(self.path / "scores.jsonl"), view, self.counting.first)

    def ends(self, view: str = "") -> Records[ScoreRecord]:
        """The evaluations after each task, in one view or in all."""
        return Records(score for score in self.scores() if score.ends_task and view in ("", score.view))

    def records(self, log: str, finished: bool = False) -> list[Any]:
        """The lines of a log as plain values, as they stand there."""
        path = self.path / log
        try:
            text = path.read_bytes() if path.is_file() else b""
            if finished:
                text = text[: self._record().get("lengths", {}).get(log, 0)]
            return [json.loads(line) for line in text.decode().split("\n") if line]
        except ValueError as error:
            raise UserError(f"{path}: damaged or foreign ({error}).") from error

    # State

    def commit(self, state: State, weights: str, keep: int) -> None:
        """Make a finished round count. `weights` names where its model goes."""
        server, digests = state.server, self.digests()
        digests[weights] = self.write_weights(weights, server.label_space, server.weights)
        kept = {snapshot.name: snapshot for snapshot in (*server.before, *server.teachers.values()) if snapshot}
        for name, snapshot in kept.items():
            if name not in digests or not self._weights(name).is_file():
                digests[name] = self.write_weights(name, snapshot.label_space, snapshot.weights)
        there = {path.stem: path for path in sorted((self.path / "weights").glob("*.safetensors"))}
        old = [name for name in there if name.startswith("round-")][:-keep]
        taught = [name for name in there if name.startswith(("after-", "before-"))]  # as earlier versions called them
        old += [name for name in taught if name not in kept]  # nobody's teacher any more
        record: dict[str, Any] = {
            "format": self.counting.format,
            "next_round": state.next_round,
            "finished": state.finished,
            "config": config_digest(self._begun()),
            "weights": weights,
            "sha256": digests[weights],
            "digests": {name: digests[name] for name in there if name in digests and name not in old},
            "before": [snapshot.name if snapshot else None for snapshot in server.before],
            "taught": {str(client): snapshot.name for client, snapshot in sorted(server.teachers.items())},
            "lengths": {log: flush(self.path / log) for log in LOGS},
            "memories": {str(client): remembered(memory) for client, memory in sorted(state.memories.items())},
        }
        if server.collected is not None:
            record["collected"] = self.sums.write(server.collected, state.next_round)
        write_atomically(self.path / "state.json", json.dumps(record, indent=1).encode())
        for name in old:
            there[name].unlink()
        self.sums.clear(record.get("collected", {}))

    def restore(self) -> State | None:
        """The last finished round, logs cut to it; None if no round was finished."""
        path = self.path / "state.json"
        if not path.is_file():
            rounds = self.path / "rounds.jsonl"
            if rounds.is_file() and rounds.read_bytes().count(b"\n") > 1:  # the first may be unfinished
                raise UserError(f"{path} is gone, but rounds were finished: restore it, or start a new run elsewhere.")
            for log in LOGS:
                (self.path / log).unlink(missing_ok=True)
            return None
        try:
            record = json.loads(path.read_bytes())
            if record["format"] not in range(1, FORMAT + 1):
                raise UserError(f"{path}: format {record['format']}, this fiss reads formats up to {FORMAT}.")
            if record["config"] != config_digest(self._begun()):
                raise UserError(
                    f"{self.path / 'config.toml'} was changed after the run began; rounds would not belong together. "
                    "Undo that, or start a new run with the changed file."
                )
            lengths = {log: int(record["lengths"][log]) for log in LOGS}
            known = {f.name for f in fields(Memory)}  # earlier versions remembered other things too
            memories = {
                int(client): Memory(**{k: v for k, v in memory.items() if k in known})
                for client, memory in record["memories"].items()
            }
            next_round, finished = int(record["next_round"]), bool(record["finished"])
            name = str(record["weights"])
            before = list(record.get("before", ()))
            if record.get("teacher"):  # earlier versions kept that of announced tasks apart
                before = [*before, record["teacher"]]
            taught = {int(client): str(kept) for client, kept in record.get("taught", {}).items()}
            collected = self.sums.read(record["collected"]) if "collected" in record else None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: damaged or foreign ({type(error).__name__}: {error}).") from error
        model = self.read_weights(name)
        for log, length in lengths.items():
            cut(self.path / log, length)
        kept = {known: self.read_weights(known) for known in {*before, *taught.values()} if known}
        server = Server(
            model.label_space,
            model.weights,
            tuple(kept[known] if known else None for known in before),
            {client: kept[known] for client, known in taught.items()},
            collected,
        )
        self.sums.clear(record.get("collected", {}))
        return State(next_round, server, memories, finished)

    def finished(self) -> bool:
        """Whether the last round has been played."""
        return bool(self._record().get("finished"))

    def stands(self) -> tuple[int, dict[str, int]]:
        """How many rounds count, and how long the logs are with them; it costs the same after a thousand rounds."""
        record = self._record()
        return int(record.get("next_round", 0)), {log: record.get("lengths", {}).get(log, 0) for log in LOGS}

    def _record(self) -> dict[str, Any]:
        """What state.json says, nothing if it cannot be read."""
        try:
            return dict(json.loads((self.path / "state.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    # Weights

    def digests(self) -> dict[str, str]:
        """Digests of the models that are kept, by name; earlier versions knew the last one's and the teachers'."""
        record = self._record()
        last = {record["weights"]: record["sha256"]} if {"weights", "sha256"} <= record.keys() else {}
        return {str(name): str(digest) for name, digest in {**record.get("digests", {}), **last}.items()}

    def write_weights(self, name: str, label_space: LabelSpace, weights: Weights) -> str:
        """Write a model; gives its digest."""
        from safetensors.torch import save

        about = json.dumps({"format": 1, "label_space": label_space.groups})
        # One key only: the library writes several in random order, and equal models would differ in their bytes.
        data = save({k: v.cpu().contiguous() for k, v in weights.items()}, metadata={"fiss": about})
        write_atomically(self._weights(name), data)
        return hashlib.sha256(data).hexdigest()

    def read_weights(self, name: str) -> Snapshot:
        """A model of this run: its weights, and the label space that rebuilds it."""
        path = self._weights(name)
        if not path.is_file():
            there = sorted(p.stem for p in path.parent.glob("*.safetensors"))
            raise UserError(f"{path}: there is no such model. This run has: {', '.join(there) or 'none yet'}.")
        return read_model(path)

    def last_models(self) -> dict[int, str]:
        """By task the name of the model after it; in a real federation by group of classes, the present one last."""
        stems = (path.stem for path in (self.path / "weights").glob("task-*.safetensors"))
        found = dict(sorted((int(stem.removeprefix("task-")), stem) for stem in stems))
        if self.deployed and (record := self._record()):
            found = dict(enumerate([*filter(None, record.get("before", ())), str(record["weights"])]))
        if not found:
            raise UserError(f"{self.path}: no task is finished yet, so there is no model to look at.")
        return found

    def _weights(self, name: str) -> Path:
        return self.path / "weights" / f"{name}.safetensors"


def read_model(path: Path) -> Snapshot:
    """A model file of ours; one in a run folder is checked against its digest, where that is known."""
    from safetensors import SafetensorError, safe_open

    digest = RunFolder(path.parent.parent).digests().get(path.stem) if path.parent.name == "weights" else None
    try:
        if digest is not None and hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise UserError(f"{path}: damaged, its digest is not the one in state.json; restore it from a copy.")
        with safe_open(path, framework="pt") as file:
            about = (file.metadata() or {}).get("fiss")
            if about is None:
                raise UserError(f"{path}: not a model that fiss wrote (no label space in it).")
            label_space = LabelSpace(tuple(tuple(group) for group in json.loads(about)["label_space"]))
            return Snapshot(path.stem, label_space, {key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged or foreign ({error}).") from error
