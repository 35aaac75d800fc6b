"""Masks in colours, as RGB or with a palette; a file says which colour is which class."""

import re
from functools import partial
from pathlib import Path

import numpy as np

from fiss.data.dataset import read_lines, shortened
from fiss.data.imports.source import BadFileError, Options, Source, checked_classes, opened
from fiss.data.imports.values import items
from fiss.data.reading import Bytes
from fiss.errors import UserError
from fiss.labels import IGNORE

COLOUR = re.compile(r"#([0-9a-fA-F]{6})\b|(\d{1,3})[,;\s]+(\d{1,3})[,;\s]+(\d{1,3})")
IGNORED = ("ignore", "void")


def read(root: Path, options: Options) -> Source:
    """Images and coloured masks of the same names in two folders."""
    if not options.classes:
        raise UserError("Say what the colours mean: --classes FILE, with a name and R G B (or #rrggbb) in each line.")
    classes, table = colours(Path(options.classes).expanduser())
    return Source(classes, items(root, options, partial(_ids, table)))


def colours(path: Path) -> tuple[tuple[str, ...], dict[int, int]]:
    """Class names, and class ids by colour, as one number; background is id 0, void and ignore are ignored."""
    names: list[str] = []
    table: dict[int, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        found = COLOUR.search(line)
        name = COLOUR.sub("", line, count=1).strip(" ,;:\t")
        if found is None and number == 1 and re.search(r"\br\b|red", line, re.IGNORECASE):
            continue  # the heads of a table
        rgb = [] if found is None else list(bytes.fromhex(found[1]) if found[1] else map(int, found.groups()[1:]))
        if not rgb or max(rgb) > 255 or not name:
            raise UserError(f"{path}, line {number}: '{line}' is no name with R G B from 0 to 255 (or #rrggbb).")
        colour = rgb[0] << 16 | rgb[1] << 8 | rgb[2]
        if colour in table:
            raise UserError(f"{path}, line {number}: the colour of '{line}' stands there twice.")
        if name.lower() not in ("background", *IGNORED) and name not in names:
            names.append(name)
        table[colour] = (
            0 if name.lower() == "background" else IGNORE if name.lower() in IGNORED else names.index(name) + 1
        )
    return checked_classes(names), table


def _ids(table: dict[int, int], path: Path) -> Bytes:
    if path.suffix.lower() in (".jpg", ".jpeg"):
        raise BadFileError(path, "a JPEG mask: its colours at borders are invented; save masks as PNG")
    rgb = np.asarray(opened(path).convert("RGB")).astype(np.int32)
    there, inverse = np.unique(rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2], return_inverse=True)
    if strange := [f"#{v:06x}" for v in there.tolist() if v not in table]:
        raise BadFileError(path, "colours that no class was given for", shortened(strange))
    return np.array([table[v] for v in there.tolist()], np.uint8)[inverse].reshape(rgb.shape[:2])
