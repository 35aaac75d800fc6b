"""What a model sees, as files: masks, and pictures in which a person sees what they mean."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fiss.data.dataset import read_lines
from fiss.data.reading import Bytes, Picture, as_shown
from fiss.errors import UserError, unknown, writing
from fiss.predict.palette import class_colours
from fiss.predict.predictor import Prediction, Predictor
from fiss.progress import Progress
from fiss.runs.folder import write_atomically


def write(
    predictor: Predictor,
    images: Sequence[Path],
    out: Path,
    progress: Progress,
    *,
    unsure: float = 0,
    probabilities: bool = False,
    overwrite: bool = False,
    ids: str = "data",
) -> list[dict[str, Any]]:
    """masks/ with class ids, overlays/ to look at, and classes.txt, which together with the images is a data set of
    the kind `folder`; gives for every image the share of its pixels by class.

    `unsure`: also unsure/, white where no class has that probability. `probabilities`: also probabilities/, an array
    (C, H, W) in half precision for each image. `overwrite`: files that are there are written over. `ids`: data, as
    in the data set's classes.txt, or model, the model's channels.
    """
    if not images:
        raise UserError("No image to segment: name image files, or folders that hold some.")
    stems = [path.stem for path in images]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise UserError(f"Two images are called {twice[0]}; their masks would be one file.")
    if ids not in ("data", "model"):
        raise unknown("--ids", ids, ("data", "model"))
    if ids == "data" and not predictor.ids:
        progress.notice("the data set's ids are not known here, so masks have the model's; classes.txt says which.")
    names = list(predictor.ids if ids == "data" and predictor.ids else predictor.names[1:])
    table = np.array([0, *(names.index(name) + 1 for name in predictor.names[1:])], np.uint8)
    _check_free(out, names, overwrite)
    folders = ["masks", "overlays", *["unsure"] * (unsure > 0), *["probabilities"] * probabilities]
    colours = class_colours(predictor)
    palette = np.zeros((len(names) + 1, 3), np.uint8)
    palette[table] = colours
    records: list[dict[str, Any]] = []
    problems: list[UserError] = []
    reading: deque[tuple[Path, Picture]] = deque()

    def readable() -> Iterator[Picture]:
        for path in images:
            try:
                reading.append((path, predictor.how.read(path)))
            except UserError as error:
                progress.advance()
                progress.notice(f"left out: {error}")
                problems.append(error)
            else:
                yield reading[-1][1]

    progress.start("segmenting", len(images))
    for seen in predictor.segment(readable()):
        path, image = reading.popleft()
        if not records:
            for folder in folders:
                (out / folder).mkdir(parents=True, exist_ok=True)
            write_atomically(out / "classes.txt", ("\n".join(names) + "\n").encode())
        mask = Image.fromarray(table[seen.mask], "P")
        mask.putpalette(palette.tobytes())
        drawings = {"masks": mask, "overlays": overlay(as_shown(image), seen, colours)}
        records.append({"image": str(path), "shares": seen.shares})
        if unsure:
            where = seen.unsure(unsure)
            drawings["unsure"] = Image.fromarray((255 * where).astype(np.uint8))
            records[-1]["unsure"] = float(where.mean())
        for folder, drawn in drawings.items():
            with writing(file := out / folder / f"{path.stem}.png"):
                drawn.save(file, compress_level=1)  # the usual 6 takes as long as a small network
        if probabilities:
            with writing(file := out / "probabilities" / f"{path.stem}.npy"):
                np.save(file, seen.probabilities.astype(np.float16))
        progress.advance()
    progress.finish()
    if not records:
        raise problems[0]
    return records


def _check_free(out: Path, names: Sequence[str], overwrite: bool) -> None:
    """Masks that are there may be what people have drawn."""
    there = [out / name for name in ("masks", "classes.txt") if (out / name).exists()]
    if there and not overwrite:
        raise UserError(
            f"{there[0]} is there already and is not written over: --out names another folder, or --overwrite "
            "writes over the masks of these images."
        )
    if (out / "classes.txt").is_file() and read_lines(out / "classes.txt") != list(names):
        raise UserError(
            f"{out / 'classes.txt'} names other classes than the model's, so masks there would not belong together: "
            "--out names another folder."
        )


def overlay(image: Bytes, seen: Prediction, colours: Bytes) -> Image.Image:
    """The image with its classes coloured, their edges drawn, and a legend of those that are in it."""
    labels = seen.mask
    painted = np.where((labels > 0)[..., None], 0.45 * image + 0.55 * colours[labels], 0.8 * image)
    edge = np.zeros(labels.shape, bool)
    edge[1:] |= labels[1:] != labels[:-1]
    edge[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    painted[edge] = 255
    there = [int(i) for i in np.unique(labels) if i]
    line = max(14, min(image.shape[:2]) // 20)
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), line * 0.8)
    page = Image.new("RGB", (image.shape[1], image.shape[0] + line * max(1, len(there))), "white")
    page.paste(Image.fromarray(painted.round().astype(np.uint8)))
    pen = ImageDraw.Draw(page)
    if not there:
        pen.text((2, image.shape[0]), "background only", fill="black", font=font)
    for row, i in enumerate(there):
        y = image.shape[0] + line * row
        pen.rectangle((2, y + 2, line - 2, y + line - 2), fill=tuple(int(v) for v in colours[i]))
        pen.text((line + 4, y), seen.names[i], fill="black", font=font)
    return page
