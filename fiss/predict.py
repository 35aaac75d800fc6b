"""Segmenting new images with a trained model: masks, and pictures in which a person sees what they mean."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fiss.config.config import Config, read_toml
from fiss.data.dataset import read_image, read_lines
from fiss.data.transforms import normalise
from fiss.errors import UserError
from fiss.federation.private_names import private
from fiss.models.segmenter import Segmenter, pad
from fiss.progress import Progress
from fiss.reports.pictures import colours_of
from fiss.runs.folder import read_model
from fiss.runs.scoring import load_checked
from fiss.training.device import pick_device
from fiss.training.trainer import build_network

AT_ONCE = 8
"""Channels enlarged at a time: a large image with many classes needs no more memory than one with few."""


@dataclass(frozen=True)
class Predictor:
    """A model that is ready to look at images."""

    model: Segmenter
    names: tuple[str, ...]
    """Of channels 1, 2, ..."""
    size: int
    """Shorter side of the images it sees."""


def load(path: Path, device: str = "auto", classes: Path | None = None) -> Predictor:
    """The last model of a run folder, or a model file with the run's config.toml beside or above it. `classes` names
    the classes where they travel as hashes."""
    config, file = _found(path)
    snapshot = read_model(file)
    model = build_network(config, snapshot.label_space, pick_device(device), "none")
    load_checked(model, snapshot, file)
    names = snapshot.label_space.names
    if config.federation.private_names:
        names = _readable(names, config.federation.private_names, classes)
    elif classes is not None:
        raise UserError("--classes is for runs with federation.private_names, and this one has none.")
    return Predictor(model.eval(), names, config.evaluation.size)


def _found(path: Path) -> tuple[Config, Path]:
    if path.is_dir():
        try:
            last = str(json.loads((path / "state.json").read_bytes())["weights"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a run folder with a finished round ({error}).") from error
        return read_toml(path / "config.toml"), path / "weights" / f"{last}.safetensors"
    for place_ in (path.parent, path.parent.parent):
        if (place_ / "config.toml").is_file():
            return read_toml(place_ / "config.toml"), path
    raise UserError(f"{path}: its run's config.toml, which says what network it is, is neither beside nor above it.")


def _readable(names: Sequence[str], key: str, classes: Path | None) -> tuple[str, ...]:
    if classes is None:
        raise UserError(
            "The class names of this model are private: --classes FILE, one name per line, makes them readable."
        )
    own = {private(name, key): name for name in read_lines(classes)}
    lost = [name for name in names if name not in own]
    if lost:
        raise UserError(f"{classes}: {len(lost)} of the model's {len(names)} classes are not in it.")
    return tuple(own[name] for name in names)


@torch.inference_mode()
def segment(predictor: Predictor, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The channel of every pixel of an image (H, W, 3). The model sees it at the size it was scored at; its logits are
    enlarged to the image's own."""
    model = predictor.model
    height, width = image.shape[:2]
    scale = predictor.size / min(height, width)
    small = [max(1, round(side * scale)) for side in (height, width)]
    pixels = torch.tensor(image).permute(2, 0, 1)[None].to(next(model.parameters()).device)
    resized = F.interpolate(pixels.float(), small, mode="bilinear", antialias=True).round()
    padded, _ = pad(resized, torch.zeros_like(resized[:, 0], dtype=torch.uint8), model.divisor)
    logits = model(normalise(padded)).logits_BCHW[..., : small[0], : small[1]].float()
    best = torch.full((height, width), -torch.inf, device=logits.device)
    found = torch.zeros((height, width), dtype=torch.uint8, device=logits.device)
    for first in range(0, logits.shape[1], AT_ONCE):
        part = F.interpolate(logits[:, first : first + AT_ONCE], (height, width), mode="bilinear")[0]
        top, channel = part.max(0)
        better = top > best
        best, found = torch.where(better, top, best), torch.where(better, (channel + first).to(torch.uint8), found)
    return found.cpu().numpy()


def write(predictor: Predictor, images: Sequence[Path], out: Path, progress: Progress) -> list[dict[str, Any]]:
    """masks/ with class ids, overlays/ to look at, and classes.txt, which together with the images is a data set of
    the kind `folder`; gives for every image the share of its pixels by class."""
    if not images:
        raise UserError("No image to segment: name image files, or folders that hold some.")
    stems = [path.stem for path in images]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise UserError(f"Two images are called {twice[0]}; their masks would be one file.")
    for name in ("masks", "classes.txt"):
        if (out / name).exists():  # it may be what people have drawn
            raise UserError(f"{out / name} is there already and is not written over: --out names another folder.")
    colours = colours_of(len(predictor.names) + 1)
    records: list[dict[str, Any]] = []
    problems: list[UserError] = []
    progress.start("segmenting", len(images))
    for path in images:
        progress.advance()
        try:
            image = read_image(path)
        except UserError as error:
            progress.notice(f"left out: {error}")
            problems.append(error)
            continue
        if not records:
            for folder in ("masks", "overlays"):
                (out / folder).mkdir(parents=True, exist_ok=True)
            (out / "classes.txt").write_text("\n".join(predictor.names) + "\n", encoding="utf-8")
        labels = segment(predictor, image)
        mask = Image.fromarray(labels, "P")
        mask.putpalette(colours.tobytes())
        mask.save(out / "masks" / f"{path.stem}.png")
        counts = np.bincount(labels.ravel(), minlength=len(colours)) / labels.size
        shares = {name: float(counts[i]) for i, name in enumerate(("background", *predictor.names)) if counts[i]}
        overlay(image, labels, predictor.names, colours).save(out / "overlays" / f"{path.stem}.png")
        records.append({"image": str(path), "shares": shares})
    progress.finish()
    if not records:
        raise problems[0]
    return records


def overlay(
    image: NDArray[np.uint8], labels: NDArray[np.uint8], names: Sequence[str], colours: NDArray[np.uint8]
) -> Image.Image:
    """The image with its classes coloured, their edges drawn, and a legend of those that are in it."""
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
        pen.text((line + 4, y), names[i - 1], fill="black", font=font)
    return page
