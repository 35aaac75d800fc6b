"""Reading and augmenting images alone, against the rate of the bare step.

python benchmarks/loading.py --data /data/VOCdevkit
python benchmarks/loading.py                          # the built-in data set
"""

import os
import time
from typing import Any

import common
from step import Sizes, plain_steps

from fiss.data.cache import Decoded
from fiss.data.index import build
from fiss.data.sources import DataSpec, open_dataset, recognise
from fiss.data.transforms import AugmentSpec, TrainingImages
from fiss.training.batches import Reader


def main() -> None:
    """Read batches with and without the cache of decoded images, with more and more workers."""
    given = common.arguments(
        __doc__ or "", lambda p: p.add_argument("--data", default="", help="folder of a data set; empty: shapes")
    )
    spec = recognise(common.Path(given.data)) if given.data else DataSpec("shapes", shapes_train=40, shapes_val=1)
    dataset, sizes = open_dataset(spec), Sizes(given.tiny)
    index = build(dataset.train, dataset.classes)
    bare = common.seconds(plain_steps(sizes, False, 2), given.tiny) / 2
    count = len(dataset.train.stems)
    rows: list[dict[str, Any]] = []
    cores = os.cpu_count() or 1
    for workers in (1,) if given.tiny else sorted({1, cores // 2, cores - 1}):
        for cached in (False, True):
            split = Decoded(dataset.train, index.sizes, 4 * 2**30) if cached else dataset.train
            reader = Reader(TrainingImages(split, AugmentSpec(crop=sizes.side)), workers, sizes.side == 512)
            many = 2 if given.tiny else 12 * workers
            batches = [[((b * sizes.batch + i) % count, b) for i in range(sizes.batch)] for b in range(many)]
            if cached:  # the first pass fills the cache
                list(reader.read([(i, 0) for i in range(a, min(a + 24, count))] for a in range(0, count, 24)))
            list(reader.read(batches[:1]))  # the processes are there now
            timed = reader.read(batches[1:])
            began = time.perf_counter()
            for _ in timed:
                pass
            rate = (many - 1) * sizes.batch / (time.perf_counter() - began)
            rows.append(
                {
                    "workers": workers,
                    "decoded images": "kept" if cached else "read anew",
                    "images/s": rate,
                    "x bare step": rate * bare / sizes.batch,
                }
            )
            del reader
    command = "python benchmarks/loading.py" + (f" --data {spec.name.upper()}" if given.data else "")
    notes = {"crop": sizes.side, "cores": cores, "images": count, "bare images/s": sizes.batch / bare}
    common.report("loading", command, given, rows, notes)


if __name__ == "__main__":
    main()
