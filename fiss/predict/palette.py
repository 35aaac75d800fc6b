"""The colours of classes, one palette everywhere: masks, overlays, pictures, reports, contact sheets, exports."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiss.data.reading import Bytes
from fiss.predict.predictor import Predictor

FIRST = (
    "#1e1e1e", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
    "#9e9e9e", "#7f3fbf", "#8c564b", "#c7e9a0", "#fbb4ae",
)  # fmt: skip
"""Background, then Okabe and Ito's colours, which colour-blind readers tell apart, and a few more."""
Legend = list[tuple[str, str]]
"""Names and their colours, as #rrggbb."""


def colours_of(count: int) -> Bytes:
    """One colour per class, (count, 3), no two alike; the first is the background's, and white is what is ignored."""
    from matplotlib import colormaps
    from matplotlib.colors import hsv_to_rgb, to_rgb

    more: list[Any] = [colormaps["tab20b"](k)[:3] for k in range(20)]
    more += [hsv_to_rgb((k * 0.618034 % 1, 0.45 + 0.15 * (k % 4), 0.95 - 0.15 * (k // 4 % 4))) for k in range(256)]
    return (np.array([*(to_rgb(c) for c in FIRST), *more][:count]) * 255).astype(np.uint8)


def class_colours(predictor: Predictor) -> Bytes:
    """The colour of each of its channels: that of the class in the data set."""
    known = ("background", *(predictor.ids or predictor.names[1:]))
    colours: Bytes = colours_of(len(known))[[known.index(name) for name in predictor.names]]
    return colours


def paint(labels: NDArray[np.int64], colours: Bytes) -> Bytes:
    """Class ids in their colours; what is ignored is white."""
    white = np.full((1, 3), 255, np.uint8)
    return np.concatenate([colours, white])[np.minimum(labels, len(colours))]


def legend_of(classes: Sequence[str], painted: Iterable[Bytes]) -> Legend:
    """What the colours of painted labels mean: the classes of the data set that are in them, in their order."""
    named = zip(("background", *classes), colours_of(len(classes) + 1), strict=True)
    meaning = {f"#{bytes(colour).hex()}": name for name, colour in named} | {"#ffffff": "ignored"}
    there = {f"#{int(c):06x}" for one in painted for c in np.unique(one.astype(np.int64) @ (1 << 16, 1 << 8, 1))}
    return [(name, colour) for colour, name in meaning.items() if colour in there]


def draw_legend(figure: Any, legend: Legend) -> None:
    """Below all else in a figure of matplotlib, which grows by what it takes."""
    from matplotlib.patches import Patch

    columns = max(2, int(figure.get_figwidth() / 1.5))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2 * -(-len(legend) // columns) + 0.1)
    handles = [Patch(color=colour, label=name, ec="black", lw=0.4) for name, colour in legend]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
