"""Adding up replies of a 60 million parameter model as they come, and how memory grows with their number: not at all.

python benchmarks/aggregation.py
"""

import resource
import time
from collections.abc import Iterator
from typing import Any

import common
import torch

from fiss.federation.aggregate import aggregate
from fiss.federation.messages import Reply
from fiss.models.classifier import Weights


def model(tiny: bool) -> Weights:
    """As many tensors and parameters as DeepLab-v3 with ResNet-101 has, roughly."""
    size = 1000 if tiny else 200_000
    return {f"layer{i}": torch.randn(size, device=common.device()) for i in range(300)}


def main() -> None:
    """Aggregate 4 and 16 replies that are made while they are asked for."""
    given = common.arguments(__doc__ or "")
    sent = model(given.tiny)
    size = sum(t.numel() * t.element_size() for t in sent.values())
    rows: list[dict[str, Any]] = []
    for count in (4, 16):
        made = 0.0

        def replies(count: int = count) -> Iterator[Reply]:
            nonlocal made
            for client in range(count):
                began = time.perf_counter()
                reply = Reply(client, 8, {name: tensor + client for name, tensor in sent.items()})
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                made += time.perf_counter() - began
                yield reply
                del reply

        def once(count: int = count) -> None:
            aggregate(sent, replies(), "uniform", range(count))

        spent = common.seconds(once, given.tiny)
        making = made / (2 if given.tiny else 8)
        gib = common.peak_gib(once)
        if gib is None:
            gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        rows.append(
            {
                "replies": count,
                "seconds": spent - making,
                "seconds per reply": (spent - making) / count,
                "GB/s read": count * size / 1e9 / (spent - making),
                "peak GiB": gib,
                "peak, models": gib * 2**30 / size if torch.cuda.is_available() else None,
            }
        )
    common.report("aggregation", "python benchmarks/aggregation.py", given, rows, {"model bytes": size})


if __name__ == "__main__":
    main()
