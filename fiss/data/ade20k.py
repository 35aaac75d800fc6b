"""ADE20k in the genuine ADEChallengeData2016 tree: 150 classes; id 0 ("other") counts as background, as published."""

from pathlib import Path

from fiss.data.dataset import Dataset, FileSplit, files_by_stem
from fiss.errors import UserError

CLASSES = (
    "wall", "building", "sky", "floor", "tree", "ceiling", "road", "bed", "windowpane", "grass", "cabinet",
    "sidewalk", "person", "earth", "door", "table", "mountain", "plant", "curtain", "chair", "car", "water",
    "painting", "sofa", "shelf", "house", "sea", "mirror", "rug", "field", "armchair", "seat", "fence", "desk",
    "rock", "wardrobe", "lamp", "bathtub", "railing", "cushion", "base", "box", "column", "signboard",
    "chest of drawers", "counter", "sand", "sink", "skyscraper", "fireplace", "refrigerator", "grandstand", "path",
    "stairs", "runway", "case", "pool table", "pillow", "screen door", "stairway", "river", "bridge", "bookcase",
    "blind", "coffee table", "toilet", "flower", "book", "hill", "bench", "countertop", "stove", "palm",
    "kitchen island", "computer", "swivel chair", "boat", "bar", "arcade machine", "hovel", "bus", "towel", "light",
    "truck", "tower", "chandelier", "awning", "streetlight", "booth", "television receiver", "airplane", "dirt track",
    "apparel", "pole", "land", "bannister", "escalator", "ottoman", "bottle", "buffet", "poster", "stage", "van",
    "ship", "fountain", "conveyer belt", "canopy", "washer", "plaything", "swimming pool", "stool", "barrel",
    "basket", "waterfall", "tent", "bag", "minibike", "cradle", "oven", "ball", "food", "step", "tank", "trade name",
    "microwave", "pot", "animal", "bicycle", "lake", "dishwasher", "screen", "blanket", "sculpture", "hood", "sconce",
    "vase", "traffic light", "tray", "ashcan", "fan", "pier", "crt screen", "plate", "monitor", "bulletin board",
    "shower", "radiator", "glass", "clock", "flag",
)  # fmt: skip
"""In the order of the data set's objectInfo150 list."""


def find(root: Path) -> Path:
    """The ADEChallengeData2016 folder at, or just below, `root`."""
    for place in (root, root / "ADEChallengeData2016"):
        if (place / "images" / "training").is_dir() and (place / "annotations" / "training").is_dir():
            return place
    raise UserError(
        f"No ADE20k at {root}: expected images/training/ and annotations/training/ in it or in ADEChallengeData2016/ "
        "below it. Set data.root to that folder."
    )


def load(root: Path) -> Dataset:
    """`training` and `validation`, every image with its annotation."""
    root = find(root)

    def split(name: str, folder: str) -> FileSplit:
        images, *_ = files_by_stem(root / "images" / folder)
        masks = tuple(root / "annotations" / folder / f"{stem}.png" for stem in images)
        return FileSplit(name, tuple(images), tuple(images.values()), masks)

    return Dataset("ade20k", CLASSES, split("train", "training"), split("val", "validation"))
