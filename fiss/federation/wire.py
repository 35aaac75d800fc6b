"""Messages as what travels: one text of plain values, and named arrays. Nothing else, and nothing pickled.

Which fields leave a site is decided here and nowhere else: `from_probe_result` and `from_reply` write all a site sends.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fiss.errors import UserError
from fiss.federation.messages import (
    Announcement,
    Contribution,
    Memory,
    Order,
    Probe,
    ProbeResult,
    Reply,
    SiteScore,
    Snapshot,
)
from fiss.labels import LabelSpace
from fiss.models.classifier import Weights
from fiss.statistics.sums import Sums

Arrays = dict[str, NDArray[Any]]
SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The shorter types that weights may travel as."""


VERSION = 1
"""Of the messages; raised when an earlier fiss could not read them, or would read them wrongly."""
MOST_IMAGES = 10**9
"""What a reply can count to: its number of images may be its weight."""
LONGEST_TEXT, LONGEST_REPORT = 2**24, 2**20
LARGEST_LOSS, MOST_LOSSES = 1e30, 20
MOST_CELLS, LONGEST_DIGEST = 2**53, 200


@dataclass(frozen=True)
class Message:
    """A message on its way."""

    text: str
    """JSON."""
    arrays: Arrays = field(default_factory=dict)
    difference: bool = False
    """Whether its floating-point arrays say how the weights changed, as privacy filters want them."""

    @property
    def size(self) -> int:
        """Its bytes, without what the transport adds."""
        return len(self.text) + sum(array.nbytes for array in self.arrays.values())


def from_probe(
    probe: Probe,
    memory: Memory | None = None,
    transfer: str = "float32",
    acknowledged: int | None = None,
    there: Weights | None = None,
) -> Message:
    """What a server asks; `memory` only where the site is simulated. `acknowledged`: the last round in which the server
    took note of what this site saw. Of the model only what is not the same as in the last one that the site was given
    (`there`)."""
    text = _text("probe", probe.client, probe.round, probe.label_space, memory)
    text |= {"transfer": transfer, "heard": acknowledged}
    return Message(json.dumps(text | _same(probe.weights, there)), _others(probe.weights, there, transfer))


def to_probe(message: Message, there: Weights | None = None) -> tuple[Probe, Memory | None]:
    """What a site was asked that was last given the model `there`."""
    text = _read(message, "probe")
    probe = Probe(text["client"], text["round"], _space(text), _model(message, text, there))
    return probe, _memory(text)


def from_order(
    order: Order,
    memory: Memory | None = None,
    with_teacher: bool = True,
    transfer: str = "float32",
    there: Weights | None = None,
) -> Message:
    """What a server orders; its teacher by name, and its weights only if the site does not have them yet. Of the model
    only what is not the same as in the last one that the site was given (`there`): a trunk that is frozen goes to each
    site once."""
    text = _text("order", order.client, order.round, order.label_space, memory)
    text["announced"] = asdict(order.announced) if order.announced is not None else None
    text |= {"teacher": None, "transfer": transfer, **_same(order.weights, there)}
    if order.heard is not None:
        text["heard"] = order.heard
    arrays = _others(order.weights, there, transfer)
    if order.teacher is not None:
        text["teacher"] = {"name": order.teacher.name, "label_space": order.teacher.label_space.groups}
        if with_teacher:
            arrays |= _arrays(order.teacher.weights, "teacher", transfer)
    return Message(json.dumps(text), arrays)


def to_order(
    message: Message, teachers: dict[str, Snapshot], there: Weights | None = None
) -> tuple[Order, Memory | None]:
    """What a site was ordered; `teachers` are those it has, and a new one is added to them. `there`: the last model
    that it was given."""
    text = _read(message, "order")
    teacher = None
    if text["teacher"] is not None:
        name = text["teacher"]["name"]
        if weights := _weights(message.arrays, "teacher", text["transfer"]):
            teachers[name] = Snapshot(name, _space(text["teacher"]), weights)
        if name not in teachers:
            raise UserError(f"The teacher {name} was not sent.")
        teacher = teachers[name]
    announced = Announcement(**text["announced"]) if text["announced"] is not None else None
    model = _model(message, text, there)
    order = Order(text["client"], text["round"], _space(text), model, teacher, announced, text.get("heard"))
    return order, _memory(text)


def _same(weights: Weights, there: Weights | None) -> dict[str, list[str]]:
    """What need not be sent: the very tensors that are there."""
    return {"same": [name for name, tensor in weights.items() if there is not None and there.get(name) is tensor]}


def _others(weights: Weights, there: Weights | None, transfer: str) -> Arrays:
    same = set(_same(weights, there)["same"])
    return _arrays({name: tensor for name, tensor in weights.items() if name not in same}, "model", transfer)


def _model(message: Message, text: Mapping[str, Any], there: Weights | None) -> Weights:
    if odd := set(text.get("same", ())) - set(there or ()):
        raise UserError(f"The message builds on a model that this site was not given ({len(odd)} tensors).")
    kept = {name: there[name] for name in text.get("same", ())} if there else {}
    return kept | _weights(message.arrays, "model", text["transfer"])


def from_probe_result(probe_result: ProbeResult, memory: Memory | None = None) -> Message:
    """All that a site says when it is probed."""
    return Message(
        json.dumps({"kind": "probe_result", "version": VERSION, **asdict(probe_result), "memory": _plain(memory)})
    )


def to_probe_result(message: Message) -> tuple[ProbeResult, Memory | None]:
    """What a server hears."""
    text = _read(message, "probe_result")
    score = _score(text["score"]) if text.get("score") is not None else None
    result = ProbeResult(text["client"], tuple(text["missing"]), text["transition"], text["teacher"], score)
    whole = type(result.client) is int and (result.teacher is None or type(result.teacher) is int)
    if type(result.transition) is not bool or not whole:
        raise UserError("transition must be true or false, client and teacher whole numbers.")
    return result, _memory(text)


def _score(text: Any) -> SiteScore:
    """What a site says of a model, as far as it can be true."""
    pixels = {name: (both, either) for name, (both, either) in text["pixels"].items()}
    counts = [text["images"], *(count for pair in pixels.values() for count in pair)]
    whole = all(type(count) is int and 0 <= count < MOST_CELLS for count in counts)
    if not whole or any(both > either for both, either in pixels.values()):
        raise UserError("a score must be whole numbers of images and pixels, no more in both than in either.")
    return SiteScore(text["images"], pixels)


def from_reply(
    reply: Reply, memory: Memory | None = None, transfer: str = "float32", sent: Weights | None = None
) -> Message:
    """All that a site says when it has trained, or added up features. Its weights travel as they are; as a difference
    from those that it was `sent`, in full length, if these are given."""
    transfer = transfer if sent is None else "float32"
    weights = reply.weights if sent is None else _changes(reply.weights, sent)
    text = {f.name: getattr(reply, f.name) for f in fields(reply) if f.name not in ("weights", "contribution")}
    text |= {"kind": "reply", "version": VERSION, "memory": _plain(memory), "transfer": transfer}
    arrays = _arrays(weights, "model", transfer)
    if (given := reply.contribution) is not None:
        text["contribution"] = {name: getattr(given, name) for name in ("made_with", "period", "since")}
        text["contribution"] |= {"cells": given.sums.cells, "images": given.sums.images}
        whole = given.sums.tensors()
        fits = all(torch.equal(tensor.float().double(), tensor) for tensor in whole.values())  # it was rounded to it
        arrays |= {f"sums/{name}": (tensor.float() if fits else tensor).numpy() for name, tensor in whole.items()}
    return Message(json.dumps(text), arrays, difference=bool(weights) and sent is not None)


def to_reply(message: Message, sent: Weights | None = None, transfer: str = "float32") -> tuple[Reply, Memory | None]:
    """What a server hears of a site that it `sent` those weights, in the type of that name."""
    text = _read(message, "reply")
    memory, model = _memory(text), _weights(message.arrays, "model", text["transfer"])
    if message.difference:
        if sent is None:
            raise UserError("It sends a difference, and nobody knows from what.")
        model = _changed(rounded(sent, transfer), model)
    text["contribution"] = _contribution(text["contribution"], message.arrays) if "contribution" in text else None
    for name in ("kind", "version", "memory", "transfer"):
        text.pop(name, None)
    counts = [text[name] for name in ("client", "images", "steps", "samples")]
    if not all(type(count) is int and 0 <= count < MOST_IMAGES for count in counts):
        raise UserError(f"images, steps and samples must be whole numbers below {MOST_IMAGES:,}.")
    losses = text["losses"]
    if type(text["transition"]) is not bool or len(losses) > MOST_LOSSES:
        raise UserError("transition must be true or false, and losses a few.")
    if not all(type(v) is float and not abs(v) > LARGEST_LOSS and k.isidentifier() for k, v in losses.items()):
        raise UserError("losses must be floating-point numbers by name.")
    if len(json.dumps(text["report"])) > LONGEST_REPORT or not _flat(text["report"]):
        raise UserError("the report is too long, or no lists of plain values by name.")
    return Reply(**text, weights=model), memory


def _contribution(text: Any, arrays: Arrays) -> Contribution:
    """What a client adds to the sums, as far as it can be read; whether it can be true is not asked here."""
    whole = {name: text[name] for name in ("cells", "images", "period", "since") if text[name] is not None}
    if not all(type(count) is int and 0 <= count < MOST_CELLS for count in whole.values()):
        raise UserError(f"cells, images and periods must be whole numbers below {MOST_CELLS:,}.")
    if type(text["made_with"]) is not str or len(text["made_with"]) > LONGEST_DIGEST:
        raise UserError("made_with must be a digest.")
    tensors = _weights(arrays, "sums", "")
    wanted = {"counts": 1, "sums": 2, "triangle": 1}
    if {name: tensor.ndim for name, tensor in tensors.items()} != wanted:
        raise UserError("sums must be counts, sums and a triangle.")
    if not all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors.values()):
        raise UserError("sums must be floating-point numbers.")
    sums = Sums.from_tensors(tensors, whole["cells"], whole["images"])
    return Contribution(sums, text["made_with"], whole["period"], whole.get("since"))


def _flat(report: Any, depth: int = 4) -> bool:
    """Whether it is what methods report: plain values in lists and dictionaries, a few levels deep."""
    if isinstance(report, dict):
        return depth > 0 and all(len(k) <= 200 and _flat(v, depth - 1) for k, v in report.items())
    if isinstance(report, list):
        return depth > 0 and all(_flat(v, depth - 1) for v in report)
    return report is None or type(report) in (bool, int, float) or (type(report) is str and len(report) <= 200)


def _text(kind: str, client: int, round_: int, space: LabelSpace, memory: Memory | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "version": VERSION,
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


def _read(message: Message, kind: str) -> dict[str, Any]:
    if len(message.text) > LONGEST_TEXT:
        raise UserError(f"A message of {len(message.text):,} letters is too long.")
    text: dict[str, Any] = json.loads(message.text)
    if text.get("kind") != kind:
        raise UserError(f"Expected a message of kind {kind}, got {str(text.get('kind'))[:40]}.")
    if (version := text.get("version", VERSION)) != VERSION:
        raise UserError(
            f"messages of version {str(version)[:9]}, and this fiss reads version {VERSION}: server and sites need "
            "versions of fiss that belong together; update the older one."
        )
    return text


def rounded(weights: Weights, transfer: str) -> Weights:
    """Weights as they arrive; what does not travel in a shorter type is the same tensor."""
    short = SHORT.get(transfer)
    return {k: t.to(short).to(t.dtype) if short and t.dtype == torch.float32 else t for k, t in weights.items()}


def _changes(got: Weights, sent: Weights) -> Weights:
    """What is no vector becomes one: filters let single numbers pass."""
    return {
        name: (tensor.cpu().float() - sent[name].cpu().float()).reshape(tensor.shape or (1,))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in got.items()
    }


def _changed(sent: Weights, changes: Weights) -> Weights:
    """What a filter took out stays as it was; a variance that its noise made negative becomes zero."""
    weights = dict(changes)
    for name, tensor in sent.items():
        if tensor.is_floating_point():
            tensor = tensor.detach().cpu()
            if name in changes:
                tensor = (tensor.float() + changes[name].reshape(tensor.shape)).to(tensor.dtype)
            weights[name] = tensor.clamp(min=0) if name.endswith("running_var") else tensor
    return weights


def _arrays(weights: Weights, prefix: str, transfer: str) -> Arrays:
    """Shorter types as the bytes they are: numpy has no name for one of them."""
    short = SHORT.get(transfer)
    arrays = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu()
        if short and tensor.dtype == torch.float32:
            arrays[f"{prefix}:{transfer}/{name}"] = tensor.to(short).view(torch.int16).numpy()
        else:
            arrays[f"{prefix}/{name}"] = tensor.numpy()
    return arrays


def _weights(arrays: Arrays, prefix: str, transfer: str) -> Weights:
    weights: Weights = {}
    short = f"{prefix}:{transfer}/"
    for name, array in arrays.items():
        tensor = torch.from_numpy(np.array(array)) if name.startswith(prefix) else None
        if name.startswith(short) and transfer in SHORT and tensor is not None and tensor.dtype == torch.int16:
            weights[name.removeprefix(short)] = tensor.view(SHORT[transfer]).float()
        elif name.startswith(f"{prefix}/") and tensor is not None:
            weights[name.removeprefix(f"{prefix}/")] = tensor
    return weights
