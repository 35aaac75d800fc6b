"""FBL: adaptive class-balanced pseudo labels, forgetting-balanced compensation and relation consistency, and POD.

Where the paper, the published code and sense differ, the difference is a field; three profiles choose. The default is
the sound one: the readings that make sense of the equations. `paper()` has the equations as written, with only what
they need to run. `reference()` computes what the published code computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fiss.losses import relation
from fiss.losses.compensation import balance, balanced_weights, exponents, gradients, groups_of, published_weights
from fiss.losses.pod import local_pod
from fiss.methods.base import Step
from fiss.methods.features import feature_maps, logit_maps, weighted_distance
from fiss.methods.pseudo_labels import PseudoLabelled


@dataclass(frozen=True)
class FBL(PseudoLabelled):
    """Forgetting-balanced learning.

    Its fields, which `fiss methods` lists, are its hyper-parameters.

    Example:
        >>> fiss.run("shapes", method=fiss.FBL(pod_logits=0.0))
    """

    name: ClassVar[str] = "fbl"
    ablations: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "pseudo-labels": {"thresholds": "constant"},
        "compensation": {"weights": "one"},
        "relation": {"relations": "none", "soft_labels": 0.0, "entropy_term": 0.0},
        "pod": {"pod_features": 0.0, "pod_logits": 0.0},
    }

    share_factor: bool = False
    first_proportion: float = 0.2
    proportion_step: float = 0.1
    """What each further local epoch of the client adds to the proportion (ADE20k: 0.05). Made for six local epochs a
    round: with fewer, most labels are never accepted, and the background may be lost."""
    last_proportion: float = 0.8
    floor: float = 0.0
    weights: Literal["balanced", "published", "one"] = "balanced"
    """Weights of the cross-entropy: equations 3 to 6; those of the published code (sigmoids, one exponent, nested
    groups); or 1."""
    relations: Literal["prototypes", "published", "none"] = "prototypes"
    """Relation consistency: equations 7 to 9; or the published code's L1 of confidences."""
    relation_target: Literal["moved", "divided"] = "moved"
    """At pixels of new classes: the teacher's background moved to the new class, or the equation's label divided by
    its sum."""
    relation_background: bool = False
    """Whether the background has a prototype too."""
    relation_weight: float = 0.5
    """Weight of relation consistency."""
    most_relation: float = 10.0
    """Largest weight of a class in it."""
    soft_labels: float = 0.0
    """Weight of the published code's soft-label cross-entropy (0.3 there; not in the paper)."""
    entropy_term: float = 0.0
    """Weight of the published code's entropy minimisation (0.1 there; not in the paper)."""
    pod_features: float = 0.01
    """Weight of local POD on feature maps (the paper: 0.0005 on all maps; ADE20k: 0.001)."""
    pod_logits: float = 0.0005
    """Weight of local POD on the small logits (ADE20k: 0.00001)."""
    pod_scheduled: bool = True
    """Multiply POD by the root of all classes by new ones, as published; the paper does not."""

    def losses(self, step: Step) -> dict[str, Tensor]:
        """Equation 10: compensation + 0.5 relation consistency + POD."""
        assert step.teacher is not None
        student, teacher, old, space = step.student, step.teacher, step.teacher_channels, step.label_space
        labels, factor = self.relabel(step)
        if self.relations == "prototypes":
            pixels, sums = student.cross_entropy_and_sums(labels, space.channels)
        else:
            pixels, sums = student.cross_entropy(labels), None
        gradient = gradients(pixels, labels, exponents(space.channels, old, labels.device, step.labelled_old))
        mean = balance(gradient, labels, groups_of(space, labels.device))
        if self.weights == "one":
            weights = torch.ones_like(pixels)
        elif self.weights == "balanced":
            weights = balanced_weights(gradient, labels, mean)
        else:
            weights = published_weights(student.logits_BCHW, labels, space, old)
        terms = {"compensation": self.mean(pixels * weights * factor[:, None, None], step, labels)}
        terms |= self.unsure(step, labels)
        if sums is not None:
            theirs = teacher.class_sums(labels, space.channels)
            consistency = relation.relation_consistency(
                sums, theirs, mean, self.relation_target, self.most_relation, self.relation_background
            )
            terms["relation"] = self.relation_weight * consistency
        elif self.relations == "published":
            confidence = relation.published_confidence(student.log_p_BCHW, teacher.log_p_BCHW, labels, weights)
            terms["relation"] = self.relation_weight * confidence
        if self.soft_labels:
            soft = relation.published_soft_labels(student.log_p_BCHW, teacher.logits_BCHW, labels)
            terms["soft"] = self.soft_labels * soft
        if self.entropy_term:
            terms["entropy"] = self.entropy_term * relation.published_entropy_term(student.log_p_BCHW)
        if self.pod_features or self.pod_logits:
            maps = [(pair, self.pod_features) for pair in feature_maps(step)] + [(logit_maps(step), self.pod_logits)]
            terms["pod"] = weighted_distance(step, local_pod, maps, self.pod_scheduled)
        return terms


def paper() -> FBL:
    """The equations as written, with only the corrections without which they cannot run."""
    return FBL(
        thresholds="exact",
        entropy_of="student",
        counted="all",
        rejected="background",
        background_quantile=False,
        relation_target="divided",
        pod_features=0.0005,
        pod_logits=0.0005,
        pod_scheduled=False,
    )


def reference() -> FBL:
    """What the published code computes."""
    return FBL(
        thresholds="published",
        share_factor=True,
        floor=0.001,
        weights="published",
        relations="published",
        relation_background=True,
        soft_labels=0.3,
        entropy_term=0.1,
    )
