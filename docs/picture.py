"""Draws docs/picture.png from a run on shapes: images, truth, and what the model sees after each task.

python docs/picture.py RUN [OUT]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from fiss.checkpoint import RunFolder
from fiss.data.background import evaluation_table
from fiss.data.transforms import normalise
from fiss.experiment import prepare
from fiss.watch import Watcher

COLOURS = np.array(
    [
        (30, 30, 30), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
        (204, 121, 167), (153, 153, 153), (148, 103, 189), (140, 86, 75), (23, 190, 207), (255, 255, 255),
    ],
    np.uint8,
)  # fmt: skip
"""Okabe and Ito's colours, told apart by colour-blind readers too, and a few more."""
SCALE, GAP, HEAD, ROWS = 2, 6, 22, (3, 8, 15)


def main(run: Path, out: Path) -> None:
    """One row per image, one column per model."""
    folder = RunFolder.open(run)
    setup = prepare(folder.config(), Watcher())
    last = setup.tasks.label_space(len(setup.tasks.tasks) - 1)
    truth = evaluation_table(setup.dataset.classes, last)
    pairs = [setup.dataset.val.read(i) for i in ROWS]
    columns = [("image", [image for image, _ in pairs]), ("truth", [COLOURS[truth[mask]] for _, mask in pairs])]
    model = setup.network(setup.tasks.label_space(0)).eval()
    for task in range(len(setup.tasks.tasks)):
        snapshot = folder.read_weights(f"task-{task}")
        model.load(snapshot.weights, snapshot.label_space.sizes)
        with torch.inference_mode():
            batch = torch.stack([torch.tensor(image).permute(2, 0, 1) for image, _ in pairs]).to(setup.device)
            seen = model(normalise(batch)).logits_BCHW.argmax(1).cpu().numpy()
        columns.append((f"after task {task}", list(COLOURS[seen])))
    side = setup.config.data.shapes_size * SCALE
    sheet = Image.new("RGB", (len(columns) * (side + GAP) - GAP, HEAD + len(ROWS) * (side + GAP) - GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for x, (title, pictures) in enumerate(columns):
        pen.text((x * (side + GAP) + 2, 4), title, fill="black", font_size=14)
        for y, picture in enumerate(pictures):
            tile = Image.fromarray(picture).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (x * (side + GAP), HEAD + y * (side + GAP)))
    sheet.quantize(128).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent / "picture.png")
