"""Makes tests/support/voc_index.npz from a VOC 2012 tree: which of the 20 classes each image of train_aug and val
holds, as bits.

python tests/support/make_voc_index.py VOCDEVKIT
"""

import sys
from pathlib import Path

import numpy as np

from fiss.data import voc
from fiss.data.index import check

if __name__ == "__main__":
    train, val = check(voc.load(Path(sys.argv[1])))
    bits = {name: np.packbits(index.presence[:, 1:], axis=1) for name, index in (("train", train), ("val", val))}
    np.savez_compressed(Path(__file__).parent / "voc_index.npz", **bits)
