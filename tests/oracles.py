"""The formulas as slow loops, one voxel at a time, in Python's own floats: what the fast code is
checked against.
"""

import math
from itertools import product


def voxels(logits, labels):
    """Yield (item, position, [l_1..l_K], y)."""
    for n in range(logits.shape[0]):
        for where in product(*(range(s) for s in logits.shape[2:])):
            yield (
                n,
                where,
                [float(logits[(n, k, *where)]) for k in range(logits.shape[1])],
                int(labels[(n, *where)]),
            )


def softmax(row):
    top = max(row)
    parts = [math.exp(x - top) for x in row]
    return [p / sum(parts) for p in parts]


def log_softmax(row):
    top = max(row)
    total = top + math.log(sum(math.exp(x - top) for x in row))
    return [x - total for x in row]


def mean_over_voxels(term, logits, labels, ignore=-100):
    values = [term(row, y) for _, _, row, y in voxels(logits, labels) if y != ignore]
    return sum(values) / len(values)


def ce(row, y):
    return -log_softmax(row)[y]


def focal(row, y, gamma=2.0):
    return (1 - softmax(row)[y]) ** gamma * ce(row, y)


def entropy(row):
    return -sum(p * math.log(p) for p in softmax(row) if p > 0)


def ecp(row, y, weight=0.1, class_reduction="sum"):
    return ce(row, y) - weight * entropy(row) / (len(row) if class_reduction == "mean" else 1)


def ls(row, y, alpha=0.1):
    k = len(row)
    return -sum(((1 - alpha) * (j == y) + alpha / k) * lp for j, lp in enumerate(log_softmax(row)))


def margin(row, m=10.0, penalty="l1", class_reduction="sum"):
    power = {"l1": 1, "l2": 2}[penalty]
    terms = [max(0.0, max(row) - x - m) ** power for x in row]
    return sum(terms) / (len(row) if class_reduction == "mean" else 1)


def near_margin(logits, labels, reach, m=10.0, penalty="l1", class_reduction="sum", ignore=-100):
    """The margin term near labelled foreground, per counted voxel."""
    total, n_counted = 0.0, 0
    for n, where, row, y in voxels(logits, labels):
        if y == ignore:
            continue
        n_counted += 1
        for item, other, _, label in voxels(logits, labels):
            steps = [abs(a - b) for a, b in zip(where, other, strict=True)]
            if item == n and label not in (0, ignore) and sum(steps) <= reach:
                total += margin(row, m, penalty, class_reduction)
                break
    return total / n_counted


def svls_target(labels, n, where, n_classes, size=3, sigma=1.0, ignore=-100):
    """The smoothed target of one voxel, straight from the kernel's definition."""
    radius = size // 2
    offsets = list(product(range(-radius, radius + 1), repeat=len(where)))
    weight = {o: math.exp(-sum(x * x for x in o) / (2 * sigma**2)) for o in offsets}
    total = sum(weight.values())
    weight = {o: w / total for o, w in weight.items()}
    centre = (0,) * len(where)
    weight[centre] = sum(w for o, w in weight.items() if o != centre)
    target = [0.0] * n_classes
    for o, w in weight.items():
        at = tuple(
            min(max(x + d, 0), s - 1) for x, d, s in zip(where, o, labels.shape[1:], strict=True)
        )
        y = int(labels[(n, *at)])
        if y != ignore:
            target[y] += w
    return [t / sum(target) for t in target]


def svls(logits, labels, size=3, sigma=1.0, ignore=-100):
    values = []
    for n, where, row, y in voxels(logits, labels):
        if y != ignore:
            target = svls_target(labels, n, where, logits.shape[1], size, sigma, ignore)
            values.append(-sum(t * lp for t, lp in zip(target, log_softmax(row), strict=True)))
    return sum(values) / len(values)


def soft_dice(logits, labels, first=1, ignore=-100, eps=1e-5):
    scores = []
    for n in range(logits.shape[0]):
        for k in range(first, logits.shape[1]):
            both = size = 0.0
            for item, _, row, y in voxels(logits, labels):
                if item == n and y != ignore:
                    p = softmax(row)[k]
                    both += p * (y == k)
                    size += p + (y == k)
            scores.append(1 - (2 * both + eps) / (size + eps))
    return sum(scores) / len(scores)


def bins(pairs, n_bins=15):
    """(confidence, right) pairs -> [(count, mean confidence, accuracy)] of the bins (lo, hi], 0 in
    the first.
    """
    out = []
    for b in range(n_bins):
        here = [(c, h) for c, h in pairs if (b < c * n_bins <= b + 1) or (b == 0 and c == 0)]
        if here:
            out.append(
                (
                    len(here),
                    sum(c for c, _ in here) / len(here),
                    sum(h for _, h in here) / len(here),
                )
            )
    return out


def ece(probs, labels, n_bins=15):
    """Of rows of probabilities [[p_1..p_K], ..] and labels [y, ..]."""
    pairs = [(max(p), p.index(max(p)) == y) for p, y in zip(probs, labels, strict=True)]
    return sum(n / len(labels) * abs(c - a) for n, c, a in bins(pairs, n_bins))


def cece(probs, labels, n_bins=15):
    """The sum over classes, as in the paper's Eq. 9."""
    total = 0.0
    for k in range(len(probs[0])):
        pairs = [(p[k], k == y) for p, y in zip(probs, labels, strict=True)]
        total += sum(n / len(labels) * abs(c - a) for n, c, a in bins(pairs, n_bins))
    return total


def outline(region):
    """Positions of the voxels with a face neighbour outside."""
    inside = set(region)
    steps = [s for s in product((-1, 0, 1), repeat=len(region[0])) if sum(map(abs, s)) == 1]
    return [
        p
        for p in region
        if any(tuple(a + b for a, b in zip(p, s, strict=True)) not in inside for s in steps)
    ]


def nearest(points, others, spacing):
    return [
        min(
            math.dist(
                [x * s for x, s in zip(p, spacing, strict=True)],
                [x * s for x, s in zip(q, spacing, strict=True)],
            )
            for q in others
        )
        for p in points
    ]
