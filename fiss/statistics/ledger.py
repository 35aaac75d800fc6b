"""Who contributed which sums: a contribution can be added to, replaced and taken out again, and what comes from outside
is checked.

The total adds contributions up in the order of their names, so it is the same to the bit whatever order they came in.
It is one file, in which every tensor has a checksum.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fiss.errors import UserError, unknown
from fiss.statistics.sums import LEAST, Sums

FORMAT = 1
ROUNDING = 2.0**-22
"""What float32 can do to the scatter within classes, as a part of the Gram matrix's trace: each entry of it, of a
class's sums (squared) and of its count is within 2^-24."""


@dataclass(frozen=True, eq=False)
class Ledger:
    """Contributions by name. Its methods give a new ledger, which shares all that did not change."""

    made_with: str
    """The digest of what all of them were made with: trunk, features, fixed layers."""
    features: int
    """D."""
    contributions: Mapping[str, Sums] = field(default_factory=dict)

    def replaced(self, name: str, sums: Sums, made_with: str) -> "Ledger":
        """A ledger with these sums in place of any of that name."""
        if (made_with, sums.features) != (self.made_with, self.features):
            raise UserError(
                f"{name} counted {sums.features} features of the trunk {made_with[:16]}, the others {self.features} of "
                f"{self.made_with[:16]}, and these do not add up: let it count again with the present trunk."
            )
        return replace(self, contributions={**self.contributions, name: sums.kept()})

    def added(self, name: str, sums: Sums, made_with: str) -> "Ledger":
        """A ledger with these sums added to what is there of that name."""
        there = self.contributions.get(name)
        return self.replaced(name, sums if there is None else there + sums, made_with)

    def taken(self, name: str, sums: Sums, made_with: str) -> "Ledger":
        """Without these sums, which are a part of what is there of that name. Taken from sums that were rounded to
        float32 on their way, it leaves the rounding behind; `without` and `replaced` leave nothing."""
        return self.replaced(name, self._there(name) - sums, made_with)

    def without(self, name: str) -> "Ledger":
        """Without anything of that name."""
        self._there(name)
        return replace(self, contributions={k: v for k, v in self.contributions.items() if k != name})

    def _there(self, name: str) -> Sums:
        if name not in self.contributions:
            raise unknown("contribution", name, self.contributions)
        return self.contributions[name]

    def total(self, channels: int) -> Sums:
        """All of them together."""
        return Sums.total([self.contributions[name] for name in sorted(self.contributions)], channels, self.features)

    def save(self, path: Path) -> None:
        """Write it, the whole file or nothing of it."""
        from safetensors.torch import save_file

        kept = {name: self.contributions[name] for name in sorted(self.contributions)}
        tensors = {f"{kind}/{name}": t for name, sums in kept.items() for kind, t in sums.tensors(None).items()}
        about = {
            "format": FORMAT,
            "made_with": self.made_with,
            "features": self.features,
            "contributions": {name: [sums.cells, sums.images] for name, sums in kept.items()},
            "checksums": {name: _checksum(tensor) for name, tensor in tensors.items()},
        }
        part = path.with_name(path.name + ".part")
        # One key only: the library writes several in random order, and equal ledgers would differ in their bytes.
        save_file(tensors, part, metadata={"ledger": json.dumps(about)})
        _flush(part)
        part.replace(path)
        _flush(path.parent)

    @classmethod
    def load(cls, path: Path) -> "Ledger":
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                about = json.loads(file.metadata()["ledger"])
                if about["format"] != FORMAT:
                    raise ValueError(f"format {about['format']}, this program reads {FORMAT}")
                contributions = {}
                for name, (cells, images) in about["contributions"].items():
                    keys = {kind: f"{kind}/{name}" for kind in ("counts", "sums", "triangle")}
                    tensors = {kind: file.get_tensor(key) for kind, key in keys.items()}
                    if any(_checksum(tensors[kind]) != about["checksums"][key] for kind, key in keys.items()):
                        raise ValueError(f"the numbers of {name} are not those that were written")
                    contributions[name] = Sums.from_tensors(tensors, cells, images).kept()
            return cls(about["made_with"], about["features"], contributions)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: missing, damaged or no ledger ({error}). Restore it from a copy.") from error


def problem(sums: Sums, channels: int, features: int) -> str | None:
    """What is wrong with sums that came from outside, if anything; it must be true of all that a name contributed, not
    of what changed. A Gram matrix comes as a triangle and cannot but be symmetric."""
    wanted = {"counts": (channels,), "sums": (channels, features), "triangle": (features * (features + 1) // 2,)}
    for name, tensor in sums.tensors().items():
        if tensor.shape != wanted[name]:
            return f"the {name} have the shape {tuple(tensor.shape)}, expected {wanted[name]}"
        if not tensor.isfinite().all():
            return f"the {name} have values that are not finite"
    if type(sums.cells) is not int or type(sums.images) is not int or min(sums.cells, sums.images) < 0:
        return "the numbers of cells and images are not whole, or negative"
    if sums.counts_C.min() < -LEAST:
        return f"channel {int(sums.counts_C.argmin())} has a negative weight"
    if sums.counts_C.sum() > sums.cells * (1 + ROUNDING) + LEAST:
        return f"its channels weigh {float(sums.counts_C.sum()):.6g} cells, more than the {sums.cells} it counted"
    trace = sums.diagonal().sum()
    room_C = sums.counts_C.clamp(min=LEAST) * trace * (1 + 2 * ROUNDING)
    if (larger_C := sums.sums_CD.square().sum(1) > room_C).any():
        return (
            f"the sums of channel {int(larger_C.int().argmax())} are larger than its weight and the Gram matrix allow"
        )
    within_DD = sums.within()
    within_DD.diagonal().add_(ROUNDING * trace + torch.finfo(torch.float64).tiny)
    if torch.linalg.cholesky_ex(within_DD).info:  # which also holds for the Gram matrix then
        return "the scatter within its classes has negative eigenvalues"
    return None


def _flush(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.contiguous().numpy().data)
