"""What a person is told about a data set: problems grouped by kind, suspicions, and what to do about each.

A suspicion is something that can be read without an error and is seldom meant: ids that are shifted by one, masks that
went through a JPEG, the same frame in both parts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fiss.data.dataset import Dataset, Split, shortened
from fiss.data.mending import Mending
from fiss.data.reading import Problem
from fiss.data.summary import JPEG, ONE_BIT, WIDE, SplitSummary, alike
from fiss.labels import IGNORE

NAMED = 3
"""Files named for each finding."""
FEW = 5
"""Fewer training images than that are too few to learn a class from."""
NO_CLASS = ("void", "unlabelled", "unlabeled", "unknown", "ignore", "ignored", "don't care")
SIDES = ("top", "bottom", "left", "right")


@dataclass(frozen=True)
class Finding:
    """Something about a data set.

    Args:
        what: What was found, with a few names.
        remedy: What to do about it.
        stems: The names of the images it is about, where there are some.

    Example:
        >>> [str(finding) for finding in fiss.check_data("/data/mine").suspicions]
    """

    what: str
    remedy: str = ""
    stems: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.what + (f" {self.remedy[0].upper()}{self.remedy[1:]}." if self.remedy else "")


def grouped(problems: Iterable[Problem]) -> tuple[Finding, ...]:
    """One finding for each kind of problem."""
    kinds: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        kinds[problem.kind].append(problem)
    return tuple(_group(kind, alike) for kind, alike in kinds.items())


def _group(kind: str, problems: Sequence[Problem]) -> Finding:
    first, stems = problems[0], tuple(Path(problem.file).stem for problem in problems)
    if len(problems) == 1:
        return Finding(f"{first.file}: {kind}{first.detail}.", first.remedy, stems)
    names = shortened([Path(problem.file).name for problem in problems], NAMED)
    spans = [problem.span for problem in problems if problem.span]
    detail = f"; the first: {first.detail.lstrip(' :,')}" if first.detail else ""
    if spans:
        detail = f", values from {min(low for low, _ in spans):g} to {max(high for _, high in spans):g}"
    return Finding(f"{len(problems)} files: {kind} ({names}){detail}.", first.remedy, stems)


def one_task(where: str, classes: Sequence[str]) -> str:
    """What it means that all classes come at once."""
    remedy = " Set tasks.split = 1-1." if len(classes) == 2 else ""
    return (
        f"{where} makes one task of {len(classes)} class{'es' * (len(classes) > 1)}: none ever arrives later, "
        f"so nothing can be forgotten and methods such as fbl do nothing.{remedy}"
    )


def unlabelled(dataset: Dataset, summary: SplitSummary, mending: Mending) -> Problem | None:
    """No mask of the training images shows a class, so that there is nothing to learn."""
    if not summary.images.any() or summary.images[1 : len(dataset.classes) + 1].any():
        return None
    found = [int(i) for i in np.nonzero(summary.images)[0]]
    if set(found) - {0, IGNORE}:
        return None  # ids that no class has are a problem of each mask
    ignored = f": 255 is ignored, so none shows {shortened(dataset.classes, NAMED)}" if IGNORE in found else ""
    detail = f" {' and '.join(map(str, found))}{ignored}"
    remedy = f"if 255 is a class: `{mending.values({IGNORE: dataset.classes[0]})}`" if IGNORE in found else ""
    return Problem("train", "all masks hold only", detail, remedy)


def suspicions(
    dataset: Dataset, train: SplitSummary, val: SplitSummary, images: NDArray[np.int64]
) -> tuple[Finding, ...]:
    """All that is suspicious; `images`: training images that show each class, (K + 1,)."""
    parts = ((dataset.train, train), (dataset.val, val))
    together = SplitSummary.of(0)
    for summary in (train, val):
        for name in ("pixels", "images", "sides"):
            getattr(together, name)[:] += getattr(summary, name)
    mending = Mending.of(dataset, (together,))
    rules = (
        _stored(parts, dataset.classes),
        _ignored(parts, dataset.classes, mending),
        _shifted(dataset.classes, together, max(len(train.ignored) + len(val.ignored), 1), mending),
        _rare(dataset.classes, train, images),
        _both(dataset, train, val),
    )
    return tuple(finding for rule in rules for finding in rule)


Parts = tuple[tuple[Split, SplitSummary], tuple[Split, SplitSummary]]


def _chosen(parts: Parts, which: Iterable[NDArray[np.bool_]]) -> tuple[str, ...]:
    return tuple(split.stems[int(i)] for (split, _), own in zip(parts, which, strict=True) for i in np.nonzero(own)[0])


def _stored(parts: Parts, classes: Sequence[str]) -> Iterator[Finding]:
    for bit, what, remedy in (
        (
            JPEG,
            "masks are JPEG files, which invents ids at borders",
            "make them again as PNG from what they were made of",
        ),
        (
            ONE_BIT,
            f"masks have one bit per pixel, so white is class 1 ({classes[0]})",
            "if it is another class, save them with 8 bits and its id",
        ),
        (
            WIDE,
            "images have 16 bits per colour, and only the high eight are used",
            "to use them all, save them as TIFF and set data.window",
        ),
    ):
        if stems := _chosen(parts, (summary.stored & bit > 0 for _, summary in parts)):
            yield Finding(f"{len(stems)} {what} ({shortened(stems, NAMED)}).", remedy, stems)


def _ignored(parts: Parts, classes: Sequence[str], mending: Mending) -> Iterator[Finding]:
    remedy = f"if 255 is a class: `{mending.values({IGNORE: 'object'})}`"
    whole = [summary.ignored > 0 for _, summary in parts]
    empty = _chosen(parts, (some & ~summary.labelled for some, (_, summary) in zip(whole, parts, strict=True)))
    if len(empty) > NAMED - 1 and any(summary.images[1 : len(classes) + 1].any() for _, summary in parts):
        what = f"{len(empty)} masks hold only 0 and 255 ({shortened(empty, NAMED)}), so no class."
        yield Finding(what, remedy, empty)
    for split, summary in parts:
        share = summary.ignored.sum() / max(summary.pixels.sum(), 1)
        if share > 0.3:
            worst = np.argsort(-summary.ignored, kind="stable")[:NAMED]
            stems = tuple(split.stems[int(i)] for i in worst)
            what = f"{100 * share:.0f} % of the pixels of {split.name} are ignored, most in {', '.join(stems)}."
            yield Finding(what, remedy, stems)


def _shifted(classes: Sequence[str], summary: SplitSummary, count: int, mending: Mending) -> Iterator[Finding]:
    last, shown = len(classes), summary.images
    mend = mending.values(dict(enumerate([*classes, "ignore"])))
    mend = f"if the first class is 0 in the masks: `{mend}`"
    for i, name in enumerate(classes, 1):
        if name.lower() in NO_CLASS and shown[i]:
            ignored = f"to ignore it: `{mending.values({i: 'ignore'})}`"
            yield Finding(f"{name} (id {i}) is learnt like any class.", ignored)
    if last > 2 and not shown[last] and shown[:last].all():
        yield Finding(f"Ids 0 to {last - 1} are in the masks and {last} is not, so names may be shifted by one.", mend)
    touches, labelled = summary.sides / np.maximum(shown, 1), max(summary.pixels[: last + 1].sum(), 1)
    if shown[0] >= FEW and summary.pixels[0] > 0.01 * labelled:
        never = [SIDES[side] for side in range(4) if touches[side, 0] < 0.02]
        if never:
            what = f"Id 0, taken for background, never reaches the {' and '.join(never)} of an image"
            yield Finding(f"{what}, so it may be a class and all names be shifted by one.", mend)
    for i in range(1, last + 1):
        everywhere = shown[i] >= max(0.95 * count, FEW) and (touches[:, i] > 0.9).sum() >= 3
        if everywhere and summary.pixels[i] > 0.3 * labelled and (touches[:, 0] > 0.5).sum() < 3:
            share = 100 * summary.pixels[i] / labelled
            what = f"{classes[i - 1]} (id {i}) is {share:.0f} % of the pixels and in nearly every image"
            yield Finding(
                f"{what}, as a background is.",
                mend if i == last else f"if it is the background: `{mending.values({i: 'background'})}`",
            )
    used = [int(i) for i in np.nonzero(shown[:IGNORE])[0] if i]
    if len(used) > 1 and (step := reduce(gcd, used)) > 7:
        what = f"Only every {step}th id is used ({shortened(list(map(str, used)), 5)})."
        grey = mending.values(dict(zip(used, classes, strict=False)))
        yield Finding(what, f"if they are grey values that stand for the first classes: `{grey}`")


def _rare(classes: Sequence[str], train: SplitSummary, images: NDArray[np.int64]) -> Iterator[Finding]:
    total = max(train.pixels.sum(), 1)
    few = []
    for i, name in enumerate(classes, 1):
        if 0 < images[i] < FEW:
            few.append(f"{name} ({images[i]} image{'s' if images[i] > 1 else ''})")
        elif images[i] and train.pixels[i] < 2e-5 * total:
            few.append(f"{name} ({1e6 * train.pixels[i] / total:.2g} pixels in a million)")
    if few:
        what = f"Too rare in the training images to be learnt: {shortened(few)}."
        yield Finding(what, "leave them out of tasks.split, or add images")


def _both(dataset: Dataset, train: SplitSummary, val: SplitSummary) -> Iterator[Finding]:
    ours, theirs = dataset.val.stems, dataset.train.stems
    remedy = "put all frames of one film, place or patient into one part (train.txt, val.txt)"
    listed = set(theirs)  # what is in both lists is a problem already
    first = {tuple(digest): i for i, digest in reversed(list(enumerate(train.digests.tolist()))) if any(digest)}
    twins = {
        i: first[tuple(digest)]
        for i, digest in enumerate(val.digests.tolist())
        if tuple(digest) in first and ours[i] not in listed
    }
    found = enumerate(alike(val.codes, train.codes))
    near = {i: int(j) for i, j in found if j >= 0 and i not in twins and ours[i] not in listed}
    for pairs, what in (
        (twins, "are training images under another name"),
        (near, "look like training images, so scores will be too good"),
    ):
        if pairs:
            names = shortened([f"{ours[i]} = {theirs[j]}" for i, j in pairs.items()], NAMED)
            count = f"{len(pairs)} of {len(ours)} validation images"
            yield Finding(f"{count} {what}: {names}.", remedy, tuple(ours[i] for i in pairs))
    same = tuple(ours[i] for i, j in enumerate(alike(val.codes, val.codes, itself=True)) if j >= 0)
    if len(same) > max(len(ours) // 2, 2):
        what = f"{len(same)} of {len(ours)} validation images look like another one, so few views are scored"
        yield Finding(f"{what}: {shortened(same, NAMED)}.", "choose validation images that differ", same)
