"""Messages as what travels: one text of plain values, and named arrays. Nothing else, and nothing pickled.

Which fields leave a site is decided here and nowhere else: `from_sighting` and `from_reply` write all a site sends.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fiss.errors import UserError
from fiss.federation.messages import Calendar, Memory, Order, Probe, Reply, Sighting, Snapshot
from fiss.labels import LabelSpace
from fiss.models.classifier import Weights

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Packed:
    """A message on its way."""

    text: str
    """JSON."""
    arrays: Arrays = field(default_factory=dict)


def from_probe(probe: Probe, memory: Memory | None = None) -> Packed:
    """What a server asks; `memory` only where the site is simulated."""
    text = _text("probe", probe.client, probe.round, probe.label_space, memory)
    return Packed(json.dumps(text), _arrays(probe.weights, "model"))


def to_probe(packed: Packed) -> tuple[Probe, Memory | None]:
    """What a site was asked."""
    text = _read(packed, "probe")
    probe = Probe(text["client"], text["round"], _space(text), _weights(packed.arrays, "model"))
    return probe, _memory(text)


def from_order(order: Order, memory: Memory | None = None, with_teacher: bool = True) -> Packed:
    """What a server orders; its teacher by name, and its weights only if the site does not have them yet."""
    text = _text("order", order.client, order.round, order.label_space, memory)
    text["calendar"] = asdict(order.calendar) if order.calendar is not None else None
    text["teacher"] = None
    arrays = _arrays(order.weights, "model")
    if order.teacher is not None:
        text["teacher"] = {"name": order.teacher.name, "label_space": order.teacher.label_space.groups}
        if with_teacher:
            arrays |= _arrays(order.teacher.weights, "teacher")
    return Packed(json.dumps(text), arrays)


def to_order(packed: Packed, teachers: dict[str, Snapshot]) -> tuple[Order, Memory | None]:
    """What a site was ordered; `teachers` are those it has, and a new one is added to them."""
    text = _read(packed, "order")
    teacher = None
    if text["teacher"] is not None:
        name = text["teacher"]["name"]
        if weights := _weights(packed.arrays, "teacher"):
            teachers[name] = Snapshot(name, _space(text["teacher"]), weights)
        if name not in teachers:
            raise UserError(f"The teacher {name} was not sent.")
        teacher = teachers[name]
    calendar = Calendar(**text["calendar"]) if text["calendar"] is not None else None
    model = _weights(packed.arrays, "model")
    return Order(text["client"], text["round"], _space(text), model, teacher, calendar), _memory(text)


def from_sighting(sighting: Sighting, memory: Memory | None = None) -> Packed:
    """All that a site says when it is probed."""
    return Packed(json.dumps({"kind": "sighting", **asdict(sighting), "memory": _plain(memory)}))


def to_sighting(packed: Packed) -> tuple[Sighting, Memory | None]:
    """What a server hears."""
    text = _read(packed, "sighting")
    said = Sighting(text["client"], tuple(text["missing"]), text["transition"], text["teacher"])
    return said, _memory(text)


def from_reply(reply: Reply, memory: Memory | None = None) -> Packed:
    """All that a site says when it has trained."""
    text = {f.name: getattr(reply, f.name) for f in fields(reply) if f.name != "weights"}
    return Packed(json.dumps({"kind": "reply", **text, "memory": _plain(memory)}), _arrays(reply.weights, "model"))


def to_reply(packed: Packed) -> tuple[Reply, Memory | None]:
    """What a server hears."""
    text = _read(packed, "reply")
    memory = _memory(text)
    del text["kind"], text["memory"]
    return Reply(**text, weights=_weights(packed.arrays, "model")), memory


def _text(kind: str, client: int, round_: int, space: LabelSpace, memory: Memory | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "client": client,
        "round": round_,
        "label_space": space.groups,
        "memory": _plain(memory),
    }


def _plain(memory: Memory | None) -> dict[str, Any] | None:
    return asdict(memory) if memory is not None else None


def _memory(text: Mapping[str, Any]) -> Memory | None:
    return Memory(**text["memory"]) if text["memory"] is not None else None


def _space(text: Mapping[str, Any]) -> LabelSpace:
    return LabelSpace(tuple(tuple(group) for group in text["label_space"]))


def _read(packed: Packed, kind: str) -> dict[str, Any]:
    text: dict[str, Any] = json.loads(packed.text)
    if text.get("kind") != kind:
        raise UserError(f"Expected a message of kind {kind}, got {text.get('kind')}.")
    return text


def _arrays(weights: Weights, prefix: str) -> Arrays:
    return {f"{prefix}/{name}": tensor.detach().cpu().numpy() for name, tensor in weights.items()}


def _weights(arrays: Arrays, prefix: str) -> Weights:
    own = {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
    return {name: torch.from_numpy(np.array(array)) for name, array in own.items()}
