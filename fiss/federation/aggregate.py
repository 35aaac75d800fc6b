"""From replies to the next global model: a weighted mean, the same bits whatever order the replies came in.

Every reply is checked against what was sent (names, shapes, types, finite values); one that fails is left out and
named.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from fiss.federation.messages import Reply
from fiss.federation.spec import Weighting
from fiss.models.classifier import Weights

MOST_STEPS = 10**7
"""What a counter can have grown by in a round."""
LEAST = 0.01
"""Of the model's own length: no update is too large that is not many times this, so that one who sends the model back
unchanged does not make the others look large."""


@dataclass(frozen=True)
class Aggregated:
    """The next global model, what came in besides weights, and who did not take part."""

    weights: Weights
    replies: tuple[Reply, ...]
    """Without their weights, by client."""
    refused: dict[int, str]
    """Why, by client."""


def aggregate(
    sent: Weights,
    replies: Iterable[Reply],
    weighting: Weighting,
    asked: Iterable[int] = (),
    largest: float = 0.0,
) -> Aggregated:
    """Mean of the accepted replies in float64, added up in the order of the clients' numbers.

    A reply is added and let go as soon as those before it in `asked` are there, so that one model is held besides the
    sum, not one per client. Whole-number buffers (BatchNorm's counters) take the largest value. Clients without
    images do not count. With no accepted reply the model stays as it was. With `largest`, updates that many times
    larger than the median of the others' are refused too, and replies are held until all are there.
    """
    refused: dict[int, str] = {}
    light: list[Reply] = []
    total: Weights = {}
    amounts = 0
    checked = _checked(sent, _in_order(replies, sorted(asked)), light, refused)
    for reply in _moderate(sent, list(checked), largest, refused) if largest else checked:
        amount = reply.images if weighting == "images" else 1
        amounts += amount
        _add(total, reply.weights, amount)
        del reply
    for name, tensor in sent.items() if amounts else ():
        if tensor.is_floating_point():
            total[name] = total[name].div_(amounts).to(tensor.dtype)
    return Aggregated({name: total[name] for name in sent} if amounts else sent, tuple(light), refused)


def _checked(sent: Weights, replies: Iterable[Reply], light: list[Reply], refused: dict[int, str]) -> Iterator[Reply]:
    """Replies with weights that fit; the rest is noted."""
    for reply in replies:
        light.append(replace(reply, weights={}))
        if reply.images == 0:
            continue
        if problem := _problem(sent, reply.weights):
            refused[reply.client] = problem
        else:
            yield reply
        del reply


def _moderate(sent: Weights, replies: list[Reply], largest: float, refused: dict[int, str]) -> list[Reply]:
    """The replies whose update is not far larger than the others'."""
    lengths = [_length(sent, reply.weights) for reply in replies]
    whole = _length({name: torch.zeros_like(tensor) for name, tensor in sent.items()}, sent)
    kept = []
    for i, reply in enumerate(replies):
        others = lengths[:i] + lengths[i + 1 :]
        middle = max(median(others), LEAST * whole) if others else 0.0
        if others and lengths[i] > largest * middle:
            refused[reply.client] = f"its update is {lengths[i]:.3g} long, {largest:g} times the others' {middle:.3g}"
        else:
            kept.append(reply)
    return kept


def _length(sent: Weights, got: Weights) -> float:
    """Length of the update as one long vector."""
    squares = [
        (got[name].double() - tensor.to(got[name].device).double()).square().sum()  # one restored is in memory
        for name, tensor in sent.items()
        if tensor.is_floating_point()
    ]
    return float(torch.stack(squares).sum().sqrt())


def _in_order(replies: Iterable[Reply], asked: list[int]) -> Iterator[Reply]:
    """The replies by client's number; one that comes early waits for those before it."""
    early: dict[int, Reply] = {}
    for reply in replies:
        early[reply.client] = reply
        del reply
        while asked and asked[0] in early:
            yield early.pop(asked.pop(0))
    for client in sorted(early):
        yield early.pop(client)


def _add(total: Weights, weights: Weights, amount: int) -> None:
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            total[name] = torch.maximum(total[name], tensor) if name in total else tensor
        elif name in total:
            total[name].add_(tensor, alpha=amount)
        else:
            total[name] = tensor.double() * amount


def _problem(sent: Weights, got: Weights) -> str | None:
    if sent.keys() != got.keys():
        odd = sorted(sent.keys() ^ got.keys())
        return f"{len(odd)} tensors missing or not asked for, such as {str(odd[0])[:80]}"
    for name, tensor in got.items():
        if tensor.shape != sent[name].shape or tensor.dtype != sent[name].dtype:
            was, now = sent[name], tensor
            return f"{name} is {now.dtype} {tuple(now.shape)}, sent as {was.dtype} {tuple(was.shape)}"
    good: dict[str, Tensor] = {}
    for name, tensor in got.items():
        if tensor.is_floating_point():
            good[f"{name} has values that are not finite"] = tensor.isfinite().all()
        else:  # BatchNorm's counters
            near = (tensor >= sent[name] - MOST_STEPS) & (tensor <= sent[name] + MOST_STEPS)
            good[f"{name} counts more than anybody could have done"] = near.all()
        if name.endswith("running_var"):
            good[f"{name} has negative values"] = (tensor >= 0).all()
    found = torch.stack(list(good.values())).tolist()  # one wait for all of them
    return next((problem for problem, fine in zip(good, found, strict=True) if not fine), None)
