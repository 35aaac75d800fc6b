"""Looking again at what is there, a data set for its problems, a run for its scores; and taking other data over."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

from fiss.data import sources
from fiss.data.imports import import_data as make_folder
from fiss.data.imports.writer import Imported
from fiss.data.index import DataCheck
from fiss.data.reading import Reading
from fiss.data.transforms import View
from fiss.errors import unknown
from fiss.progress import Progress
from fiss.reports.display import shown
from fiss.runs.records import Records, ScoreRecord
from fiss.runs.run import Run, path_of
from fiss.runs.scoring import rescore


def evaluate(
    run: Run | str | Path, view: str | Sequence[str] = ("published", "full"), progress: Progress | bool | None = None
) -> Records[ScoreRecord]:
    """Score again the models after every task of a run; nothing in its folder changes.

    Args:
        run: A run or its folder.
        view: published: centre crops; full: whole images; or both.
        progress: As for `fiss.run`.

    Returns:
        One record for each task and view; `.to_pandas()` where pandas is installed.

    Example:
        >>> fiss.evaluate("runs/demo/fbl", view="full")[-1].miou
    """
    views = (view,) if isinstance(view, str) else view
    for name in views:
        if name not in get_args(View):
            raise unknown("view", name, get_args(View))
    with shown(progress) as display:
        return Records(rescore(path_of(run), cast("tuple[View, ...]", tuple(views)), display))


def check_data(
    path: str | Path, progress: Progress | bool | None = None, *, window: str = "", channels: int = 3
) -> DataCheck:
    """Look for whatever is wrong with a data set, and for what is suspicious.

    Args:
        path: A data set: VOC 2012, ADE20k, or images/, masks/, classes.txt; or `shapes`.
        progress: As for `fiss.run`.
        window: As data.window of the config, for images beyond 8 bits.
        channels: As model.channels of the config.

    Returns:
        What is in both splits, every problem with its file, and suspicions.

    Example:
        >>> fiss.check_data("/data/mine").problems
    """
    with shown(progress) as display:
        return sources.check_data(str(path), display, Reading(window, channels))


def import_data(
    kind: str, source: str | Path, dest: str | Path, *, progress: Progress | bool | None = None, **options: Any
) -> Imported:
    """Make a folder that fiss reads of data of another kind; killed and called again, it goes on.

    Args:
        kind: coco, cityscapes, colour, values, binary, tiff, dicom, nifti, huggingface or video.
        source: Where the data lie.
        dest: The folder to make; it must not be there yet.
        progress: As for `fiss.run`.
        options: Those of `fiss data import`: images, masks, classes, map, window, axis, every, columns, ids,
            group, validation.

    Returns:
        How many images there are now, and what was dropped and why.

    Example:
        >>> fiss.import_data("values", "/data/scans", "/data/mine", map="128=tumour,255=ignore").dropped
    """
    with shown(progress) as display:
        return make_folder(kind, Path(source), Path(dest), options, display)
