"""Writing our folder: images/, masks/, classes.txt, train.txt and val.txt, and import.md that says what was dropped.

All is written beside the destination, in DEST.part, which becomes DEST when it is whole. Every finished image is a line
of import.jsonl there, so an import that was killed goes on with those that are missing, and comes to the same bytes.
"""

import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fiss.data.dataset import shortened
from fiss.data.imports.source import BadFileError, Dropped, Item, Source, reading
from fiss.data.reading import RGB
from fiss.errors import UserError, writing
from fiss.progress import Progress

SHARE = 0.2
"""Of the groups, for validation, where neither the source nor the user says."""
BOTH = "in the source's validation part, and others of the same patient, video or file in its training part"
ONE_GROUP = "all images are of one patient, video or file: the last of them are for validation, so scores are too good"
AHEAD = 64
"""Images that wait to be read, at most."""
Line = dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """What came of an import.

    Args:
        folder: Our folder.
        classes: Names by mask id, from 1 on.
        train: Training images.
        val: Validation images.
        dropped: Names of what was dropped, by reason.
        notes: Names of the images to which something was done, by what it was; and what else is good to know.

    Example:
        >>> fiss.import_data("coco", "/data/coco", "/data/mine").dropped
    """

    folder: Path
    classes: tuple[str, ...]
    train: int
    val: int
    dropped: dict[str, tuple[str, ...]]
    notes: dict[str, tuple[str, ...]]


def write(source: Source, about: Line, dest: Path, validation: float | None, progress: Progress) -> Imported:
    """Make the folder, or go on with one that was begun."""
    listed = list(source.items)
    items = [item for item in listed if isinstance(item, Item)]
    dropped: dict[str, dict[str, None]] = defaultdict(dict)
    for item in listed:
        if isinstance(item, Dropped):
            dropped[item.reason][item.name] = None
    if not listed:
        raise UserError(f"{about['source']}: no image was found that could be imported.")
    items = _of_different_names(items, dropped)
    notes: dict[str, list[str]] = {text: [] for text in source.notes}
    if validation is None:
        items = _as_the_source_has_it(items, dropped, notes)
    part = _begin(dest, about)
    done = _journal(part / "import.jsonl")
    progress.start(f"importing {about['kind']}", len(items))
    progress.advance(len(done))
    for name, line, bad in _written(part, [i for i in items if file_name(i.name) not in done], source.parallel):
        progress.advance()
        if bad is None:
            done[name] = line
        elif bad.name not in dropped[bad.reason]:
            dropped[bad.reason][bad.name] = None
            progress.notice(str(bad))
    progress.finish()
    if len(done) < 2:  # one for training and one for validation
        shutil.rmtree(part)
        reasons = "; ".join(f"{reason}: {shortened(list(names), 3)}" for reason, names in dropped.items())
        some = "Only one image" if done else "Nothing"
        raise UserError(f"{some} could be imported, and nothing was written. {reasons}.".replace(" .", ""))
    lines = [done[file_name(item.name)] for item in items if file_name(item.name) in done]
    groups = {file_name(item.name): hashlib.sha256(item.group.encode()).hexdigest() for item in items}
    parts = _parts(lines, groups, validation, notes)
    for line in lines:
        for text in line["notes"]:
            notes.setdefault(text, []).append(line["name"])
    result = Imported(
        dest,
        source.classes,
        len(parts["train"]),
        len(parts["val"]),
        {reason: tuple(names) for reason, names in sorted(dropped.items())},
        {text: tuple(names) for text, names in sorted(notes.items())},
    )
    for name, text in (
        *((f"{name}.txt", _lines(stems)) for name, stems in parts.items()),
        ("import.md", _report(result, about)),
        ("classes.txt", _lines(source.classes)),
    ):
        (part / name).write_text(text, encoding="utf-8")
    (part / "import.jsonl").write_text(_lines(map(json.dumps, lines)), encoding="utf-8")
    with writing(dest):
        part.replace(dest)
    return result


def file_name(name: str) -> str:
    """A name as a file may have it: nothing that leads elsewhere, and no dots."""
    return re.sub(r"[^\w-]+", "_", name).strip("_-") or "_"


def _as_the_source_has_it(
    items: Sequence[Item], dropped: dict[str, dict[str, None]], notes: dict[str, list[str]]
) -> list[Item]:
    """Without what is in neither part; a test part is for validation where there is no other, and left out else."""
    own = {item.part for item in items}
    if "train" not in own or not own & {"val", "test"}:
        return [replace(item, part="") for item in items]
    if "val" not in own:
        notes["the source has no validation part: its test part is for validation"] = []
        items = [replace(item, part=item.part.replace("test", "val")) for item in items]
    for item in items:
        if item.part not in ("train", "val"):
            reason = "of the test part" if item.part else "in neither part of the source"
            dropped[f"{reason} (--validation SHARE makes new parts of all)"][item.name] = None
    return [item for item in items if item.part in ("train", "val")]


def _begin(dest: Path, about: Line) -> Path:
    """The folder that is written to; what else is there is refused."""
    part = dest.with_name(dest.name + ".part")
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        again = (dest / "import.md").is_file() and " An import made it, and it is whole: `fiss data check` it."
        raise UserError(f"{dest} is there already.{again or ''} Choose another place, or remove it.")
    state = part / "import.json"
    if part.exists():
        if not state.is_file() or json.loads(state.read_text()) != about:
            raise UserError(f"{part} is of another import; remove it, or choose another place.")
        for half in part.rglob("*.part"):
            half.unlink()
        return part
    for folder in ("images", "masks"):
        (part / folder).mkdir(parents=True)
    state.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return part


def _of_different_names(items: Sequence[Item], dropped: dict[str, dict[str, None]]) -> list[Item]:
    kept: dict[str, Item] = {}
    for item in items:
        if kept.setdefault(file_name(item.name), item) is not item:
            dropped["another image has the same name"][item.name] = None
    return list(kept.values())


def _journal(path: Path) -> dict[str, Line]:
    """The images that are whole; a line that was cut off is none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    text = text[: text.rfind("\n") + 1]
    path.write_text(text, encoding="utf-8")
    return {line["name"]: line for line in map(json.loads, text.splitlines())}


def _written(part: Path, items: Sequence[Item], parallel: bool) -> Iterator[tuple[str, Line, BadFileError | None]]:
    """Each item once it is on the disk and in the journal, in their order."""

    def one(item: Item) -> tuple[str, Line, BadFileError | None]:
        name = file_name(item.name)
        try:
            notes = _write_pair(part, name, item)
        except BadFileError as bad:
            return name, {}, bad
        return name, {"name": name, "part": item.part, "notes": notes}, None

    with (
        (part / "import.jsonl").open("a", encoding="utf-8") as journal,
        ThreadPoolExecutor(min(8, os.cpu_count() or 1) if parallel else 1) as pool,
    ):
        for first in range(0, len(items), AHEAD):
            for name, line, bad in pool.map(one, items[first : first + AHEAD]):
                if bad is None:
                    journal.write(json.dumps(line) + "\n")
                    journal.flush()
                yield name, line, bad


def _write_pair(part: Path, name: str, item: Item) -> tuple[str, ...]:
    with reading(item.name):
        pair = item.read()
    image, mask = pair.image, pair.mask
    try:
        size = (RGB.read(image) if isinstance(image, Path) else image).shape[:2]
    except UserError as error:
        raise BadFileError(image if isinstance(image, Path) else item.name, "unreadable or truncated") from error
    if size != mask.shape:
        detail = f"mask {mask.shape[1]}x{mask.shape[0]}, image {size[1]}x{size[0]}"
        raise BadFileError(item.name, "a mask of another size than its image", detail)
    place = part / "images" / f"{name}{image.suffix.lower() if isinstance(image, Path) else '.png'}"
    half = place.with_name(f"{place.name}.part")
    with writing(place):
        if isinstance(image, Path):
            shutil.copyfile(image, half)
        else:
            Image.fromarray(image).save(half, "png")
        half.replace(place)
        place = part / "masks" / f"{name}.png"
        half = place.with_name(f"{place.name}.part")
        Image.fromarray(np.ascontiguousarray(mask)).save(half, "png")
        half.replace(place)
    return pair.notes


def _parts(
    lines: Sequence[Line], groups: dict[str, str], validation: float | None, notes: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Which images are for training and for validation: as the source has it, else by a digest of their groups, which
    may be patients and are written nowhere."""
    own = {line["part"] for line in lines}
    parts: dict[str, list[str]] = {"train": [], "val": []}
    if validation is None and own == {"train", "val"}:
        for line in lines:
            parts[line["part"]].append(line["name"])
        both = set.intersection(*({groups[name] for name in names} for names in parts.values()))
        if shared := [name for name in parts["val"] if groups[name] in both]:
            notes[BOTH] = shared
        return parts
    share = SHARE if validation is None else validation
    ranked = sorted({groups[line["name"]] for line in lines})
    if len(ranked) == 1:
        names = [line["name"] for line in lines]
        last = min(max(1, round(share * len(names))), len(names) - 1)
        notes[ONE_GROUP] = names[-last:]
        return {"train": names[:-last], "val": names[-last:]}
    held_out = {group for group in ranked if int(group, 16) < share * 2**256}
    # neither part may be empty
    held_out = (held_out or {ranked[0]}) - ({ranked[-1]} if len(held_out) == len(ranked) else set())
    for line in lines:
        parts["val" if groups[line["name"]] in held_out else "train"].append(line["name"])
    return parts


def _report(result: Imported, about: Line) -> str:
    total = sum(map(len, result.dropped.values()))
    lines = [
        f"# Import of kind {about['kind']}",
        "",
        *(f"- {key}: `{value}`" for key, value in about.items() if key != "kind"),
        f"- {result.train} training and {result.val} validation images; classes: {shortened(result.classes)}",
        f"- dropped: {total}",
    ]
    for title, groups in (("Dropped", result.dropped), ("Good to know", result.notes)):
        if groups:
            lines += ["", f"## {title}", "", "| what | how many | such as |", "| --- | ---: | --- |"]
            lines += [f"| {text} | {len(names) or ''} | {shortened(names, 3)} |" for text, names in groups.items()]
    return _lines(lines)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
