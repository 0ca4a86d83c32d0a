r"""Calibration statistics: one pass over the logits gives a `Reliability`, and every score is a
function of it.

Bins are $(\frac{b-1}{B}, \frac{b}{B}]$, and a confidence of exactly 0 belongs to the first. A
float32 probability times the number of bins is exact in float64, so no voxel lands in a
neighbouring bin by rounding. All sums are float64. Two values add when they come from the same
classes and bins: over slices, cases, processes, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.metrics.masks import chosen, voxel_mask
from segcal.types import IGNORE, UserError, check_arrays, check_choice, check_labels

N_BINS = 15  # as in the paper
CHUNK = (
    1 << 20
)  # probabilities worked on at a time: bounds memory, and stays in the processor's cache


@dataclass(frozen=True, eq=False)
class Bins:
    """Sums per bin (last axis): how many, of what total confidence, of which how many were
    right.
    """

    count: Tensor
    conf: Tensor
    hit: Tensor

    def __add__(self, other: Bins) -> Bins:
        return Bins(self.count + other.count, self.conf + other.conf, self.hit + other.hit)

    def coarser(self, n_bins: int) -> Bins:
        """The same in `n_bins` bins, a divisor of those here."""
        return Bins(
            *(
                values.unflatten(-1, (n_bins, -1)).sum(-1)
                for values in (self.count, self.conf, self.hit)
            )
        )

    @property
    def gap(self) -> Tensor:
        r"""Per bin, $|B_b| (C_b - A_b)$: its size times mean confidence less accuracy; positive
        when too confident.
        """
        return self.conf - self.hit

    @property
    def error(self) -> Tensor:
        r"""$\sum_b \frac{|B_b|}{N} |A_b - C_b|$, over the last axis; NaN without voxels."""
        return self.gap.abs().sum(-1) / self.count.sum(-1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """What calibration needs to know of some voxels; `a + b` is the value of both together, and
    `sum` works.
    """

    top: Bins  # (B,): over the confidence of the predicted class
    classes: Bins  # (K, B): over each class's probability
    nll: Tensor  # summed over voxels
    brier: Tensor  # summed over voxels

    def __add__(self, other: Reliability) -> Reliability:
        if self.classes.count.shape != other.classes.count.shape:
            (k, b), (k2, b2) = self.classes.count.shape, other.classes.count.shape
            raise UserError(
                f"only like adds to like; got {k} classes in {b} bins and {k2} classes in {b2} bins"
            )
        return Reliability(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __radd__(self, other: int) -> Reliability:  # so that sum() can start at 0
        return self if other == 0 else NotImplemented

    @property
    def n_voxels(self) -> Tensor:
        """How many voxels were counted."""
        return self.top.count.sum()

    def coarser(self, n_bins: int = N_BINS) -> Reliability:
        """The same voxels in fewer bins, each the union of equally many of these.

        >>> logits = torch.tensor([[0.0, 3.0], [2.0, 0.0]])
        >>> fine = reliability(logits, torch.tensor([1, 1]), n_bins=150)
        >>> print(f"{ece(fine.coarser(15)):.4f}")
        0.4641
        """
        if n_bins < 1 or len(self.top.count) % n_bins:
            raise UserError(
                f"{len(self.top.count)} bins cannot be joined into {n_bins}; choose a divisor"
            )
        return Reliability(
            self.top.coarser(n_bins), self.classes.coarser(n_bins), self.nll, self.brier
        )

    @staticmethod
    def zero(
        n_classes: int, n_bins: int = N_BINS, device: torch.device | str | None = None
    ) -> Reliability:
        """The value of no voxels."""
        z = torch.zeros(n_classes + 1, n_bins, dtype=torch.float64, device=device)
        return Reliability(Bins(z[0], z[0], z[0]), Bins(z[1:], z[1:], z[1:]), z[0, 0], z[0, 0])


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
    `prediction`, `union` of the two, `ring` (within `ring` voxels of the reference's outline, on
    both sides), or `all`.

    >>> bins = reliability(torch.tensor([[0.0, 3.0], [2.0, 0.0]]), torch.tensor([1, 1]))
    >>> print(f"{ece(bins):.4f} {cece(bins):.4f} {nll(bins):.4f}")
    0.4641 0.4641 1.0878
    """
    check_arrays(logits, labels)
    logits, labels = plain(logits), plain(labels).long()
    check_finite(logits)
    total = Reliability.zero(logits.shape[1], _bin_number(n_bins), logits.device)
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

    >>> probs = torch.tensor([[0.25, 0.75]])
    >>> round(ece(reliability_of_probs(probs, torch.tensor([1]))).item(), 2)
    0.25
    """
    check_arrays(probs, labels, name="probs")
    probs, labels = plain(probs), plain(labels).long()
    low, high = (value.item() for value in probs.aminmax())
    if not (low >= 0 and high <= 1.001):
        raise UserError(
            f"probs must lie in [0, 1]; got values from {low:g} to {high:g}: for logits use"
            " `reliability`"
        )
    total = Reliability.zero(probs.shape[1], _bin_number(n_bins), probs.device)
    for part, truth in _chunks(probs, labels, mask, ring, ignore_index):
        off = (part.sum(0) - 1).abs().amax().item() if part.numel() else 0.0
        if off > 1e-2 if probs.dtype in (torch.float16, torch.bfloat16) else off > 1e-3:
            raise UserError(
                f"probs must sum to 1 over the classes; got a sum that is off by {off:.3g}"
            )
        total += _summed(part, part.gather(0, truth[None])[0].log(), truth, n_bins)
    return total


def _chunks(
    scores: Tensor, labels: Tensor, mask: str, ring: int, ignore_index: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The masked voxels, some at a time: scores (K, M) in at least float32, labels (M,)."""
    n_items, n_classes = scores.shape[:2]
    kept = voxel_mask(scores, labels, mask, ring=ring, ignore_index=ignore_index).reshape(
        n_items, -1
    )
    flat, truth = scores.reshape(n_items, n_classes, -1), labels.reshape(n_items, -1)
    check_labels(truth, n_classes, ignore_index)
    n_voxels = truth.shape[1]
    room = max(1, CHUNK // n_classes)
    items, voxels = max(1, room // n_voxels), min(room, n_voxels)
    for i in range(0, n_items, items):
        for v in range(0, n_voxels, voxels):
            here = slice(i, i + items), slice(v, v + voxels)
            part, labelled = chosen(flat[here[0], :, here[1]], truth[here], kept[here])
            if part.dtype in (torch.float16, torch.bfloat16):
                part = part.float()
            yield part, labelled


def _summed(probs: Tensor, log_prob: Tensor, truth: Tensor, n_bins: int) -> Reliability:
    """Statistics of probs (K, M), the log-probability of the true class (M,), and labels (M,)."""
    n_classes = probs.shape[0]
    pred = probs.max(0).indices
    wide = probs.double()
    where = (
        wide.mul(n_bins).ceil_().int().sub_(1).clamp_(0, n_bins - 1)
    )  # (K, M): the bin of each class
    mine, true = pred[None], truth[None]
    top_bin = where.gather(0, mine)[0]
    count, hit = (
        torch.bincount(top_bin, minlength=n_bins),
        torch.bincount(top_bin, (pred == truth).double(), n_bins),
    )
    top = Bins(count.double(), torch.bincount(top_bin, wide.gather(0, mine)[0], n_bins), hit)
    where += torch.arange(0, n_classes * n_bins, n_bins, dtype=where.dtype, device=where.device)[
        :, None
    ]  # a row per class
    n_cells, shape = n_classes * n_bins, (n_classes, n_bins)
    classes = Bins(
        count=torch.bincount(where.reshape(-1), minlength=n_cells).double().reshape(shape),
        conf=torch.bincount(where.reshape(-1), wide.reshape(-1), n_cells).reshape(shape),
        hit=torch.bincount(where.gather(0, true)[0], minlength=n_cells).double().reshape(shape),
    )
    brier = (
        -2 * wide.gather(0, true).sum() + len(truth) + wide.square_().sum()
    )  # sum_k (s_k - y_k)^2
    return Reliability(top, classes, -log_prob.double().sum(), brier)


def plain(tensor: Tensor) -> Tensor:
    """Without gradient and subclass (MONAI's MetaTensor), and where float64 exists (not on Apple's
    GPUs).
    """
    tensor = tensor.detach().as_subclass(Tensor)
    return tensor.cpu() if tensor.device.type == "mps" else tensor


def _bin_number(n_bins: int) -> int:
    if n_bins < 1:
        raise UserError(f"n_bins must be at least 1; got {n_bins}")
    return n_bins


def check_finite(logits: Tensor) -> None:
    """Raise if a logit is NaN or +inf."""
    # A sum is one cheap read; only when it is not finite is a closer look worth its price. -inf is
    # a legal logit.
    if not logits.sum().isfinite() and bool((logits.isnan() | logits.isposinf()).any()):
        raise UserError("logits must not be NaN or +inf; got some that are")


def ece(bins: Reliability) -> Tensor:
    r"""Expected calibration error, $\sum_b \frac{|B_b|}{N} |A_b - C_b|$; NaN without voxels."""
    return bins.top.error


def cece(bins: Reliability, *, class_reduction: str = "mean") -> Tensor:
    r"""Class-wise ECE, $\frac{1}{K} \sum_k \sum_b \frac{|B_{b,k}|}{N} |A_{b,k} - C_{b,k}|$,
    background included.

    The mean over classes matches the paper's tables; `"sum"` is its equation, `"none"` gives a
    value per class (K,)."""
    check_choice("class_reduction", class_reduction, ("mean", "sum", "none"))
    per_class = bins.classes.error
    return per_class if class_reduction == "none" else getattr(per_class, class_reduction)()


def mce(bins: Reliability) -> Tensor:
    """Maximum calibration error: the largest gap between confidence and accuracy in a bin with
    voxels.
    """
    return torch.where(bins.n_voxels > 0, _bin_errors(bins).nan_to_num(0).amax(), torch.nan)


def ace(bins: Reliability) -> Tensor:
    """Average calibration error (Neumann et al. 2018): the gap, mean over the bins with voxels,
    each alike.

    Not the *adaptive* error of the same letters (Nixon et al. 2019), whose equal-mass bins need all
    voxels at once."""
    return _bin_errors(bins).nanmean()


def _bin_errors(bins: Reliability) -> Tensor:
    return bins.top.gap.abs() / bins.top.count  # NaN in empty bins


def overconfidence(bins: Reliability) -> Tensor:
    """The part of ECE from bins whose confidence exceeds their accuracy; with `underconfidence` it
    adds up to ECE.
    """
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
    r"""Brier score, mean of $\sum_k (s_k - y_k)^2$, between 0 and 2 (some halve it for two
    classes).
    """
    return bins.brier / bins.n_voxels


def accuracy(bins: Reliability) -> Tensor:
    """The share of the voxels whose predicted class is right; within the reference, sensitivity."""
    return bins.top.hit.sum() / bins.n_voxels
