"""A page or a picture about runs, as a file and as a notebook shows it."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fiss.progress import Progress
from fiss.reports import pictures
from fiss.reports import report as reporting
from fiss.reports.display import shown
from fiss.runs.run import Where, path_of


@dataclass(frozen=True)
class Document:
    """A file for people: what `fiss.report` and `fiss.picture` give.

    Args:
        path: Where it is.

    Example:
        >>> fiss.report([run], "report.html").path
    """

    path: Path

    def _repr_html_(self) -> str:
        data, kind = self.path.read_bytes(), self.path.suffix[1:].lower()
        if kind == "html":
            page = html.escape(data.decode())
            return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'
        kind = {"svg": "image/svg+xml", "pdf": "application/pdf"}.get(kind, f"image/{kind or 'png'}")
        tag = "embed" if kind.endswith("pdf") else "img"
        return f'<{tag} src="data:{kind};base64,{base64.b64encode(data).decode()}">'


def report(runs: Sequence[Where], out: str | Path = "report.html", progress: Progress | bool | None = None) -> Document:
    """One HTML page about runs: who won, who forgot what, curves, classes, pictures; a reader can choose among them.

    Args:
        runs: Runs or their folders.
        out: The page.
        progress: As for `fiss.run`.

    Returns:
        The page, which shows itself in a notebook; `.path` says where it is.

    Example:
        >>> fiss.report(["runs/demo/finetune", "runs/demo/fbl"], "report.html")
    """
    with shown(progress) as display:
        reporting.write([path_of(run) for run in runs], Path(out), display)
    return Document(Path(out))


def picture(
    runs: Sequence[Where], out: str | Path = "picture.png", progress: Progress | bool | None = None
) -> Document:
    """Images, truth, and what each run sees after its last task; and how its old classes fared.

    Args:
        runs: Runs with the same images, or their folders.
        out: The picture: .png, .pdf or .svg.
        progress: As for `fiss.run`.

    Returns:
        The picture, which shows itself in a notebook; `.path` says where it is.

    Example:
        >>> fiss.picture(["runs/demo/finetune", "runs/demo/fbl"], "picture.svg")
    """
    with shown(progress) as display:
        pictures.draw([path_of(run) for run in runs], Path(out), display)
    return Document(Path(out))
