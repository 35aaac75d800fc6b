"""Plots, pictures and tables as pieces of HTML, all embedded, readable for colour-blind people."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from fiss.runs.run import html_table

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#7f3fbf", "#8c564b", "#9e9e9e")
"""Okabe and Ito's first: colour-blind readers tell them apart. Markers and line styles differ too."""
SIDE = 320
"""Pixels of the longer side of a picture."""
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


def image(data: bytes, kind: str, alt: str) -> Markup:
    """Bytes of a figure, embedded."""
    return Markup('<div class="plot"><img alt="{}" src="{}"></div>').format(alt, _address(data, kind))


def shot(pixels: Any) -> str:
    """A picture as a data: address: of few colours exactly, a photo as a JPEG."""
    import numpy as np
    from PIL import Image

    packed = pixels.astype(np.int64) @ (1 << 16, 1 << 8, 1)
    colours, numbers = np.unique(packed, return_inverse=True)
    data = io.BytesIO()
    if len(colours) > 256:
        photo = Image.fromarray(pixels)
        photo.thumbnail((SIDE, SIDE))
        photo.save(data, "jpeg", quality=88)
        return _address(data.getvalue(), "jpeg")
    flat = Image.fromarray(numbers.reshape(packed.shape).astype(np.uint8), "P")
    flat.putpalette([byte for c in colours.tolist() for byte in (c >> 16, c >> 8 & 255, c & 255)])
    flat.thumbnail((SIDE, SIDE), Image.Resampling.NEAREST)
    flat.save(data, "png", optimize=True)
    return _address(data.getvalue(), "png")


def _address(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


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
    rows: Sequence[str], columns: Sequence[str], values: Any, title: str, most: Sequence[float], digits: int = 0
) -> Markup:
    """A table of numbers, the darker the larger; `most` is the darkest of each column. Empty is not there."""
    one, empty = Markup('<td class="shade" style="--v: {:.2f}">{}</td>'), Markup("<td></td>")
    head = Markup().join(Markup("<th>{}</th>").format(name) for name in ("", *columns))
    lines = Markup()
    for name, row in zip(rows, values, strict=True):
        cells = Markup().join(
            empty if v is None else one.format(min(1, max(0, v / limit)), f"{v:.{digits}f}")
            for v, limit in zip(row, most, strict=True)
        )
        lines += Markup("<tr><td>{}</td>{}</tr>").format(name, cells)
    text = '<p class="quiet">{}</p><div class="wide"><table class="dense"><tr>{}</tr>{}</table></div>'
    return Markup(text).format(title, head, lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table of strings."""
    return Markup(f'<div class="wide">{html_table(head, rows)}</div>')


def tiles(heads: Sequence[str], rows: Sequence[Sequence[Any]], legend: Iterable[tuple[str, str]], alt: str) -> Markup:
    """Rows of small pictures with their headings; and what their colours mean."""
    figure = Markup('<figure><img alt="{}" src="{}"><figcaption>{}</figcaption></figure>')
    lines = (
        Markup().join(figure.format(f"{alt}: {h}", shot(t), h) for h, t in zip(heads, row, strict=True)) for row in rows
    )
    entry = Markup('<span><i style="background: {1}"></i>{0}</span> ')
    return Markup().join(Markup('<div class="shots">{}</div>').format(line) for line in lines) + Markup(
        '<p class="legend">{}</p>'
    ).format(Markup().join(entry.format(*one) for one in legend))
