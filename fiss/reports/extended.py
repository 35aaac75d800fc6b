"""Extending a model and taking things out of it, as people ask for it: with bars, a picture, and paths as text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fiss.extension import extend as extending
from fiss.extension import forget as forgetting
from fiss.extension.extend import Extended
from fiss.extension.forget import Forgotten
from fiss.progress import Progress
from fiss.reports import pictures
from fiss.reports.display import shown
from fiss.runs.run import Where

PICTURE = "picture.png"


def extend(
    model: Where,
    folders: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    names: str | Sequence[str] = (),
    classes: str | Path | None = None,
    device: str = "auto",
    progress: Progress | bool | None = None,
) -> Extended:
    """Add classes to a model that is there, or more images of its classes, without training anything.

    Args:
        model: A run or its folder, an extended model's folder, a model file with the run's config.toml, or a folder
            written by segmentation_models_pytorch's `save_pretrained`.
        folders: One or more folders with images/, masks/ and classes.txt; classes are matched by name.
        out: The new folder, which must not be there. Default: the model's with -extended, numbered.
        names: Under which name each folder contributes; default: what the folder is called.
        classes: A file of class names, one per line, where the model's have none.
        device: auto, cpu, cuda, cuda:N.
        progress: As for `fiss.run`.

    Returns:
        The new model's folder, and what each class had and has on the held-out images. The folder has a picture of it.

    Example:
        >>> extended = fiss.extend("runs/demo/analytic", "new-images", out="runs/with-cranes")
        >>> fiss.Predictor(extended.run)("photo.jpg").mask
    """
    several = [folders] if isinstance(folders, (str, Path)) else folders
    called = [names] if isinstance(names, str) else names
    with shown(progress) as display:
        paths = [Path(folder).expanduser() for folder in several]
        found = extending.extend(
            model, paths, Path(out) if out else None, called, Path(classes) if classes else None, device, display
        )
        if found.after is not None:
            try:
                pictures.draw_tasks(found.run.path, found.run.path / PICTURE, ("before", "after"), display)
            except Exception as error:  # whatever it is, the model itself is done and safe
                display.notice(f"no picture: {type(error).__name__}: {error}")
    return found


def forget(
    model: Where,
    site: str,
    *,
    images: str | Path | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    progress: Progress | bool | None = None,
) -> Forgotten:
    """Take what a site contributed out of a model, or some images of it; nothing else changes.

    Args:
        model: A run's folder with sums, or an extended model's.
        site: The name of a contribution; of a run the number of a client, or the name of a site.
        images: A text file with the names of images, one per line: only these go, and the rest is counted again.
        data: The site's folder, where `images` is given.
        out: The new folder, which must not be there. Default: the model's with -forgot, numbered.
        device: auto, cpu, cuda, cuda:N.
        progress: As for `fiss.run`.

    Returns:
        The new model's folder, and its certificate, which has been checked.

    Example:
        >>> fiss.forget("runs/with-cranes", site="new-images").certificate["not_undone"]
    """
    listed, folder, new = (Path(path).expanduser() if path else None for path in (images, data, out))
    with shown(progress) as display:
        return forgetting.forget(model, site, listed, folder, new, device, display)


def verify(certificate: str | Path, progress: Progress | bool | None = None) -> dict[str, Any]:
    """Check a certificate of forgetting: every byte of the files it names, and that the ledger gives the classifier.

    Args:
        certificate: The file that `fiss.forget` wrote.
        progress: As for `fiss.run`.

    Returns:
        What stands in it; a `UserError` says what is not as it was.

    Example:
        >>> fiss.verify("runs/with-cranes-forgot/certificate.json")["removed"]
    """
    with shown(progress) as display:
        return forgetting.check(Path(certificate), display)
