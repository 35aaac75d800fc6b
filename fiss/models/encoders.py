"""Encoders without a decoder, and encoders' weights from a file.

A vision transformer of timm has all its maps on the grid of its patches. Its stages are blocks: four that are evenly
spread, or as the options say. Images of any size are taken, the positions are interpolated.

B batch, D channels, H W the image's size, h w a map's.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from segmentation_models_pytorch.encoders import TimmViTEncoder, get_encoder
from torch import Tensor, nn

from fiss.errors import UserError

OPTIONS = ("encoder_depth", "encoder_output_stride", "encoder_output_indices")
"""What can be set where there is no decoder; the last one (blocks, from 0) only of transformers, the second one only of
others."""
HEADS = ("head", "fc", "classifier", "norm_head")
"""Of the file's tensors those that belong to no encoder."""


class Parts(NamedTuple):
    """What a segmenter is put together from."""

    encoder: Any
    decoder: nn.Module
    features: int
    """Channels of what the classifier looks at."""
    divisor: int
    """Of the sides of images."""
    side: int = 1
    """Of the square of the decoder's cells that the classifier looks at."""
    corners: bool = False
    """Whether logits are enlarged with corners on corners."""


class LastMap(nn.Module):
    """Stands in for a decoder: gives the encoder's last map as it is."""

    def forward(self, maps: list[Tensor]) -> Tensor:
        """The last of the maps, which come finest first."""
        return maps[-1]


class Transformer(TimmViTEncoder):  # type: ignore[misc]
    """A vision transformer as any other encoder: a list of maps, the image itself first."""

    out_channels: list[int]

    def __init__(self, name: str, pretrained: bool, **options: Any) -> None:
        if "output_indices" in options:
            options["depth"] = len(options["output_indices"])
        super().__init__(name, pretrained, **options, dynamic_img_size=True, num_classes=0)
        self._depth = len(self.out_channels)
        self.out_channels = [options.get("in_channels", 3), *self.out_channels]

    def forward(self, images_BCHW: Tensor) -> list[Tensor]:
        """The image and its maps, (B, D, h, w) each; the tokens of no place are left out."""
        return [images_BCHW, *super().forward(images_BCHW)[0]]


def encoder_alone(name: str, weights: str | None, options: Mapping[str, Any], channels: int) -> Parts:
    """A network without a decoder."""
    own = {key.removeprefix("encoder_"): value for key, value in options.items()}
    timm_name = name.removeprefix("tu-")
    if name.startswith("tu-") and _has_one_grid(timm_name):
        encoder = Transformer(timm_name, weights is not None, in_channels=channels, **own)
    else:
        encoder = get_encoder(name, channels, weights=weights, **own)
    return Parts(encoder, LastMap(), encoder.out_channels[-1], encoder.output_stride)


def _has_one_grid(timm_name: str) -> bool:
    """Whether all maps of the network are of one size, as those of plain vision transformers are."""
    with torch.device("meta"):
        info = getattr(timm.create_model(timm_name), "feature_info", ())
    return len(info) > 1 and len({one["reduction"] for one in info}) == 1


def load_encoder(encoder: nn.Module, path: Path) -> None:
    """Weights under the encoder's own key names (for ResNets torchvision's, for timm's networks also those of the files
    that timm reads, such as DINOv2's own); half precision is widened."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        given = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a readable .safetensors file ({error}).") from error
    wanted = encoder.state_dict()
    extra: list[str] = []
    if isinstance(encoder, Transformer):
        given = _as_in_timm(given, encoder.model, path)
        extra = [k for k in given if k not in wanted and not k.removeprefix("model.").startswith(HEADS)]
    for name in given.keys() & wanted.keys():
        if given[name].ndim == 4 and given[name].shape[1] == 3 != (channels := wanted[name].shape[1]):
            given[name] = given[name][:, torch.arange(channels) % 3] * (3 / channels)  # of RGB, for what there is
    missing = [k for k in wanted if k not in given and not k.endswith("num_batches_tracked")]
    wrong = [k for k in wanted if k in given and given[k].shape != wanted[k].shape]
    if missing or wrong or extra:
        words = ("missing", missing), ("of another shape", wrong), ("that it does not have", extra)
        found = ", ".join(f"{len(keys)} tensors {what} ({', '.join(keys[:3])})" for what, keys in words if keys)
        raise UserError(f"{path}: does not fit this encoder; {found}.")
    nn.Module.load_state_dict(encoder, {k: given.get(k, v).to(v.dtype) for k, v in wanted.items()})


RESNETS = {(2, 2, False): "resnet18", (6, 3, False): "resnet34", (6, 3, True): "resnet50", (23, 3, True): "resnet101"}
"""By blocks in the third and last layer, and whether they are bottlenecks."""
WIDTHS = {384: "small", 768: "base", 1024: "large"}


def recognise_encoder(path: Path) -> str:
    """The encoder that a file of weights belongs to: a ResNet, or a vision transformer of DINOv2's design."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            keys = {key.removeprefix("model.") for key in file.keys()}  # noqa: SIM118
            full = next((key for key in file.keys() if key.endswith("patch_embed.proj.weight")), "")  # noqa: SIM118
            shape = file.get_slice(full).get_shape() if full else ()
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a readable .safetensors file ({error}).") from error
    if shape and shape[0] in WIDTHS:
        registers = "_reg4" if {"register_tokens", "reg_token"} & keys else ""
        return f"tu-vit_{WIDTHS[shape[0]]}_patch{shape[-1]}{registers}_dinov2"
    third, last = ({key.split(".")[1] for key in keys if key.startswith(f"{name}.")} for name in ("layer3", "layer4"))
    if (name := RESNETS.get((len(third), len(last), "layer3.0.conv3.weight" in keys))) is not None:
        return name
    raise UserError(
        f"{path}: of no network that is recognised (ResNet-18, -34, -50, -101, DINOv2). For another one write "
        "model.encoder and model.weights into the config by hand."
    )


def _as_in_timm(given: dict[str, Tensor], model: nn.Module, path: Path) -> dict[str, Tensor]:
    """Under the encoder's key names, positions interpolated to its own grid: timm knows how, for each kind of
    network."""
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", lambda weights, _: weights)
    try:
        converted: dict[str, Tensor] = convert({k.removeprefix("model."): t.float() for k, t in given.items()}, model)
    except Exception as error:  # whatever that function stumbles over in a file of another network
        raise UserError(f"{path}: does not fit this encoder ({type(error).__name__}: {error}).") from error
    return {f"model.{k}": tensor for k, tensor in converted.items()}
