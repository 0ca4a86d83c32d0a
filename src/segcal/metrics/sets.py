"""The calibration statistics of one case over three sets of voxels, in one pass over its logits.

`reference` is labelled foreground, as in the paper; `all` is every voxel; `near` is within 5 steps
of predicted foreground. Most voxels of a scan are sure background: far from what is predicted,
labelled background, with at most `SURE` for all other classes together. These share one of the 15
bins per class, so sums over them suffice. Only the others are sorted into bins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.metrics.arrays import Array, tensor_of
from segcal.metrics.edges import N_BINS, N_FINE, bin_of
from segcal.metrics.masks import chosen, places
from segcal.metrics.statistics import (
    HALVES,
    Bins,
    Reliability,
    check_finite,
    detached,
    grouped_sums,
    selection_of,
)
from segcal.types import IGNORE, check_arrays, check_labels

SETS = {"all": N_BINS, "near": N_FINE, "reference": N_FINE}
"""The sets of voxels that calibration is scored over, and the bins that each is sorted into."""

SURE = 1 / 15.01  # just below the upper edge of the first of 15 bins
CHUNK = 1 << 18  # voxels at a time
BLOCK = 1 << 18  # logits at a time in the processor's cache


def reliability_of_sets(
    logits: Array, labels: Array, near: Array, *, ignore_index: int = IGNORE
) -> dict[str, Reliability]:
    """Statistics over each of `SETS`, in its bins: logits (N, K, *S), labels and near (N, *S).

    >>> logits = torch.tensor([[[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]]])
    >>> near = torch.tensor([[True, True, False]])
    >>> sets = reliability_of_sets(logits, torch.tensor([[0, 1, 1]]), near)
    >>> {name: int(bins.n_voxels) for name, bins in sets.items()}
    {'all': 3, 'near': 2, 'reference': 2}
    """
    logits, labels, near = (tensor_of(values) for values in (logits, labels, near))
    check_arrays(logits, labels)
    logits, labels = detached(logits), detached(labels).long()
    n_classes = logits.shape[1]
    may_ignore = check_labels(labels, n_classes, ignore_index)
    sure = torch.zeros(2 * n_classes + 2, dtype=torch.float64, device=logits.device)
    # far and near background, far and near foreground of the reference
    groups = [Reliability.zero(n_classes, N_FINE, logits.device)] * 4
    for x, y, around in _chunks(CHUNK, logits, labels, near):
        rest = around | y.bool()
        for block, of_block in _chunks(BLOCK // n_classes, x, rest):
            sure += _sure(block, of_block)
        where = places(rest & (y != ignore_index) if may_ignore else rest)
        scores, truth = chosen(x, y, where)
        log_probs = F.log_softmax(scores.float() if scores.dtype in HALVES else scores, 0)
        log_true = log_probs.gather(0, truth[None])[0]
        group = around.reshape(-1)[where].long() + 2 * (truth > 0)
        parts = grouped_sums(log_probs.exp(), log_true, truth, group, n_groups=4, n_bins=N_FINE)
        groups = [a + b for a, b in zip(groups, parts, strict=True)]
    far, close, far_true, close_true = groups
    everything = (far + close + far_true + close_true).coarser() + _background(sure, n_classes)
    return {"all": everything, "near": close + close_true, "reference": far_true + close_true}


class TopOfAll(NamedTuple):
    """Sums over all voxels that need no bins of the other classes."""

    bins: Bins  # (B,), of the predicted class
    nll: Tensor
    selection: Tensor  # (B,): as in `Reliability`
    expected: Tensor  # the probabilities of all foreground

    @property
    def ece_perfect(self) -> Tensor:
        """The ECE over reference voxels if all probabilities are right."""
        return self.selection.abs().sum() / self.expected


def top_of_all(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORE) -> TopOfAll:
    """What all voxels of logits (N, K, *S) say, in 15 bins of the predicted class alone.

    A quarter of the time of `reliability`, which sorts every class, however unsure the network is.

    >>> found = top_of_all(torch.tensor([[0.0, 3.0], [2.0, 0.0]]), torch.tensor([1, 1]))
    >>> print(f"{found.bins.error:.4f} {found.nll:.4f} {found.ece_perfect:.4f}")
    0.4641 2.1755 0.1401
    """
    logits, labels = detached(logits), detached(labels).long()
    # per bin, and in the last row for voxels that are ignored: wrong and right ones
    sums = torch.zeros(3, N_BINS + 1, 2, dtype=torch.float64, device=logits.device)
    (count, conf, selection), (nll, expected) = sums, sums.new_zeros(2)
    for x, y in _chunks(BLOCK // logits.shape[1], logits, labels):
        log_probs = F.log_softmax(x.float() if x.dtype in HALVES else x, 1)
        top, pred = log_probs.max(1)
        top, ignored = top.exp_(), y == ignore_index
        place = bin_of(top.float(), N_BINS).masked_fill_(ignored, N_BINS)
        cell = place.mul_(2).add_(pred == y).reshape(-1)
        count += torch.bincount(cell, minlength=count.numel()).reshape(-1, 2)
        conf += torch.bincount(cell, top.double().reshape(-1), count.numel()).reshape(-1, 2)
        background = log_probs[:, 0].exp()
        selected = selection_of(background, top, pred).double().reshape(-1)
        selection += torch.bincount(cell, selected, count.numel()).reshape(-1, 2)
        expected += (1 - background).masked_fill_(ignored, 0).sum(dtype=torch.float64)
        log_true = log_probs.gather(1, y.masked_fill(ignored, 0)[:, None])[:, 0]
        nll -= log_true.masked_fill_(ignored, 0).sum(dtype=torch.float64)
    bins = Bins(count.sum(1)[:-1], conf.sum(1)[:-1], count[:-1, 1])
    return TopOfAll(bins, nll, selection.sum(1)[:-1], expected)


def _chunks(size: int, scores: Tensor, *maps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some voxels at a time, as views: scores (n, K, v) and maps (n, v)."""
    n_items, n_classes = scores.shape[:2]
    flat = scores.reshape(n_items, n_classes, -1)
    flat_maps = [values.reshape(n_items, -1) for values in maps]
    n_voxels = max(1, flat.shape[2])
    items, voxels = max(1, size // n_voxels), min(size, n_voxels)
    for i in range(0, n_items, items):
        for v in range(0, n_voxels, voxels):
            here = slice(i, i + items), slice(v, v + voxels)
            yield flat[here[0], :, here[1]], *(values[here] for values in flat_maps)


def _sure(x: Tensor, rest: Tensor) -> Tensor:
    """Sums (2K+2,) over sure background; the other voxels (n, v) are marked in `rest`.

    These are: how many (1), each foreground class's probability (K-1), its square (K-1), the
    probability q of all foreground, its square, and the NLL. Blocks are small, so float32 sums of
    small numbers are exact enough.
    """
    check_finite(x)
    x = x.float() if x.dtype in HALVES else x
    # Below e^-40 nothing adds up to anything, and denormal numbers take ten times as long.
    odds = (x[:, 1:] - x[:, :1].clamp_min(-1e30)).clamp_(-40, 0).exp_()  # (n, K-1, v)
    total = odds.sum(1)  # (n, v)
    rest |= total > SURE / (1 - SURE)
    counted = (~rest).to(x.dtype)
    share = counted / (total + 1)  # 1 / (1 + odds), 0 where it does not count
    q = total * share
    nll = total.mul_(counted).log1p_()  # -log(1 - q)
    probs = torch.bmm(odds, share[..., None]).sum((0, 2))  # (K-1,)
    squares = torch.bmm(odds.square_(), share.square_()[..., None]).sum((0, 2))
    n, *others = (part.sum() for part in (counted, q, q * q, nll))
    return torch.cat([n[None], probs, squares, torch.stack(others)]).double()


def _background(sums: Tensor, n_classes: int) -> Reliability:
    """The statistics of sure background in 15 bins, from its sums (2K+2,)."""
    n, probs, squares, (q, q_square, nll) = sums[0], *sums[1:-3].chunk(2), sums[-3:]
    bins = Reliability.zero(n_classes, device=sums.device)
    table, selection = bins.sums.clone(), bins.selection.clone()
    for row in (0, 1):  # the predicted class, which is the background
        table[:, row, -1] = torch.stack([n, n - q, n])
    table[0, 2:, 0], table[1, 2:, 0] = n, probs
    selection[-1] = q - q_square
    spread = torch.cat([(q - q_square)[None], probs - squares])
    return Reliability(table, nll, q_square + squares.sum(), spread, selection)
