"""Learning by sums at its real size: seconds and memory of the ledger, its total, the solver and the checks.

python benchmarks/ledger.py

151 classes (ADE20k's and background); 3,328 features are the decoder's and the last two stages' of a ResNet-50, 4,352
nearly all of it. `count` is of 8,192 cells, a batch of 32 images of 256 px. GiB is the process's largest memory
meanwhile, with the ledger in it; MB what one site sends, and the file.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import common
import torch

from fiss.statistics.ledger import Ledger, problem
from fiss.statistics.solve import lda
from fiss.statistics.sums import Accumulator, Sums

CELLS = 4096
"""Counted at a time."""


def counted(channels: int, features: int) -> Accumulator:
    """Enough random cells for every feature and class."""
    accumulator, draws = Accumulator(channels, features), torch.Generator().manual_seed(0)
    for _ in range(2):
        labels = torch.randint(0, channels, (1, CELLS, 1), generator=draws)
        shares = torch.nn.functional.one_hot(labels, channels).permute(0, 3, 1, 2).double()
        accumulator.add_images(torch.randn(1, features, CELLS, 1, generator=draws), shares)
    return accumulator


def filled(sums: Sums, count: int) -> Ledger:
    """With as many contributions as they come from sites, each in memory of its own."""
    sent, ledger = sums.tensors(torch.float32), Ledger("made", sums.features)
    for number in range(count):
        ledger = ledger.added(f"{number:05d}/00000", Sums.from_tensors(sent, sums.cells, sums.images), "made")
    return ledger


def measured(step: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, the processor's seconds, and the largest memory of the process meanwhile, in GiB."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest so far
    began = process_time()
    result = step()
    spent = process_time() - began
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return result, spent, int(status["VmHWM"].split()[0]) / 2**20


def main() -> None:
    """Ledgers of 4 and of 20 contributions."""
    given = common.arguments(__doc__ or "")
    channels, rows = (7, []) if given.tiny else (151, [])
    for features in (40, 50) if given.tiny else (3328, 4352):
        accumulator, counting, held = measured(lambda d=features: counted(channels, d))
        sums, *_ = measured(accumulator.sums)
        row = {"features": features, "sites": None, "what": "count", "CPU seconds": counting, "GiB": held}
        rows.append(row | {"MB": 4 * (channels * (1 + features) + features * (features + 1) // 2) / 1e6})
        del accumulator
        for count in (4, 20):
            ledger = filled(sums, count)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "ledger.safetensors"
                steps: dict[str, Callable[[], Any]] = {
                    "check one": lambda kept=ledger: problem(
                        kept.contributions["00000/00000"], channels, kept.features
                    ),
                    "total": lambda ledger=ledger: ledger.total(channels),
                    "solve (lda)": lambda ledger=ledger: lda(ledger.total(channels)),
                    "save": lambda ledger=ledger, path=path: ledger.save(path),
                    "load": lambda path=path: Ledger.load(path),
                }
                for what, step in steps.items():
                    result, spent, held = measured(step)
                    assert what != "check one" or result is None, result
                    row = {"features": features, "sites": count, "what": what, "CPU seconds": spent, "GiB": held}
                    rows.append(row | {"MB": path.stat().st_size / 1e6 if what == "save" else None})
                    del result
            del ledger
        common.report("ledger", "python benchmarks/ledger.py", given, rows, {"classes": channels})


if __name__ == "__main__":
    main()
