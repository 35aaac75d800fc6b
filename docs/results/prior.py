"""The prior of linear discriminant analysis against ridge regression per class, on held-out training images.

python docs/results/prior.py CONFIG [KEY=VALUE ...]    # a preset and its settings
    share=0.5                                         # count so many of the cells
    images=1000                                       # look at so many images, drawn with the seed

A frozen encoder (`trunk = pretrained`), all classes labelled; every fifth training image is scored and not counted, and
the validation images are not touched. Ridge has a matrix for every class there, weighed by n_c^-balance.
"""

import sys

import numpy as np
import torch

from fiss.config.presets import choose
from fiss.data.label_maps import training_table
from fiss.data.sources import open_dataset
from fiss.data.transforms import ScoredImages, normalise, stack
from fiss.labels import LabelSpace
from fiss.metrics import confusion, iou
from fiss.models.segmenter import enlarge, pad
from fiss.statistics.head import head_of
from fiss.statistics.solve import lda, ridge
from fiss.statistics.sums import Accumulator, cell_shares
from fiss.training.trainer import build_network

PRIORS, BALANCES, BATCH = (0.0, 0.3, 0.5, 0.6, 1.0), (0.3, 0.4, 0.5, 0.6), 10


def main() -> None:
    """Print a row of each."""
    words = dict(word.split("=", 1) for word in sys.argv[2:])
    share, most = float(words.pop("share", 1)), int(words.pop("images", 10**9))
    config = choose(sys.argv[1], "analytic", settings={"method.trunk": "pretrained", **words})
    dataset, seed = open_dataset(config.data), config.seed
    space = LabelSpace((tuple(dataset.classes),))
    table = torch.from_numpy(training_table(dataset.classes, space, range(1, len(dataset.classes) + 1)))
    model = build_network(config, space).eval()
    head, images = head_of(model), ScoredImages(dataset.train, config.evaluation.size)
    order = np.random.default_rng(seed).permutation(len(dataset.train.stems))[:most]
    held, counted, draws = order[::5], np.delete(order, np.s_[::5]), torch.Generator().manual_seed(seed)
    kept, answers, features, shares = [], [], [], []
    with torch.inference_mode():
        for part, tested in ((counted, False), (held, True)):
            for a in range(0, len(part), BATCH):
                pictures, masks = stack([images[(int(i), "published")] for i in part[a : a + BATCH]])
                pictures, labels = pad(pictures, table[masks.int()], model.divisor)
                found = head.map(*model.trunk(normalise(pictures)), pictures.shape[2:])
                if tested:
                    kept.append(found.half())
                    answers.append(labels)
                else:
                    cells = (
                        cell_shares(labels, space.channels, tuple(found.shape[2:])).permute(0, 2, 3, 1).flatten(0, 2)
                    )
                    chosen = torch.randperm(len(cells), generator=draws)[: round(share * len(cells))]
                    features.append(found.permute(0, 2, 3, 1).flatten(0, 2)[chosen].half())
                    shares.append(cells[chosen].float())
    counts = sum(part.sum(0) for part in shares)
    print(
        f"{len(counted)} images counted, {len(held)} scored, {head.features} features, {len(torch.cat(shares)):,} cells"
    )
    for balance in (0.0, *BALANCES):
        weights = torch.where(counts > 0, counts**-balance, 0)
        accumulator = Accumulator(space.channels, head.features)
        for cells, those in zip(features, shares, strict=True):
            accumulator.add_images(cells.T[None, :, :, None], (those * weights).T[None, :, :, None])
        sums = accumulator.sums()
        solved = {f"ridge {balance}": ridge(sums)} if balance else {f"lda {p}": lda(sums, prior=p) for p in PRIORS}
        for name, (weight, bias) in solved.items():
            total = torch.zeros(space.channels, space.channels, dtype=torch.long)
            for found, labels in zip(kept, answers, strict=True):
                scores = torch.einsum("cd,bdhw->bchw", weight.float(), found.float()) + bias.float()[:, None, None]
                total += confusion(enlarge(scores, labels.shape[1:]).max(1).indices, labels, space.channels)
            values = [value for value in iou(total) if value is not None]
            print(f"{name}: {sum(values) / len(values):.1f}", flush=True)


if __name__ == "__main__":
    main()
