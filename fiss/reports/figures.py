"""Plots and tables as pieces of HTML: matplotlib's SVG and PNG embedded, readable for colour-blind people."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from fiss.runs.run import html_table

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#7f3fbf", "#8c564b", "#9e9e9e")
"""Okabe and Ito's first: colour-blind readers tell them apart. Markers and line styles differ too."""
ACROSS = 24
"""Columns of a heat map that can be read on one screen."""
MARKERS, LINES = "osD^v<>Ph*", ("-", "--", "-.", ":")


def figure(width: float, height: float) -> Any:
    """An empty figure, inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def svg(drawn: Any, alt: str) -> Markup:
    """A figure as an embedded SVG, its text as text."""
    from matplotlib import rc_context

    data = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fiss"}):
        drawn.savefig(data, format="svg", metadata={"Date": None})
    return image(data.getvalue(), "svg+xml", alt)


def png(drawn: Any, alt: str) -> Markup:
    """A figure as an embedded PNG."""
    data = io.BytesIO()
    drawn.savefig(data, format="png", dpi=80)
    return image(data.getvalue(), "png", alt)


def image(data: bytes, kind: str, alt: str) -> Markup:
    """Bytes of a picture, embedded."""
    text = base64.b64encode(data).decode()
    return Markup('<div class="plot"><img alt="{}" src="data:image/{};base64,{}"></div>').format(alt, kind, text)


def finish(axes: Any, title: str, legend: bool = True, **settings: Any) -> None:
    """Title, labels and limits, whole numbers below, a pale grid, and a legend of what is in it."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.set(**settings)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False, ncols=2)


def style(number: int) -> dict[str, Any]:
    """Colour, marker and line of the line of that number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number // len(COLOURS) % len(LINES)],
    }


def grid(
    rows: Sequence[str], columns: Sequence[str], values: Any, title: str, limits: tuple[float, float], colours: str
) -> Markup:
    """A heat map with its numbers in it; grey is not there. More columns than fit a screen go into several."""
    import numpy as np

    if len(columns) > ACROSS:
        starts = range(0, len(columns), ACROSS)
        parts = ((columns[a : a + ACROSS], [row[a : a + ACROSS] for row in values]) for a in starts)
        return Markup("").join(grid(rows, some, cells, title, limits, colours) for some, cells in parts)

    cells = np.array([[np.nan if v is None else v for v in row] for row in values], float)
    left, below = (max(map(len, names), default=0) for names in (rows, columns))  # letters
    drawn = figure(
        max(6.0, 0.52 * len(columns) + max(2.2, 1.2 + 0.09 * left)), 0.42 * len(rows) + max(1.5, 0.8 + 0.08 * below)
    )
    axes = drawn.subplots()
    axes.set_facecolor("#dddddd")
    axes.imshow(cells, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(title, loc="left", fontsize=11)
    middle = (limits[0] + limits[1]) / 2
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            if not np.isnan(value):
                dark = value < middle if colours == "cividis" else abs(value - middle) > 0.6 * (limits[1] - middle)
                axes.text(
                    x, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
                )
    return svg(drawn, title)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table of strings."""
    return Markup(f'<div class="wide">{html_table(head, rows)}</div>')


def tiles(heads: Sequence[str], rows: Sequence[Sequence[Any]], legend: Iterable[tuple[str, str]], alt: str) -> Markup:
    """Rows of small pictures under headings, None leaves a place empty; and what their colours mean."""
    drawn = figure(1.5 * len(heads), 1.55 * len(rows) + 0.3)
    places = drawn.subplots(len(rows), len(heads), squeeze=False)
    for y, row in enumerate(rows):
        for x, head in enumerate(heads):
            places[y][x].set_axis_off()
            if x < len(row) and row[x] is not None:
                places[y][x].imshow(row[x], interpolation="nearest")
            if y == 0:
                places[y][x].set_title(head, fontsize=9)
    entry = Markup('<span><i style="background: {1}"></i>{0}</span> ')
    return png(drawn, alt) + Markup('<p class="legend">{}</p>').format(Markup().join(entry.format(*o) for o in legend))
