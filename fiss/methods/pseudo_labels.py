"""Pseudo labels from the teacher, as PLOP and FBL share them: which background pixels become an old class again."""

from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fiss.labels import BACKGROUND, IGNORE, LabelSpace
from fiss.losses import pseudo
from fiss.losses.segmentation import pixel_mean
from fiss.methods.base import Method, Step
from fiss.models.classifier import Start


@dataclass(frozen=True)
class PseudoLabelled(Method, ABC):
    """A method that relabels background pixels with the teacher's class where it is sure."""

    needs_teacher: ClassVar[bool] = True

    start: Start = "background"
    thresholds: Literal["streamed", "exact", "published", "constant"] = "streamed"
    """streamed: quantiles from a histogram that grows batch by batch, no extra pass; exact: from all pixels, in a pass
    before each epoch; equal entropies are accepted together in both; published: the published faulty histogram, in such
    a pass; constant: the teacher's probability above `constant`."""
    entropy_of: Literal["teacher", "student"] = "teacher"
    """Whose entropy decides; the paper says the student's, the published code takes the teacher's."""
    counted: Literal["background", "all"] = "background"
    """Pixels whose entropies make the thresholds: those labelled background, or all that are not ignored."""
    rejected: Literal["ignore", "background", "old"] = "ignore"
    """What a background pixel becomes whose pseudo label is not accepted: ignored; background; or, which is neither the
    paper's nor the published code's, background or any old class, as all background is to MiB. The last takes a
    client's masks to show all new classes, and has no weights or factors."""
    background_quantile: bool = True
    """Whether the teacher's background needs to be below a threshold of its own; without, it is always accepted."""
    share_factor: bool = True
    """Multiply an image's cross-entropy by its share of accepted background pixels (PLOP's; FBL's paper has none)."""
    first_proportion: float = 0.5
    """Share of each class that is accepted in the first epoch of a task."""
    proportion_step: float = 0.0
    """What each further local epoch of the client adds to it."""
    last_proportion: float = 0.5
    """The share beyond which it does not grow."""
    floor: float = 0.001
    """Smallest threshold."""
    constant: float = 0.9
    """Probability that the teacher must exceed where thresholds are constant."""

    def proportion(self, epoch: int) -> float:
        """The share asked for in a client's epoch of the task."""
        return min(self.first_proportion + self.proportion_step * epoch, self.last_proportion)

    @property
    def needs_preview(self) -> bool:
        """Exact and published thresholds need a pass before each epoch."""
        return self.thresholds in ("exact", "published")

    def preview(self, step: Step) -> None:
        """Collect the entropies of one batch."""
        step.state.setdefault("seen", []).append(self._seen(step, self._entropy(step), self._classes(step)))

    def begin_epoch(self, state: dict[str, Any], epoch: int, known: int, device: torch.device) -> None:
        """The counts so far; and the share asked for, or thresholds from what the pass before the epoch saw."""
        counts = state.setdefault("counts", torch.zeros(2, known, dtype=torch.long, device=device))
        state.setdefault("before", {})[epoch] = counts.clone()
        if self.thresholds == "streamed":
            state.setdefault("histogram", torch.zeros(known, sum(pseudo.BINS), dtype=torch.long, device=device))
            state.setdefault("proportion", torch.zeros((), dtype=torch.double, device=device))
            state["proportion"].fill_(self.proportion(epoch))
        elif self.needs_preview:
            parts, proportion = list(zip(*state.pop("seen"), strict=True)), self.proportion(epoch)
            if self.thresholds == "exact":
                entropy, classes = map(torch.cat, parts)
                found = pseudo.exact_thresholds(entropy, classes, proportion, known)
            else:
                found = pseudo.published_thresholds(sum(parts[0]), proportion)
            state.setdefault("thresholds", torch.empty_like(found)).copy_(found)

    def relabel(self, step: Step) -> tuple[Tensor, Tensor]:
        """The labels with pseudo labels in place of background, and the factor of each image, (B,)."""
        assert step.teacher is not None
        labels = step.labels_BHW
        entropy, classes = self._entropy(step), self._classes(step)
        if self.thresholds == "constant":
            accepted = step.teacher.log_p_BCHW.amax(1).exp() > self.constant
        else:
            threshold = self._thresholds(step, entropy, classes)[classes]
            accepted = entropy <= threshold if self.thresholds == "exact" else entropy < threshold
        if not self.background_quantile:
            accepted = accepted | (classes == BACKGROUND)
        share = pseudo.accepted_share(labels, accepted)
        step.state["counts"] += pseudo.offered_and_accepted(labels, classes, accepted, step.teacher_channels)
        given = pseudo.pseudo_labels(labels, classes, accepted, BACKGROUND if self.rejected == "background" else IGNORE)
        return given, share if self.share_factor else torch.ones_like(share)

    def unsure(self, step: Step, labels_BHW: Tensor) -> dict[str, Tensor]:
        """The loss of rejected pixels that are background or any old class; nothing if they are something else."""
        if self.rejected != "old":
            return {}
        rejected = (step.labels_BHW == BACKGROUND) & (labels_BHW == IGNORE)
        pixels = step.student.none_but_first(step.teacher_channels, rejected, step.labelled_old)
        return {"unsure": self.mean(pixels, step, labels_BHW)}

    def mean(self, pixels_BHW: Tensor, step: Step, labels_BHW: Tensor) -> Tensor:
        """The mean of the pixels' values; among the valid ones are rejected pixels if they have a loss."""
        return pixel_mean(pixels_BHW, step.labels_BHW if self.rejected == "old" else labels_BHW, self.mean_over)

    def report(self, state: dict[str, Any], label_space: LabelSpace) -> dict[str, Any]:
        """For each local epoch: the share asked for, and how many pixels of each class were offered and accepted."""
        names, begun = ("background", *label_space.names), state.get("before", {})
        ends = [*list(begun.values())[1:], state.get("counts")]
        return {
            "pseudo_labels": [
                {
                    "epoch": epoch,
                    "asked": self.proportion(epoch),
                    "offered": dict(zip(names, offered, strict=False)),
                    "accepted": dict(zip(names, accepted, strict=False)),
                }
                for (epoch, before), after in zip(begun.items(), ends, strict=False)
                for offered, accepted in ((after - before).tolist(),)
            ]
        }

    def _entropy(self, step: Step) -> Tensor:
        assert step.teacher is not None
        if self.thresholds == "published":
            return pseudo.published_entropy(step.teacher.log_p_BCHW, step.label_space.channels)
        output = step.teacher if self.entropy_of == "teacher" else step.student
        return output.entropy[0]

    def _classes(self, step: Step) -> Tensor:
        assert step.teacher is not None
        classes = step.teacher.entropy[1]
        for channel in step.labelled_old:  # where the client's own mask says background, it is none of its own classes
            classes = torch.where(classes == channel, BACKGROUND, classes)
        return classes

    def _seen(self, step: Step, entropy: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
        """What a batch adds to the thresholds: entropies and classes of the pixels that count, or their histogram."""
        entropy, classes = entropy.flatten(), classes.flatten()
        wanted = BACKGROUND if self.counted == "background" else None
        labels = step.labels_BHW.flatten()
        counts = labels == wanted if wanted is not None else labels != IGNORE
        if self.thresholds == "exact":
            return entropy[counts], classes[counts]
        return (pseudo.tally(entropy, classes, counts, step.teacher_channels, self._edges(step)),)

    def _edges(self, step: Step) -> Tensor:
        device = step.labels_BHW.device
        if self.thresholds == "published":
            return pseudo.published_edges(device)
        return pseudo.edges(step.label_space.channels, device)

    def _thresholds(self, step: Step, entropy: Tensor, classes: Tensor) -> Tensor:
        """The threshold of each of the teacher's classes, (K,)."""
        state = step.state
        if self.thresholds == "streamed":
            state["histogram"] += self._seen(step, entropy, classes)[0]
            found = pseudo.streamed_thresholds(state["histogram"], self._edges(step), state["proportion"])
        else:
            found = state["thresholds"]
        floored = found.clamp(min=self.floor)  # infinity accepts a whole class, NaN nothing of it
        return floored if self.thresholds == "published" else torch.where(found < 0, found, floored)
