"""The data sets by name, and the config section that chooses one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fiss.data import ade20k, folder, shapes, voc
from fiss.data.dataset import Dataset
from fiss.data.findings import one_task
from fiss.data.imports.detect import suggestion
from fiss.data.index import DataCheck, inspect
from fiss.data.reading import RGB, Reading
from fiss.errors import UserError, check_least, unknown
from fiss.progress import Progress


@dataclass(frozen=True)
class DataSpec:
    """Which data set."""

    name: str = "shapes"
    """voc, ade20k, folder or shapes."""
    root: str = ""
    """Where it lies; shapes needs none."""
    window: str = ""
    """How values beyond 8 bits are brought to 0 to 255: `low,high` in the images' own values, or `1%,99%` of each
    image; separated by semicolons, one for each channel. Empty: images have 8 bits."""
    shapes_train: int = 1000
    """Training images of shapes."""
    shapes_val: int = 200
    """Validation images of shapes."""
    shapes_size: int = 96
    """Side of an image of shapes in pixels."""
    shapes_seed: int = 0
    """Seed of the drawings of shapes; not the seed of the run."""

    def __post_init__(self) -> None:
        if self.name not in SOURCES and self.name != "shapes":
            raise unknown("data set", self.name, ["shapes", *SOURCES])
        check_least("data.", self, 1, "shapes_train", "shapes_val")
        check_least("data.", self, 32, "shapes_size")
        check_least("data.", self, 0, "shapes_seed")


SOURCES: dict[str, Callable[[Path], Dataset]] = {"voc": voc.load, "ade20k": ade20k.load, "folder": folder.load}


def open_dataset(spec: DataSpec, how: Reading | None = None) -> Dataset:
    """The data set, its files found and not yet read; `how` its images are to be read."""
    return _found(spec).read_as(how or Reading(spec.window))


def _found(spec: DataSpec) -> Dataset:
    if spec.name == "shapes":
        return shapes.load(spec.shapes_train, spec.shapes_val, spec.shapes_size, spec.shapes_seed)
    if not spec.root:
        raise UserError(
            f"data.root is empty: say where {spec.name} lies, for example --set data.root=/path/to/{spec.name}."
        )
    root = Path(spec.root).expanduser()
    if not root.is_dir():
        raise UserError(f"data.root = {spec.root}: there is no such folder.")
    return SOURCES[spec.name](root)


def recognise(root: Path) -> DataSpec:
    """Which data set lies at `root`, by its layout."""
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder.")
    if (root / "images").is_dir() and (root / "masks").is_dir():
        return DataSpec("folder", str(root))
    for name, module in (("voc", voc), ("ade20k", ade20k)):
        try:
            module.find(root)
            return DataSpec(name, str(root))
        except UserError:
            continue
    raise UserError(
        f"{root}: no data set known here. Expected images/, masks/ and classes.txt, or the tree of VOC 2012 "
        "(JPEGImages/, ImageSets/Segmentation/), or of ADE20k (images/training/, annotations/training/). "
        f"{suggestion(root)}"
    )


def check_data(path: str, progress: Progress, how: Reading = RGB) -> DataCheck:
    """What is in the data set at `path`, or in `shapes`, and what is wrong with it."""
    spec = DataSpec() if path == "shapes" else recognise(Path(path).expanduser())
    found = inspect(open_dataset(spec, how), progress)
    for notice in found.notices:
        progress.notice(notice)
    if spec.name == "folder" and len(found.dataset.classes) <= 2:
        progress.notice(one_task("the preset folder's tasks.split = 2-1", found.dataset.classes))
    return found
