"""What the source itself says of its images: which part they are in, by lists such as train.txt and val.txt or by
folders of such names, and which patient they show."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fiss.data.dataset import IMAGE_SUFFIXES, read_lines
from fiss.data.imports.source import Options
from fiss.errors import UserError

WORDS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
PLACES = ("", "splits", "split", "lists", "ImageSets/Segmentation", "ImageSets")
"""Where lists lie in a source."""
PATIENT = re.compile(r"(?:^|[/_.-])(sub-[a-z0-9]+|(?:patient|subject|subj|case|pat|p)[-_ ]?\d+)(?![a-z0-9])", re.I)
"""How patients are numbered in names: sub-01 (BIDS), patient001, case_00042."""


class Parts:
    """The parts of a source, by the names of its images."""

    def __init__(self, root: Path) -> None:
        self._whole, self._ends = _listed(root)

    def of(self, name: str) -> str:
        """train, val, test, or nothing where the source does not say. A list names images, or the folders they are in;
        without lists the name of a folder tells."""
        if not self._whole:
            return next((WORDS[word] for word in PurePosixPath(name.lower()).parts[:-1] if word in WORDS), "")
        words = PurePosixPath(name).parts
        found = [self._ends.get(name), *(self._whole.get("/".join(words[i:])) for i in range(len(words)))]
        found += [self._ends.get("/".join(words[:i])) for i in range(len(words) - 1, 0, -1)]
        return next((part for part in found if part), "")


def _listed(root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Names and their parts, and the same of what names end in, from the first place that has a list for training and
    another one; an end that two parts share, as frames of two videos do, says nothing."""
    for place in PLACES:
        paths = [root / place / f"{word}.txt" for word in WORDS]
        paths = [path for path in paths if path.is_file()]
        if len({WORDS[path.stem] for path in paths}) < 2:
            continue
        ends: dict[str, str] = {}
        whole: dict[str, Path] = {}
        for path in paths:
            for words in _entries(path):
                if WORDS[whole.setdefault("/".join(words), path).stem] != WORDS[path.stem]:
                    raise UserError(f"{path}: {'/'.join(words)} is in {whole['/'.join(words)].name} too.")
                for i in range(len(words)):
                    end, part = "/".join(words[i:]), WORDS[path.stem]
                    ends[end] = part if ends.get(end, part) == part else ""
        return {name: WORDS[path.stem] for name, path in whole.items()}, ends
    return {}, {}


def _entries(path: Path) -> Iterator[tuple[str, ...]]:
    """The first file of each line, as folders and a name without its ending."""
    for line in read_lines(path):
        columns = re.split(r"[\s,]+", line)
        name = columns[0] if columns[-1].lower().endswith(IMAGE_SUFFIXES) else line
        for ending in (*IMAGE_SUFFIXES, ".dcm", ".nii.gz", ".nii"):
            if name.lower().endswith(ending):
                name = name[: -len(ending)]
                break
        yield tuple(word for word in PurePosixPath(name).parts if word not in ("/", "."))


def group_of(name: str, options: Options, otherwise: str) -> str:
    """What an image belongs to whose others must be in the same part: by --group, else by the number of a patient in
    its name."""
    if options.group:
        found = re.search(options.group, name)
        return found[found.lastindex or 0] if found else name
    numbered = PATIENT.search(name)
    return numbered[1].lower() if numbered else otherwise
