"""Background shift: lookup tables from mask ids to channels.

In training only the present classes are labelled; old and future classes look like background. In evaluation every
class known so far counts. 255 stays ignored in both. A table has 256 entries, so a mask is mapped by one indexing.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fiss.labels import BACKGROUND, IGNORE, LabelSpace

Table = NDArray[np.uint8]


def training_table(classes: Sequence[str], label_space: LabelSpace, labelled: Iterable[int]) -> Table:
    """Ids in `labelled` go to their channel, every other id to background."""
    table = np.full(256, BACKGROUND, np.uint8)
    for i in labelled:
        table[i] = label_space.channel(classes[i - 1])
    table[IGNORE] = IGNORE
    return table


def evaluation_table(classes: Sequence[str], label_space: LabelSpace) -> Table:
    """Ids of known classes go to their channel, unseen ones to background."""
    known = [i for i, name in enumerate(classes, 1) if name in label_space.names]
    return training_table(classes, label_space, known)
