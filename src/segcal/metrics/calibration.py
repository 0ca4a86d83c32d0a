"""Every calibration score, as a function of a `Reliability`."""

from __future__ import annotations

import torch
from torch import Tensor

from segcal.metrics.statistics import Bins, Reliability
from segcal.types import check_choice


def ece(bins: Reliability) -> Tensor:
    r"""Expected calibration error, $\sum_b \frac{|B_b|}{N} |A_b - C_b|$; NaN without voxels."""
    return bins.top.error


def cece(bins: Reliability, *, class_reduction: str = "mean") -> Tensor:
    r"""Class-wise ECE, $\frac{1}{K} \sum_k \sum_b \frac{|B_{b,k}|}{N} |A_{b,k} - C_{b,k}|$.

    With background. The mean matches the paper's tables, `"sum"` its equation; `"none"` gives (K,).
    """
    check_choice("class_reduction", class_reduction, ("mean", "sum", "none"))
    per_class = class_cece(bins)
    return per_class if class_reduction == "none" else getattr(per_class, class_reduction)()


def class_cece(bins: Reliability) -> Tensor:
    """The parts of CECE by class (K,), the background first."""
    return bins.classes.error


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


def misplaced(bins: Reliability) -> Tensor:
    r"""Misplaced confidence: $\sum_b |B_b| |A_b - C_b|$ over *all* voxels, per foreground voxel.

    0.14 means: probability equal to 14 % of the reference's foreground is in the wrong place. More
    empty background does not change it. NaN without foreground.
    """
    return per_foreground(ece(bins), bins)


def per_foreground(mean: Tensor, bins: Reliability) -> Tensor:
    """A mean over voxels, per voxel of the reference's foreground instead; NaN if there is none."""
    n = bins.n_foreground
    return torch.where(n > 0, mean * bins.n_voxels / n, torch.nan)


def volume_ratio(bins: Reliability) -> Tensor:
    """Expected over true number of foreground voxels, "E/O"; above 1: too much is predicted."""
    return _ratio(bins.n_expected[1:].sum(), bins.n_foreground)


def class_volume_ratio(bins: Reliability) -> Tensor:
    """The same for each foreground class (K-1,); NaN for one that the reference does not have."""
    return _ratio(bins.n_expected[1:], bins.n_true[1:])


def class_misplaced(bins: Reliability) -> Tensor:
    """Misplaced probability of each foreground class (K-1,), per voxel of it in the reference."""
    return _ratio(bins.classes.gap[1:].abs().sum(-1), bins.n_true[1:])


def _ratio(value: Tensor, n: Tensor) -> Tensor:
    return torch.where(n > 0, value / n, torch.nan)


def ece_perfect(bins: Reliability) -> Tensor:
    """The ECE over reference foreground that these probabilities have if they are all right.

    Labels are drawn from the probabilities; counts are replaced by their expectation. Takes the
    statistics of *all* voxels. It is not 0: reference voxels are chosen by the answer. NaN without
    foreground in the reference, as the measured one, so that means are over the same cases.
    """
    return _if_foreground(bins.selection.abs().sum() / bins.n_expected[1:].sum(), bins)


def cece_perfect(bins: Reliability) -> Tensor:
    r"""The same for CECE: $\frac{2}{K} \sum s_0 (1 - s_0) / \sum (1 - s_0)$.

    Class k adds $s_k (1 - s_0) - s_k$ to its gap, the background $s_0 (1 - s_0)$. These do not
    change sign, so bins do not matter.
    """
    value = 2 * bins.spread[0] / (len(bins.spread) * bins.n_expected[1:].sum())
    return _if_foreground(value, bins)


def misplaced_perfect(bins: Reliability) -> Tensor:
    r"""The misplaced confidence that these probabilities have by chance if they are all right.

    A bin's gap is then random with variance $v = \sum p (1 - p)$, and its mean size is
    $\sqrt{2 v / \pi}$ for many voxels and at most $2 v$. $v$ is taken from the bin's mean
    probability, at most 7 % too large. Takes the statistics of *all* voxels of one case.
    """
    return _if_foreground(_chance(bins.top).sum() / bins.n_expected[1:].sum(), bins)


def class_misplaced_perfect(bins: Reliability) -> Tensor:
    """The same for each foreground class (K-1,), per expected voxel of it."""
    value = _chance(bins.classes).sum(-1)[1:] / bins.n_expected[1:]
    return torch.where(bins.n_true[1:] > 0, value, torch.nan)


def _if_foreground(value: Tensor, bins: Reliability) -> Tensor:
    return torch.where(bins.n_foreground > 0, value, torch.nan)


def _chance(bins: Bins) -> Tensor:
    """The mean size of each bin's gap if its probabilities are right."""
    variance = (bins.conf - bins.conf.square() / bins.count.clamp_min(1)).clamp_min(0)
    return torch.minimum((2 / torch.pi * variance).sqrt(), 2 * variance)


def nll(bins: Reliability) -> Tensor:
    r"""Negative log-likelihood, mean of $-\log s_y$."""
    return bins.nll / bins.n_voxels


def brier(bins: Reliability) -> Tensor:
    r"""Brier score, mean of $\sum_k (s_k - y_k)^2$, between 0 and 2."""
    return bins.brier / bins.n_voxels


def brier_calibration(bins: Reliability) -> Tensor:
    r"""The part of the Brier score from wrong probabilities (Murphy 1973).

    $\frac1N \sum_k \sum_b |B_{b,k}| (C_{b,k} - A_{b,k})^2$: the rest, `brier_refinement`, is what
    remains when every bin's probability is replaced by how often it is right.
    """
    error = bins.classes.gap.square() / bins.classes.count.clamp_min(1)
    return error.sum() / bins.n_voxels


def brier_refinement(bins: Reliability) -> Tensor:
    """The Brier score less `brier_calibration`."""
    return brier(bins) - brier_calibration(bins)


def accuracy(bins: Reliability) -> Tensor:
    """The share of the voxels whose predicted class is right."""
    return bins.top.hit.sum() / bins.n_voxels
