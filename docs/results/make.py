"""Write the tables and figures of the pages again, from the records: python docs/results/make.py

What stands between `<!-- made by docs/results/make.py: NAME -->` and `<!-- end -->` is one function of tables.py, NAME
being its name and its arguments. New runs appear when their record is put beside the others as voc-WHAT.json
(collect.py makes it). A test makes everything again and compares.
"""

import re
from pathlib import Path

import charts
import tables

HERE = Path(__file__).parent
MARKS = re.compile(r"(<!-- made by docs/results/make\.py: (.+?) -->\n).*?(<!-- end -->)", re.S)
FIGURES = {"tasks": "mIoU after each task, %", "background": "IoU of the background after each task, %"}
EXAMPLES = {"teeth": "teeth: mIoU after each step, %", "photos": "photos: IoU after each class, %"}


def pages() -> list[Path]:
    """Every page that may have such blocks."""
    return [*sorted(HERE.glob("*.md")), HERE.parents[1] / "README.md"]


def written(text: str) -> str:
    """A page with its blocks made again."""

    def block(found: re.Match[str]) -> str:
        name, *words = found[2].split()
        return f"{found[1]}\n{getattr(tables, name)(*words)}\n\n{found[3]}"

    return MARKS.sub(block, text)


def figures() -> dict[Path, str]:
    """The charts of each setting, and of the worked examples."""
    made = {
        HERE / f"voc-{setting}-{what}.svg": charts.lines(f"{setting}: {title}", tables.curves(setting, what))
        for setting in tables.SETTINGS
        for what, title in FIGURES.items()
    }
    for what, title in EXAMPLES.items():
        if curves := tables.examples(what):
            made[HERE / f"{what}.svg"] = charts.lines(title, curves)
    return made


if __name__ == "__main__":
    for page in pages():
        page.write_text(written(page.read_text()))
    for path, chart in figures().items():
        path.write_text(chart)
