"""Looking at images without training: scoring them, and their mean entropy, as a monitor would ask for it.

python benchmarks/probing.py
"""

from typing import Any

import common
import torch
from step import Sizes, network, plain_steps

from fiss.training.device import autocast
from fiss.training.spec import TrainingSpec


def main() -> None:
    """Forward passes alone, with the confusion's argmax, and with entropy."""
    given = common.arguments(__doc__ or "")
    sizes, spec = Sizes(given.tiny), TrainingSpec()
    model = network("finetune", sizes.tiny, False, False, "eager").eval()
    where = common.device()
    images = sizes.batches()[0].to(where).float().contiguous(memory_format=torch.channels_last)
    bare = common.seconds(plain_steps(sizes, False, 2), given.tiny) / 2

    @torch.inference_mode()
    def probe(what: str) -> Any:
        with autocast(spec, where):
            output = model(images)
        if what == "entropy":
            return output.entropy[0].mean((1, 2))
        return output.logits_BCHW.max(1).indices if what == "scoring" else output

    rows = []
    for what in ("forward", "scoring", "entropy"):
        spent = common.seconds(lambda what=what: probe(what), given.tiny)
        rows.append({"probe": what, "images/s": sizes.batch / spent, "x bare step": spent / bare})
    notes = {"batch": sizes.batch, "side": sizes.side, "bare images/s": sizes.batch / bare}
    common.report("probing", "python benchmarks/probing.py", given, rows, notes)


if __name__ == "__main__":
    main()
