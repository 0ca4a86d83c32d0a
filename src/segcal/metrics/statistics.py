r"""One pass over the logits gives a `Reliability`; every calibration score is a function of it.

Bins are $(\frac{b-1}{B}, \frac{b}{B}]$, and a confidence of 0 belongs to the first. The bin is that
of the probability in float32, also for float64 input: the same map gets the same bins in both. A
float32 value times the number of bins is exact in float64, so rounding moves no voxel to another
bin. `FINE` bins are the 15 bins of the paper, cut further in steps of the log-odds, as finely at
0.999 as at 0.5. All sums are float64. They add over slices, cases and processes, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.metrics.arrays import Array, tensor_of
from segcal.metrics.edges import N_BINS, N_FINE, bin_of, fine_edges
from segcal.metrics.masks import chosen, places, voxel_mask
from segcal.types import IGNORE, UserError, check_arrays, check_labels, check_range

HALVES = (torch.float16, torch.bfloat16)
_COPIES = 4  # of sums, a power of 2
CHUNK = 1 << 20  # probabilities at a time: bounds memory, and stays in the processor's cache


@dataclass(frozen=True, eq=False)
class Bins:
    """Sums per bin (last axis): the number of voxels, their confidence, how many were right."""

    count: Tensor
    conf: Tensor
    hit: Tensor

    @property
    def gap(self) -> Tensor:
        r"""Per bin, $|B_b| (C_b - A_b)$: size times (mean confidence - accuracy)."""
        return self.conf - self.hit

    @property
    def error(self) -> Tensor:
        r"""$\sum_b \frac{|B_b|}{N} |A_b - C_b|$, over the last axis; NaN without voxels."""
        return self.gap.abs().sum(-1) / self.count.sum(-1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """The calibration statistics of some voxels; `a + b` and `sum` pool them."""

    sums: Tensor  # (3, 1+K, B): count, conf, hit; of the predicted class, then of each class
    nll: Tensor  # summed over voxels
    brier: Tensor  # summed over voxels
    spread: (
        Tensor  # (K,): p (1 - p) of each class, summed: its size's variance if voxels were drawn
    )
    selection: Tensor  # (B,): `selection_of`, by the bin of the predicted class

    @staticmethod
    def zero(
        n_classes: int, n_bins: int = N_BINS, device: torch.device | None = None
    ) -> Reliability:
        """The value of no voxels."""
        check_range("n_bins", n_bins, 1)
        sums = torch.zeros(3, 1 + n_classes, n_bins, dtype=torch.float64, device=device)
        return Reliability(sums, sums[0, 0, 0], sums[0, 0, 0], sums[0, 1:, 0], sums[0, 0])

    @property
    def top(self) -> Bins:
        """Bins (B,) over the confidence of the predicted class."""
        return Bins(*self.sums[:, 0])

    @property
    def classes(self) -> Bins:
        """Bins (K, B) over each class's probability."""
        return Bins(*self.sums[:, 1:])

    @property
    def n_voxels(self) -> Tensor:
        """How many voxels were counted."""
        return self.sums[0, 0].sum()

    @property
    def n_expected(self) -> Tensor:
        """The probabilities of each class (K,), summed: its expected number of voxels."""
        return self.classes.conf.sum(-1)

    @property
    def n_true(self) -> Tensor:
        """The number of voxels of each class (K,) in the reference."""
        return self.classes.hit.sum(-1)

    @property
    def n_foreground(self) -> Tensor:
        """The number of voxels that are foreground in the reference."""
        return self.n_true[1:].sum()

    def __add__(self, other: Reliability) -> Reliability:
        if self.sums.shape != other.sums.shape:
            shapes = (self.sums.shape, other.sums.shape)
            got = " and ".join(f"{rows - 1} classes in {n_bins} bins" for _, rows, n_bins in shapes)
            raise UserError(f"statistics add only with the same classes and bins; got {got}")
        return Reliability(*(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __radd__(self, other: int) -> Reliability:  # so that sum() can start at 0
        return self if other == 0 else NotImplemented

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The sums, in the order of the fields."""
        return self.sums, self.nll, self.brier, self.spread, self.selection

    def coarser(self, n_bins: int = N_BINS) -> Reliability:
        """The same voxels in fewer bins, each the union of some of these.

        >>> from segcal.metrics import ece
        >>> logits = torch.tensor([[0.0, 3.0], [2.0, 0.0]])
        >>> fine = reliability(logits, torch.tensor([1, 1]), n_bins=150)
        >>> print(f"{ece(fine.coarser(15)):.4f}")
        0.4641
        """
        n = self.sums.shape[2]
        first = N_BINS if n == N_FINE else n
        if n_bins < 1 or first % n_bins:
            raise UserError(f"{n} bins cannot be joined into {n_bins}; choose a divisor of {first}")
        device = self.sums.device
        if n == N_FINE:  # the place of each fine bin among the coarse ones, by its upper edge
            upper = torch.cat([fine_edges().double(), torch.ones(1).double()]).to(device)
            place = upper.mul(n_bins).ceil().long().sub(1).clamp(0, n_bins - 1)
        else:
            place = torch.arange(n_bins, device=device).repeat_interleave(n // n_bins)
        joined = self.sums.new_zeros(*self.sums.shape[:2], n_bins).index_add_(2, place, self.sums)
        selection = self.selection.new_zeros(n_bins).index_add_(0, place, self.selection)
        return Reliability(joined, self.nll, self.brier, self.spread, selection)


def reliability(
    logits: Array,
    labels: Array,
    *,
    n_bins: int = N_BINS,
    mask: str = "all",
    ring: int = 2,
    ignore_index: int = IGNORE,
) -> Reliability:
    """Calibration statistics of logits (N, K, *S) against labels (N, *S); the batch is pooled.

    `mask` says which voxels count: `all`, `near` (within 5 steps of predicted foreground),
    `prediction`, `reference` (labelled foreground, as in the paper), `union`, or `ring` (within
    `ring` voxels of the reference's outline). Only the first three do not choose voxels by the
    answer.

    >>> from segcal.metrics import cece, ece, nll
    >>> bins = reliability(torch.tensor([[0.0, 3.0], [2.0, 0.0]]), torch.tensor([1, 1]))
    >>> print(f"{ece(bins):.4f} {cece(bins):.4f} {nll(bins):.4f}")
    0.4641 0.4641 1.0878
    """
    logits, labels = tensor_of(logits), tensor_of(labels)
    check_arrays(logits, labels)
    logits = detached(logits)
    check_finite(logits)
    total = Reliability.zero(logits.shape[1], n_bins, logits.device)
    for part, truth in _chunks(logits, labels, mask, ring, ignore_index):
        log_probs = F.log_softmax(part, 0)
        total += _summed(log_probs.exp(), log_probs.gather(0, truth[None])[0], truth, n_bins)
    return total


def reliability_of_probs(
    probs: Array,
    labels: Array,
    *,
    n_bins: int = N_BINS,
    mask: str = "all",
    ring: int = 2,
    ignore_index: int = IGNORE,
) -> Reliability:
    """The same as `reliability` for probabilities (N, K, *S) that sum to 1 over the classes.

    For the NLL, the probability of the true class is clipped to [eps, 1 - eps] with the eps of its
    type, as scikit-learn's `log_loss` does: float16 maps hold zeros, whose logarithm is infinite.

    >>> from segcal.metrics import ece
    >>> probs = torch.tensor([[0.25, 0.75]])
    >>> round(ece(reliability_of_probs(probs, torch.tensor([1]))).item(), 2)
    0.25
    """
    probs, labels = tensor_of(probs), tensor_of(labels)
    check_arrays(probs, labels, name="probs")
    probs = detached(probs)
    low, high = (value.item() for value in probs.aminmax())
    if not (low >= 0 and high <= 1.001):
        got = f"got values from {low:g} to {high:g}"
        raise UserError(f"probs must lie in [0, 1]; {got}: for logits use `reliability`")
    total = Reliability.zero(probs.shape[1], n_bins, probs.device)
    eps = torch.finfo(probs.dtype).eps
    tolerance = 1e-2 if probs.dtype in HALVES else 1e-3
    for part, truth in _chunks(probs, labels, mask, ring, ignore_index):
        off = (part.sum(0) - 1).abs().amax().item() if part.numel() else 0.0
        if off > tolerance:
            raise UserError(f"probs must sum to 1 over the classes; got a sum off by {off:.3g}")
        true_prob = part.gather(0, truth[None])[0].clamp(eps, 1 - eps)
        total += _summed(part, true_prob.log(), truth, n_bins)
    return total


def _chunks(
    scores: Tensor, labels: Tensor, mask: str, ring: int, ignore_index: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The masked voxels, some at a time: scores (K, M) in at least float32, labels (M,)."""
    n_items, n_classes = scores.shape[:2]
    labels = detached(labels).long()
    kept = voxel_mask(scores, labels, mask, ring=ring, ignore_index=ignore_index)
    kept, truth = kept.reshape(n_items, -1), labels.reshape(n_items, -1)
    flat = scores.reshape(n_items, n_classes, -1)
    check_labels(truth, n_classes, ignore_index)
    n_voxels = truth.shape[1]
    room = max(1, CHUNK // n_classes)
    items, voxels = max(1, room // n_voxels), min(room, n_voxels)
    for i in range(0, n_items, items):
        for v in range(0, n_voxels, voxels):
            here = slice(i, i + items), slice(v, v + voxels)
            part, labelled = chosen(flat[here[0], :, here[1]], truth[here], places(kept[here]))
            yield part.float() if part.dtype in HALVES else part, labelled


def _summed(probs: Tensor, log_prob: Tensor, truth: Tensor, n_bins: int) -> Reliability:
    """Statistics of probs (K, M), the log-probability of the true class (M,), and labels (M,)."""
    group = torch.zeros_like(truth)
    return grouped_sums(probs, log_prob, truth, group, n_groups=1, n_bins=n_bins)[0]


def grouped_sums(
    probs: Tensor, log_prob: Tensor, truth: Tensor, group: Tensor, *, n_groups: int, n_bins: int
) -> list[Reliability]:
    """The same for each group of voxels, whose number is in `group` (M,)."""
    n_classes, wide, truth_row = len(probs), probs.double(), truth[None]
    if not len(truth):
        return [Reliability.zero(n_classes, n_bins, probs.device)] * n_groups
    top, pred = largest(probs)
    # The bins of class k in group g begin at (g * K + k) * B. Neighbours go to different copies of
    # the sums: a processor waits for its last addition to a sum before the next to the same one.
    shape = (_COPIES, n_groups, n_classes, n_bins)
    cell = bin_of(probs.float(), n_bins)  # (K, M)
    cell += torch.arange(n_classes, device=probs.device, dtype=cell.dtype)[:, None] * n_bins
    copy = torch.arange(len(truth), device=probs.device) & (_COPIES - 1)
    cell += ((copy * n_groups + group) * (n_classes * n_bins)).to(cell.dtype)

    def sums(cells: Tensor, *values: Tensor) -> list[Tensor]:
        cells, n_cells = cells.reshape(-1), math.prod(shape)
        parts = [torch.bincount(cells, minlength=n_cells).double()]
        parts += [torch.bincount(cells, value.reshape(-1), n_cells) for value in values]
        return [part.reshape(shape).sum(0) for part in parts]

    count, conf = sums(cell, wide)
    top, hit = top.double(), (pred == truth).double()
    values = top, hit, selection_of(wide[0], top, pred)
    of_top = [part.sum(1) for part in sums(cell.gather(0, pred[None]), *values)]  # (G, B) each
    true_cell = cell.gather(0, truth_row)
    classes = torch.stack([count, conf, sums(true_cell)[0]], 1)  # (G, 3, K, B)
    table = torch.cat([torch.stack(of_top[:3], 1)[:, :, None], classes], 2)
    member = (group == torch.arange(n_groups, device=group.device)[:, None]).double()  # (G, M)
    spread = member @ (wide * (1 - wide)).T  # (G, K)
    # sum_k (s_k - y_k)^2, of which sum_k s_k^2 is sum_k s_k less the spread
    true_prob = wide.gather(0, truth_row)[0]
    brier = conf.sum((1, 2)) - spread.sum(1) + member @ (1 - 2 * true_prob)
    # not `member @`: 0 times the infinite NLL of one group would be NaN in all
    nll = torch.bincount(group, -log_prob.double(), n_groups)
    parts = (table, nll, brier, spread, of_top[3])
    return [Reliability(*of_group) for of_group in zip(*parts, strict=True)]


def largest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each column (K, M) and its row, the first of several: faster than `max`."""
    n, top = len(scores), scores.amax(0)
    order = torch.arange(n, 0, -1, dtype=torch.int16, device=scores.device)[:, None]
    return top, n - ((scores == top) * order).amax(0).long()


def selection_of(background: Tensor, conf: Tensor, pred: Tensor) -> Tensor:
    r"""What a perfect network's voxel adds to the gap of its bin over reference foreground.

    A label drawn from the probabilities is foreground with $1 - s_0$; it is then counted with
    confidence $c$, and is right with probability $c$ unless background is predicted. So the voxel
    adds $c (1 - s_0) - c = -c s_0$, or $s_0 (1 - s_0)$ where background is predicted.
    """
    return torch.where(pred == 0, background * (1 - background), -conf * background)


def detached(tensor: Tensor) -> Tensor:
    """Without gradient and subclass (MONAI's MetaTensor), and on a device that has float64."""
    tensor = tensor.detach().as_subclass(Tensor)
    return tensor.cpu() if tensor.device.type == "mps" else tensor  # Apple's GPUs have none


def check_finite(logits: Tensor) -> None:
    """Raise if a logit is NaN or +inf; -inf is legal."""
    # A sum is cheap. Only when it is not finite, look at every logit.
    if not logits.sum().isfinite() and bool((logits.isnan() | logits.isposinf()).any()):
        raise UserError("logits must not be NaN or +inf; got some that are")
