"""From sums to a linear classifier, in float64: linear discriminant analysis, and ridge regression of the labels.

Features are standardised by their mean and deviation over all cells before they are shrunk; that is affine and done on
the sums, and undone on the classifier, which sees features as they are. Channels without weight never win.

C channels, D features.
"""

import torch
from torch import Tensor

from fiss.errors import UserError
from fiss.statistics.sums import Sums

NEVER = -1e9
"""The bias of a channel without weight."""
FLAT = 1e-6
"""A feature whose variance is so small a part of its mean square is constant but for rounding, and not used."""


def lda(sums: Sums, shrinkage: float = 0.01, prior: float = 0.5) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis: (C, D) weights and (C,) bias.

    score_c = m_c^T Z f - 1/2 m_c^T Z m_c + prior log(n_c / N), where Z is the inverse of the covariance within classes
    with `shrinkage` times its mean diagonal added to the diagonal; `prior` = 1 is the true frequency of the classes,
    0 holds them all alike.
    """
    mean_D, scale_D = moments(sums)
    covariance_DD, means_CD, share_C = _standardised(sums, mean_D, scale_D)
    weights_CD = _solve(covariance_DD, shrinkage, means_CD)
    bias_C = prior * share_C.log() - (weights_CD * means_CD).sum(1) / 2
    return _as_they_are(weights_CD, bias_C, sums.present_C, mean_D, scale_D)


def ridge(
    sums: Sums, shrinkage: float = 0.01, balance: float = 0.0, towards: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Ridge regression of the one-hot labels: (C, D) weights and (C,) bias.

    Cells of class c weigh n_c^-balance. With 0 that is exact; otherwise it takes every class to scatter alike, as one
    matrix for all of them cannot tell. `towards` a present classifier, perhaps of fewer channels: the penalty is on
    the (standardised) weights' distance from its own instead of from 0; the bias is fitted anew.
    """
    mean_D, scale_D = moments(sums)
    matrix_DD, means_CD, share_C = _standardised(sums, mean_D, scale_D)
    share_C = torch.where(sums.present_C, share_C ** (1 - balance), 0)
    share_C = share_C / share_C.sum()
    middle_D = share_C @ means_CD
    away_CD = torch.where(sums.present_C[:, None], means_CD - middle_D, 0)
    matrix_DD.addmm_(away_CD.T * share_C, away_CD)
    old_CD, known_C = torch.zeros_like(means_CD), sums.present_C
    if towards is not None:
        old_CD[: len(towards[0])] = torch.where(scale_D > 0, towards[0].to(old_CD) / scale_D, 0)
        known_C[: len(towards[0])] = True
    weights_CD = _solve(matrix_DD, shrinkage, share_C[:, None] * away_CD, old_CD)
    return _as_they_are(weights_CD, share_C - weights_CD @ middle_D, known_C, mean_D, scale_D)


def moments(sums: Sums) -> tuple[Tensor, Tensor]:
    """Mean of each feature over all cells, and one over its deviation, 0 where it is constant."""
    total = sums.counts_C[sums.present_C].sum()
    if not total > 0:
        raise UserError("No cell has a label yet: there is nothing to make a classifier from.")
    mean_D = sums.sums_CD[sums.present_C].sum(0) / total
    square_D = sums.diagonal() / total
    variance_D = square_D - mean_D.square()
    return mean_D, torch.where(variance_D > FLAT * square_D, variance_D.rsqrt(), 0)


def _standardised(sums: Sums, mean_D: Tensor, scale_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Covariance within classes, the classes' means (0 without weight) and their shares."""
    present = sums.present_C
    counts_C = torch.where(present, sums.counts_C, 0)
    total = counts_C.sum()
    covariance_DD = sums.within().mul_(scale_D / total).mul_(scale_D[:, None])
    means_CD = torch.where(present[:, None], (sums.sums_CD / sums.counts_C[:, None] - mean_D) * scale_D, 0)
    return covariance_DD, means_CD, counts_C / total


def _solve(matrix_DD: Tensor, shrinkage: float, right_CD: Tensor, old_CD: Tensor | None = None) -> Tensor:
    """X with X (M + k) = R + k X_old, where k is `shrinkage` times M's mean diagonal; M is used up."""
    extra = shrinkage * matrix_DD.diagonal().mean()
    matrix_DD.diagonal().add_(extra)
    factor_DD, failed = torch.linalg.cholesky_ex(matrix_DD)
    if failed:
        raise UserError(
            f"The scatter of the {len(matrix_DD)} features is not positive definite with a shrinkage of {shrinkage:g}: "
            "use a larger shrinkage, or count more images."
        )
    right_CD = right_CD if old_CD is None else right_CD + extra * old_CD
    return torch.cholesky_solve(right_CD.T, factor_DD).T


def _as_they_are(
    weights_CD: Tensor, bias_C: Tensor, known_C: Tensor, mean_D: Tensor, scale_D: Tensor
) -> tuple[Tensor, Tensor]:
    """The classifier for features that are not standardised."""
    weights_CD = torch.where(known_C[:, None], weights_CD * scale_D, 0)
    return weights_CD, torch.where(known_C, bias_C - weights_CD @ mean_D, NEVER)
