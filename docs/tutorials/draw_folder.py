"""A folder of drawn images and masks, to try the tutorials without data of your own.

python docs/tutorials/draw_folder.py mine disc,ring,square --count 200
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from fiss.data.shapes import CLASSES, draw


def fill(folder: Path, names: list[str], first: int, count: int) -> None:
    """Images `first` and following; their masks label these classes and nothing else."""
    ids = np.array([0, *(names.index(name) + 1 if name in names else 0 for name in CLASSES)], np.uint8)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        image, mask = draw(1, "train", number, 96)
        Image.fromarray(image).save(folder / "images" / f"{number:04d}.png")
        Image.fromarray(ids[mask]).save(folder / "masks" / f"{number:04d}.png")
    (folder / "classes.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("classes", help=f"separated by commas, of: {', '.join(CLASSES)}")
    parser.add_argument("--first", type=int, default=0, help="number of the first image")
    parser.add_argument("--count", type=int, default=60)
    given = parser.parse_args()
    fill(given.folder, given.classes.split(","), given.first, given.count)
