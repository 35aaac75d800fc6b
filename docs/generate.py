"""Pages of the site that are made from the code when it is built: `make docs`.

Config keys from the strings under the fields, commands from the command line itself, files from the records, names
from the tables of methods and presets. MkDocs calls the functions that begin with `on_`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import typer
from typer.main import get_command

import fiss
from fiss.cli.main import app
from fiss.config.config import Config
from fiss.config.section import in_words, meanings
from fiss.methods import METHODS
from fiss.runs import folder, records

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
API = {
    "Runs": ["run", "resume", "open_run", "sweep", "Run", "Sweep", "Progress", "UserError"],
    "Configs": ["preset", "propose", "list_presets", "list_methods", "Config", "Proposal"],
    "Data": ["check_data", "import_data", "DataCheck", "Imported"],
    "Results": ["compare", "evaluate", "report", "picture", "Comparison", "Document"],
    "Models": ["Predictor", "Prediction", "export", "Export", "extend", "forget", "verify", "Extended", "Forgotten"],
    "Methods": ["Method", "Step", "Output", "Analytic", "Finetune", "LwF", "ILT", "MiB", "PLOP", "RCIL", "FBL"],
}
"""Every public name, by what it is for; `others` takes what is new."""


def cell(text: object) -> str:
    """Words that stand in a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def code(value: object) -> str:
    """A value as it is typed."""
    text = json.dumps(value, ensure_ascii=False, default=list) if not isinstance(value, str) else value
    return f"`{text}`" if text else ""


def shown(value: Any) -> str:
    """A default as TOML has it."""
    return code(json.dumps(value, ensure_ascii=False, default=lambda v: list(v) if isinstance(v, tuple) else dict(v)))


def section_table(kind: type[Any], before: str) -> str:
    """The keys of one dataclass."""
    hints, texts, made = get_type_hints(kind), meanings(kind), kind()
    rows = [
        (
            code(f"{before}{f.name}"),
            shown(getattr(made, f.name)),
            cell(in_words(hints[f.name])),
            cell(texts.get(f.name, "")),
        )
        for f in fields(kind)
        if not is_dataclass(getattr(made, f.name))
    ]
    return table(("key", "default", "value", "meaning"), rows) if rows else "This one has no keys.\n"


def config_page() -> str:
    """Every key that decides a run."""
    parts = [
        "# Config keys\n",
        "`fiss run FILE.toml` reads them from a file, `--set key=value` changes one, and every run writes all of them.",
        "An unknown key is an error that names the nearest one.\n",
        "## Of the whole run\n",
        section_table(Config, ""),
    ]
    for f in fields(Config):
        made = getattr(Config(), f.name)
        if is_dataclass(made) and f.name != "method":
            parts += [f"## {f.name}\n", section_table(type(made), f"{f.name}.")]
    parts += [
        "## method\n",
        "`method.name` chooses one; the other keys are that method's own.",
        "The published coefficients for a data set replace some defaults: `fiss methods NAME` shows them.\n",
    ]
    kinds: dict[type[Any], list[str]] = {}
    for name, make in METHODS.items():
        kinds.setdefault(type(make()), []).append(name)
    for kind, names in kinds.items():
        parts += [f"### {', '.join(names)}\n", section_table(kind, "method.")]
    return "\n".join(parts)


def commands(group: Any = None, before: str = "fiss") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name."""
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before} {name}")
        elif not command.hidden:
            yield f"{before} {name}", command


def commands_page() -> str:
    """What `--help` says of every command."""
    parts = ["# Commands\n", "Each also answers `--help`.\n"]
    for name, command in commands():
        context = typer.Context(command, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        parts += [f"## {name}\n", f"```text\n{name} {usage}\n```\n", f"{command.help or ''}\n"]
        rows = []
        for option in command.get_params(context):
            if option.name in ("help", "install_completion", "show_completion"):
                continue
            words = ", ".join(f"`{word}`" for word in option.opts + option.secondary_opts)
            if option.param_type_name == "argument":
                words = code(option.metavar or option.name.upper())
            default = option.default if option.default not in (None, "", False, ()) and not option.required else ""
            rows.append((words, code(str(default)), cell(getattr(option, "help", "") or "")))
        parts += [table(("", "default", "meaning"), rows)] if rows else []
    return "\n".join(parts)


def in_json(hint: Any) -> str:
    """A type as JSON has it."""
    if is_dataclass(hint):
        return f"a record: [{hint.__name__}](#{hint.__name__.lower()})"
    arguments = [in_json(part) for part in get_args(hint) if part not in (type(None), ...)]
    if get_origin(hint) is tuple:
        return f"list of {arguments[0]}"
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        return f"{arguments[1]}, by key"
    if arguments:
        return " or ".join(dict.fromkeys(arguments))
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(hint, "anything")


def files_page() -> str:
    """What a run folder holds."""
    parts = [
        "# Files of a run\n",
        "A run folder is plain files: TOML, JSON, JSON lines and safetensors.",
        "Everything is written beside its place and moved there in one step, so a file is whole or not there.",
        "A simulation and the server of a real federation write the same formats.\n",
        table(
            ("file", "what it holds"),
            [
                ("`config.toml`", "the [complete config](config.md); `fiss run config.toml` repeats the run"),
                ("`rounds.jsonl`", "a [RoundRecord](#roundrecord) a line"),
                ("`scores.jsonl`", "a [ScoreRecord](#scorerecord) a line"),
                ("`splits.json`", "[Splits](#splits): who was selected, who held which images"),
                ("`state.json`", "where the run stands, every client's memory, digests of all models"),
                (
                    "`origin.json`",
                    "program, machine, time and your method's file, for each time it was begun or gone on with",
                ),
                ("`changes.jsonl`", "in a real federation: what was changed in the config since, and when"),
                ("`sites.json`", "in a real federation: the sites' names by number"),
                ("`weights/task-T.safetensors`", "the model after task T"),
                ("`weights/round-R.safetensors`", "the models of the last rounds, as many as `keep` says"),
                ("`weights/after-R.safetensors`", "the model after R rounds, where it is somebody's teacher"),
                ("`ledger-N.safetensors`", "sums by client, where a method adds up features"),
                ("`report.html`", "the page about the run; nothing else depends on it"),
            ],
        ),
        "A model file carries its classes, by the group in which they came, under `fiss` in its metadata.",
        "`fiss.open_run(folder)` reads all of it; `.rounds` and `.scores` have `.to_pandas()`.\n",
    ]
    for name, kind in sorted(
        vars(records).items(), key=lambda pair: getattr(pair[1], "__module__", "") != records.__name__
    ):
        if is_dataclass(kind) and isinstance(kind, type) and name not in ("Reply", "ProbeResult", "Round", "Probed"):
            hints, texts = get_type_hints(kind), meanings(kind)
            rows = [(code(f.name), in_json(hints[f.name]), cell(texts.get(f.name, ""))) for f in fields(kind)]
            parts += [
                f"## {name}\n",
                f"{(kind.__doc__ or '').splitlines()[0]}\n",
                table(("key", "value", "meaning"), rows),
            ]
    parts += [f"The format of `state.json` and of models is {folder.FORMAT}; formats of before are read.\n"]
    return "\n".join(parts)


def names_page() -> str:
    """Methods and presets by name."""
    listed = (("Methods", fiss.list_methods()), ("Presets", fiss.list_presets()))
    parts = ["# Methods and presets\n", "`fiss methods` and `fiss presets` list them too.\n"]
    for title, found in listed:
        rows = [(code(name), cell(text)) for name, text in found.items()]
        parts += [f"## {title}\n", table(("name", "what it is"), rows)]
    return "\n".join(parts)


def api_page() -> str:
    """The public names, for mkdocstrings."""
    named = {name for names in API.values() for name in names}
    others = [name for name in fiss.__all__ if name not in named]
    parts = [
        "# Python\n",
        "Everything is in `import fiss`, which costs milliseconds: torch comes with its first use.\n",
    ]
    for title, names in (*API.items(), ("Others", others)):
        if names:
            parts += [f"## {title}\n", *(f"::: fiss.{name}\n" for name in names)]
    return "\n".join(parts)


def notebook_page() -> str:
    """The notebook as a page: its words, its code, and what was printed."""
    path = ROOT / "docs" / "tutorials" / "notebook.ipynb"
    parts = []
    for part in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(part["source"])
        parts.append(text if part["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in part.get("outputs", ()):
            said = output.get("text") or output.get("data", {}).get("text/plain") or ""
            if said and "image/png" not in output.get("data", {}):
                parts.append(f"```text\n{''.join(said).rstrip()}\n```")
            if "image/png" in output.get("data", {}):
                picture = "".join(output["data"]["image/png"]).replace("\n", "")
                parts.append(f'<img alt="what the cell shows" src="data:image/png;base64,{picture}">')
    return "\n\n".join(parts) + "\n\nThe file is `docs/tutorials/notebook.ipynb`.\n"


def from_root(name: str) -> str:
    """A page of the repository's root, its links as they are on the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](../", text).replace("](README.md", "](../index.md")
    return text.replace("](CHANGELOG.md", "](changelog.md").replace("](CONTRIBUTING.md", "](contributing.md")


PAGES = {
    "reference/api.md": api_page,
    "reference/config.md": config_page,
    "reference/commands.md": commands_page,
    "reference/files.md": files_page,
    "reference/names.md": names_page,
    "tutorials/notebook.md": notebook_page,
    "project/changelog.md": lambda: from_root("CHANGELOG.md"),
    "project/contributing.md": lambda: from_root("CONTRIBUTING.md"),
}
"""By path on the site, what makes the page."""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Drawings stand in the page itself and follow its colours; links to the README are links to the start."""
    up = "../" * page.file.src_uri.count("/")

    def drawing(found: re.Match[str]) -> str:
        text = (ROOT / "docs" / "drawings" / f"{found[1]}.svg").read_text(encoding="utf-8")
        return re.sub(r"<style>.*?</style>", "", text, flags=re.S).replace("\n", "")

    markdown = re.sub(r"!\[[^\]]*\]\((?:\.\./)?drawings/([\w-]+)\.svg\)", drawing, markdown)
    for name, there in (("README.md", "index.md"), ("CHANGELOG.md", "project/changelog.md"),
                        ("CONTRIBUTING.md", "project/contributing.md")):  # fmt: skip
        markdown = markdown.replace(f"](../{'../' if up else ''}{name}", f"]({up}{there}")
    return markdown
