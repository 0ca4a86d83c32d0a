"""Losses that add up terms: soft Dice and margin-based label smoothing (Murugesan et al. 2023).

Each term has its gradient in closed form. Autograd would keep half a dozen copies of the logits for
the margin and as many for Dice. Here one softmax and one gradient serve all terms of an objective,
so that training with the margin needs about the memory of cross-entropy alone. Terms take detached
tensors, sum over the voxels that count, and work in place on what they allocated themselves. The
margin term comes first: its temporary copies are freed before the softmax needs memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.losses.checks import counted, objective
from segcal.types import IGNORE, UserError, check_arrays, check_choice, check_labels, check_range
from segcal.voxels import grown

SMOOTH = 1e-5  # of Dice, as in MONAI; a class absent from item and prediction then costs nothing


@objective
def soft_dice(
    logits: Tensor, labels: Tensor, *, include_background: bool = False, ignore_index: int = IGNORE
) -> Tensor:
    r"""$1 - \frac{2\sum s_k y_k + \epsilon}{\sum s_k + \sum y_k + \epsilon}$, mean over items and
    classes: MONAI's `DiceLoss(softmax=True, to_onehot_y=True, include_background=False)`.

    >>> soft_dice(torch.tensor([[[50.0, 0.0], [0.0, 50.0]]]), torch.tensor([[0, 1]]))
    tensor(0.)
    """
    weight, _ = counted(labels, ignore_index, logits)
    softmax = _softmax_term(logits.detach(), labels, weight, ignore_index)
    return _with_gradient(logits, *_dice_term(softmax, include_background))


@objective
def ce_dice(
    logits: Tensor, labels: Tensor, *, include_background: bool = False, ignore_index: int = IGNORE
) -> Tensor:
    """Cross-entropy plus soft Dice loss (Milletari et al. 2016).

    >>> ce_dice(torch.tensor([[[50.0, 0.0], [0.0, 50.0]]]), torch.tensor([[0, 1]]))
    tensor(0.)
    """
    weight, n_counted = counted(labels, ignore_index, logits)
    softmax = _softmax_term(logits.detach(), labels, weight, ignore_index)
    dice, grad = _dice_term(softmax, include_background)
    grad.add_(_ce_gradient(softmax).div_(n_counted))
    return _with_gradient(logits, softmax.nll / n_counted + dice, grad)


def margin_penalty(
    logits: Tensor,
    labels: Tensor | None = None,
    *,
    margin: float = 10.0,
    penalty: str = "l1",
    class_reduction: str = "sum",
    where: str = "all",
    reach: int = 3,
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""The margin term alone, mean over voxels, to be added to any loss (the paper: 0.1 times).

    $$ \sum_k e_k \quad\text{or, with penalty="l2",}\quad \sum_k e_k^2, \quad\text{where}\quad
    e_k = \max(0, \max_j l_j - l_k - m) $$

    `labels` tell which voxels have the label `ignore_index` and are left out, and, with
    `where="near"`, which are penalised (see `mbls`).

    >>> margin_penalty(torch.tensor([[12.0, 0.0]]), margin=10.0)
    tensor(2.)
    """
    if labels is None:
        if where == "near":
            raise UserError('where="near" is near labelled foreground; give margin_penalty labels')
        ignore_index = IGNORE  # the zeros below are not to be ignored
        zero = torch.zeros((), dtype=torch.long, device=logits.device)
        labels = zero.expand(logits.shape[0], *logits.shape[2:])
    elif not torch.compiler.is_compiling():  # no look-up below fails on a label out of range
        check_arrays(logits, labels)
        check_labels(labels, logits.shape[1], ignore_index)
    settings: dict[str, Any] = {"where": where, "reach": reach, "ignore_index": ignore_index}
    settings |= {"margin": margin, "penalty": penalty, "class_reduction": class_reduction}
    return _margin_penalty(logits, labels, **settings)


@objective
def _margin_penalty(
    logits: Tensor, labels: Tensor, *, where: str, reach: int, ignore_index: int, **settings: Any
) -> Tensor:
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    penalised = _penalised(labels, voxel_weight, where, reach, ignore_index)
    value, grad = _margin_term(logits.detach(), penalised, **settings)
    return _with_gradient(logits, value / n_counted, grad.div_(n_counted))


@objective
def mbls(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    penalty: str = "l1",
    class_reduction: str = "sum",
    where: str = "all",
    reach: int = 3,
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""Cross-entropy plus a penalty on logit distances beyond a margin (Murugesan et al., Eq. 7).

    $$ \mathrm{CE} + \lambda \sum_k \max(0, \max_j l_j - l_k - m) $$

    `class_reduction="sum"` is the paper's equation; `"mean"` is the authors' code, where lambda is
    K times weaker. `penalty="l2"` squares each excess after the hinge, so that distances under the
    margin stay free.

    `where="near"` penalises only voxels within `reach` steps to face neighbours of labelled
    foreground, over all spatial axes of an item, so that the background may be as sure as it
    deserves. The penalty is still divided by the number of all counted voxels: each voxel near
    keeps its weight.

    >>> mbls(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(0.6931)
    """
    check_range("weight", weight, 0)
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    penalised = _penalised(labels, voxel_weight, where, reach, ignore_index)
    excess, grad = _margin_term(logits.detach(), penalised, margin, penalty, class_reduction)
    softmax = _softmax_term(logits.detach(), labels, voxel_weight, ignore_index)
    grad.mul_(weight).add_(_ce_gradient(softmax)).div_(n_counted)
    return _with_gradient(logits, (softmax.nll + weight * excess) / n_counted, grad)


@objective
def mbls_dice(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    penalty: str = "l1",
    class_reduction: str = "sum",
    where: str = "all",
    reach: int = 3,
    include_background: bool = False,
    ignore_index: int = IGNORE,
) -> Tensor:
    """Cross-entropy, soft Dice loss and the margin term; Dice over the same classes as `ce_dice`.

    >>> mbls_dice(torch.tensor([[[8.0, 0.0], [0.0, 8.0]]]), torch.tensor([[0, 1]])) < 0.01
    tensor(True)
    """
    check_range("weight", weight, 0)
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    penalised = _penalised(labels, voxel_weight, where, reach, ignore_index)
    excess, grad = _margin_term(logits.detach(), penalised, margin, penalty, class_reduction)
    softmax = _softmax_term(logits.detach(), labels, voxel_weight, ignore_index)
    dice, dice_grad = _dice_term(softmax, include_background)
    grad.mul_(weight).add_(_ce_gradient(softmax)).div_(n_counted).add_(dice_grad)
    return _with_gradient(logits, (softmax.nll + weight * excess) / n_counted + dice, grad)


class _Softmax(NamedTuple):
    probs: Tensor  # (N, K, *S), 0 at ignored voxels
    nll: Tensor  # summed over voxels
    truth: Tensor  # (N, 1, *S): labels; any class at ignored voxels, where the weight is 0
    weight: Tensor  # (N, 1, *S): 1.0 where a voxel counts, else 0.0


def _softmax_term(logits: Tensor, labels: Tensor, weight: Tensor, ignore_index: int) -> _Softmax:
    """Probabilities and summed cross-entropy; fails on labels that are out of range."""
    log_probs = F.log_softmax(logits, 1)
    nll = F.nll_loss(log_probs, labels, ignore_index=ignore_index, reduction="sum")
    weight, truth = weight.unsqueeze(1), labels.clamp(0, logits.shape[1] - 1).unsqueeze(1)
    return _Softmax(log_probs.exp_().mul_(weight), nll, truth, weight)


def _ce_gradient(softmax: _Softmax) -> Tensor:
    """Softmax - one-hot. Overwrites `softmax.probs`: use those first."""
    return softmax.probs.scatter_add_(1, softmax.truth, -softmax.weight)


def _penalised(labels: Tensor, weight: Tensor, where: str, reach: int, ignore_index: int) -> Tensor:
    """The weights (N, *S) of the voxels in the margin term: 0.0 also where it does not reach."""
    check_choice("where", where, ("all", "near"))
    if not isinstance(reach, int) or isinstance(reach, bool) or reach < 0:
        raise UserError(f"reach must be a whole number of voxels from 0; got {reach!r}")
    if where == "all":
        return weight
    foreground = labels.gt(0).logical_and_(labels.ne(ignore_index))
    return weight * grown(foreground, reach)


def _margin_term(
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


def _dice_term(softmax: _Softmax, include_background: bool) -> tuple[Tensor, Tensor]:
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


def _with_gradient(logits: Tensor, value: Tensor, grad: Tensor) -> Tensor:
    """`value` as a function of `logits` whose derivative is `grad`."""
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
