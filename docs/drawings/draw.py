"""The drawings of the documents, as SVG that reads on light and on dark ground.

python docs/drawings/draw.py    # writes them beside this file
"""

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
COLOURS = (
    "svg.drawing{color:#24292f;--soft:#eaeef6;--accent:#2f54c8;--warm:#b3541e}"
    "@media (prefers-color-scheme:dark){svg.drawing{color:#e6e8ec;--soft:#2a3040;--accent:#9db4ff;--warm:#f0a070}}"
)


class Drawing:
    """Boxes, arrows and words on a sheet."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self.title, self.width, self.height = title, width, height
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, anchor: str = "middle", size: int = 14, colour: str = "") -> None:
        """Lines of words, the first one's middle at y."""
        for i, line in enumerate(words.split("\n")):
            style = f' style="fill:{colour}"' if colour else ""
            self.parts.append(
                f'<text x="{x:g}" y="{y + 5 + i * (size + 4):g}" text-anchor="{anchor}" font-size="{size}"{style}>'
                f"{escape(line)}</text>"
            )

    def box(
        self, x: float, y: float, width: float, height: float, words: str = "", colour: str = "var(--soft)"
    ) -> None:
        """A box with words in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'style="fill:{colour};stroke:currentColor;stroke-opacity:.45"/>'
        )
        self.text(x + width / 2, y + height / 2 - 9 * words.count("\n"), words)

    def line(self, x1: float, y1: float, x2: float, y2: float, dashed: bool = False, arrow: bool = False) -> None:
        """A line, with a point at its end where it is an arrow."""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        point = ' marker-end="url(#point)"' if arrow else ""
        colour = "var(--accent)" if arrow else "currentColor"
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" style="stroke:{colour}" '
            f'stroke-width="{1.8 if arrow else 1}"{dash}{point}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, words: str = "", above: float = 12) -> None:
        """An arrow with words over its middle."""
        self.line(x1, y1, x2, y2, arrow=True)
        self.text((x1 + x2) / 2, (y1 + y2) / 2 - above - 18 * words.count("\n"), words, size=13)

    def pixels(self, x: float, y: float, side: float, rows: list[str], colours: dict[str, str]) -> None:
        """A small mask: a letter a pixel."""
        for i, row in enumerate(rows):
            for j, letter in enumerate(row):
                self.parts.append(
                    f'<rect x="{x + j * side:g}" y="{y + i * side:g}" width="{side:g}" height="{side:g}" '
                    f'style="fill:{colours[letter]};stroke:currentColor;stroke-opacity:.25"/>'
                )

    def svg(self) -> str:
        """The file."""
        return "\n".join(
            [
                f'<svg class="drawing" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" role="img" font-family="system-ui, sans-serif">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{COLOURS}</style>",
                '<defs><marker id="point" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
                'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" style="fill:var(--accent)"/></marker></defs>',
                '<g style="fill:currentColor">',
                *self.parts,
                "</g>",
                "</svg>",
                "",
            ]
        )


def sequence(title: str, actors: tuple[str, ...], steps: list[tuple[str, int, int, str]]) -> Drawing:
    """A sequence diagram: `say` goes from one actor to another, `do` is what an actor does alone."""
    gap, left, top = 320, 140, 64
    heights = [(54 if kind == "say" else 42) + 18 * words.count("\n") for kind, _, _, words in steps]
    made = Drawing(title, 2 * left + gap * (len(actors) - 1), top + sum(heights) + 30)
    for i, name in enumerate(actors):
        made.line(left + gap * i, 44, left + gap * i, made.height - 10, dashed=True)
        made.box(left + gap * i - 75, 8, 150, 36, name)
    y = top
    for (kind, start, end, words), height in zip(steps, heights, strict=True):
        x = left + gap * start
        if kind == "say":
            made.arrow(x + (8 if end > start else -8), y + height - 12, left + gap * end + (-8 if end > start else 8),
                       y + height - 12, words)  # fmt: skip
        else:
            made.box(x - 126, y + 4, 252, height - 8, words)
        y += height
    return made


def round_told() -> Drawing:
    """One round where tasks are announced."""
    return sequence(
        "One round where tasks are announced",
        ("server", "selected site"),
        [
            ("do", 0, 0, "first round of a task: keeps the\nmodel as teacher, makes room\nfor the new classes"),
            ("say", 0, 1, "order: model, classes,\nteacher, number of the task"),
            ("do", 1, 1, "trains on its own images;\nonly present classes are labelled"),
            ("say", 1, 0, "reply: weights, number of\nimages, mean losses"),
            ("do", 0, 0, "checks every reply and takes\nthe weighted mean"),
            ("do", 0, 0, "scores the new model"),
        ],
    )


def round_untold() -> Drawing:
    """One round where nobody announces a task."""
    return sequence(
        "One round where nobody announces a task",
        ("server", "selected site"),
        [
            ("say", 0, 1, "probe: model, classes so far"),
            ("do", 1, 1, "looks at its own images; its\nmonitor compares with before"),
            ("say", 1, 0, "classes that are missing,\nwhether the monitor fired"),
            (
                "do",
                0,
                0,
                "makes room for missing classes;\nkeeps the model as teacher of\nthe sites whose monitor fired",
            ),
            ("say", 0, 1, "order: model, classes,\nthe site's own teacher"),
            ("do", 1, 1, "trains on its own images"),
            ("say", 1, 0, "reply: weights, number of\nimages, mean losses"),
            ("do", 0, 0, "checks every reply and takes\nthe weighted mean"),
        ],
    )


def background_shift() -> Drawing:
    """The same image in three tasks."""
    made = Drawing("The same image, labelled in three tasks", 780, 300)
    colours = {".": "var(--soft)", "d": "#3b7dd8", "c": "#d9822b", "p": "#7a9e3f"}
    image = ["..........", ".dd...cc..", ".dd...cc..", ".dd.......", "......ppp.", "......ppp.", ".........."]
    seen = {"what is there": "dcp", "mask in task 0": "d", "mask in task 1": "c", "mask in task 2": "p"}
    for i, (name, kept) in enumerate(seen.items()):
        rows = ["".join(letter if letter in kept else "." for letter in row) for row in image]
        made.text(100 + 195 * i, 18, name)
        made.pixels(25 + 195 * i, 38, 15, rows, colours)
    said = ("dog, car and plant", "dog; the rest is\n“background”", "car; dog and plant\nare “background”")
    for i, words in enumerate((*said, "plant; dog and car\nare “background”")):
        made.text(100 + 195 * i, 166, words, size=13)
    made.line(20, 214, 760, 214)
    made.text(390, 240, "Background hides classes learned before and classes that come later.", size=14)
    made.text(390, 264, "A model that believes these masks unlearns the dog in task 1.", colour="var(--warm)")
    return made


def monitors() -> Drawing:
    """What a site compares to notice new classes."""
    made = Drawing("How a site notices new classes", 780, 260)
    made.box(20, 20, 170, 56, "images held before")
    made.box(20, 150, 170, 56, "images held now")
    made.box(270, 84, 190, 60, "one network that\nnever changes")
    made.arrow(190, 52, 268, 98)
    made.arrow(190, 174, 268, 132)
    made.box(530, 84, 220, 60, "do labelled pixels look\nlike those of before?")
    made.arrow(460, 114, 528, 114)
    made.arrow(640, 144, 640, 190)
    made.text(640, 208, "no: the monitor fires,\nthe site gets a teacher", colour="var(--warm)")
    made.arrow(640, 84, 640, 50)
    made.text(640, 34, "yes: it trains on as before")
    made.text(365, 170, "features stay\nat the site", size=13)
    return made


def statistics() -> Drawing:
    """Learning by sums."""
    made = Drawing("Learning by sums", 800, 280)
    for i, name in enumerate(("site A", "site B", "site C")):
        y = 20 + 86 * i
        made.box(20, y, 90, 56, name)
        made.box(170, y, 130, 56, "frozen network:\nfeatures")
        made.arrow(110, y + 28, 168, y + 28)
        made.arrow(300, y + 28, 428, 134 + 14 * (i - 1), "sums" if i == 1 else "", above=8)
    made.box(430, 96, 130, 76, "server adds\nthe sums up")
    made.box(640, 96, 140, 76, "solves for the\nclassifier")
    made.arrow(560, 134, 638, 134)
    made.text(495, 206, "a ledger keeps each site's sums;\none can be taken out again", size=13)
    made.text(680, 50, "after the first task\nnothing is trained", size=13, colour="var(--warm)")
    return made


def privacy() -> Drawing:
    """What leaves a site."""
    made = Drawing("What leaves a site, and what stays", 860, 270)
    made.box(20, 20, 330, 230, "", colour="none")
    made.text(185, 40, "site")
    made.box(40, 62, 140, 50, "images, masks,\nfile names")
    made.box(40, 130, 140, 50, "what monitors\nmeasured")
    made.box(40, 198, 140, 40, "private key")
    made.box(206, 96, 124, 84, "local training\nor sums")
    made.arrow(180, 88, 204, 112)
    made.text(268, 214, "stays here", size=13)
    made.box(670, 96, 170, 84, "server")
    made.arrow(330, 116, 668, 116)
    made.text(510, 72, "weights or sums, counts of images,\nmean losses, names of new classes", size=13)
    made.arrow(668, 160, 330, 160)
    made.text(510, 174, "model, names of classes", size=13)
    made.text(510, 210, "mutual TLS; filters act\non weights before they leave", size=13)
    made.text(755, 206, "no image, no mask", size=13, colour="var(--warm)")
    return made


DRAWINGS = {
    "round-told": round_told,
    "round-untold": round_untold,
    "background-shift": background_shift,
    "monitors": monitors,
    "statistics": statistics,
    "privacy": privacy,
}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (HERE / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
