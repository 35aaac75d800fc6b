"""Whether images look otherwise than those of before: a permutation test of their features.

Features are a row of numbers for each image. A client keeps those of its last images in its own memory, in a byte each.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
MOST_DIVISIONS = 100_000
"""Tried at most; a level so small that it would need more is never reached."""


def compare(
    looks: Mapping[str, Any], rows: Rows, level: float, draws: np.random.Generator, known: bool = False
) -> tuple[float, Mapping[str, Any]]:
    """How likely it is that nothing is new in these images, given what is remembered of those before; and what to
    remember. An image that was there before is not compared again. New ones too few to tell wait for others, unless it
    is known that they show something new."""
    if not len(rows):
        return 1.0, looks
    old = recalled(looks) if readable(looks) else rows[:0]
    if not len(old) or old.shape[1] != rows.shape[1]:
        return 1.0, remembered(rows)
    new = unseen(old, rows)
    if not level or math.comb(len(old) + len(new), len(new)) < 1 / level:
        return 1.0, remembered(rows) if known else looks
    return chance(old, new, level, draws), remembered(rows)


def chance(old: Rows, new: Rows, level: float, draws: np.random.Generator) -> float:
    """How likely so large a difference would be if nothing were new: the share of random divisions of all the images
    into groups of these sizes that differ at least as much. So it holds for every distribution and all sizes."""
    chosen = np.zeros((math.ceil(min(10 / level, MOST_DIVISIONS)), len(old) + len(new)))
    chosen[:, len(old) :] = 1
    chosen[1:] = draws.permuted(chosen[1:], axis=1)  # the first one as it is
    found = differences(likeness(np.concatenate([old, new])), chosen)
    return float((found >= found[0] - 1e-9).mean())


def likeness(rows: Rows) -> Rows:
    """How alike any two images are, from 0 to 1: every feature is brought to mean 0 and variance 1, features that go
    together count less (by the root of their covariance plus its mean eigenvalue), and distances go through a Gaussian
    as wide as their median."""
    rows = rows - rows.mean(0)
    rows /= np.maximum(rows.std(0), 1e-4)
    products = rows.T @ rows
    ridge = max(np.trace(products) / min(rows.shape), 1e-12)
    inner = rows @ np.linalg.solve(products + ridge * np.eye(len(products)), rows.T)
    squares = np.diag(inner)[:, None] + np.diag(inner) - 2 * inner
    return np.asarray(np.exp(-squares / max(np.median(squares), 1e-12)))


def differences(alike: Rows, chosen: Rows) -> Rows:
    """For each row of zeros and ones how unlike the images it chooses are to the others: the mean likeness within the
    one and within the other, less twice that between them."""
    new = chosen.sum(1)
    old = len(alike) - new
    to_new = chosen @ alike
    within_new = (to_new * chosen).sum(1)
    between = to_new.sum(1) - within_new
    within_old = alike.sum() - within_new - 2 * between
    return np.asarray(within_new / new**2 + within_old / old**2 - 2 * between / (new * old))


def unseen(old: Rows, new: Rows) -> Rows:
    """The new rows without those that are among the old ones, which are known to within a step of a byte."""
    step = np.maximum((old.max(0) - old.min(0)) / 255, 1e-4)
    return new[[not (np.abs(old - row) <= step).all(1).any() for row in new]]


def remembered(rows: Rows) -> dict[str, Any]:
    """Features as they stand in a client's memory: each number as a byte between its feature's least and largest."""
    least, largest = (np.round(ends, 6) for ends in (rows.min(0), rows.max(0)))
    share = ((rows - least) / np.maximum(largest - least, 1e-12)).clip(0, 1)
    text = base64.b64encode(np.rint(share * 255).astype(np.uint8).tobytes()).decode()
    return {"images": len(rows), "least": least.tolist(), "largest": largest.tolist(), "bytes": text}


def readable(looks: Mapping[str, Any]) -> bool:
    """Whether it is what `remembered` makes, not nothing and not what earlier versions kept."""
    return "bytes" in looks


def recalled(looks: Mapping[str, Any]) -> Rows:
    """What `remembered` was given, to within half a step of a byte."""
    share = np.frombuffer(base64.b64decode(looks["bytes"]), np.uint8).reshape(looks["images"], -1) / 255
    least, largest = np.asarray(looks["least"]), np.asarray(looks["largest"])
    return np.asarray(least + share * (largest - least))
