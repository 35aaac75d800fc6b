"""Every loss again, as a slow and obvious loop over pixels, straight from its equation; no code shared with the
package."""

import math

IGNORE = 255


def pixels(tensor):
    """(b, y, x) of every pixel of a (B, ..., H, W) tensor."""
    return [(b, y, x) for b in range(tensor.shape[0]) for y in range(tensor.shape[-2]) for x in range(tensor.shape[-1])]


def at(tensor, b, y, x):
    return [float(v) for v in tensor[b, :, y, x]]


def softmax(values):
    top = max(values)
    exps = [math.exp(v - top) for v in values]
    return [e / sum(exps) for e in exps]


def log_sum_exp(values):
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def sigmoid(v):
    return 1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v))


def pixel_cross_entropy(logits, labels, b, y, x):
    label = int(labels[b, y, x])
    values = at(logits, b, y, x)
    return 0.0 if label == IGNORE else log_sum_exp(values) - values[label]


def divide(total, labels, over):
    valid = sum(int(labels[p]) != IGNORE for p in pixels(labels))
    return total / (labels.numel() if over == "all" else max(valid, 1))


def cross_entropy(logits, labels, over):
    return divide(sum(pixel_cross_entropy(logits, labels, *p) for p in pixels(labels)), labels, over)


def logit_distillation(student, teacher):
    old, total = teacher.shape[1], 0.0
    for p in pixels(student):
        q, z = softmax(at(teacher, *p)), at(student, *p)[:old]
        total -= sum(q[k] * (z[k] - log_sum_exp(z)) for k in range(old))
    return total / (len(pixels(student)) * old)


def feature_distillation(student, teacher):
    total = 0.0
    for p in pixels(student):
        total += sum((a - b) ** 2 for a, b in zip(at(student, *p), at(teacher, *p), strict=True))
    return total / student.numel()


def unbiased_cross_entropy(logits, labels, old, over, without=()):
    total = 0.0
    for p in pixels(labels):
        label, z = int(labels[p]), at(logits, *p)
        if label == IGNORE:
            continue
        chosen = log_sum_exp([z[k] for k in range(old) if k not in without]) if label == 0 else z[label]
        total += log_sum_exp(z) - chosen
    return divide(total, labels, over)


def none_but_first(logits, chosen, first):
    total = 0.0
    for p in pixels(chosen):
        if chosen[p]:
            total -= math.log(sum(softmax(at(logits, *p))[:first]))
    return total


def unbiased_distillation(student, teacher):
    old, total = teacher.shape[1], 0.0
    for p in pixels(student):
        q, z = softmax(at(teacher, *p)), at(student, *p)
        norm = log_sum_exp(z)
        terms = q[0] * (log_sum_exp([z[0], *z[old:]]) - norm)
        terms += sum(q[k] * (z[k] - norm) for k in range(1, old))
        total -= terms / old
    return total / len(pixels(student))


def local_pod(student, teacher, scales=(1, 2, 4)):
    """Per image: strips of every region at every scale, one long vector, Euclidean length of the difference."""
    lengths = []
    height, width = student.shape[-2:]
    for b in range(student.shape[0]):
        squares = 0.0
        for d in range(student.shape[1]):

            def value(y, x, b=b, d=d):
                return float(student[b, d, y, x]) ** 2 - float(teacher[b, d, y, x]) ** 2

            for scale in scales:
                h, w = height // scale, width // scale
                for i in range(scale if h and w else 0):
                    for j in range(scale):
                        for y in range(h):
                            squares += (sum(value(i * h + y, j * w + x) for x in range(w)) / w) ** 2
                        for x in range(w):
                            squares += (sum(value(i * h + y, j * w + x) for y in range(h)) / h) ** 2
        lengths.append(math.sqrt(squares))
    return lengths


def spatial_cube(student, teacher, kernels=(4, 8, 12, 16, 20, 24)):
    lengths = []
    height, width = student.shape[-2:]
    for b in range(student.shape[0]):
        norms = []
        for k in kernels:
            squares = 0.0
            for d in range(student.shape[1]):
                for top in range(-(k // 2), height + k // 2 - k + 1):
                    for left in range(-(k // 2), width + k // 2 - k + 1):
                        total = 0.0
                        for y in range(max(top, 0), min(top + k, height)):
                            for x in range(max(left, 0), min(left + k, width)):
                                total += float(student[b, d, y, x]) ** 2 - float(teacher[b, d, y, x]) ** 2
                        squares += (total / k**2) ** 2
            norms.append(math.sqrt(squares))
        lengths.append(sum(norms) / len(norms))
    return lengths


def channel_cube(student, teacher):
    lengths = []
    for b in range(student.shape[0]):
        squares = 0.0
        for y in range(student.shape[2]):
            for x in range(student.shape[3]):
                v = [s**2 - t**2 for s, t in zip(at(student, b, y, x), at(teacher, b, y, x), strict=True)]
                v = [0.0, *v, 0.0]
                squares += sum(((v[d - 1] + v[d] + v[d + 1]) / 3) ** 2 for d in range(1, len(v) - 1))
        lengths.append(math.sqrt(squares))
    return lengths


def entropy(logits, b, y, x):
    return -sum(p * math.log(p) for p in softmax(at(logits, b, y, x)) if p > 0)


def published_entropy(logits, channels, b, y, x):
    p = softmax(at(logits, b, y, x))
    mean = sum(v * math.log(v + 1e-8) for v in p) / len(p)
    return -mean / math.log(len(p)) / math.log(channels)


def exact_thresholds(entropies, classes, proportion, channels):
    thresholds = []
    for k in range(channels):
        own = sorted(h for h, c in zip(entropies, classes, strict=True) if c == k)
        thresholds.append(own[min(int(len(own) * proportion), len(own) - 1)] if own else -1.0)
    return thresholds


def published_threshold(counts, proportion):
    """The published running total, one class: it adds the bin's index, not its count."""
    target, total = sum(counts) * proportion, 0
    if sum(counts) == 0:
        return 0.0
    for b in range(len(counts)):
        if total <= target <= total + counts[b]:
            break
        total += b
    missing = target - total
    if counts[b] == 0:  # as floating point divides by zero
        return math.nan if missing == 0 else math.copysign(math.inf, missing)
    return (b + missing / counts[b]) / len(counts)


def group_of(label, groups):
    """0 for the background, 1 + t for a class of task t."""
    channel = 1
    for t, size in enumerate(groups):
        if label == 0:
            return 0
        if channel <= label < channel + size:
            return t + 1
        channel += size
    raise AssertionError(label)


def gradient(logits, labels, old, exponent, b, y, x):
    label = int(labels[b, y, x])
    if label == IGNORE:
        return 0.0
    g = abs(softmax(at(logits, b, y, x))[label] - 1)
    return g**exponent if 0 < label < old else g


def mean_of(values):
    return sum(values) / len(values) if values else 0.0


def balanced_weights(logits, labels, old, exponent, groups):
    g = {p: gradient(logits, labels, old, exponent, *p) for p in pixels(labels)}
    weights = {}
    for p in pixels(labels):
        if int(labels[p]) == IGNORE:
            weights[p] = 0.0
            continue
        own = group_of(int(labels[p]), groups)
        mates = [g[q] for q in g if int(labels[q]) != IGNORE and group_of(int(labels[q]), groups) == own]
        weights[p] = g[p] / (mean_of(mates) + 1e-8)
    return weights


def published_weights(logits, labels, old, groups):
    """Base and background are one group; new classes 1; tasks between: one term for each nested group they are in."""
    channels = logits.shape[1]
    g = {}
    for p in pixels(labels):
        label = int(labels[p])
        g[p] = 0.0 if label == IGNORE else abs(sigmoid(at(logits, *p)[label]) - 1) ** (old / channels)
    old_tasks = [t for t in range(len(groups)) if 1 + sum(groups[:t]) < old]
    weights = {}
    for p in pixels(labels):
        label = int(labels[p])
        if label == IGNORE:
            weights[p] = 0.0
        elif label >= old:
            weights[p] = 1.0
        elif label <= groups[0]:
            weights[p] = g[p] / mean_of([g[q] for q in g if int(labels[q]) <= groups[0]])
        else:
            task = group_of(label, groups) - 1
            weights[p] = 0.0
            for j in [t for t in old_tasks if t >= task]:
                nested = [
                    g[q] for q in g if groups[0] < int(labels[q]) < old and group_of(int(labels[q]), groups) - 1 <= j
                ]
                weights[p] += g[p] / mean_of(nested)
    return weights


def relation_target(teacher, label, channels, how, b, y, x):
    q = softmax(at(teacher, b, y, x))
    old = len(q)
    y_ = q + [0.0] * (channels - old)
    if label != IGNORE and label >= old:
        if how == "moved":
            y_[label], y_[0] = y_[0], 0.0
        else:
            y_[label] = 1.0
    return [v / sum(y_) for v in y_]


def relation_consistency(logits, teacher, labels, old, exponent, groups, how, most, background):
    channels = logits.shape[1]
    g = {p: gradient(logits, labels, old, exponent, *p) for p in pixels(labels)}
    terms = []
    for k in range(0 if background else 1, channels):
        own = [p for p in pixels(labels) if int(labels[p]) == k]
        if not own:
            continue
        prototype = [mean_of([softmax(at(logits, *p))[c] for p in own]) for c in range(channels)]
        target = [mean_of([relation_target(teacher, k, channels, how, *p)[c] for p in own]) for c in range(channels)]
        divergence = sum(t * math.log(t / q) for t, q in zip(target, prototype, strict=True) if t > 0)
        mates = [
            p
            for p in pixels(labels)
            if int(labels[p]) != IGNORE and group_of(int(labels[p]), groups) == group_of(k, groups)
        ]
        weight = mean_of([g[p] for p in own]) / (mean_of([g[p] for p in mates]) + 1e-8)
        terms.append(min(weight, most) * divergence)
    return mean_of(terms)


def published_confidence(logits, teacher, labels, weights):
    channels, total = logits.shape[1], 0.0
    for k in range(channels):
        called = [p for p in pixels(labels) if max(range(channels), key=lambda c, p=p: at(logits, *p)[c]) == k]
        own = [p for p in pixels(labels) if int(labels[p]) == k]
        a = mean_of([max(softmax(at(logits, *p))) for p in called])
        b = mean_of([max(softmax(at(teacher, *p))) for p in own])
        v = mean_of([weights[p] for p in own])
        total += abs(v * a - v * b)
    return total / channels


def published_soft_labels(logits, teacher, labels):
    channels, old, total = logits.shape[1], teacher.shape[1], 0.0
    for p in pixels(labels):
        target = [0.0] * channels
        if int(labels[p]) != IGNORE:
            target[int(labels[p])] = 1.0
        target[:old] = [sigmoid(v) for v in at(teacher, *p)]
        target, z = softmax(target), at(logits, *p)
        total -= sum(t * (v - log_sum_exp(z)) for t, v in zip(target, z, strict=True))
    return total / (channels * len(pixels(labels)))


def published_entropy_term(logits):
    total = sum(entropy(logits, *p) for p in pixels(logits))
    return total / (logits.shape[1] * len(pixels(logits)))
