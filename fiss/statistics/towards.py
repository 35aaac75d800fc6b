"""Ridge towards a present classifier: new classes, and more images of old ones, where no sums of the past are there.

The present classifier has been trained, so its scores are logarithms of probabilities but for a constant. A labelled
class k is to have the probability `SURE` on its own cells and 1 - `SURE` elsewhere, beside the present scores z:

    own cells:      r = max(0, L + M - a)        L = log sum exp of the present scores of all other channels
    other cells:    r = min(0, L - M - a)        M = log(SURE / (1 - SURE)),  a = the score where the row starts

A row starts from its own present one, that of a new class from the background's. What is right already, with that
margin, has r = 0. The row's change R minimises the mean of |R f - r|^2 + lambda |R|^2, own cells and others weighed by
their number to the power `POWER`. Rows of classes that the images do not label stay as they are. The features end in
a constant 1, so the bias is one of the weights; each feature counts in units of its own size.

All of it follows from sums, three rows for each channel: cells, what raises it on its own, what lowers it elsewhere.
lambda is the one of `STRENGTHS` with the least squared error on a part of the images that the others did not see;
that error follows from sums too. So a contribution can be taken out again, and all be solved as if it had never been.

C channels, D features and the constant, N cells.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fiss.statistics.sums import LEAST, Sums

ROWS_EACH = 3
SURE = 0.8
POWER = 0.7
"""Own cells and all others weigh together as their numbers to this power; 1 would be as they are, 0 both alike."""
MARGIN = math.log(SURE / (1 - SURE))
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
USUAL = 1e-2
"""lambda where the part that chooses it shows none of the labelled classes."""
Rows = tuple[Tensor, Tensor]
"""A linear classifier: (C, D - 1) weights and (C,) bias."""


def corrections(
    features_BDhw: Tensor, shares_BChw: Tensor, present: Rows, labelled: Iterable[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """What an `Accumulator` takes: the features with the constant, the rows, and the cells' weights."""
    weight_CD, bias_C = (rows.to(features_BDhw) for rows in present)
    scores_BhwC = (features_BDhw.permute(0, 2, 3, 1) @ weight_CD.T + bias_C).double()
    valid_Bhw = shares_BChw.sum(1)
    rows_BRhw = shares_BChw.new_zeros(len(shares_BChw), ROWS_EACH * shares_BChw.shape[1], *shares_BChw.shape[2:])
    for k in labelled:
        start, others = (k, [c for c in range(len(bias_C)) if c != k]) if k < len(bias_C) else (0, slice(None))
        lead_Bhw = scores_BhwC[..., others].logsumexp(-1) - scores_BhwC[..., start]
        share_Bhw = shares_BChw[:, k]
        rows_BRhw[:, ROWS_EACH * k] = share_Bhw
        rows_BRhw[:, ROWS_EACH * k + 1] = share_Bhw * (lead_Bhw + MARGIN).clamp(min=0)
        rows_BRhw[:, ROWS_EACH * k + 2] = (valid_Bhw - share_Bhw) * (lead_Bhw - MARGIN).clamp(max=0)
    return torch.cat([features_BDhw, torch.ones_like(features_BDhw[:, :1])], 1), rows_BRhw, valid_Bhw


def towards(present: Rows, channels: int, fit: Sequence[Sums], choice: Sequence[Sums]) -> tuple[Rows, float]:
    """The classifier of so many channels that comes of those contributions, and lambda; `choice` are the parts that
    choose it, and count like the others once it is chosen."""
    weight_CD, bias_C = (rows.double() for rows in present)
    start_CD = torch.cat([weight_CD, bias_C[:, None]], 1)
    found_CD = torch.cat([start_CD, start_CD[:1].expand(channels - len(start_CD), -1)])
    everything = [*fit, *choice]
    labelled = [k for k in range(1, channels) if _of(everything, k)]
    errors = torch.zeros(len(STRENGTHS), dtype=torch.float64)
    for k in labelled:
        if _of(fit, k) and _of(choice, k):
            (matrix_DD, right_D), seen = _moments(_of(choice, k), k), _moments(_of(fit, k), k)
            for i, strength in enumerate(STRENGTHS):
                row_D = _solve(*seen, strength)
                errors[i] += row_D @ matrix_DD @ row_D - 2 * row_D @ right_D
    strength = STRENGTHS[int(errors.argmin())] if errors.any() else USUAL
    found_CD = found_CD.clone()
    for k in labelled:
        found_CD[k] += _solve(*_moments(_of(everything, k), k), strength)
    return (found_CD[:, :-1], found_CD[:, -1]), strength


def _of(contributions: Iterable[Sums], k: int) -> list[Sums]:
    """The sums of clients that label a class: the others say nothing about it, not even where it is not."""
    return [s for s in contributions if ROWS_EACH * k < s.channels and s.counts_C[ROWS_EACH * k] > LEAST]


def _moments(contributions: Sequence[Sums], k: int) -> tuple[Tensor, Tensor]:
    """Means of f f^T and of r f, own cells and others weighed; as one Gram matrix cannot tell which cells scatter how,
    both are taken to scatter alike around their means."""
    total = sum(contributions[1:], contributions[0])
    gram_DD = total.gram()
    cells, own = gram_DD[-1, -1], total.counts_C[ROWS_EACH * k]
    rest = (cells - own).clamp(min=LEAST)
    own_D = total.sums_CD[ROWS_EACH * k]
    rest_D = gram_DD[-1] - own_D
    matrix_DD = gram_DD / cells
    share = own**POWER / (own**POWER + rest**POWER)
    for mean_D, before, now in ((own_D / own, own / cells, share), (rest_D / rest, rest / cells, 1 - share)):
        matrix_DD.addr_(mean_D, mean_D, alpha=float(now - before))
    up_D, down_D = (total.sums_CD[ROWS_EACH * k + i] for i in (1, 2))
    return matrix_DD, share * up_D / own + (1 - share) * down_D / rest


def _solve(matrix_DD: Tensor, right_D: Tensor, strength: float) -> Tensor:
    """The row with the least error and penalty."""
    scale_D = matrix_DD.diagonal().clamp(min=0).sqrt()
    scale_D = torch.where(scale_D > 0, 1 / scale_D, 0)
    scaled_DD = matrix_DD * scale_D * scale_D[:, None]
    scaled_DD.diagonal().add_(strength)
    found_D: Tensor = torch.linalg.solve(scaled_DD, right_D * scale_D) * scale_D
    return found_D
