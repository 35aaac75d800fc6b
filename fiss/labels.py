"""Class names, channels and tasks.

A data set has class *ids* (0 is background, 1..K its classes in its own order). The network has *channels*. The label
space says which class sits on which channel: it only ever grows at the end, so a channel never changes its meaning. A
task stream says in which order the classes of a data set arrive.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fiss.errors import UserError, unknown

BACKGROUND = 0
IGNORE = 255
MOST_CLASSES = 254
"""Masks are bytes: 0 is background and 255 is ignored."""


@dataclass(frozen=True)
class LabelSpace:
    """What server and clients agree on: the classes known so far, in groups by the task in which they entered."""

    groups: tuple[tuple[str, ...], ...]
    """Class names per group, background (channel 0) not among them."""

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) != len(names):
            raise UserError(f"A class enters the label space twice: {', '.join(names)}.")
        if len(names) > MOST_CLASSES:
            raise UserError(f"{len(names)} classes are too many: masks are bytes and hold at most {MOST_CLASSES}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Foreground classes by channel; the first one is channel 1."""
        return tuple(name for group in self.groups for name in group)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Channels per group; the first group counts the background."""
        return tuple(len(group) + (index == 0) for index, group in enumerate(self.groups))

    @property
    def channels(self) -> int:
        """Channels in all, background included."""
        return sum(self.sizes)

    def channel(self, name: str) -> int:
        """Channel of a class."""
        return self.names.index(name) + 1

    def group_channels(self, group: int) -> range:
        """Channels of the classes of one group, background not among them."""
        ends = [0, *accumulate(self.sizes)]
        return range(max(ends[group], 1), ends[group + 1])

    def grow(self, names: Iterable[str]) -> "LabelSpace":
        """The label space with one more group at the end."""
        return LabelSpace((*self.groups, tuple(names)))


@dataclass(frozen=True)
class TaskStream:
    """The order in which the classes of a data set arrive."""

    classes: tuple[str, ...]
    """All class names of the data set; `classes[i - 1]` has id i."""
    tasks: tuple[tuple[int, ...], ...]
    """Class ids per task."""

    @classmethod
    def parse(cls, text: str, classes: Sequence[str], order: Sequence[str] = ()) -> "TaskStream":
        """Read `15-1`, `all`, or explicit tasks such as `cat, dog; 3, 4; bird`; `order` re-orders the classes for
        `A-B`."""
        count = len(classes)
        ids = [_class_id(name, classes) for name in order] or list(range(1, count + 1))
        if sorted(ids) != list(range(1, count + 1)):
            missing = [classes[i - 1] for i in range(1, count + 1) if i not in ids]
            problem = f"misses {', '.join(missing)}" if missing else "names a class twice"
            raise UserError(f"tasks.order must name each of the {count} classes once; it {problem}.")
        if text.strip() == "all":
            return cls(tuple(classes), (tuple(ids),))
        if match := re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text):
            first, step = int(match[1]), int(match[2])
            if first < 1 or step < 1 or first > count or (count - first) % step:
                raise UserError(
                    f"tasks.split = '{text}' does not fit {count} classes: A-B needs 1 <= A <= {count} and "
                    f"{count} - A divisible by B."
                )
            cuts = [0, *range(first, count + 1, step)]
            return cls(tuple(classes), tuple(tuple(ids[a:b]) for a, b in pairwise(cuts)))
        if not re.search(r"[;,]", text):
            raise UserError(f"tasks.split = '{text}' is neither 'all', nor 'A-B', nor lists like '1, 2; 3; 4'.")
        if order:
            raise UserError("tasks.order goes with tasks.split = A-B or all; explicit lists have their own order.")
        groups = [[n.strip() for n in part.split(",") if n.strip()] for part in text.split(";")]
        if not all(groups):
            raise UserError(f"tasks.split = '{text}' has a task without classes.")
        tasks = tuple(tuple(_class_id(name, classes) for name in group) for group in groups)
        flat = [i for task in tasks for i in task]
        if twice := sorted({classes[i - 1] for i in flat if flat.count(i) > 1}):
            raise UserError(f"tasks.split = '{text}' names a class twice: {', '.join(twice)}.")
        return cls(tuple(classes), tasks)

    def names(self, task: int) -> tuple[str, ...]:
        """Class names of one task."""
        return tuple(self.classes[i - 1] for i in self.tasks[task])

    def seen(self, task: int) -> tuple[int, ...]:
        """Class ids of all tasks up to and including `task`."""
        return tuple(i for ids in self.tasks[: task + 1] for i in ids)

    def label_space(self, task: int) -> LabelSpace:
        """The label space once `task` has been announced."""
        return LabelSpace(tuple(self.names(t) for t in range(task + 1)))


def _class_id(name: str, classes: Sequence[str]) -> int:
    if name in classes:
        return list(classes).index(name) + 1
    if name.isdecimal() and 1 <= int(name) <= len(classes):
        return int(name)
    raise unknown("class", name, [*classes, f"or an id from 1 to {len(classes)}"])
