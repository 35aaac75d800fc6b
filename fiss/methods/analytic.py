"""Learning by sums: the trunk is trained once, and the classifier is computed from sums over labelled features.

Sums only ever add up, so nothing is forgotten, and it does not matter which site holds an image or when it comes
(`fiss/statistics`). There are no pseudo labels, no teacher and no training after the trunk's last round.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fiss.errors import UserError
from fiss.methods.base import Method, Step
from fiss.models.classifier import Weights
from fiss.models.segmenter import Segmenter
from fiss.statistics.collection import CollectedFrom, Collection, SentAs
from fiss.statistics.features import FeatureSpec
from fiss.statistics.head import BUFFERS, SolvedHead, head_of


@dataclass(frozen=True)
class Analytic(Method):
    """Closed form: after the first task sites send sums of features, and the server solves for the classifier.

    Example:
        >>> fiss.run("shapes", method=fiss.Analytic(stride=4))
    """

    name: ClassVar[str] = "analytic"

    trunk: Literal["trained", "pretrained"] = "trained"
    """trained: by plain cross-entropy for the first rounds; pretrained: as it is, nothing is ever trained."""
    trunk_rounds: int = 0
    """Rounds in which it is trained; classes that arrive meanwhile train with it. 0: as long as the first task lasts,
    and where tasks are not told `training.horizon` rounds."""
    maps: tuple[str, ...] = ("decoder", "stages")
    """The features, of these maps of the network: decoder, encoder (its last map), stage1, stage2, ... from the first,
    stage-1, stage-2, ... from the last; stages: all of these. pretrained/NAME: of the encoder as it was before any
    training, which is then kept, and sent, beside the trained one."""
    stride: int = 0
    """Pixels along the side of a cell in which features are counted and classified; 0: the decoder's own cells."""
    random: int = 0
    """Width of a fixed random layer with ReLU over the features; 0: none."""
    projection: int = 0
    """Dimensions of a fixed random projection of the features, to send less; 0: none."""
    augmented: int = 0
    """Augmented views of every image that are counted besides the plain one."""
    shrinkage: float = 0.01
    """What is added to the diagonal of the scatter within classes, as a part of its mean."""
    prior: float = 0.5
    """How much a class's frequency counts: 1 as it is, 0 not at all."""
    collected_from: CollectedFrom = "participants"
    """Who counts its images after the trunk's last round: all who took part in training it, or those selected then;
    later it is always those selected."""
    sent_as: SentAs = "float32"
    """As what sums travel."""

    def __post_init__(self) -> None:
        least = {"trunk_rounds": 0, "stride": 0, "random": 0, "projection": 0, "augmented": 0}
        for key, value in least.items():
            if getattr(self, key) < value:
                raise UserError(f"method.{key} = {getattr(self, key)}: must be {value} or more.")
        if not self.shrinkage > 0:
            raise UserError(f"method.shrinkage = {self.shrinkage}: must be above 0.")
        if not self.maps or len(set(self.maps)) < len(self.maps):
            raise UserError(f"method.maps = {list(self.maps)}: name one map or more, each once.")
        if self.trunk == "pretrained" and self.collection.features.needs_pretrained:
            raise UserError(
                f"method.maps = {list(self.maps)}: with method.trunk = pretrained the encoder is never trained, so its "
                "maps are those without `pretrained/`; name them."
            )

    @property
    def collection(self) -> Collection:
        """What to collect, from the method's fields."""
        features = FeatureSpec(self.maps, self.stride, self.random, self.projection)
        rounds = 0 if self.trunk == "pretrained" else self.trunk_rounds or None
        return Collection(
            features, rounds, self.augmented, self.collected_from, self.sent_as, self.shrinkage, self.prior
        )

    def losses(self, step: Step) -> dict[str, Tensor]:
        """Plain cross-entropy, as long as the trunk is trained."""
        return self.first_losses(step)

    def adapt_network(self, model: Segmenter) -> None:
        """Give it a head for the classifier to come; its fixed layers are drawn with the generator's seed."""
        if self.collection.features.needs_pretrained:
            model.keep_pretrained()
        model.head = SolvedHead(self.collection.features, model, torch.initial_seed())

    def convert_weights(self, model: Segmenter, weights: Weights) -> Weights:
        """Weights of a plain network, with an empty classifier in the head and our own pretrained encoder."""
        empty = torch.zeros(0, head_of(model).features), torch.zeros(0)
        kept = {name: tensor for name, tensor in model.weights().items() if name.startswith("pretrained.")}
        return weights | kept | dict(zip(BUFFERS, empty, strict=True))
