"""The model card: what a person who is given an exported model should know of it, as Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fiss.errors import UserError
from fiss.predict.predictor import Predictor
from fiss.runs.folder import RunFolder
from fiss.runs.pretrained import is_pretrained
from fiss.runs.records import ScoreRecord

READ = """import numpy as np
from PIL import Image, ImageOps

photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
"""
RESIZE = "photo = photo.resize([round(side * {size} / min(photo.size)) for side in photo.size], Image.BILINEAR)\n"
USE = {
    "onnx": """image = np.asarray(photo).transpose(2, 0, 1)[None]
mask, logits = onnxruntime.InferenceSession("{file}").run(None, {{"image": image}})""",
    "pt2": """image = torch.tensor(np.asarray(photo)).permute(2, 0, 1)[None]
mask, logits = torch.export.load("{file}").module()(image)""",
}


def model_card(predictor: Predictor, about: Mapping[str, Any], file: str, agreed: float) -> str:
    """The text; what nobody knows is said to be not known."""
    config, folder = predictor.config, RunFolder(predictor.file.parent.parent)
    foreign = is_pretrained(predictor.file.parent)
    origins = [] if foreign else folder.origins()
    source = (
        ", commit ".join(str(origins[-1][key]) for key in ("fiss", "commit") if origins[-1].get(key)) if origins else ""
    )
    spec, unknown = config.model, "not known"
    facts = {
        "network": f"{spec.architecture}, encoder {spec.encoder}",
        "encoder's weights before training": unknown if foreign else spec.weights,
        "method": unknown if foreign else config.method.name,
        "classifier": "computed in closed form" if predictor.model.head is not None else "trained",
        "data": unknown if foreign else config.data.name,
        "seed": unknown if foreign else config.seed,
        "trained with fiss": source or unknown,
        "written by fiss": about["fiss"],
        "licence of the weights": unknown,
    }
    shorter = (
        f"Make its shorter side {predictor.size} px first, as when the model was scored. "
        if predictor.size and not about["fixed"]
        else ""
    )
    kind = str(about["format"])
    resize = RESIZE.format(size=predictor.size) if predictor.size and not about["fixed"] else ""
    code = READ + resize + USE[kind].format(file=file)
    scores = [] if foreign else _scores(folder, predictor.file)
    return "\n".join(
        [
            f"# {Path(file).stem}\n",
            f"Gives every pixel of an image one of {len(predictor.names)} classes, the background among them.\n",
            *_table(("", ""), facts.items()),
            "\n## Input and output\n",
            f"- `image`: {about['takes']}, as it is shown. {shorter}Nothing else: mean and deviation are inside.",
            "- `mask`: the class of every pixel, bytes (batch, height, width).",
            "- `logits`: (batch, class, height, width), of which the mask is the largest.",
            f"\nIt agrees with the model it was made of in {100 * agreed:.2f} % of the pixels of a few drawn images.\n",
            f"```python\nimport {'torch' if kind == 'pt2' else 'onnxruntime'}\n{code}\n```",
            "\n## Classes\n",
            *_classes(predictor.names, scores),
            "\n## Limits\n",
            *(
                [f"Scores are of {scores[0].images} images of the same data set."]
                if scores
                else ["No scores are known."]
            ),
            "How good it is on other images is not known: try it on labelled images of your own.\n",
        ]
    )


def _classes(names: Sequence[str], scores: Sequence[ScoreRecord]) -> list[str]:
    """Every class with its IoU in each view, in percent."""
    head = ("id", "class", *(f"IoU, {score.view}" for score in scores))
    rows = [(str(i), name, *(_shown(score.iou.get(name)) for score in scores)) for i, name in enumerate(names)]
    means = [("", "mean", *(_shown(score.miou) for score in scores))] if scores else []
    return _table(head, [*rows, *means])


def _scores(folder: RunFolder, file: Path) -> list[ScoreRecord]:
    """The scores of this model, one for each view; none where it was not scored."""
    kind, _, number = file.stem.partition("-")
    try:
        records = folder.scores(finished=True)
    except UserError:  # no run folder is around this file
        return []
    own = [
        score
        for score in records
        if number.isdecimal()
        if (kind == "round" and score.round == folder.counting.round_of(file.stem))
        or (kind == "task" and score.ends_task and score.task == int(number))
    ]
    return list({score.view: score for score in own}.values())


def _table(head: Sequence[object], rows: Any) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
