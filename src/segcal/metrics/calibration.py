r"""One pass over the logits gives a `Reliability`; every calibration score is a function of it.

Bins are $(\frac{b-1}{B}, \frac{b}{B}]$, and a confidence of 0 belongs to the first. The bin is that
of the probability in float32, also for float64 input: the same map gets the same bins in both. A
float32 value times the number of bins is exact in float64, so rounding moves no voxel to another
bin. All sums are float64. They add over slices, cases and processes, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.metrics.masks import chosen, voxel_mask
from segcal.types import IGNORE, UserError, check_arrays, check_choice, check_labels, check_range

HALVES = (torch.float16, torch.bfloat16)
N_BINS = 15  # as in the paper
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

    @staticmethod
    def zero(
        n_classes: int, n_bins: int = N_BINS, device: torch.device | None = None
    ) -> Reliability:
        """The value of no voxels."""
        check_range("n_bins", n_bins, 1)
        sums = torch.zeros(3, 1 + n_classes, n_bins, dtype=torch.float64, device=device)
        return Reliability(sums, sums[0, 0, 0], sums[0, 0, 0])

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

    def __add__(self, other: Reliability) -> Reliability:
        if self.sums.shape != other.sums.shape:
            shapes = (self.sums.shape, other.sums.shape)
            got = " and ".join(f"{rows - 1} classes in {n_bins} bins" for _, rows, n_bins in shapes)
            raise UserError(f"statistics add only with the same classes and bins; got {got}")
        return Reliability(self.sums + other.sums, self.nll + other.nll, self.brier + other.brier)

    def __radd__(self, other: int) -> Reliability:  # so that sum() can start at 0
        return self if other == 0 else NotImplemented

    def coarser(self, n_bins: int = N_BINS) -> Reliability:
        """The same voxels in fewer bins, each the union of equally many of these.

        >>> logits = torch.tensor([[0.0, 3.0], [2.0, 0.0]])
        >>> fine = reliability(logits, torch.tensor([1, 1]), n_bins=150)
        >>> print(f"{ece(fine.coarser(15)):.4f}")
        0.4641
        """
        n = self.sums.shape[2]
        if n_bins < 1 or n % n_bins:
            raise UserError(f"{n} bins cannot be joined into {n_bins}; choose a divisor")
        return Reliability(self.sums.unflatten(2, (n_bins, -1)).sum(3), self.nll, self.brier)


def reliability(
    logits: Tensor,
    labels: Tensor,
    *,
    n_bins: int = N_BINS,
    mask: str = "reference",
    ring: int = 2,
    ignore_index: int = IGNORE,
) -> Reliability:
    """Calibration statistics of logits (N, K, *S) against labels (N, *S); the batch is pooled.

    `mask` says which voxels count: `reference` (labelled foreground, as in the paper),
    `prediction`, `union`, `ring` (within `ring` voxels of the reference's outline), or `all`.

    >>> bins = reliability(torch.tensor([[0.0, 3.0], [2.0, 0.0]]), torch.tensor([1, 1]))
    >>> print(f"{ece(bins):.4f} {cece(bins):.4f} {nll(bins):.4f}")
    0.4641 0.4641 1.0878
    """
    check_arrays(logits, labels)
    logits = detached(logits)
    check_finite(logits)
    total = Reliability.zero(logits.shape[1], n_bins, logits.device)
    for part, truth in _chunks(logits, labels, mask, ring, ignore_index):
        log_probs = F.log_softmax(part, 0)
        total += _summed(log_probs.exp(), log_probs.gather(0, truth[None])[0], truth, n_bins)
    return total


def reliability_of_probs(
    probs: Tensor,
    labels: Tensor,
    *,
    n_bins: int = N_BINS,
    mask: str = "reference",
    ring: int = 2,
    ignore_index: int = IGNORE,
) -> Reliability:
    """The same as `reliability` for probabilities (N, K, *S) that sum to 1 over the classes.

    For the NLL, the probability of the true class is clipped to [eps, 1 - eps] with the eps of its
    type, as scikit-learn's `log_loss` does: float16 maps hold zeros, whose logarithm is infinite.

    >>> probs = torch.tensor([[0.25, 0.75]])
    >>> round(ece(reliability_of_probs(probs, torch.tensor([1]))).item(), 2)
    0.25
    """
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
            part, labelled = chosen(flat[here[0], :, here[1]], truth[here], kept[here])
            yield part.float() if part.dtype in HALVES else part, labelled


def _summed(probs: Tensor, log_prob: Tensor, truth: Tensor, n_bins: int) -> Reliability:
    """Statistics of probs (K, M), the log-probability of the true class (M,), and labels (M,)."""
    n_classes = probs.shape[0]
    pred = probs.max(0).indices
    wide = probs.double()
    narrow = probs.float().double() if probs.dtype == torch.float64 else wide
    where = narrow.mul(n_bins).ceil_().int().sub_(1).clamp_(0, n_bins - 1)  # (K, M): of each class
    top_bin, top_conf = where.gather(0, pred[None])[0], wide.gather(0, pred[None])[0]
    top_hit = (pred == truth).double()
    top = [
        torch.bincount(top_bin, minlength=n_bins).double(),
        torch.bincount(top_bin, top_conf, n_bins),
        torch.bincount(top_bin, top_hit, n_bins),
    ]
    n_cells = n_classes * n_bins
    first = torch.arange(0, n_cells, n_bins, dtype=where.dtype, device=where.device)
    where += first[:, None]  # the bins of class k begin at k * n_bins
    true_bin, true_prob = where.gather(0, truth[None])[0], wide.gather(0, truth[None])
    classes = [
        torch.bincount(where.reshape(-1), minlength=n_cells).double(),
        torch.bincount(where.reshape(-1), wide.reshape(-1), n_cells),
        torch.bincount(true_bin, minlength=n_cells).double(),
    ]
    sums = torch.cat([torch.stack(top), torch.stack(classes)], 1).reshape(3, -1, n_bins)
    brier = -2 * true_prob.sum() + len(truth) + wide.square_().sum()  # sum_k (s_k - y_k)^2
    return Reliability(sums, -log_prob.double().sum(), brier)


def detached(tensor: Tensor) -> Tensor:
    """Without gradient and subclass (MONAI's MetaTensor), and on a device that has float64."""
    tensor = tensor.detach().as_subclass(Tensor)
    return tensor.cpu() if tensor.device.type == "mps" else tensor  # Apple's GPUs have none


def check_finite(logits: Tensor) -> None:
    """Raise if a logit is NaN or +inf; -inf is legal."""
    # A sum is cheap. Only when it is not finite, look at every logit.
    if not logits.sum().isfinite() and bool((logits.isnan() | logits.isposinf()).any()):
        raise UserError("logits must not be NaN or +inf; got some that are")


def ece(bins: Reliability) -> Tensor:
    r"""Expected calibration error, $\sum_b \frac{|B_b|}{N} |A_b - C_b|$; NaN without voxels."""
    return bins.top.error


def cece(bins: Reliability, *, class_reduction: str = "mean") -> Tensor:
    r"""Class-wise ECE, $\frac{1}{K} \sum_k \sum_b \frac{|B_{b,k}|}{N} |A_{b,k} - C_{b,k}|$.

    With background. The mean matches the paper's tables, `"sum"` its equation; `"none"` gives (K,).
    """
    check_choice("class_reduction", class_reduction, ("mean", "sum", "none"))
    per_class = bins.classes.error
    return per_class if class_reduction == "none" else getattr(per_class, class_reduction)()


def mce(bins: Reliability) -> Tensor:
    """Maximum calibration error: the largest gap of confidence and accuracy in a bin."""
    return torch.where(bins.n_voxels > 0, _bin_errors(bins).nan_to_num(0).amax(), torch.nan)


def ace(bins: Reliability) -> Tensor:
    """Average calibration error (Neumann et al. 2018): the gap, mean over the bins with voxels.

    Not the *adaptive* error (Nixon et al. 2019), whose equal-mass bins need all voxels at once.
    """
    return _bin_errors(bins).nanmean()


def _bin_errors(bins: Reliability) -> Tensor:
    return bins.top.gap.abs() / bins.top.count  # NaN in empty bins


def overconfidence(bins: Reliability) -> Tensor:
    """The part of ECE from bins whose confidence exceeds their accuracy."""
    return bins.top.gap.clamp_min(0).sum() / bins.n_voxels


def underconfidence(bins: Reliability) -> Tensor:
    """The part of ECE from bins whose accuracy exceeds their confidence."""
    return (-bins.top.gap).clamp_min(0).sum() / bins.n_voxels


def confidence_gap(bins: Reliability) -> Tensor:
    """Mean confidence less accuracy, in [-1, 1]: overconfidence less underconfidence."""
    return bins.top.gap.sum() / bins.n_voxels


def nll(bins: Reliability) -> Tensor:
    r"""Negative log-likelihood, mean of $-\log s_y$."""
    return bins.nll / bins.n_voxels


def brier(bins: Reliability) -> Tensor:
    r"""Brier score, mean of $\sum_k (s_k - y_k)^2$, between 0 and 2."""
    return bins.brier / bins.n_voxels


def accuracy(bins: Reliability) -> Tensor:
    """The share of the voxels whose predicted class is right."""
    return bins.top.hit.sum() / bins.n_voxels
