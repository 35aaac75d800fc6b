"""RCIL's parallel branches: two convolutions with BatchNorm side by side, folded into one frozen branch when a task
ends.

Splitting is done once to a built network; folding is a function from weights to weights, on the server.

B batch, D channels, h w size of a map.
"""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter

LEFT_ONLY, RIGHT_ONLY = 0.33, 0.66
"""A channel in training is the left branch's below the first, the right one's below the second, else the mean."""


class Branches(nn.Module):
    """Two parallel convolutions with BatchNorm: in evaluation their mean, in training a random mix by channel."""

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, norm_name: str, copy: bool) -> None:
        super().__init__()
        self.norm_name = norm_name
        """Where the BatchNorm was in the plain network."""
        self.left_conv, self.left_norm = conv, norm
        self.right_conv, self.right_norm = deepcopy(conv), deepcopy(norm)
        if not copy:
            self.right_conv.reset_parameters()
            self.right_norm.reset_parameters()
        self.frozen = False

    def freeze(self, frozen: bool) -> None:
        """Whether the left branch stays as it is."""
        self.frozen = frozen
        for parameter in (*self.left_conv.parameters(), *self.left_norm.parameters()):
            parameter.requires_grad_(not frozen)
        self.left_norm.train(self.training and not frozen)

    def forward(self, x_BDhw: Tensor) -> Tensor:
        """The mean of both branches, or a random mix by channel."""
        left, right = self.left_norm(self.left_conv(x_BDhw)), self.right_norm(self.right_conv(x_BDhw))
        share: Tensor | float = 0.5
        if self.training:
            draw = torch.rand(left.shape[1], device=left.device)[:, None, None]
            share = torch.where(draw < LEFT_ONLY, 1.0, torch.where(draw < RIGHT_ONLY, 0.0, 0.5)).to(left.dtype)
        mixed: Tensor = share * left + (1 - share) * right
        return mixed


def split(model: Segmenter) -> None:
    """Put branches in place of every 3x3 convolution with BatchNorm of the encoder, and of the ASPP's convolutions.

    The encoder's right branches begin as copies, the ASPP's at random.
    """
    for parent, conv_name, norm_name, in_aspp in list(_convolutions(model)):
        conv, norm = parent.get_submodule(conv_name), parent.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        setattr(parent, conv_name, Branches(conv, norm, norm_name, copy=not in_aspp))
        setattr(parent, norm_name, nn.Identity())


def _convolutions(model: Segmenter) -> Iterator[tuple[nn.Module, str, str, bool]]:
    """Parent, name of the convolution, name of the BatchNorm that follows it, and whether it is in the ASPP."""
    for part, whole in (("encoder", model.encoder), ("decoder", model.decoder)):
        for path, parent in whole.named_modules():
            in_aspp = part == "decoder" and ".convs." in f".{path}."
            children = list(parent.named_children())
            for name, conv in children:
                if not isinstance(conv, nn.Conv2d) or conv.bias is not None or (part == "decoder" and not in_aspp):
                    continue
                follower = (
                    name.replace("conv", "bn")
                    if name.startswith("conv")
                    else str(int(name) + 1)
                    if name.isdigit()
                    else ""
                )
                norm = dict(children).get(follower)
                wanted = conv.kernel_size == (3, 3) or (in_aspp and not _pools(parent))
                if wanted and isinstance(norm, nn.BatchNorm2d):
                    yield parent, name, follower, in_aspp


def _pools(parent: nn.Module) -> bool:
    """The ASPP's image pooling branch is not split."""
    return any(isinstance(child, nn.AdaptiveAvgPool2d) for child in parent.children())


def convert_weights(model: Segmenter, weights: Weights) -> Weights:
    """Weights of the plain network as weights of the split one: both branches begin as copies, the function stays."""
    taken = dict(weights)
    for path, module in model.named_modules():
        if not isinstance(module, Branches):
            continue
        norm = ".".join([*path.split(".")[:-1], module.norm_name])
        for name in module.state_dict():
            side, _, rest = name.partition(".")
            source = f"{path}.{rest}" if side.endswith("conv") else f"{norm}.{rest}"
            taken[f"{path}.{name}"] = weights[source].clone()
            taken.pop(source, None)
    return taken


def fold(weights: Weights, epsilon: float, keep_function: bool) -> Weights:
    """Both branches of each pair folded into the left one, which is to be frozen.

    The left branch becomes F, the mean of both. With `keep_function` the right branch becomes F too, so that their
    mean is F still, and both have the statistics of the folded convolution, which the right one needs in training and
    the next fold of both: the running mean follows by linearity; for the variance the two branches are taken to move
    together, which any gain makes up for. Without, as in the published code, the left BatchNorm only adds the bias and
    the right branch stays as it was: the network computes F / 2 + right / 2 from then on.
    """
    folded = dict(weights)
    suffix = ".left_conv.weight"
    for prefix in [name.removesuffix(suffix) for name in weights if name.endswith(suffix)]:

        def of(name: str, at: str = prefix) -> Tensor:
            return torch.stack([weights[f"{at}.{side}_{name}"].double() for side in ("left", "right")])

        deviation = (of("norm.running_var") + epsilon).sqrt()
        gain, centre = of("norm.weight") / deviation, of("norm.running_mean")
        conv = (of("conv.weight") * gain[..., None, None, None]).mean(0)
        bias = (of("norm.bias") - gain * centre).mean(0)
        mean, spread = (gain * centre).mean(0), (gain.abs() * deviation).mean(0).clamp(min=1e-2)
        if not keep_function:
            mean, spread = torch.zeros_like(bias), torch.ones_like(bias)
        new = {
            "conv.weight": conv,
            "norm.weight": spread,
            "norm.bias": bias + mean,
            "norm.running_mean": mean,
            "norm.running_var": spread.square() - epsilon,
        }
        for side in ("left", "right") if keep_function else ("left",):
            for name, value in new.items():
                key = f"{prefix}.{side}_{name}"
                folded[key] = value.to(weights[key].dtype)
    return folded
