"""Margin-based label smoothing (Murugesan et al. 2023): the margin term alone, with cross-entropy,
and with Dice too.

The margin term comes first in each function: its temporary copies are gone before the softmax needs
room."""

from __future__ import annotations

import torch
from torch import Tensor

from segcal.losses.checks import counted, objective
from segcal.losses.terms import ce_gradient, dice_term, margin_term, softmax_term, with_gradient
from segcal.types import IGNORE, UserError, check_arrays, check_labels, check_range


def margin_penalty(
    logits: Tensor,
    labels: Tensor | None = None,
    *,
    margin: float = 10.0,
    penalty: str = "l1",
    class_reduction: str = "sum",
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""The margin term alone, mean over voxels, to be added to any loss with a weight of your own
    (the paper's is 0.1).

    $$ \sum_k \max(0, \max_j l_j - l_k - m) \quad\text{or, with penalty="l2",}\quad \sum_k \max(0,
    \max_j l_j - l_k - m)^2 $$

    `labels` serve only to leave out the voxels marked `ignore_index`; without them every voxel
    counts.

    >>> margin_penalty(torch.tensor([[12.0, 0.0]]), margin=10.0)
    tensor(2.)
    """
    if labels is None:
        ignore_index = IGNORE  # what stands in for the labels is not to be ignored
        if logits.ndim < 2:
            raise UserError(
                f"logits must be (N, K, *S) with K >= 2 classes; got shape {tuple(logits.shape)}"
            )
        labels = torch.zeros((), dtype=torch.long, device=logits.device).expand(
            logits.shape[0], *logits.shape[2:]
        )
    elif (
        not torch.compiler.is_compiling()
    ):  # no look-up here would find a label that is out of range
        check_arrays(logits, labels)
        check_labels(labels, logits.shape[1], ignore_index)
    return _margin_penalty(
        logits,
        labels,
        margin=margin,
        penalty=penalty,
        class_reduction=class_reduction,
        ignore_index=ignore_index,
    )


@objective
def _margin_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float,
    penalty: str,
    class_reduction: str,
    ignore_index: int,
) -> Tensor:
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    value, grad = margin_term(
        logits.detach(),
        voxel_weight,
        margin=margin,
        penalty=penalty,
        class_reduction=class_reduction,
    )
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
    r"""Cross-entropy plus a penalty on logit distances beyond a margin (Murugesan et al. 2023, Eq.
    7).

    $$ \mathrm{CE} + \lambda \sum_k \max(0, \max_j l_j - l_k - m) $$

    `class_reduction="sum"` is the paper's equation; `"mean"` is the authors' code, where lambda is
    K times weaker. `penalty="l2"` squares each excess after the hinge, so that distances under the
    margin stay free.

    >>> mbls(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(0.6931)
    """
    check_range("weight", weight, 0)
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    excess, grad = margin_term(
        logits.detach(),
        voxel_weight,
        margin=margin,
        penalty=penalty,
        class_reduction=class_reduction,
    )
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
    """Cross-entropy, soft Dice loss and the margin term; Dice over the same classes as in
    `ce_dice`.

    >>> mbls_dice(torch.tensor([[[8.0, 0.0], [0.0, 8.0]]]), torch.tensor([[0, 1]])) < 0.01
    tensor(True)
    """
    check_range("weight", weight, 0)
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    excess, grad = margin_term(
        logits.detach(),
        voxel_weight,
        margin=margin,
        penalty=penalty,
        class_reduction=class_reduction,
    )
    softmax = softmax_term(logits.detach(), labels, voxel_weight, ignore_index)
    dice, dice_grad = dice_term(softmax, include_background=include_background)
    grad.mul_(weight).add_(ce_gradient(softmax)).div_(n_counted).add_(dice_grad)
    return with_gradient(logits, (softmax.nll + weight * excess) / n_counted + dice, grad)
