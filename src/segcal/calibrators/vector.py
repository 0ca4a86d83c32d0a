r"""Vector scaling: a scale and a bias per class, $l'_k = w_k l_k + b_k$, by Newton's method.

$l$ are log-probabilities. The mean NLL is convex in the 2K numbers. With $r = s -
\text{one-hot}(y)$ its gradient is $E[r_k l_k]$, $E[r_k]$, and its Hessian is $E[(\delta_{jk} s_k -
s_j s_k) \phi_j \phi_k]$ with $\phi_k = (l_k, 1)$. A ridge towards $w = 1, b = 0$ makes the minimum
unique, because a bias common to all classes changes nothing, and finite, also for labels that are
separable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.calibrators.fitting import HIGHEST, Batches, Fitted, cases, counted, mean_of
from segcal.calibrators.temperature import both
from segcal.types import check_range

MAX_PASSES = 60
DECREMENT = 1e-13  # the fit ends when a full Newton step promises less than this in NLL


class Point(NamedTuple):
    """The objective, mean NLL plus ridge, at some parameters (2K,): scales, then biases."""

    theta: Tensor
    nll: float
    value: float
    grad: Tensor  # (2K,)
    hess: Tensor  # (2K, 2K)
    share: Tensor  # (K,): of the voxels, by label


def vs(batches: Batches, *, voxels: str = "all", ridge: float = 1e-6) -> Fitted:
    r"""Minimise the mean NLL $+ \frac\rho2 (\sum (w_k - 1)^2 + b_k^2)$; can change the label map.

    Starts from the best single temperature, so it is never worse on the data that it is fitted on,
    up to the ridge.

    >>> logits, labels = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])
    >>> vs(lambda: [(logits, labels, logits)])(logits).softmax(1)[0]
    tensor([0.7500, 0.2500])
    """
    check_range("ridge", ridge, 1e-12, 1)
    n_classes, start, _ = both(batches, voxels)
    ones = torch.ones(n_classes, dtype=torch.float64)
    point, passes = _least(batches, voxels, ones / float(start.temperatures[0]), ridge)
    scale, bias = (part.clone() for part in point.theta.reshape(2, -1))
    record: dict[str, Any] = {"settings": {"voxels": voxels, "ridge": ridge}, "voxels": voxels}
    record |= {"n_classes": n_classes, "n_voxels": start.n_voxels, "passes": 1 + passes}
    record |= {"nll_before": start.nll_before, "nll_after": point.nll}
    record |= {"scale": scale.tolist(), "bias": bias.tolist()}
    record["warnings"] = _warnings(point, start.problems[0], passes)
    return Fitted("vs", scale_classes, {"scale": scale, "bias": bias}, record, keeps_labels=False)


def _least(batches: Batches, voxels: str, scale: Tensor, ridge: float) -> tuple[Point, int]:
    """Where the objective is least, searched from these scales; and the number of passes."""
    point = _at(batches, voxels, torch.cat([scale, torch.zeros_like(scale)]), ridge)
    passes, length = 1, 1.0
    while passes < MAX_PASSES:
        step = torch.linalg.solve(point.hess, -point.grad)
        gain = -(point.grad @ step).item()
        if gain / 2 <= DECREMENT:
            break
        there = _at(batches, voxels, point.theta + length * step, ridge)
        passes += 1
        if there.value <= point.value - 0.1 * length * gain:
            point, length = there, 1.0
        else:
            length /= 4
    return point, passes


def scale_classes(
    log_probs: Tensor, image: Tensor | None, *, scale: Tensor, bias: Tensor
) -> Tensor:
    """Each class's log-probabilities times its scale plus its bias."""
    shape = (-1, *(1,) * (log_probs.ndim - 2))  # (K, 1, ...)
    limit = torch.finfo(torch.float16)  # the result may become as narrow as the logits
    return (log_probs * scale.reshape(shape) + bias.reshape(shape)).clamp_(limit.min, limit.max)


def _at(batches: Batches, voxels: str, theta: Tensor, ridge: float) -> Point:
    """One pass in float64: value, gradient and Hessian together."""
    n_classes = len(theta) // 2
    sizes = [1, n_classes, 2 * n_classes, (2 * n_classes) ** 2]
    sums = torch.zeros(sum(sizes) + 1, dtype=torch.float64)
    for case in cases(batches, voxels):
        for x, y in counted(case):
            sums += _sums(x.double(), y, theta.to(x.device)).cpu()
    nll, share, grad, hess = mean_of(sums, voxels)[1].split(sizes)
    away = theta.clone()
    away[:n_classes] -= 1
    value = nll + ridge / 2 * away.square().sum()
    eye = torch.eye(2 * n_classes, dtype=torch.float64)
    grad, hess = grad + ridge * away, hess.reshape(eye.shape) + ridge * eye
    return Point(theta, nll.item(), value.item(), grad, hess, share)


def _sums(x: Tensor, y: Tensor, theta: Tensor) -> Tensor:
    """NLL, voxels per label, gradient (2K,), Hessian (2K, 2K), number of voxels: in one vector.

    Of voxels x (K, v) with labels y (v)."""
    scale, bias = theta.reshape(2, -1, 1)  # (K, 1) each
    log_probs = F.log_softmax(x * scale + bias, 0)
    probs = log_probs.exp()
    one_hot = torch.zeros_like(probs).scatter_(0, y[None], 1.0)
    rest = probs - one_hot
    # (2K, v): their products are the part s_j s_k of the Hessian
    features = torch.cat([probs * x, probs])
    square, cross, ones = ((probs * factor).sum(1).diag() for factor in (x * x, x, 1))
    diagonals = torch.cat([torch.cat([square, cross], 1), torch.cat([cross, ones], 1)])
    hess = diagonals - features @ features.T
    nll = -(log_probs * one_hot).sum()
    grad = torch.cat([(rest * x).sum(1), rest.sum(1)])
    n_voxels = x.new_tensor([len(y)])
    return torch.cat([nll[None], one_hot.sum(1), grad, hess.flatten(), n_voxels])


def _warnings(point: Point, of_temperature: str | None, passes: int) -> list[str]:
    warnings = [f"with a single temperature, {of_temperature}"] if of_temperature else []
    if passes >= MAX_PASSES:
        warnings.append(f"the fit did not settle within {MAX_PASSES} passes")
    for k, (scale, bias) in enumerate(zip(*point.theta.reshape(2, -1).tolist(), strict=True)):
        values, only = f"scale {scale:.3g} and bias {bias:.3g}", "only the ridge holds"
        if point.share[k] == 0:
            warnings.append(f"class {k} has no voxel here: {only} its {values}")
        elif not (0 < scale <= HIGHEST and abs(bias) <= HIGHEST):
            warnings.append(f"class {k} ran away to {values}: {only} it")
    return warnings
