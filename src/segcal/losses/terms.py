r"""Terms of the training objectives, each with its gradient in closed form.

Autograd would keep half a dozen copies of the logits for the margin and as many for Dice. Here one
softmax and one gradient serve all terms of an objective, so that training with the margin needs
about the memory of cross-entropy alone. Everything takes detached tensors, sums over the voxels
that count, and works in place on what it allocated itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.types import check_choice, check_range

SMOOTH = 1e-5  # of Dice, as in MONAI; a class absent from item and prediction then costs nothing


class Softmax(NamedTuple):
    """What cross-entropy and Dice both start from."""

    probs: Tensor  # (N, K, *S), 0 at ignored voxels
    nll: Tensor  # summed over voxels
    truth: Tensor  # (N, 1, *S): labels; any class at ignored voxels, where the weight is 0
    weight: Tensor  # (N, 1, *S): 1.0 where a voxel counts, else 0.0


def softmax_term(logits: Tensor, labels: Tensor, weight: Tensor, ignore_index: int) -> Softmax:
    """Probabilities and summed cross-entropy; fails on labels that are out of range."""
    log_probs = F.log_softmax(logits, 1)
    nll = F.nll_loss(log_probs, labels, ignore_index=ignore_index, reduction="sum")
    weight, truth = weight.unsqueeze(1), labels.clamp(0, logits.shape[1] - 1).unsqueeze(1)
    return Softmax(log_probs.exp_().mul_(weight), nll, truth, weight)


def ce_gradient(softmax: Softmax) -> Tensor:
    """Softmax - one-hot. Overwrites `softmax.probs`: use those first."""
    return softmax.probs.scatter_add_(1, softmax.truth, -softmax.weight)


def margin_term(
    logits: Tensor, weight: Tensor, margin: float, penalty: str, class_reduction: str
) -> tuple[Tensor, Tensor]:
    """The margin term and its gradient: -1 at each class beyond the margin, and the number of these
    at the winner. Tied winners share, as in the gradient of `amax`.
    """
    check_range("margin", margin, 0)
    check_choice("penalty", penalty, ("l1", "l2"))
    check_choice("class_reduction", class_reduction, ("sum", "mean"))
    distance = logits.amax(1, keepdim=True) - logits
    # 1.0 where the distance is 0: float masks are faster than bool ones
    winner = distance.sign().neg_().add_(1)
    excess = distance.sub_(margin).relu_().mul_(weight.unsqueeze(1))
    if penalty == "l1":
        value, slope = excess.sum(), excess.sign_()
    else:
        # Norms over the classes first: one float32 sum of squares over all voxels would drift.
        value, slope = torch.linalg.vector_norm(excess, dim=1).square().sum(), excess.mul_(2)
    pull = slope.sum(1, keepdim=True) / winner.sum(1, keepdim=True)
    grad = slope.neg_().addcmul_(winner, pull)
    if class_reduction == "mean":
        return value / logits.shape[1], grad.div_(logits.shape[1])
    return value, grad


def dice_term(softmax: Softmax, include_background: bool) -> tuple[Tensor, Tensor]:
    """Soft Dice loss, mean over items and classes, and its gradient.

    With c_k the slope of the loss at s_k, the slope at logit k is s_k (c_k - sum_j s_j c_j). Here
    c_k is one constant per item and class, `rest`, plus another, `true`, at the class's voxels.
    """
    n_items, n_classes = softmax.probs.shape[:2]
    probs = softmax.probs.reshape(n_items, n_classes, -1)  # (N, K, V)
    index = softmax.truth.reshape(n_items, -1)  # (N, V)
    hit = probs.gather(1, index.unsqueeze(1)).squeeze(1)  # (N, V): probability of the true class
    overlap = _sum_by_class(hit, index, n_classes)  # (N, K)
    n_true = _sum_by_class(softmax.weight.reshape(n_items, -1), index, n_classes)
    size = probs.sum(2) + n_true + SMOOTH
    dice = (2 * overlap + SMOOTH) / size

    counts = torch.ones_like(dice)
    counts[:, : 0 if include_background else 1] = 0
    counts /= counts.sum()
    rest, true = counts * dice / size, counts * -2 / size
    pull = true.gather(1, index) * hit  # (N, V)
    mean_slope = torch.bmm(rest.unsqueeze(1), probs) + pull.unsqueeze(1)  # (N, 1, V)
    grad = (rest.unsqueeze(2) - mean_slope).mul_(probs)
    grad.scatter_add_(1, index.unsqueeze(1), pull.unsqueeze(1))
    return 1 - (counts * dice).sum(), grad.reshape(softmax.probs.shape)


def _sum_by_class(values: Tensor, index: Tensor, n_classes: int) -> Tensor:
    """Sum (N, V) values by class into (N, K); a float32 sum of 2^21 voxels is percents off."""
    # Apple's GPUs have no float64.
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    total = torch.zeros(len(values), n_classes, dtype=wide, device=values.device)
    return total.scatter_add_(1, index, values.to(wide)).to(values.dtype)


def with_gradient(logits: Tensor, value: Tensor, grad: Tensor) -> Tensor:
    """`value` as a function of `logits` whose derivative is `grad`."""
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return value
    return cast(Tensor, _WithGradient.apply(logits, value, grad))


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            raise RuntimeError("this loss has no second derivative: leave create_graph out")
        (grad,) = ctx.saved_tensors
        return grad * outer, None, None
