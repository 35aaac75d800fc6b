"""Line charts as SVG written by hand: the same bytes everywhere, so that a test can compare them."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BELOW = 760, 340, 46, 34, 210, 40
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#7f3fbf", "#8c564b")
"""Okabe and Ito's first: colour-blind readers tell them apart. Marks differ too."""
DASHES = ("", "6 3", "2 3")
MARKS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-4,-4h8v8h-8z", "M0,-5l5,9h-10z", "M0,-5l5,5l-5,5l-5,-5z")


def lines(title: str, curves: Mapping[str, Sequence[float | None]], upper: int = 100) -> str:
    """One curve a method, over the tasks, percent; its name beside its last point."""
    tasks = max(len(values) for values in curves.values())
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BELOW

    def x(task: int) -> float:
        return round(LEFT + wide * task / max(tasks - 1, 1), 1)

    def y(value: float) -> float:
        return round(TOP + high * (1 - value / upper), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for value in range(0, upper + 1, 20):
        parts.append(f'<path d="M{LEFT},{y(value)}h{wide}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value}</text>')
    for task in range(tasks):
        parts.append(f'<text x="{x(task)}" y="{HEIGHT - BELOW + 18}" text-anchor="middle">{task}</text>')
    parts.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 6}" text-anchor="middle">task</text>')
    names, free = [], float("-inf")
    for number, (name, values) in enumerate(curves.items()):
        there = [(x(task), y(value)) for task, value in enumerate(values) if value is not None]
        if not there:
            continue
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        path = "L".join(f"{a},{b}" for a, b in there)
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{DASHES[number // len(MARKS) % len(DASHES)]}"/>'
        )
        parts += [f'<path d="{mark}" transform="translate({a},{b})" fill="{colour}"/>' for a, b in there]
        names.append((there[-1][1], name, colour, mark))
    for height, name, colour, mark in sorted(names):
        free = max(height, free + 17)
        parts.append(f'<path d="{mark}" transform="translate({LEFT + wide + 18},{free})" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + wide + 28}" y="{free + 4:.1f}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
