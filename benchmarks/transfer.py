"""What travels between server and client in a round, and how long packing takes.

python benchmarks/transfer.py
"""

from typing import Any

import common
from safetensors.torch import load, save
from step import Sizes, our_steps

from fiss.models.segmenter import build


def main() -> None:
    """Pack, unpack, and move a model to the device and back."""
    given = common.arguments(__doc__ or "")
    sizes = Sizes(given.tiny)
    network = build(sizes.network, sizes.space.sizes, 0).to(common.device())
    weights = network.weights()
    size = sum(t.numel() * t.element_size() for t in weights.values())
    message = save({name: tensor.cpu().contiguous() for name, tensor in weights.items()})
    on_cpu = load(message)
    rows: list[dict[str, Any]] = [
        {"what": "a client's copy of its model", "seconds": common.seconds(network.weights, given.tiny)},
        {
            "what": "load a model",
            "seconds": common.seconds(lambda: network.load(weights, sizes.space.sizes), given.tiny),
        },
        {
            "what": "from the device",
            "seconds": common.seconds(lambda: [t.cpu() for t in weights.values()], given.tiny),
        },
        {"what": "pack", "seconds": common.seconds(lambda: save(on_cpu), given.tiny)},
        {"what": "unpack", "seconds": common.seconds(lambda: load(message), given.tiny)},
    ]
    for row in rows:
        row["GB/s"] = size / 1e9 / row["seconds"]
    steps, _, _ = our_steps(sizes, "finetune", "eager", 5)
    notes = {
        "model bytes": size,
        "bytes each way, per client and round": len(message),
        "x model": len(message) / size,
        "of a round of 100 steps, packing both ways and unpacking": (rows[3]["seconds"] + rows[4]["seconds"])
        * 2
        / (20 * common.seconds(steps, given.tiny)),
        "note": "a reply that is not what was sent, name by name and shape by shape, is refused; an order also names "
        "the teacher, which an engine has to send once per client and task",
    }
    common.report("transfer", "python benchmarks/transfer.py", given, rows, notes)


if __name__ == "__main__":
    main()
