"""One-pass calibration statistics against the usual loop over bins and classes, and against keeping
every voxel.

`python -m benchmarks.calibration segcal 50` prints the peak extra megabytes of streaming 50
volumes."""

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

SHAPE = (30, 5, 192, 192)


def volume() -> tuple[Tensor, Tensor]:
    """Logits and labels of a volume whose foreground is four boxes, a fifth of the voxels."""
    torch.manual_seed(0)
    n, k, h, w = SHAPE
    labels = torch.zeros(n, h, w, dtype=torch.long)
    for c in range(1, k):
        top, left = 90 * ((c - 1) // 2) + 6, 90 * ((c - 1) % 2) + 6
        labels[4:26, top : top + 48, left : left + 48] = c
    logits = torch.randn(SHAPE) * 2 + 3 * F.one_hot(labels, k).movedim(-1, 1)
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
    bins = metrics.reliability(logits, labels)
    return (
        float(metrics.ece(bins)),
        float(metrics.cece(bins)),
        float(metrics.nll(bins)),
        float(metrics.brier(bins)),
    )


def rows() -> Iterator[Row]:
    logits, labels = volume()
    torch.testing.assert_close(
        torch.tensor(ours(logits, labels)),
        torch.tensor(usual(logits, labels)),
        rtol=2e-4,
        atol=1e-5,
    )
    what = f"ECE + CECE + NLL + Brier {SHAPE}"
    yield time_row(
        what, "loop over bins", lambda: ours(logits, labels), lambda: usual(logits, labels), 0.15, 9
    )
    few, many = (peak_in_new_process("benchmarks.calibration", "segcal", n) for n in ("5", "50"))
    kept = peak_in_new_process("benchmarks.calibration", "torchmetrics", "50")
    detail = (
        f"peak {few:.0f} MB after 5, {many:.0f} MB after 50; torchmetrics {kept:.0f} MB after 50"
    )
    yield Row(
        "the same over 50 volumes: growth",
        "torchmetrics, keeps voxels",
        max(0.0, many - few),
        5.0,
        detail,
        unit=" MB",
    )


def main(name: str, n_volumes: str) -> None:
    torch.set_num_threads(1)
    logits, labels = volume()
    metric = MulticlassCalibrationError(SHAPE[1], n_bins=15) if name == "torchmetrics" else None
    total = metrics.Reliability.zero(SHAPE[1])
    ours(logits[:1], labels[:1])  # load every library page first
    with PeakMemory() as memory:
        for _ in range(int(n_volumes)):
            if metric is not None:
                metric.update(logits, labels)
            else:
                total += metrics.reliability(logits, labels)
    print(memory.megabytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
