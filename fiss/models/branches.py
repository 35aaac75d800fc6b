"""RCIL's parallel branches: two convolutions with BatchNorm side by side, folded into one frozen branch when a task
ends.

Splitting is done once to a built network, and tried on a copy first: which BatchNorm reads which convolution, and that
neither splitting nor folding changes what is computed. Folding is a function from weights to weights, on the server.

B batch, D channels, h w size of a map.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fiss.errors import UserError
from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter

LEFT_ONLY, RIGHT_ONLY = 0.33, 0.66
"""A channel in training is the left branch's below the first, the right one's below the second, else the mean."""
EPSILON = 1e-5
"""Of most BatchNorms; branches with another have it among their weights, which are all that folding sees."""
MOST_CHANGE = 1e-4
"""What rounding may change, relatively."""
SIDE = 64
"""Of the image that branches are tried with."""


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
        if norm.eps != EPSILON:
            self.register_buffer("epsilon", torch.tensor(norm.eps))
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


class _Pair(NamedTuple):
    """A convolution to split, by names in the network."""

    parent: str
    conv: str
    norm: str
    """The BatchNorm that reads its result, in the same parent."""
    in_aspp: bool


def split(model: Segmenter) -> None:
    """Put branches in place of every 3x3 convolution with BatchNorm of the encoder, and of the ASPP's convolutions.

    The encoder's right branches begin as copies, the ASPP's at random. An encoder most of whose 3x3 convolutions have
    no BatchNorm of their own is refused, and one in which splitting or folding would change the function.
    """
    tried = repr(model.spec)  # networks of one kind need to be tried only once
    if tried not in _PAIRS:
        _PAIRS[tried] = _try(model)
    _put_branches(model, _PAIRS[tried])


_PAIRS: dict[str, list[_Pair]] = {}


def _try(model: Segmenter) -> list[_Pair]:
    """What to split, once it has been done to a copy."""
    trial = _shaken(model)
    try:
        _outputs(trial)
    except Exception as error:  # whatever its layers raise
        raise _refusal(model, f"it takes no image of {_side(model)} px ({error})") from error
    pairs, without = _pairs(trial)
    count = sum(not pair.in_aspp for pair in pairs)
    if count <= len(without):
        found = f"{count} of its {count + len(without)} 3x3 convolutions have a BatchNorm of their own behind them"
        raise _refusal(model, found + (f", {without[0]} for one has none" if without else ""))
    if not _change(trial, pairs) <= MOST_CHANGE:
        fault = next((pair for pair in pairs if not _change(_shaken(model), [pair]) <= MOST_CHANGE), pairs[0])
        raise _refusal(model, f"with branches in place of {fault.parent}.{fault.conv} it would compute something else")
    return pairs


def _refusal(model: Segmenter, why: str) -> UserError:
    return UserError(
        f"model.encoder = {model.spec.encoder}: RCIL's branches do not fit, {why}. "
        "Take another encoder, such as resnet50, or another method."
    )


def _put_branches(model: Segmenter, pairs: Iterable[_Pair]) -> None:
    for pair in pairs:
        parent = model.get_submodule(pair.parent)
        conv, norm = parent.get_submodule(pair.conv), parent.get_submodule(pair.norm)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        setattr(parent, pair.norm, nn.Sequential(*norm.children()))  # the activation in timm's, now of both branches
        for name, _ in list(norm.named_children()):
            setattr(norm, name, nn.Identity())
        setattr(parent, pair.conv, Branches(conv, norm, pair.norm, copy=not pair.in_aspp))


def _pairs(model: Segmenter) -> tuple[list[_Pair], list[str]]:
    """What to split, and the encoder's other 3x3 convolutions."""
    norms = _norms(model)
    pairs: list[_Pair] = []
    without: list[str] = []
    for name, module in model.named_modules():
        if name not in norms or not isinstance(module, nn.Conv2d):
            continue
        parent, _, conv = name.rpartition(".")
        holder, _, norm = norms[name].rpartition(".")
        in_encoder = name.startswith("encoder.") and module.kernel_size == (3, 3)
        in_aspp = name.startswith("decoder.") and ".convs." in name and not _pools(model.get_submodule(parent))
        if norm and holder == parent and (in_encoder or in_aspp):
            pairs.append(_Pair(parent, conv, norm, in_aspp))
        elif in_encoder:
            without.append(name)
    return pairs, without


def _pools(parent: nn.Module) -> bool:
    """The ASPP's image pooling branch is not split."""
    return any(isinstance(child, nn.AdaptiveAvgPool2d) for child in parent.children())


def _norms(model: Segmenter) -> dict[str, str]:
    """For every convolution that runs, the BatchNorm that reads what it gives; empty where there is none."""
    found: dict[str, str] = {}
    calls: Counter[str] = Counter()
    given: list[tuple[str, Tensor, int]] = []

    def after_conv(name: str, result: Tensor) -> None:
        calls[name] += 1
        found.setdefault(name, "")
        given.append((name, result, result._version))

    def before_norm(name: str, read: Tensor) -> None:
        calls[name] += 1
        for conv, result, version in given:
            if result is read and result._version == version:  # not changed in place since
                found[conv] = name

    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(lambda _, __, result, name=name: after_conv(name, result)))
        elif _normalises(module):
            hooks.append(module.register_forward_pre_hook(lambda _, read, name=name: before_norm(name, read[0])))
    _outputs(model)
    for hook in hooks:
        hook.remove()
    return {conv: norm if calls[conv] == calls[norm] == 1 else "" for conv, norm in found.items()}


def _normalises(module: nn.Module) -> bool:
    """Whether it is a BatchNorm with weights and statistics, or timm's that ends with an activation without weights."""
    from timm.layers.norm_act import BatchNormAct2d

    if type(module) not in (nn.BatchNorm2d, BatchNormAct2d):
        return False
    own = bool(module.affine and module.track_running_stats)
    return own and not any(list(child.parameters()) for child in module.children())


def _shaken(model: Segmenter) -> Segmenter:
    """A copy for evaluation, its convolutions and statistics drawn anew, so that it is a copy of any weights' network
    and hides nothing."""
    model = deepcopy(model).eval()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
            _shake(module)
    return model


def _shake(module: nn.Module) -> None:
    if isinstance(module, nn.BatchNorm2d) and _normalises(module):
        tensors = module.weight, module.bias, module.running_mean, module.running_var
        for tensor, (low, high) in zip(tensors, ((0.5, 1.5), (-0.5, 0.5), (-0.5, 0.5), (0.5, 2.0)), strict=True):
            assert tensor is not None
            with torch.no_grad():
                tensor.uniform_(low, high)


def _outputs(model: Segmenter) -> tuple[Tensor, ...]:
    """What the network makes of a small image."""
    side = _side(model)
    image = torch.randn(1, model.spec.channels, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        decoded, _, stages = model.trunk(image.to(next(model.parameters()).device))
    return decoded, *stages


def _side(model: Segmenter) -> int:
    return SIDE + -SIDE % model.divisor


def _change(model: Segmenter, pairs: Sequence[_Pair]) -> float:
    """How much these branches change what is computed, relatively: put in as copies, and folded when they differ."""
    before = _outputs(model)
    _put_branches(model, [pair._replace(in_aspp=False) for pair in pairs])
    model.eval()
    after = _outputs(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(1)
        for module in model.modules():
            if isinstance(module, Branches):
                _shake(module.right_norm)
                module.right_conv.weight.copy_(module.left_conv.weight.flip(0))
    before += _outputs(model)
    model.load_state_dict(fold(model.weights(), keep_function=True))
    after += _outputs(model)
    return max(float((b - a).norm() / a.norm().clamp(min=1e-12)) for a, b in zip(before, after, strict=True))


def convert_weights(model: Segmenter, weights: Weights) -> Weights:
    """Weights of the plain network as weights of the split one: both branches begin as copies, the function stays."""
    taken = dict(weights)
    for path, module in model.named_modules():
        if not isinstance(module, Branches):
            continue
        norm = ".".join([*path.split(".")[:-1], module.norm_name])
        for name, tensor in module.state_dict().items():
            side, _, rest = name.partition(".")
            source = f"{path}.{rest}" if side.endswith("conv") else f"{norm}.{rest}"
            taken[f"{path}.{name}"] = weights.get(source, tensor).clone()  # a plain network has no epsilon
            taken.pop(source, None)
    return taken


def fold(weights: Weights, keep_function: bool) -> Weights:
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

        epsilon = float(weights.get(f"{prefix}.epsilon", EPSILON))
        deviation = (of("norm.running_var") + epsilon).sqrt()
        gain, centre = of("norm.weight") / deviation, of("norm.running_mean")
        new = {"conv.weight": (of("conv.weight") * gain[..., None, None, None]).mean(0)}
        if f"{prefix}.left_conv.bias" in weights:
            centre = centre - of("conv.bias")
            new["conv.bias"] = torch.zeros_like(centre[0])
        bias = (of("norm.bias") - gain * centre).mean(0)
        mean = (gain * centre).mean(0)
        spread = (gain.abs() * deviation).mean(0).clamp(min=max(1e-2, (2 * epsilon) ** 0.5))  # so its square is larger
        if not keep_function:
            mean, spread = torch.zeros_like(bias), torch.ones_like(bias)
        new |= {
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
