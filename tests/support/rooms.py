"""The rooms of the package and the direction of imports: the one table, and what docs/design.md says of it.

python tests/support/rooms.py    # writes both into docs/design.md
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = [
    {"errors", "rng", "progress"},
    {"labels", "ops"},
    {"data", "models", "losses", "metrics"},
    {"statistics"},
    {"methods", "monitors"},
    {"training"},
    {"federation"},
    {"config"},
    {"runs"},
    {"flare"},
    {"simulation", "deployment"},
    {"predict", "extension"},
    {"reports"},
    {"fiss"},
    {"web"},
    {"cli"},
    {"__main__"},
]
"""A room may import from itself and from those above it in this list; `fiss` is the public API."""
MODULES = sorted((ROOT / "fiss").rglob("*.py"))


def room(path: Path) -> str:
    """The room of a module, by its path."""
    parts = path.relative_to(ROOT / "fiss").with_suffix("").parts
    return "fiss" if parts == ("__init__",) else parts[0]


def direction() -> str:
    """The order of the rooms in a line."""
    lines = [" | ".join(sorted(level)) for level in LEVELS if level != {"__main__"}]
    return "    " + "\n      < ".join(lines)


def first_sentence(path: Path) -> str:
    """What a module says it is for."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.;]) ", text)[0].rstrip(".;")


def tree() -> str:
    """Every module with a phrase, by room."""
    lines, order = [], {name: i for i, level in enumerate(LEVELS) for name in level}
    for path in sorted(MODULES, key=lambda p: (order[room(p)], room(p), p.parent, p.name != "__init__.py", p.name)):
        inside = path.relative_to(ROOT / "fiss")
        if path.name == "__init__.py" and len(inside.parts) > 1:
            lines.append(f"{'  ' * (len(inside.parts) - 2)}{inside.parts[-2]}/  {first_sentence(path)}")
        else:
            lines.append(f"{'  ' * (len(inside.parts) - 1)}{inside.name}  {first_sentence(path)}")
    return "```\n" + "\n".join(lines) + "\n```"


def written(text: str) -> str:
    """The document with both parts as they are now."""
    for name, part in (("direction", direction()), ("tree", tree())):
        marks = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        text = re.sub(
            f"{marks[0]}.*?{marks[1].strip()}", lambda _, a=marks[0], p=part, b=marks[1]: a + p + b, text, flags=re.S
        )
    return text


if __name__ == "__main__":
    document = ROOT / "docs" / "design.md"
    document.write_text(written(document.read_text(encoding="utf-8")), encoding="utf-8")
