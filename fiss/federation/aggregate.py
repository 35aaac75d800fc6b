"""From replies to the next global model: a weighted mean, the same bits whatever order the replies came in.

Every reply is checked against what was sent (names, shapes, types, finite values); one that fails is left out and
named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fiss.errors import UserError
from fiss.federation.messages import Reply
from fiss.models.classifier import Weights


@dataclass(frozen=True)
class FederationSpec:
    """How replies become a model."""

    weighting: Literal["uniform", "images"] = "uniform"
    """uniform: every client counts the same, as published; images: by the number of its images."""


@dataclass(frozen=True)
class Aggregated:
    """The next global model, and who did not take part in it."""

    weights: Weights
    refused: dict[int, str]
    """Why, by client."""


def aggregate(sent: Weights, replies: Iterable[Reply], weighting: Literal["uniform", "images"]) -> Aggregated:
    """Mean of the accepted replies in float64, summed in the order of the clients' numbers.

    Whole-number buffers (BatchNorm's counters) take the largest value. Clients without images do not count. With no
    accepted reply the model stays as it was, unless replies were refused: then there is nothing to go on with, and it
    is an error.
    """
    refused: dict[int, str] = {}
    accepted: list[Reply] = []
    for reply in sorted(replies, key=lambda r: r.client):
        if reply.images == 0:
            continue
        if problem := _problem(sent, reply.weights):
            refused[reply.client] = problem
        else:
            accepted.append(reply)
    if not accepted:
        if refused:
            reasons = "; ".join(f"client {client}: {why}" for client, why in refused.items())
            raise UserError(f"Every update of this round was refused, the model stays as it was before it. {reasons}")
        return Aggregated(sent, refused)
    shares = _shares(accepted, weighting)
    return Aggregated({name: _mean([r.weights[name] for r in accepted], shares) for name in sent}, refused)


def _shares(replies: Sequence[Reply], weighting: Literal["uniform", "images"]) -> list[float]:
    amounts = [reply.images if weighting == "images" else 1 for reply in replies]
    return [amount / sum(amounts) for amount in amounts]


def _mean(tensors: Sequence[torch.Tensor], shares: Sequence[float]) -> torch.Tensor:
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        total.add_(tensor, alpha=share)
    return total.to(tensors[0].dtype)


def _problem(sent: Weights, got: Weights) -> str | None:
    if sent.keys() != got.keys():
        odd = sorted(sent.keys() ^ got.keys())
        return f"{len(odd)} tensors missing or not asked for, such as {odd[0]}"
    for name, tensor in got.items():
        if tensor.shape != sent[name].shape or tensor.dtype != sent[name].dtype:
            was, now = sent[name], tensor
            return f"{name} is {now.dtype} {tuple(now.shape)}, sent as {was.dtype} {tuple(was.shape)}"
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return f"{name} has values that are not finite"
    return None
