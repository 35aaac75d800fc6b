"""How a method adds up features: from when on, which, of what views, and how a classifier is made of the sums."""

from dataclasses import dataclass
from typing import Literal

import torch

from fiss.statistics.features import FeatureSpec

CollectedFrom = Literal["participants", "selected"]
SentAs = Literal["float32", "float64"]


@dataclass(frozen=True)
class Collection:
    """What of a method server and clients need to know for it."""

    features: FeatureSpec
    trunk_rounds: int | None
    """Rounds in which the trunk is trained; None: as many as the boundaries of tasks say."""
    augmented: int
    """Augmented views of an image besides the plain one."""
    collected_from: CollectedFrom
    sent_as: SentAs
    shrinkage: float
    prior: float

    @property
    def dtype(self) -> torch.dtype:
        """Type in which sums travel."""
        return torch.float64 if self.sent_as == "float64" else torch.float32

    def rounds_of_trunk(self, first_rounds: int) -> int:
        """Rounds in which the trunk is trained, where the first task has so many."""
        return first_rounds if self.trunk_rounds is None else self.trunk_rounds
