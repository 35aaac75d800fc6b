"""Commands that put a data set right: complete, so that they can be given as they are printed."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fiss.data.dataset import Dataset, FileSplit
from fiss.data.reading import Problem
from fiss.data.summary import SplitSummary
from fiss.labels import IGNORE


@dataclass(frozen=True)
class Mending:
    """The commands that import a data set once more, in a better way."""

    images: Path
    masks: Path
    classes: tuple[str, ...]
    used: tuple[int, ...]
    """Ids that masks show."""

    @classmethod
    def of(cls, dataset: Dataset, summaries: Sequence[SplitSummary]) -> "Mending":
        """Commands for the data set, wherever its files lie."""
        files = [split for split in (dataset.train, dataset.val) if isinstance(split, FileSplit) and split.stems]
        folders = (_common([s.images[0] for s in files]), _common([s.masks[0] for s in files]))
        shown = sum((summary.images for summary in summaries), np.zeros(256, np.int64))
        return cls(*folders, dataset.classes, tuple(int(i) for i in np.nonzero(shown)[0]))

    def values(self, changes: Mapping[int, str]) -> str:
        """Import values: these ids get names, others keep theirs, and ids without a name become ignored."""
        names = {i: name for i, name in enumerate(self.classes, 1) if i in self.used or name not in changes.values()}
        names |= {i: "ignore" for i in self.used if i > len(self.classes)} | dict(changes)
        order = {name: i for i, name in enumerate(self.classes)}  # classes keep theirs
        ranked = sorted(names.items(), key=lambda pair: (order.get(pair[1], len(order)), pair[0]))
        pairs = ",".join(f"{i}={name.replace(',', ' ')}" for i, name in ranked)
        return self._command("values", "--map", pairs)

    def as_they_are(self, kind: str) -> str:
        """Import masks whose pixels are ids of classes.txt, but whose files are of another kind."""
        return self._command(kind, "--classes", str(self.images.parent / "classes.txt"))

    def colours(self) -> str:
        """Import masks in which colours stand for classes."""
        return self._command("colour", "--classes", "colours.txt")

    def _command(self, kind: str, *options: str) -> str:
        root = self.images.parent
        where = [] if self.images.name == "images" else ["--images", str(self.images)]
        where += [] if self.masks == root / "masks" else ["--masks", str(self.masks)]
        return shlex.join(["fiss", "data", "import", kind, str(root), f"{root}-mended", *where, *options])

    def remedied(self, problem: Problem) -> Problem:
        """The problem of a file with the command that mends it, where there is one."""
        if problem.kind.endswith("colour mask"):
            how = "where each line of colours.txt is a name and R G B"
            return replace(problem, remedy=f"if colours stand for classes: `{self.colours()}`, {how}")
        if problem.kind == "16-bit or wider mask":
            return replace(problem, remedy=f"if its pixels are class ids: `{self.as_they_are('values')}`")
        if problem.kind.startswith(("TIFF of several pages", "no image of rows and columns")):
            return replace(problem, remedy=f"to make each page an image: `{self.as_they_are('tiff')}`")
        if problem.kind.startswith("mask ids outside"):
            return replace(problem, remedy=self._strange())
        return problem

    def _strange(self) -> str:
        """What to do about ids that no class has."""
        ids = [i for i in self.used if i]
        names, last = [*self.classes, "ignore"], len(self.classes) + 1
        if 1 not in ids and last == max((i for i in ids if i < IGNORE), default=0):
            changes = dict(enumerate(self.classes, 2))
            return f"ids seem shifted by one, for 1 never occurs and {last} does: `{self.values(changes)}`"
        if len(ids) <= len(names) and min(ids) > len(self.classes):
            changes = dict(zip(ids, names, strict=False))
            return f"if these are grey values that stand for classes: `{self.values(changes)}`"
        return f"name more classes in classes.txt, or ignore these ids: `{self.values({})}`"


def _common(paths: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
