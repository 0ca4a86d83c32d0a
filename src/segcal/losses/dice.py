"""Soft Dice loss, alone and with cross-entropy."""

from __future__ import annotations

from torch import Tensor

from segcal.losses.checks import counted, objective
from segcal.losses.terms import ce_gradient, dice_term, softmax_term, with_gradient
from segcal.types import IGNORE


@objective
def soft_dice(
    logits: Tensor, labels: Tensor, *, include_background: bool = False, ignore_index: int = IGNORE
) -> Tensor:
    r"""Soft Dice loss, $1 - \frac{2\sum s_k y_k + \epsilon}{\sum s_k + \sum y_k + \epsilon}$, mean
    over items and classes.

    The same as MONAI's `DiceLoss(softmax=True, to_onehot_y=True, include_background=False)`.

    >>> import torch
    >>> soft_dice(torch.tensor([[[50.0, 0.0], [0.0, 50.0]]]), torch.tensor([[0, 1]]))
    tensor(0.)
    """
    weight, _ = counted(labels, ignore_index, logits)
    softmax = softmax_term(logits.detach(), labels, weight, ignore_index)
    return with_gradient(logits, *dice_term(softmax, include_background=include_background))


@objective
def ce_dice(
    logits: Tensor, labels: Tensor, *, include_background: bool = False, ignore_index: int = IGNORE
) -> Tensor:
    """Cross-entropy plus soft Dice loss (Milletari et al. 2016).

    >>> import torch
    >>> ce_dice(torch.tensor([[[50.0, 0.0], [0.0, 50.0]]]), torch.tensor([[0, 1]]))
    tensor(0.)
    """
    weight, n_counted = counted(labels, ignore_index, logits)
    softmax = softmax_term(logits.detach(), labels, weight, ignore_index)
    dice, grad = dice_term(softmax, include_background=include_background)
    grad.add_(ce_gradient(softmax).div_(n_counted))
    return with_gradient(logits, softmax.nll / n_counted + dice, grad)
