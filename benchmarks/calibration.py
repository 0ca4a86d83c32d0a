"""One-pass calibration statistics against the usual loop over bins and classes, and against keeping
every voxel.

`python -m benchmarks.calibration segcal 50 192` prints the peak extra megabytes of streaming 50
volumes of 192 × 192."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.classification import MulticlassCalibrationError

from benchmarks.measure import PeakMemory, Row, peak_in_new_process, time_row
from segcal import metrics

N_CLASSES, SIZE = 5, 192


def volume(size: int = SIZE) -> tuple[Tensor, Tensor]:
    """Logits and labels of 30 slices whose foreground is four boxes, a fifth of the voxels."""
    torch.manual_seed(0)
    shape = (30, N_CLASSES, size, size)
    labels = torch.zeros(30, size, size, dtype=torch.long)
    box = size // 4
    for c in range(1, N_CLASSES):
        top, left = (6 * size // 192 + 15 * size // 32 * side for side in divmod(c - 1, 2))
        labels[4:26, top : top + box, left : left + box] = c
    logits = torch.randn(shape) * 2 + 3 * F.one_hot(labels, N_CLASSES).movedim(-1, 1)
    return logits.contiguous(), labels


def usual(logits: Tensor, labels: Tensor, n_bins: int = 15) -> tuple[float, float, float, float]:
    """ECE, CECE, NLL and Brier in the foreground as they are usually written: a mask per bin and
    class.
    """
    probs = F.softmax(logits, 1)
    keep = labels > 0
    truth = labels[keep]
    edges = torch.linspace(0, 1, n_bins + 1)

    def error(conf: Tensor, hit: Tensor) -> float:
        total = 0.0
        for low, high in pairwise(edges):
            here = (conf > low) & (conf <= high)
            if here.any():
                total += float(
                    (conf[here].mean() - hit[here].float().mean()).abs() * here.float().mean()
                )
        return total

    conf, pred = probs.max(1)
    ece = error(conf[keep], pred[keep] == truth)
    cece = (
        sum(error(probs[:, k][keep], truth == k) for k in range(logits.shape[1])) / logits.shape[1]
    )
    nll = float(F.cross_entropy(logits, labels, reduction="none")[keep].mean())
    one_hot = F.one_hot(labels, logits.shape[1]).movedim(-1, 1)
    return ece, cece, nll, float((probs - one_hot).square().sum(1)[keep].mean())


def ours(logits: Tensor, labels: Tensor) -> tuple[float, float, float, float]:
    bins = metrics.reliability(logits, labels, mask="reference")
    return (
        float(metrics.ece(bins)),
        float(metrics.cece(bins)),
        float(metrics.nll(bins)),
        float(metrics.brier(bins)),
    )


def rows(size: int = SIZE, few: int = 5, many: int = 50, repeats: int = 9) -> Iterator[Row]:
    logits, labels = volume(size)
    torch.testing.assert_close(
        torch.tensor(ours(logits, labels)),
        torch.tensor(usual(logits, labels)),
        rtol=2e-4,
        atol=1e-5,
    )
    what = f"ECE + CECE + NLL + Brier {tuple(logits.shape)}"
    both = (lambda: ours(logits, labels), lambda: usual(logits, labels))
    yield time_row(what, "loop over bins", *both, 0.15, repeats)

    a, b = peak("segcal", few, size), peak("segcal", many, size)
    kept = peak("torchmetrics", many, size)
    what, against = f"the same over {many} volumes: growth", "torchmetrics, keeps voxels"
    detail = f"peak {a:.0f} MB after {few}, {b:.0f} MB after {many}"
    detail += f"; torchmetrics {kept:.0f} MB after {many}"
    yield Row(what, against, max(0.0, b - a), 5.0, detail, unit=" MB")


def peak(name: str, n_volumes: int, size: int) -> float:
    return peak_in_new_process("benchmarks.calibration", name, str(n_volumes), str(size))


def main(name: str, n_volumes: str, size: str) -> None:
    torch.set_num_threads(1)
    logits, labels = volume(int(size))
    metric = MulticlassCalibrationError(N_CLASSES, n_bins=15) if name == "torchmetrics" else None
    total = metrics.Reliability.zero(N_CLASSES)
    ours(logits[:1], labels[:1])  # load every library page first
    with PeakMemory() as memory:
        for _ in range(int(n_volumes)):
            if metric is not None:
                metric.update(logits, labels)
            else:
                total += metrics.reliability(logits, labels, mask="reference")
    print(memory.megabytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
