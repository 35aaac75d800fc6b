"""A Hugging Face data set on the disk: Arrow files as `save_to_disk` leaves them, or Parquet; nothing is unpickled."""

import io
import json
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fiss.data.imports.source import (
    BadFileError,
    Dropped,
    Item,
    Options,
    Pair,
    Source,
    Values,
    as_shown,
    flat,
    library,
    reading,
    to_bytes,
)
from fiss.errors import UserError

IMAGES = ("image", "pixel_values", "img")
MASKS = ("annotation", "label", "mask", "segmentation", "labels", "segmentation_mask")


def read(root: Path, options: Options) -> Source:
    """Every row with an image and a mask; the parts are those of the data set."""
    library("pyarrow", "huggingface")
    tables = [(path, _part(path, root)) for path in sorted([*root.rglob("*.arrow"), *root.rglob("*.parquet")])]
    tables = [(path, part) for path, part in tables if not path.name.startswith("cache-")]
    tables = [(path, part) for path, part in tables if path.is_file()]
    if not tables:
        raise UserError(f"{root}: no .arrow or .parquet files in it.")
    values = Values.of(options) if options.map or options.classes else _own_names(root, options)
    return Source(values.classes, _items(tables, root, values, options), parallel=False)


def _part(path: Path, root: Path) -> str:
    words = [word.lower() for word in reversed(path.relative_to(root).parts)]
    return next((part for word in words for part in ("train", "val", "test") if word.startswith(part)), "")


def _own_names(root: Path, options: Options) -> Values:
    """The names in id2label.json, where it lies beside the data."""
    path = root / "id2label.json"
    if not path.is_file():
        return Values.of(options)
    try:
        names = {int(value): str(name) for value, name in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: not a table of numbers and names ({error}).") from error
    return Values.of(Options(map=",".join(f"{v}={name.replace(',', ' ')}" for v, name in sorted(names.items()))))


def _items(tables: list[tuple[Path, str]], root: Path, values: Values, options: Options) -> Iterator[Item | Dropped]:
    kept: dict[tuple[Path, int], Any] = {}

    def row(path: Path, block: int, i: int, columns: tuple[str, str]) -> Pair:
        if (path, block) not in kept:
            kept.clear()  # one block at a time
            with reading(path):
                kept[path, block] = Blocks(path).get(block, columns)
        record = kept[path, block]
        name = f"{path.relative_to(root)} row {i} of block {block}"
        image, mask = (_opened(record.column(c)[i].as_py(), root, f"{name}, {c}") for c in columns)
        pixels = np.asarray(
            image if image.mode.startswith(("I", "F", "L")) and image.mode != "LA" else image.convert("RGB")
        )
        return Pair(to_bytes(pixels, options), values.ids(flat(np.asarray(mask), name), name))

    for path, part in tables:
        try:
            with reading(path):
                blocks = Blocks(path)
        except BadFileError as bad:
            yield Dropped(bad.name, bad.reason)
            continue
        starts = [0, *accumulate(blocks.sizes)]
        columns = _columns(blocks.names, options, path) if starts[-1] else ("", "")
        name = path.relative_to(root).with_suffix("").as_posix()
        for k in range(0, starts[-1], options.every):
            block = bisect_right(starts, k) - 1
            item = partial(row, path, block, k - starts[block], columns)
            yield Item(f"{name}_{k:06d}", f"{name}_{k:06d}", item, part)


class Blocks:
    """A file's rows in blocks, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet

        self._table: Any = None
        if path.suffix == ".parquet":
            self._file = pyarrow.parquet.ParquetFile(path)
            self.names = list(self._file.schema_arrow.names)
            groups = range(self._file.num_row_groups)
            self.sizes = [self._file.metadata.row_group(g).num_rows for g in groups]
        else:
            mapped = pyarrow.memory_map(str(path))
            try:
                batches = list(pyarrow.ipc.open_stream(mapped))
            except pyarrow.ArrowInvalid:
                whole = pyarrow.ipc.open_file(mapped)
                batches = [whole.get_batch(i) for i in range(whole.num_record_batches)]
            self._table = batches
            self.names = list(batches[0].schema.names) if batches else []
            self.sizes = [batch.num_rows for batch in batches]

    def get(self, block: int, columns: tuple[str, str]) -> Any:
        """One block."""
        return self._file.read_row_group(block, list(columns)) if self._table is None else self._table[block]


def _columns(names: list[str], options: Options, path: Path) -> tuple[str, str]:
    given = [word.strip() for word in options.columns.split(",") if word.strip()]
    found = given or [next((n for n in known if n in names), "") for known in (IMAGES, MASKS)]
    if len(found) != 2 or not all(name in names for name in found):
        raise UserError(f"{path}: its columns are {', '.join(names)}; say which two with --columns IMAGE,MASK.")
    return found[0], found[1]


def _opened(value: Any, root: Path, name: str) -> Image.Image:
    """An image as the data sets keep it: its bytes, or the path of a file."""
    content = value.get("bytes") if isinstance(value, dict) else value
    try:
        if content is None and isinstance(value, dict) and value.get("path"):
            content = (root / Path(value["path"]).name).read_bytes()
        if not isinstance(content, bytes):
            raise BadFileError(name, "no image")
        image = Image.open(io.BytesIO(content))
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadFileError(name, "unreadable or truncated", type(error).__name__) from error
    return as_shown(image)
