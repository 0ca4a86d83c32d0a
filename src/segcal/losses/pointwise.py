"""Cross-entropy, and losses that smooth, weight or regularise it per voxel; means over voxels.

Voxels labelled `ignore_index` do not count; a batch in which every voxel is ignored gives 0.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.losses.checks import counted, objective
from segcal.types import IGNORE, UserError, check_choice, check_range


@objective
def ce(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    r"""Cross-entropy, $-\log s_y$.

    >>> ce(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor(0.6931)
    """
    return _smoothed_ce(logits, labels, 0.0, ignore_index)


@objective
def ls(logits: Tensor, labels: Tensor, *, alpha: float = 0.1, ignore_index: int = IGNORE) -> Tensor:
    r"""Label smoothing: cross-entropy with targets $y(1-\alpha) + \alpha/K$ (Szegedy et al. 2016).

    >>> ls(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), alpha=0.1)
    tensor(0.2269)
    """
    check_range("alpha", alpha, 0, 1)
    return _smoothed_ce(logits, labels, alpha, ignore_index)


def _smoothed_ce(logits: Tensor, labels: Tensor, alpha: float, ignore_index: int) -> Tensor:
    _, n_counted = counted(labels, ignore_index, logits)
    total = F.cross_entropy(
        logits, labels, ignore_index=ignore_index, reduction="sum", label_smoothing=alpha
    )
    return total / n_counted


@objective
def focal(
    logits: Tensor, labels: Tensor, *, gamma: float = 2.0, ignore_index: int = IGNORE
) -> Tensor:
    r"""Focal loss, $-(1-s_y)^\gamma \log s_y$ (Lin et al. 2017).

    >>> focal(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), gamma=1.0)
    tensor(0.3466)
    """
    check_range("gamma", gamma, 0)
    _, n_counted = counted(labels, ignore_index, logits)
    nll = F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none")
    # expm1 keeps 1 - s_y exact near s_y = 1; the floor keeps the slope of a power below 1 finite.
    miss = torch.expm1(-nll).neg().clamp_min(torch.finfo(nll.dtype).tiny)
    return (miss.pow(gamma) * nll).sum() / n_counted


@objective
def ecp(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: float = 0.1,
    class_reduction: str = "sum",
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""Explicit confidence penalty, $\mathrm{CE} - \lambda H(s)$, $H(s) = -\sum_k s_k \log s_k$.

    Pereyra et al. 2017. `class_reduction="mean"` divides H by K, as the code of Murugesan et al.

    >>> ecp(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), weight=1.0)
    tensor(0.)
    """
    check_range("weight", weight, 0)
    check_choice("class_reduction", class_reduction, ("sum", "mean"))
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    log_probs = F.log_softmax(logits, 1)
    nll = F.nll_loss(log_probs, labels, ignore_index=ignore_index, reduction="sum")
    probs = log_probs.exp()
    negative_entropy = ((probs * log_probs).sum(1) * voxel_weight).sum()
    if _may_be_nan(negative_entropy):
        finite = log_probs.clamp_min(torch.finfo(log_probs.dtype).min)
        negative_entropy = ((probs * finite).sum(1) * voxel_weight).sum()
    if class_reduction == "mean":
        weight = weight / logits.shape[1]
    return (nll + weight * negative_entropy) / n_counted


def _may_be_nan(total: Tensor) -> bool:
    """Whether to sum again with 0 log 0 = 0, for logits of -inf: slower, so only if needed."""
    return torch.compiler.is_compiling() or bool(total.isnan())


@objective
def svls(
    logits: Tensor,
    labels: Tensor,
    *,
    kernel_size: int = 3,
    sigma: float = 1.0,
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""Spatially varying label smoothing: labels blurred in space (Islam and Glocker 2021).

    Half of a voxel's target is its own label, half the labels of its neighbours with Gaussian
    weights. Labels are edge-replicated at the border. An ignored voxel adds nothing to its
    neighbours' targets, whose other labels are scaled up.

    >>> svls(torch.tensor([[[0.0, 0.0], [0.0, 0.0]]]), torch.tensor([[0, 1]]))
    tensor(0.6931)
    """
    if labels.ndim < 2:
        raise UserError(f"svls needs labels with a spatial axis; got shape {tuple(labels.shape)}")
    weight, n_counted = counted(labels, ignore_index, logits)
    target = _soft_targets(labels, logits.shape[1], weight, kernel_size, sigma)
    total = F.cross_entropy(logits, target, reduction="sum")
    if _may_be_nan(total):
        terms = F.log_softmax(logits, 1) * target
        total = -terms.masked_fill(target == 0, 0).sum()
    return total / n_counted


@torch.no_grad()
def _soft_targets(
    labels: Tensor, n_classes: int, weight: Tensor, kernel_size: int, sigma: float
) -> Tensor:
    """The soft targets (N, K, *S) of `svls`; zero at ignored voxels, whose weight is 0."""
    if kernel_size < 3 or kernel_size % 2 == 0:
        raise UserError(f"kernel_size must be an odd number from 3; got {kernel_size}")
    check_range("sigma", sigma, 0.3, 1e3)  # below, neighbours have no weight; above, all the same
    radius = kernel_size // 2
    bell = [math.exp(-step * step / (2 * sigma * sigma)) for step in range(-radius, radius + 1)]
    line = [value / sum(bell) for value in bell]

    kept = weight.unsqueeze(1)  # (N, 1, *S)
    one_hot = kept.new_zeros(labels.shape[0], n_classes, *labels.shape[1:])
    one_hot.scatter_(1, labels.unsqueeze(1).where(kept > 0, 0), kept)
    around = one_hot
    for axis in range(2, one_hot.ndim):
        around = _blurred(around, line, axis)
    # The kernel with its raised centre is not separable, but a point plus a Gaussian, which is.
    centre = line[radius] ** (one_hot.ndim - 2)
    target = around.sub_(one_hot, alpha=centre).mul_(0.5 / (1 - centre)).add_(one_hot, alpha=0.5)
    return target.mul_(kept / target.sum(1, keepdim=True).clamp_min(torch.finfo(kept.dtype).tiny))


def _blurred(x: Tensor, line: list[float], axis: int) -> Tensor:
    """Convolve along one axis with a symmetric kernel; slices at the border are repeated."""
    radius, size = len(line) // 2, x.shape[axis]
    first, last = x.narrow(axis, 0, 1), x.narrow(axis, size - 1, 1)
    out = x * line[radius]
    for step in range(1, radius + 1):  # in place: a padded copy costs half as much time again
        beyond, weight = min(step, size), line[radius + step]
        inner = size - beyond
        out.narrow(axis, beyond, inner).add_(x.narrow(axis, 0, inner), alpha=weight)
        out.narrow(axis, 0, beyond).add_(first, alpha=weight)
        out.narrow(axis, 0, inner).add_(x.narrow(axis, beyond, inner), alpha=weight)
        out.narrow(axis, inner, beyond).add_(last, alpha=weight)
    return out
