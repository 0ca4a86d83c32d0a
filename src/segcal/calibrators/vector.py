r"""Vector scaling: a scale and a bias per class, $l'_k = w_k l_k + b_k$, by Newton's method.

The mean NLL is convex in the 2K numbers. With $r = s - \text{one-hot}(y)$ its gradient is $E[r_k
l_k]$, $E[r_k]$, and its Hessian is $E[(\delta_{jk} s_k - s_j s_k) \phi_j \phi_k]$ with $\phi_k =
(l_k, 1)$. A ridge towards $w = 1, b = 0$ makes the minimum unique, because a bias common to all
classes changes nothing, and finite, also for labels that are separable.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.calibrators.fitting import HIGHEST, Batches, Fitted, mean_of, pieces, widest
from segcal.calibrators.temperature import best_temperature
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


def vs(batches: Batches, *, ridge: float = 1e-6) -> Fitted:
    r"""Minimise the mean NLL $+ \frac\rho2 (\sum (w_k - 1)^2 + b_k^2)$; can change the label map.

    Starts from the best single temperature, so it is never worse on the data that it is fitted on,
    up to the ridge.

    >>> logits, labels = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])
    >>> vs(lambda: [(logits, labels, logits)])(logits).softmax(1)[0]
    tensor([0.7500, 0.2500])
    """
    check_range("ridge", ridge, 1e-12, 1)
    record = {"settings": {"ridge": ridge}, **best_temperature(batches, 1e-3)}
    ones = torch.ones(record["n_classes"], dtype=torch.float64)
    point, passes = _least(batches, ones / record.pop("temperature"), ridge)
    scale, bias = (part.clone() for part in point.theta.reshape(2, -1))
    record |= {"nll_after": point.nll, "passes": record["passes"] + passes}
    record |= {"scale": scale.tolist(), "bias": bias.tolist()}
    record["warnings"] = _warnings(point, record["warnings"], passes)
    return Fitted("vs", scale_classes, {"scale": scale, "bias": bias}, record)


def _least(batches: Batches, scale: Tensor, ridge: float) -> tuple[Point, int]:
    """Where the objective is least, searched from these scales; and the number of passes."""
    point = _at(batches, torch.cat([scale, torch.zeros_like(scale)]), ridge)
    passes, length = 1, 1.0
    while passes < MAX_PASSES:
        step = torch.linalg.solve(point.hess, -point.grad)
        gain = -(point.grad @ step).item()
        if gain / 2 <= DECREMENT:
            break
        there = _at(batches, point.theta + length * step, ridge)
        passes += 1
        if there.value <= point.value - 0.1 * length * gain:
            point, length = there, 1.0
        else:
            length /= 4
    return point, passes


def scale_classes(logits: Tensor, image: Tensor | None, *, scale: Tensor, bias: Tensor) -> Tensor:
    """Each class's logits times its scale plus its bias."""
    shape = (-1, *(1,) * (logits.ndim - 2))  # (K, 1, ...)
    limit = torch.finfo(logits.dtype)
    out = logits.to(widest(logits)) * scale.reshape(shape) + bias.reshape(shape)
    return out.clamp_(limit.min, limit.max).to(logits.dtype)


def _at(batches: Batches, theta: Tensor, ridge: float) -> Point:
    """One pass in float64: value, gradient and Hessian together."""
    n_classes = len(theta) // 2
    sizes = [1, n_classes, 2 * n_classes, (2 * n_classes) ** 2]
    sums = torch.zeros(sum(sizes) + 1, dtype=torch.float64)
    for logits, truth, weight in pieces(batches):
        sums += _sums(logits.double(), truth, weight.double(), theta.to(logits.device)).cpu()
    nll, share, grad, hess = mean_of(sums)[1].split(sizes)
    away = theta.clone()
    away[:n_classes] -= 1
    value = nll + ridge / 2 * away.square().sum()
    eye = torch.eye(2 * n_classes, dtype=torch.float64)
    grad, hess = grad + ridge * away, hess.reshape(eye.shape) + ridge * eye
    return Point(theta, nll.item(), value.item(), grad, hess, share)


def _sums(x: Tensor, truth: Tensor, weight: Tensor, theta: Tensor) -> Tensor:
    """NLL, voxels per label, gradient (2K,), Hessian (2K, 2K), number of voxels: in one vector."""
    scale, bias = theta.reshape(2, -1, 1)  # (K, 1) each
    log_probs = F.log_softmax(x * scale + bias, 1)
    probs = log_probs.exp() * weight  # (n, K, v)
    one_hot = torch.zeros_like(probs).scatter_(1, truth, weight)
    rest = probs - one_hot
    # (n, 2K, v): their products are the part s_j s_k of the Hessian
    features = torch.cat([probs * x, probs], 1)
    factors = (x * x, x, torch.ones_like(x))
    square, cross, ones = ((probs * factor).sum((0, 2)).diag() for factor in factors)
    diagonals = torch.cat([torch.cat([square, cross], 1), torch.cat([cross, ones], 1)])
    hess = diagonals - torch.bmm(features, features.transpose(1, 2)).sum(0)
    nll = -(log_probs * one_hot).sum()
    grad = torch.cat([(rest * x).sum((0, 2)), rest.sum((0, 2))])
    return torch.cat([nll[None], one_hot.sum((0, 2)), grad, hess.flatten(), weight.sum()[None]])


def _warnings(point: Point, of_temperature: list[str], passes: int) -> list[str]:
    warnings = [f"with a single temperature, {text}" for text in of_temperature]
    if passes >= MAX_PASSES:
        warnings.append(f"the fit did not settle within {MAX_PASSES} passes")
    for k, (scale, bias) in enumerate(zip(*point.theta.reshape(2, -1).tolist(), strict=True)):
        values, only = f"scale {scale:.3g} and bias {bias:.3g}", "only the ridge holds"
        if point.share[k] == 0:
            warnings.append(f"class {k} has no voxel here: {only} its {values}")
        elif not (0 < scale <= HIGHEST and abs(bias) <= HIGHEST):
            warnings.append(f"class {k} ran away to {values}: {only} it")
    return warnings
