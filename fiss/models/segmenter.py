"""The network: any encoder and architecture of segmentation_models_pytorch, or an encoder alone, its head replaced by
our growing classifier.

It gives what distillation needs besides logits: the decoder's output, the logits at the decoder's resolution, and the
encoder's stages. For ResNets the stages are taken before their last activation, as in the published runs; other
encoders offer theirs after it.

B batch, C classes, D feature channels, H W the image's size, h w a smaller one.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fiss.errors import UserError, check_least, unknown
from fiss.labels import IGNORE
from fiss.models.classifier import Classifier, Weights
from fiss.models.hub import check_fetchable
from fiss.models.output import Output

if TYPE_CHECKING:
    from fiss.models.encoders import Parts

ALONE = "none"
"""The architecture without a decoder."""
PRETRAINED = "pretrained/"
"""Before the name of a map: of the encoder as it was before any training."""
Option = str | int | float | bool | tuple[int, ...]
Trunk = Callable[[Tensor], tuple[Tensor, Tensor, tuple[Tensor, ...]]]
"""From images to the decoder's output, the encoder's, and its stages."""


@dataclass(frozen=True)
class ModelSpec:
    """Which network."""

    architecture: str = "deeplabv3"
    """Of segmentation_models_pytorch, in lower case; all but dpt, whose decoder wants more than feature maps. none: no
    decoder, the classifier sits on the encoder's last map; only so timm's vision transformers can be encoders."""
    encoder: str = "resnet101"
    """Of segmentation_models_pytorch; `tu-NAME` takes one of timm's."""
    weights: str = "imagenet"
    """Of the encoder: a name the library's hub knows, a local .safetensors file, or `none`."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Handed to the architecture, for example encoder_output_stride = 16; without a decoder encoder_depth and, of a
    transformer, encoder_output_indices: the blocks, counted from 0, whose outputs are its stages."""
    head: Literal["plain", "library"] = "plain"
    """plain: the classifier looks at one cell; library: as the architecture's own head does it, which may look at 3x3
    cells and enlarges with corners on corners."""
    channels: int = 3
    """Of the images: 3 for RGB and for grey that is repeated; others need an encoder that takes them."""

    def __post_init__(self) -> None:
        check_least("model.", self, 1, "channels")


class _Tap(nn.Module):
    """A ReLU that remembers what came in: the last call in a residual block is the sum before its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return F.relu(x)

    def take(self) -> Tensor:
        """What came in last; it is not kept any longer."""
        seen, self.seen = self.seen, None
        assert seen is not None
        return seen


class Head(nn.Module):
    """A classifier that is computed rather than trained, over any of the trunk's maps; it takes the trained one's place
    once it has channels."""

    weight: Tensor
    """(C, D), no rows before there is a classifier."""
    bias: Tensor

    def resize(self, channels: int) -> None:
        """Make room for so many channels; their values come with `load_state_dict`."""
        self.weight = self.weight.new_zeros(channels, self.weight.shape[1])
        self.bias = self.bias.new_zeros(channels)


class Segmenter(nn.Module):
    """Encoder, decoder, growing classifier."""

    def __init__(self, spec: ModelSpec, sizes: Sequence[int]) -> None:
        super().__init__()
        self.spec = spec
        self.encoder, self.decoder, self.features, self.divisor, self.side, self.corners = _network(spec)
        self.classifier = Classifier(self.features, sizes)
        self.head: Head | None = None
        self.runs_with: Trunk = self.trunk
        """What computes the trunk: itself, compiled, or a record of it."""
        self.pretrained: nn.Module | None = None
        """The encoder as it was before any training, where features are wanted of it too."""
        self.taps: list[_Tap] = []
        depth = int(self.encoder._depth)
        layers = [f"layer{i}" for i in range(1, 5)]
        if all(hasattr(self.encoder, name) for name in layers):
            for name in layers[max(depth - 1, 0) :]:
                setattr(self.encoder, name, nn.Identity())  # never run at this depth, so never trained or sent
            blocks = [getattr(self.encoder, name)[-1] for name in layers[: depth - 1]]
            if all(isinstance(getattr(block, "relu", None), nn.ReLU) for block in blocks):
                self.taps = [_Tap() for _ in blocks]
                for block, tap in zip(blocks, self.taps, strict=True):
                    block.relu = tap

    @property
    def map_channels(self) -> dict[str, int]:
        """Channels of each map of the trunk: the decoder's, if there is one, the encoder's last, and its stages, from
        1, or from the last backwards from -1."""
        widths = list(self.encoder.out_channels)
        stages = widths[-len(self.taps) :] if self.taps else widths[1:]
        places = {f"stage{i}": w for i, w in enumerate(stages, 1)}
        places |= {f"stage{-i}": w for i, w in enumerate(stages[::-1], 1)}
        decoder = {"decoder": self.features} if self.spec.architecture != ALONE else {}
        own = {"encoder": widths[-1], **places}
        kept = {f"{PRETRAINED}{name}": w for name, w in own.items()} if self.pretrained is not None else {}
        return {**decoder, **own, **kept}

    def keep_pretrained(self) -> None:
        """Keep the encoder as it is now beside the one that is trained; its maps come last among the trunk's stages."""
        self.pretrained = copy.deepcopy(self.encoder).requires_grad_(False)

    @property
    def stages_are(self) -> str:
        """What `Output.stages` holds, in words."""
        return "before their last activation" if self.taps else "after their last activation"

    def forward(self, images_BCHW: Tensor) -> Output:
        """Images whose sides are multiples of `divisor`."""
        decoded, encoded, stages = self.runs_with(images_BCHW)
        if self.head is not None and len(self.head.weight):
            small = self.head(decoded, encoded, stages, images_BCHW.shape[-2:])
        else:
            small = self.classifier(decoded)
        logits = enlarge(small, images_BCHW.shape[-2:], self.corners)
        return Output(logits, small, decoded, encoded, stages)

    def trunk(self, images_BCHW: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Everything below the classifier, so that nothing in it changes when classes are added: the decoder's output,
        the encoder's, and its stages."""
        features = self.encoder(images_BCHW)
        stages = tuple(tap.take() for tap in self.taps) or tuple(features[1:])
        decoded = surroundings(self.decoder(features), self.side)
        if self.pretrained is not None and not self.training:  # nothing is learnt from it
            own = self.pretrained(images_BCHW)
            taps = [module for module in self.pretrained.modules() if isinstance(module, _Tap)]
            stages += (*(tuple(tap.take() for tap in taps) or tuple(own[1:])), own[-1])
        return decoded, features[-1], stages

    def compile(self) -> None:
        """Let torch.compile make one program of the trunk, when it first runs."""
        self.runs_with = torch.compile(self.trunk)

    def load(self, weights: Weights, sizes: Sequence[int]) -> None:
        """Take over weights, the classifier first brought to `sizes`."""
        if self.classifier.sizes != tuple(sizes):
            device = next(self.parameters()).device
            self.classifier = Classifier(self.features, sizes).to(device).train(self.training)
        if self.head is not None and "head.weight" in weights:
            self.head.resize(len(weights["head.weight"]))
        self.load_state_dict(weights)

    def weights(self) -> Weights:
        """A copy of every parameter and buffer, on the network's device."""
        return {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}


def build(spec: ModelSpec, sizes: Sequence[int], seed: int) -> Segmenter:
    """A fresh network: the encoder from its file or hub, everything else drawn from the seed."""
    from fiss.models.encoders import load_encoder

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Segmenter(spec, sizes)
        if spec.weights.endswith(".safetensors"):
            load_encoder(model.encoder, Path(spec.weights).expanduser())
    return model


def surroundings(decoded_BDhw: Tensor, side: int) -> Tensor:
    """Every cell with those around it, D features each, so that a 1x1 convolution of them is one of that side."""
    if side == 1:
        return decoded_BDhw
    cells_BDn = F.unfold(decoded_BDhw, side, padding=side // 2)
    return cells_BDn.view(*cells_BDn.shape[:2], *decoded_BDhw.shape[2:])


def enlarge(small_BChw: Tensor, size: Sequence[int], corners: bool = False) -> Tensor:
    """Bilinear interpolation to `size`; `corners`: the centres of corner pixels stay where they are. On a GPU as two
    matrix products: the backward pass of the library's function adds with atomics and took a quarter of a whole
    training step there (docs/performance.md)."""
    if small_BChw.is_cuda:
        return _products(small_BChw, size, corners)
    return F.interpolate(small_BChw, size, mode="bilinear", align_corners=corners)


def _products(small_BChw: Tensor, size: Sequence[int], corners: bool = False) -> Tensor:
    down, across = (
        _bilinear(new, old, small_BChw.device, small_BChw.dtype, corners)
        for new, old in zip(size, small_BChw.shape[-2:], strict=True)
    )
    return down @ small_BChw.contiguous() @ across.T


@lru_cache(maxsize=32)
def _bilinear(new: int, old: int, device: torch.device, dtype: torch.dtype, corners: bool = False) -> Tensor:
    """The matrix, (new, old), that interpolates along one side."""
    with torch.inference_mode(False):  # it may be made while scoring and is kept for training
        one = torch.eye(old, device=device)[None]
        return F.interpolate(one, new, mode="linear", align_corners=corners)[0].T.to(dtype)


def pad(images_BCHW: Tensor, labels_BHW: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """Fill up at the right and below to multiples of `divisor`; the labels there are ignored."""
    height, width = images_BCHW.shape[-2:]
    border = (0, -width % divisor, 0, -height % divisor)
    if not any(border):
        return images_BCHW, labels_BHW
    return F.pad(images_BCHW, border), F.pad(labels_BHW, border, value=IGNORE)


def check_spec(spec: ModelSpec) -> None:
    """Refuse an architecture, encoder or option that the library does not have; nothing is built or fetched."""
    import segmentation_models_pytorch as smp

    from fiss.models.encoders import OPTIONS

    known = {name: kind for name, kind in smp.MODEL_ARCHITECTURES_MAPPING.items() if name != "dpt"}
    if spec.architecture not in (*known, ALONE):
        raise unknown("architecture", spec.architecture, [*known, ALONE])
    encoders = list(smp.encoders.encoders)
    timm_name = spec.encoder.removeprefix("tu-").split(".")[0]  # after the dot: which weights
    if spec.encoder not in encoders and not (spec.encoder.startswith("tu-") and timm_name in _timm_names()):
        near = [f"tu-{name}" for name in sorted(_timm_names())] if spec.encoder.startswith("tu-") else encoders
        raise unknown("encoder", spec.encoder, near)
    accepted = OPTIONS if spec.architecture == ALONE else _options(known[spec.architecture])
    for name in spec.options:
        if name not in accepted:
            raise unknown(f"option of {spec.architecture}", name, accepted)


def _options(architecture: Any) -> list[str]:
    """What can be set of it."""
    own = ("self", "kwargs", "classes", "encoder_name", "encoder_weights", "activation", "aux_params", "in_channels")
    return [name for name in inspect.signature(architecture.__init__).parameters if name not in own]


def check_weights(spec: ModelSpec) -> None:
    """Refuse pretrained weights that are not there or that the library does not know; nothing is fetched."""
    import segmentation_models_pytorch as smp

    if spec.weights.endswith(".safetensors"):
        if not Path(spec.weights).expanduser().is_file():
            without = "Without it (none) the encoder begins with random weights."
            raise UserError(f"model.weights = {spec.weights}: there is no such file. {without}")
    elif spec.weights != "none":
        hub = list(smp.encoders.encoders.get(spec.encoder, {}).get("pretrained_settings", {"imagenet": None}))
        if spec.weights not in hub:
            raise unknown(f"weights of {spec.encoder}", spec.weights, [*hub, "none", "or a .safetensors file"])
        check_fetchable(spec.encoder, spec.weights)


@cache
def _timm_names() -> frozenset[str]:
    import timm

    return frozenset(timm.list_models())


def _network(spec: ModelSpec) -> "Parts":
    import segmentation_models_pytorch as smp

    from fiss.models.encoders import Parts, encoder_alone

    hub = None if spec.weights == "none" or spec.weights.endswith(".safetensors") else spec.weights

    def make(weights: str | None) -> Parts:
        try:
            if spec.architecture == ALONE:
                return encoder_alone(spec.encoder, weights, spec.options, spec.channels)
            options = {"in_channels": spec.channels, "classes": 1, **spec.options}
            network = smp.create_model(spec.architecture, spec.encoder, weights, **options)
            divisor = network.encoder.output_stride if network.requires_divisible_input_shape else 1
            conv, enlarging, *_ = network.segmentation_head
            side = conv.kernel_size[0] if spec.head == "library" else 1
            corners = spec.head == "library" and isinstance(enlarging, nn.Upsample)
            return Parts(network.encoder, network.decoder, conv.in_channels * side**2, divisor, side, corners)
        except Exception as error:  # the library raises whatever its layers raise; all of it is the spec's fault
            if weights is not None:
                make(None)  # if this fails too, it is not about the weights
                raise UserError(
                    f"model.weights = {hub}: not to be had for {spec.encoder} ({type(error).__name__}: {error}); "
                    "give a local .safetensors file or `none`: --set model.weights=FILE."
                ) from error
            message = f"{type(error).__name__}: {error}".split("\n")[0]
            raise UserError(
                f"model: {spec.architecture} with {spec.encoder} and these options cannot be built ({message})."
            ) from error

    return make(hub)
