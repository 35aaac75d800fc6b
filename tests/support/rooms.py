"""The rooms of the package and the direction of imports: the one table, and what docs/design.md says of it.

python tests/support/rooms.py    # writes it into docs/design.md
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
PATH = {
    "cli/main.py": "`fiss run` parses its words and calls the API",
    "__init__.py": "`fiss.run` chooses a config and starts an experiment",
    "simulation/experiment.py": "opens the scenario, plays the rounds, scores, keeps everything",
    "federation/loop.py": "a round: who is there, new classes, orders, one aggregation",
    "federation/boundaries.py": "how new classes become known: announced, or discovered; how the learning rate falls",
    "federation/messages.py": "what an order says, what a reply says, what each side remembers",
    "federation/aggregate.py": "asks for the replies one by one, and adds them up to the next model",
    "simulation/in_process.py": "the engine: each client answers its order",
    "federation/client.py": "a client answers: which batches, which teacher, what it remembers",
    "training/fit.py": "epochs of SGD on a method's losses",
    "methods/base.py": "what a method is given, and what it may do",
    "methods/fbl.py": "the method names its losses",
    "methods/pseudo_labels.py": "background becomes old classes where the teacher is sure",
    "models/output.py": "the logarithm: cross-entropy of every pixel",
}
"""What somebody reads who follows one round from the command line down to a logarithm and back."""
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


def lines_of(path: Path) -> int:
    """How long it is."""
    return path.read_text(encoding="utf-8").count("\n")


def path() -> str:
    """The files of one round, with their lines and the sum."""
    lines = {name: lines_of(ROOT / "fiss" / name) for name in PATH}
    rows = [f"| `fiss/{name}` | {count} | {PATH[name]} |" for name, count in lines.items()]
    rows.append(f"| {len(lines)} files | {sum(lines.values())} | |")
    return "\n".join(["| file | lines | what happens there |", "| --- | --- | --- |", *rows])


def lengths() -> str:
    """Lines of each room."""
    count: dict[str, int] = {}
    for module in MODULES:
        count[room(module)] = count.get(room(module), 0) + lines_of(module)
    order = [name for level in LEVELS for name in sorted(level)]
    rows = [f"| {name} | {count[name]} |" for name in order]
    return "\n".join(["| room | lines |", "| --- | --- |", *rows, f"| all | {sum(count.values())} |"])


def written(text: str) -> str:
    """The document with its generated parts as they are now."""
    parts = {"path": path(), "direction": direction(), "tree": tree(), "lengths": lengths()}
    for name, part in parts.items():
        marks = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        text = re.sub(
            f"{marks[0]}.*?{marks[1].strip()}", lambda _, a=marks[0], p=part, b=marks[1]: a + p + b, text, flags=re.S
        )
    return text


if __name__ == "__main__":
    document = ROOT / "docs" / "design.md"
    document.write_text(written(document.read_text(encoding="utf-8")), encoding="utf-8")
