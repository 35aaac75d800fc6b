"""What a site does now, for whoever looks there: status.json in its kit, beside its log. Nothing of it is sent."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import time
from typing import Any

import torch

from fiss.deployment.log import plain_log
from fiss.errors import UserError
from fiss.federation.wire import Message
from fiss.runs.folder import write_atomically
from fiss.runs.records import from_json

STATUS = "status.json"
WAITS, PROBED, TRAINS = "waits for the server", "looks at its data", "trains"


@dataclass(frozen=True)
class SiteStatus:
    """A site, as it sees itself."""

    doing: str = "has not been asked for anything yet"
    since: float = 0.0
    round: int = -1
    """The last one in which it was asked, from 0."""
    rounds: int = 0
    """Rounds in which it was asked for anything."""
    trained: int = 0
    """Those in which it trained."""
    images: int = 0
    """Images it trained on last."""
    losses: Mapping[str, float] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    """Those that its masks show, as the federation calls them; hashes where it hides their names."""
    known: tuple[str, ...] = ()
    """The federation's."""
    teacher: str = ""
    """The model it learns from not to forget; empty before its first new classes."""
    device: str = ""
    problem: str = ""
    """Why its last answer failed, if it did."""

    @classmethod
    def read(cls, folder: Path) -> "SiteStatus":
        """That of a site's own folder; the first one if it was never asked, or if another fiss wrote what this one
        cannot read: then `problem` says so."""
        path = folder / STATUS
        try:
            status: SiteStatus = from_json(cls, json.loads(path.read_bytes()), str(path))
            return status
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, UserError) as error:
            return cls(problem=f"{path} is ignored, and written anew in the next round: {error}")


class Followed:
    """Answers as `answer` does, and keeps status and log."""

    def __init__(self, answer: Callable[[Message], Message], folder: Path, holds: Callable[[], Sequence[str]]) -> None:
        self.answer, self.folder, self.holds, self.log = answer, folder, holds, plain_log(folder)
        self.status, self.last_trained = SiteStatus.read(folder), -1
        if self.status.problem and self.status.round < 0:
            self.log.info(self.status.problem)

    def __call__(self, message: Message) -> Message:
        """Its answer."""
        asked, began = json.loads(message.text), time()
        new_round = asked["round"] != self.status.round
        self._tell(
            doing=PROBED if asked["kind"] == "probe" else TRAINS,
            since=began,
            round=asked["round"],
            rounds=self.status.rounds + new_round,
            known=tuple(name for group in asked["label_space"] for name in group),
            device=device_in_use(),
        )
        try:
            answer = self.answer(message)
        except Exception as error:
            self._tell(doing=WAITS, since=time(), problem=str(error))
            self.log.info("round %d: could not answer: %s", asked["round"] + 1, error)
            raise
        self._answered(asked, json.loads(answer.text), began)
        return answer

    def _answered(self, asked: Mapping[str, Any], result: Mapping[str, Any], began: float) -> None:
        changed: dict[str, Any] = {"doing": WAITS, "since": time(), "classes": tuple(self.holds()), "problem": ""}
        words = []
        if asked["kind"] == "probe":
            missing = ", ".join(result["missing"])
            words += [f"it holds classes the federation lacks: {missing}"] if missing else []
            words += ["its monitor sees new classes"] if result["transition"] else []
        else:
            teacher = asked["teacher"]["name"] if asked["teacher"] else ""
            changed |= {"images": result["images"], "losses": result["losses"], "teacher": teacher}
            if result["images"] and asked["round"] != self.last_trained:  # with sums it is asked twice
                self.last_trained = asked["round"]
                changed["trained"] = self.status.trained + 1
            losses = ", ".join(f"{name} {value:.3f}" for name, value in result["losses"].items())
            what = (
                f"trained on {result['images']} images" if losses else f"added up {result['images']} images' features"
            )
            words += [f"{what} in {time() - began:.0f} s" if result["images"] else "nothing to train on"]
            words[-1] += f": {losses}" if losses else ""
        self._tell(**changed)
        for text in words:
            self.log.info("round %d: %s", asked["round"] + 1, text)

    def _tell(self, **changed: Any) -> None:
        self.status = replace(self.status, **changed)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / STATUS, json.dumps(asdict(self.status)).encode())


def device_in_use() -> str:
    """The GPU with its memory, or that there is none."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "no GPU in use"
    free, whole = torch.cuda.mem_get_info()
    return f"{torch.cuda.get_device_name()}, {(whole - free) / 2**30:.1f} of {whole / 2**30:.0f} GiB of memory in use"


def started(kit: Path) -> bool:
    """Whether the kit's start.sh is at work on this machine."""
    try:
        os.kill(int((kit / "daemon_pid.fl").read_text()), 0)
    except PermissionError:
        return True  # somebody else's process
    except (OSError, ValueError):
        return False
    return True
