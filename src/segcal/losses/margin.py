r"""The margin term of Murugesan et al. 2023, with its gradient in closed form.

With the logit distances $d_k = \max_j l_j - l_k$, the term is $\sum_k \max(0, d_k - m)$. Its gradient is $-[d_k > m]$ at
every class $k$, and the number of such classes at the winner. It is written out because autograd would keep half a dozen
copies of the logits for it; this way training with the margin needs less memory than plain cross-entropy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.losses.checks import counted, objective
from segcal.losses.gradient import with_gradient
from segcal.types import IGNORE, UserError, check_choice, check_range


def margin_penalty(
    logits: Tensor,
    labels: Tensor | None = None,
    *,
    margin: float = 10.0,
    penalty: str = "l1",
    class_reduction: str = "sum",
    ignore_index: int = IGNORE,
) -> Tensor:
    r"""The margin term alone, mean over voxels, to be added to any loss with a weight of your own (the paper's is 0.1).

    $$ \sum_k \max(0, \max_j l_j - l_k - m) \quad\text{or, with penalty="l2",}\quad \sum_k \max(0, \max_j l_j - l_k - m)^2 $$

    `labels` serve only to leave out the voxels marked `ignore_index`; without them every voxel counts.

    >>> margin_penalty(torch.tensor([[12.0, 0.0]]), margin=10.0)
    tensor(2.)
    """
    if labels is None:
        if logits.ndim < 2:
            raise UserError(f"logits must be (N, K, *S); got shape {tuple(logits.shape)}")
        labels = torch.zeros((), dtype=torch.long, device=logits.device).expand(logits.shape[0], *logits.shape[2:])
    settings = {"margin": margin, "penalty": penalty, "class_reduction": class_reduction, "ignore_index": ignore_index}
    return _margin_term(logits, labels, **settings)


@objective
def _margin_term(
    logits: Tensor, labels: Tensor, *, margin: float, penalty: str, class_reduction: str, ignore_index: int
) -> Tensor:
    _check_margin(margin, penalty, class_reduction)
    weight, n_counted = counted(labels, ignore_index, logits)
    value, grad = _margin_sum(logits.detach(), weight, margin, penalty, class_reduction)
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
    r"""Cross-entropy plus a penalty on logit distances beyond a margin (Murugesan et al. 2023, Eq. 7).

    $$ \mathrm{CE} + \lambda \sum_k \max(0, \max_j l_j - l_k - m) $$

    `class_reduction="sum"` is the paper's equation; `"mean"` is the authors' code, where lambda is K times weaker.
    `penalty="l2"` squares each excess after the hinge, so that distances under the margin stay free.

    >>> mbls(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(0.6931)
    """
    _check_margin(margin, penalty, class_reduction)
    check_range("weight", weight, 0)
    voxel_weight, n_counted = counted(labels, ignore_index, logits)
    ce, grad = _ce_sum(logits.detach(), labels, voxel_weight, ignore_index)
    excess, excess_grad = _margin_sum(logits.detach(), voxel_weight, margin, penalty, class_reduction)
    grad.add_(excess_grad, alpha=weight).div_(n_counted)
    return with_gradient(logits, (ce + weight * excess) / n_counted, grad)


def _ce_sum(logits: Tensor, labels: Tensor, weight: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy and its gradient, softmax - one-hot."""
    log_probs = F.log_softmax(logits, 1)
    value = F.nll_loss(log_probs, labels, ignore_index=ignore_index, reduction="sum")  # also checks the label range
    index = labels.where(weight > 0, 0).unsqueeze(1)  # (N, 1, *S)
    grad = log_probs.exp_().mul_(weight.unsqueeze(1))
    return value, grad.scatter_add_(1, index, -weight.unsqueeze(1))


def _margin_sum(
    logits: Tensor, weight: Tensor, margin: float, penalty: str, class_reduction: str
) -> tuple[Tensor, Tensor]:
    """Summed margin term and its gradient. Tied winners share theirs, as in the gradient of `amax`."""
    distance = logits.amax(1, keepdim=True) - logits
    winner = distance.sign().neg_().add_(1)  # 1.0 where the distance is 0: float masks are faster than bool ones
    excess = distance.sub_(margin).relu_().mul_(weight.unsqueeze(1))
    if penalty == "l1":
        value, slope = excess.sum(), excess.sign_()
    else:
        value, slope = torch.linalg.vector_norm(excess, dim=-1).square().sum(), excess.mul_(2)
    pull = slope.sum(1, keepdim=True) / winner.sum(1, keepdim=True)
    grad = slope.neg_().addcmul_(winner, pull)
    if class_reduction == "mean":
        return value / logits.shape[1], grad.div_(logits.shape[1])
    return value, grad


def _check_margin(margin: float, penalty: str, class_reduction: str) -> None:
    check_range("margin", margin, 0)
    check_choice("penalty", penalty, ("l1", "l2"))
    check_choice("class_reduction", class_reduction, ("sum", "mean"))
