"""Learning by sums again, as slow and obvious loops over pixels and cells, from the equations; no code shared with the
package."""

import math
from fractions import Fraction

import numpy as np

VOID = 255


def overlap(pixel, pixels, cell, cells):
    """Of the pixel's side, how much lies in the cell, as a part of the cell's side."""
    left = max(Fraction(pixel, pixels), Fraction(cell, cells))
    right = min(Fraction(pixel + 1, pixels), Fraction(cell + 1, cells))
    return max(right - left, Fraction(0)) * cells


def shares(labels, channels, size):
    """[image][channel][row][column] as fractions."""
    images, height, width = labels.shape
    found = [[[[Fraction(0)] * size[1] for _ in range(size[0])] for _ in range(channels)] for _ in range(images)]
    for b in range(images):
        for y in range(height):
            for x in range(width):
                label = int(labels[b, y, x])
                if label == VOID:
                    continue
                for i in range(size[0]):
                    for j in range(size[1]):
                        found[b][label][i][j] += overlap(y, height, i, size[0]) * overlap(x, width, j, size[1])
    return found


def cells(features, shares):
    """(features, share of each channel) of every cell."""
    images, _, height, width = features.shape
    return [
        ([float(v) for v in features[b, :, y, x]], [float(v) for v in shares[b, :, y, x]])
        for b in range(images) for y in range(height) for x in range(width)
    ]  # fmt: skip


def sums(found):
    """Counts, sums and the Gram matrix; each number is its terms' exact sum, rounded once."""
    channels, features = len(found[0][1]), len(found[0][0])
    counts = [math.fsum(y[c] for _, y in found) for c in range(channels)]
    by_class = [[math.fsum(y[c] * f[i] for f, y in found) for i in range(features)] for c in range(channels)]
    gram = [[math.fsum(sum(y) * f[i] * f[j] for f, y in found) for j in range(features)] for i in range(features)]
    return counts, by_class, gram


def standardised(found):
    """The cells with features of mean 0 and variance 1, and what was taken off and divided by."""
    weight = sum(sum(y) for _, y in found)
    features = range(len(found[0][0]))
    mean = [sum(sum(y) * f[i] for f, y in found) / weight for i in features]
    deviation = [math.sqrt(sum(sum(y) * (f[i] - mean[i]) ** 2 for f, y in found) / weight) for i in features]
    return [([(f[i] - mean[i]) / deviation[i] for i in features], y) for f, y in found], mean, deviation


def as_they_are(weights, bias, mean, deviation):
    weights = np.array(weights) / np.array(deviation)
    return weights, np.array(bias) - weights @ np.array(mean)


def lda(found, shrinkage, prior):
    """Every class's own mean and covariance first, then their weighted mean."""
    found, mean, deviation = standardised(found)
    channels, features = len(found[0][1]), len(found[0][0])
    counts = [sum(y[c] for _, y in found) for c in range(channels)]
    means, pooled = [], np.zeros((features, features))
    for c in range(channels):
        middle = sum(y[c] * np.array(f) for f, y in found) / counts[c]
        covariance = sum(y[c] * np.outer(np.array(f) - middle, np.array(f) - middle) for f, y in found) / counts[c]
        pooled += counts[c] / sum(counts) * covariance
        means.append(middle)
    inverse = np.linalg.inv(pooled + shrinkage * np.trace(pooled) / features * np.eye(features))
    weights = [inverse @ middle for middle in means]
    bias = [prior * math.log(n / sum(counts)) - m @ inverse @ m / 2 for n, m in zip(counts, means, strict=True)]
    return as_they_are(weights, bias, mean, deviation)


def ridge(found, shrinkage, towards=None):
    """Least squares with one row per cell, and one per penalised weight."""
    found, mean, deviation = standardised(found)
    channels, features = len(found[0][1]), len(found[0][0])
    total = sum(sum(y) for _, y in found)
    penalty = math.sqrt(shrinkage * sum(sum(y) * np.mean(np.square(f)) for f, y in found) / total)
    old = np.zeros((channels, features)) if towards is None else np.array(towards.tolist()) * np.array(deviation)
    solved = []
    for c in range(channels):
        rows, wanted = [], []
        for f, y in found:
            for label, share in enumerate(y):
                rows.append(math.sqrt(share / total) * np.array([*f, 1.0]))
                wanted.append(math.sqrt(share / total) * (label == c))
        for i in range(features):
            rows.append(penalty * np.eye(features + 1)[i])
            wanted.append(penalty * old[c, i])
        solved.append(np.linalg.lstsq(np.array(rows), np.array(wanted), rcond=None)[0])
    return as_they_are([s[:-1] for s in solved], [s[-1] for s in solved], mean, deviation)


def cell_means(channel, size):
    """Mean of a map over cells that hold whole pixels."""
    tall, wide = channel.shape[0] // size[0], channel.shape[1] // size[1]
    return [
        [
            sum(float(channel[i * tall + y, j * wide + x]) for y in range(tall) for x in range(wide)) / tall / wide
            for j in range(size[1])
        ]
        for i in range(size[0])
    ]
