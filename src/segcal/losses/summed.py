"""Losses that add up terms: soft Dice and margin-based label smoothing (Murugesan et al. 2023).

Each function computes the margin term first: its temporary copies are freed before the softmax
needs memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segcal.losses.checks import counted, objective
from segcal.losses.terms import ce_gradient, dice_term, margin_term, softmax_term, with_gradient
from segcal.types import IGNORE, UserError, check_arrays, check_labels, check_range


@objective
def soft_dice(
    logits: Tensor, labels: Tensor, *, include_background: bool = False, ignore_index: int = IGNORE
) -> Tensor:
    r"""Soft Dice loss, $1 - \frac{2\sum s_k y_k + \epsilon}{\sum s_k + \sum y_k + \epsilon}$, mean
    over items and classes.

    The same as MONAI's `DiceLoss(softmax=True, to_onehot_y=True, include_background=False)`.

    >>> soft_dice(torch.tensor([[[50.0, 0.0], [0.0, 50.0]]]), torch.tensor([[0, 1]]))
    tensor(0.)
    """
    weight, _ = counted(labels, ignore_index, logits)
    softmax = softmax_term(logits.detach(), labels, weight, ignore_index)
    return with_gradient(logits, *dice_term(softmax, include_background))


@objective
def ce_dice(
    logits: Tensor, labels: Tensor, *, include_background: bool = False, ignore_index: int = IGNORE
) -> Tensor:
    """Cross-entropy plus soft Dice loss (Milletari et al. 2016).

    >>> ce_dice(torch.tensor([[[50.0, 0.0], [0.0, 50.0]]]), torch.tensor([[0, 1]]))
    tensor(0.)
    """
    weight, n_counted = counted(labels, ignore_index, logits)
    softmax = softmax_term(logits.detach(), labels, weight, ignore_index)
    dice, grad = dice_term(softmax, include_background)
    grad.add_(ce_gradient(softmax).div_(n_counted))
    return with_gradient(logits, softmax.nll / n_counted + dice, grad)


def margin_penalty(
    logits: Tensor,
    labels: Tensor | None = None,
    *,
    margin: float = 10.0,
    penalty: str = "l1",
    class_reduction: str = "sum",
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""The margin term alone, mean over voxels, to be added to any loss (the paper: 0.1 times).

    $$ \sum_k e_k \quad\text{or, with penalty="l2",}\quad \sum_k e_k^2, \quad\text{where}\quad
    e_k = \max(0, \max_j l_j - l_k - m) $$

    `labels` only tell which voxels have the label `ignore_index` and are left out.

    >>> margin_penalty(torch.tensor([[12.0, 0.0]]), margin=10.0)
    tensor(2.)
    """
    if labels is None:
        if logits.ndim < 2:
            shape = tuple(logits.shape)
            raise UserError(f"logits must be (N, K, *S) with K >= 2 classes; got shape {shape}")
        ignore_index = IGNORE  # the zeros below are not to be ignored
        zero = torch.zeros((), dtype=torch.long, device=logits.device)
        labels = zero.expand(logits.shape[0], *logits.shape[2:])
    elif not torch.compiler.is_compiling():  # no look-up below fails on a label out of range
        check_arrays(logits, labels)
        check_labels(labels, logits.shape[1], ignore_index)
    settings = {"margin": margin, "penalty": penalty, "class_reduction": class_reduction}
    return _margin_penalty(logits, labels, ignore_index=ignore_index, **settings)


@objective
def _margin_penalty(
    logits: Tensor, labels: Tensor, *, ignore_index: int, **settings: Any
) -> Tensor:
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    value, grad = margin_term(logits.detach(), voxel_weight, **settings)
    return with_gradient(logits, value / n_counted, grad.div_(n_counted))


@objective
def mbls(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    penalty: str = "l1",
    class_reduction: str = "sum",
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""Cross-entropy plus a penalty on logit distances beyond a margin (Murugesan et al., Eq. 7).

    $$ \mathrm{CE} + \lambda \sum_k \max(0, \max_j l_j - l_k - m) $$

    `class_reduction="sum"` is the paper's equation; `"mean"` is the authors' code, where lambda is
    K times weaker. `penalty="l2"` squares each excess after the hinge, so that distances under the
    margin stay free.

    >>> mbls(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(0.6931)
    """
    check_range("weight", weight, 0)
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    excess, grad = margin_term(logits.detach(), voxel_weight, margin, penalty, class_reduction)
    softmax = softmax_term(logits.detach(), labels, voxel_weight, ignore_index)
    grad.mul_(weight).add_(ce_gradient(softmax)).div_(n_counted)
    return with_gradient(logits, (softmax.nll + weight * excess) / n_counted, grad)


@objective
def mbls_dice(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    penalty: str = "l1",
    class_reduction: str = "sum",
    include_background: bool = False,
    ignore_index: int = IGNORE,
) -> Tensor:
    """Cross-entropy, soft Dice loss and the margin term; Dice over the same classes as `ce_dice`.

    >>> mbls_dice(torch.tensor([[[8.0, 0.0], [0.0, 8.0]]]), torch.tensor([[0, 1]])) < 0.01
    tensor(True)
    """
    check_range("weight", weight, 0)
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    excess, grad = margin_term(logits.detach(), voxel_weight, margin, penalty, class_reduction)
    softmax = softmax_term(logits.detach(), labels, voxel_weight, ignore_index)
    dice, dice_grad = dice_term(softmax, include_background)
    grad.mul_(weight).add_(ce_gradient(softmax)).div_(n_counted).add_(dice_grad)
    return with_gradient(logits, (softmax.nll + weight * excess) / n_counted + dice, grad)
