"""Networks that segmentation_models_pytorch saved by its own `save_pretrained`, read as models of ours.

Such a folder has config.json, which names the network, and model.safetensors. Its segmentation head becomes the
classifier, with the same function: `model.head = library`. A head with one channel says where its class is; the
background's channel beside it is zero everywhere.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import torch

from fiss.config.config import Config
from fiss.data.dataset import read_lines
from fiss.errors import UserError, unknown
from fiss.federation.messages import Snapshot
from fiss.labels import LabelSpace
from fiss.models.classifier import PREFIX, Weights
from fiss.models.segmenter import ModelSpec, Segmenter, check_spec
from fiss.training.spec import EvaluationSpec

SAME_ORDER = (None, "identity", "softmax", "softmax2d", "logsoftmax", "sigmoid", "tanh")
"""Activations behind the head that leave the largest channel the largest."""


def is_pretrained(path: Path) -> bool:
    """Whether it is such a folder."""
    return (path / "config.json").is_file() and not (path / "config.toml").is_file()


def read_pretrained(path: Path, classes: Path | str | None = None) -> tuple[Config, Snapshot, Path]:
    """Its network, its weights with the classes' names, and the file they are in."""
    about, file = _about(path), path / "model.safetensors"
    if not file.is_file():
        pickled = sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        why = (
            f"{pickled[0]} may be a pickle, which can run any code and is never opened" if pickled else "it is missing"
        )
        raise UserError(f"{file}: {why}; save the model again with its own save_pretrained.")
    spec, given = _spec(path, about), _tensors(file)
    wanted = Segmenter(spec, (1,)).state_dict()
    weights = {name: given[name] for name in wanted if name in given}
    try:
        weights |= _classifier(given["segmentation_head.0.weight"], given.get("segmentation_head.0.bias"))
    except (KeyError, IndexError) as error:
        raise UserError(f"{file}: it has no segmentation head of convolutions ({error}).") from error
    channels = len(weights[f"{PREFIX}.0.weight"])
    config = Config(name=path.name, model=spec, evaluation=EvaluationSpec(views=("full",), size=0))
    return config, Snapshot("model", LabelSpace((_names(path, channels, classes),)), weights), file


def _about(path: Path) -> dict[str, Any]:
    import segmentation_models_pytorch as smp

    try:
        found = dict(json.loads((path / "config.json").read_bytes()))
        name = str(found.pop("_model_class"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path}: neither a run folder nor one written by segmentation_models_pytorch's save_pretrained "
            f"({type(error).__name__}: {error})."
        ) from error
    if name.lower() == "dpt" or name.lower() not in smp.MODEL_ARCHITECTURES_MAPPING:
        raise unknown("architecture", name, [name for name in smp.MODEL_ARCHITECTURES_MAPPING if name != "dpt"])
    return {"architecture": name.lower(), **found}


def _spec(path: Path, about: dict[str, Any]) -> ModelSpec:
    """The network that config.json describes; what cannot be kept is refused."""
    import segmentation_models_pytorch as smp

    where, activation = path / "config.json", about.pop("activation", None)
    if about.pop("in_channels", 3) != 3:
        raise UserError(f"{where}: in_channels is not 3; images here are RGB.")
    if activation not in SAME_ORDER or (activation == "sigmoid" and about.get("classes", 1) > 1):
        raise UserError(
            f"{where}: activation = {activation}: a pixel has to have one class, that of the largest logit."
        )
    architecture, encoder = about.pop("architecture"), str(about.pop("encoder_name", "resnet34"))
    for name in ("classes", "encoder_weights", "aux_params"):
        about.pop(name, None)
    plain = inspect.signature(smp.MODEL_ARCHITECTURES_MAPPING[architecture].__init__).parameters
    options: dict[str, Any] = {}
    for name, value in about.items():
        value = tuple(value) if isinstance(value, list) else value
        if name in plain and value == plain[name].default:
            continue
        if not isinstance(value, (str, int, float, tuple)):
            raise UserError(f"{where}: {name} = {json.dumps(value)}: only numbers, words and lists can be kept.")
        options[name] = value
    spec = ModelSpec(architecture, encoder, "none", options, "library")
    check_spec(spec)
    return spec


def _tensors(file: Path) -> Weights:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {
            name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in load_file(file).items()
        }
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: damaged or no safetensors file ({error}).") from error


def _classifier(weight_CDkk: torch.Tensor, bias_C: torch.Tensor | None) -> Weights:
    """The head's convolution over the cells around one, and a background of zero before a single class."""
    bias = weight_CDkk.new_zeros(len(weight_CDkk)) if bias_C is None else bias_C
    weight = weight_CDkk.flatten(1)[..., None, None]
    if len(weight) == 1:
        weight, bias = (torch.cat([torch.zeros_like(t), t]) for t in (weight, bias))
    return {f"{PREFIX}.0.weight": weight, f"{PREFIX}.0.bias": bias}


def _names(path: Path, channels: int, classes: Path | str | None) -> tuple[str, ...]:
    if classes is None:
        return tuple(f"class {channel}" for channel in range(1, channels))
    names = read_lines(Path(classes))
    if len(names) == channels and names[0].lower() == "background":
        names = names[1:]
    if len(names) != channels - 1:
        raise UserError(
            f"{classes}: {len(names)} names, and {path} has {channels - 1} classes besides the background, "
            "which is channel 0."
        )
    return tuple(names)
