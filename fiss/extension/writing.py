"""Writing the folder of an extended model: whole, or not there; nothing is ever overwritten."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fiss.config.config import Config, to_toml
from fiss.config.identity import config_digest
from fiss.errors import UserError
from fiss.federation.messages import Snapshot
from fiss.runs.counting import FORMAT
from fiss.runs.extension import LEDGER, Extension
from fiss.runs.folder import LOGS, RunFolder, write_atomically
from fiss.runs.records import ScoreRecord
from fiss.statistics.ledger import Ledger


def refuse_existing(out: Path) -> None:
    """Nothing is written over."""
    if out.exists():
        raise UserError(f"{out} is there already and is not written over: --out names another folder.")


@dataclass(frozen=True)
class Making:
    """A folder that is being made beside its place."""

    folder: RunFolder
    config: Config

    def write(
        self,
        ledger: Ledger,
        extension: Extension,
        first: Snapshot | None,
        models: Sequence[Snapshot],
        scores: Sequence[ScoreRecord] = (),
    ) -> None:
        """All that belongs into it; the last model is the one that counts."""
        folder, path = self.folder, self.folder.path
        digests = {m.name: folder.write_weights(m.name, m.label_space, m.weights) for m in models}
        if first is not None:
            digests["first"] = folder.write_weights("first", first.label_space, first.weights)
        ledger.save(path / LEDGER)
        extension.write(path)
        classes = "".join(f"{name}\n" for name in models[-1].label_space.names)
        write_atomically(path / "classes.txt", classes.encode())
        for score in scores:
            folder.append("scores.jsonl", score)
        logs = {log: (path / log).stat().st_size if (path / log).is_file() else 0 for log in LOGS}
        record = {
            "format": FORMAT,
            "next_round": len(models),
            "finished": True,
            "config": config_digest(self.config),
            "weights": models[-1].name,
            "sha256": digests[models[-1].name],
            "digests": digests,
            "lengths": logs,
            "memories": {},
            "ledger_sha256": file_digest(path / LEDGER),
        }
        write_atomically(path / "state.json", json.dumps(record, indent=1).encode())


@contextmanager
def new_folder(out: Path, config: Config) -> Iterator[Making]:
    """A folder that is there when all went well, and not at all otherwise."""
    refuse_existing(out)
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        (part / "weights").mkdir(parents=True)
        write_atomically(part / "config.toml", to_toml(config).encode())
        yield Making(RunFolder(part), config)
        refuse_existing(out)
        part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
