r"""Temperature scaling: one temperature for all voxels, found by a safeguarded Newton iteration.

In $b = 1/T$ the mean NLL is convex, and its derivatives are closed-form: $E_s[l] - l_y$ and
$\mathrm{Var}_s[l]$, each averaged over voxels, with $s = \mathrm{softmax}(bl)$. One pass over the
data gives value, slope and curvature together."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segcal.calibrators.fitting import HIGHEST, LOWEST, Batches, Fitted, divided, mean_of, pieces
from segcal.types import check_range

MAX_PASSES = 60  # twice what bisection alone would take

AT_LOWEST = f"the temperature ran into its lower bound {LOWEST:g}"
AT_LOWEST += ": these logits separate the labels (almost) perfectly"
AT_HIGHEST = f"the temperature ran into its upper bound {HIGHEST:g}"
AT_HIGHEST += ": these logits say (almost) nothing about the labels"
FLAT = "the NLL does not depend on the temperature: logits are all equal, or certain and right"
UNFINISHED = f"the fit did not settle within {MAX_PASSES} passes"


def ts(batches: Batches, *, tolerance: float = 1e-6) -> Fitted:
    """Fit the temperature of least mean NLL, to a relative `tolerance`; keeps the label map.

    >>> logits, labels = torch.tensor([[8.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
    >>> fitted = ts(lambda: [(logits, labels, logits)])
    >>> fitted(logits).softmax(1)[0]
    tensor([0.7500, 0.2500])
    >>> round(fitted.facts()["temperature"], 3)
    7.282
    """
    check_range("tolerance", tolerance, 1e-12, 0.1)
    record = {"settings": {"tolerance": tolerance}, **best_temperature(batches, tolerance)}
    temperature = torch.tensor(record["temperature"], dtype=torch.float64)
    return Fitted("ts", scale, {"temperature": temperature}, record)


def scale(logits: Tensor, image: Tensor | None, *, temperature: Tensor) -> Tensor:
    """Logits over one temperature."""
    return divided(logits, temperature)


class Point(NamedTuple):
    """The mean NLL at some b, and its derivatives by b."""

    b: float
    nll: float
    slope: float
    curvature: float


def best_temperature(batches: Batches, tolerance: float) -> dict[str, Any]:
    """The facts of a fit with the temperature in [LOWEST, HIGHEST] of least mean NLL.

    A Newton step from T = 1 can end at a negative b, because a saturated softmax has a slope but no
    curvature; and on separable labels the steps are tiny. So steps are limited to a factor of 4
    until the minimum is bracketed; then the next point is the root of the cubic through the slopes
    and curvatures at both ends. A move that is not clearly shorter than the last one is replaced by
    the middle of the bracket, or by its end while that end is untried.
    """
    low, high = 1 / HIGHEST, 1 / LOWEST
    tried: dict[float, Point] = {}
    b, last_move = 1.0, math.inf
    while True:
        n_classes, sums = _sums(batches, b)
        n_voxels, means = mean_of(sums)
        here = tried[b] = Point(b, *means.tolist())
        low, high = (low, b) if here.slope > 0 else (b, high)
        warnings = _ending(here, tolerance, high / low - 1, len(tried))
        if warnings is not None:
            break
        if low in tried and high in tried:
            move, instead = _crossing(tried[low], tried[high]), math.sqrt(low * high)
        else:
            newton = -math.copysign(math.inf, here.slope)
            if here.curvature > 0:
                newton = b - here.slope / here.curvature
            move, instead = min(max(newton, b / 4), b * 4), low if here.slope > 0 else high
        if not low < move < high or abs(math.log(move / b)) > 0.7 * last_move:
            move = instead
        last_move, b = abs(math.log(move / b)), move
    facts = {"n_classes": n_classes, "n_voxels": n_voxels, "nll_before": tried[1.0].nll}
    facts |= {"nll_after": here.nll, "passes": len(tried), "temperature": 1 / b}
    return facts | {"warnings": warnings}


def _crossing(left: Point, right: Point) -> float:
    """Where the cubic through the slope by log b and its derivative at two points is 0."""
    width = math.log(right.b / left.b)
    f0, f1 = (p.b * p.slope for p in (left, right))
    d0, d1 = ((p.b**2 * p.curvature + p.b * p.slope) * width for p in (left, right))
    low, high = 0.0, 1.0
    for _ in range(50):  # bisection takes microseconds, a pass over the data far longer
        t = (low + high) / 2
        cubic = (1 - t) ** 2 * ((1 + 2 * t) * f0 + t * d0)
        cubic += t**2 * ((3 - 2 * t) * f1 + (t - 1) * d1)
        low, high = (t, high) if cubic < 0 else (low, t)
    return left.b * math.exp(width * low)


def _ending(here: Point, tolerance: float, width: float, passes: int) -> list[str] | None:
    """None to go on; else the search is over, with these warnings."""
    if here.b == 1 / LOWEST and here.slope <= 0:
        return [AT_LOWEST]
    if here.b == 1 / HIGHEST and here.slope >= 0:
        return [AT_HIGHEST]
    if here.slope == here.curvature == 0:
        return [FLAT]
    if abs(here.slope) <= tolerance * here.b * here.curvature or width <= tolerance:
        return []
    return [UNFINISHED] if passes == MAX_PASSES else None


def _sums(batches: Batches, b: float) -> tuple[int, Tensor]:
    """The number of classes; the sums of NLL and of its two derivatives, the number of voxels."""
    sums, n_classes = torch.zeros(4, dtype=torch.float64), 0
    for logits, truth, weight in pieces(batches):
        n_classes = logits.shape[1]
        # at most 0: no overflow, and little cancellation in the variance
        x = logits - logits.amax(1, keepdim=True)
        true = x.gather(1, truth)  # (n, 1, v), as the following
        e = (x * b).exp_()
        total = e.sum(1, keepdim=True)
        mean = e.mul_(x).sum(1, keepdim=True) / total
        square = e.mul_(x).sum(1, keepdim=True) / total
        nll, variance = total.log_().sub_(true, alpha=b), square.addcmul_(mean, mean, value=-1)
        terms = [nll * weight, (mean - true) * weight, variance * weight, weight]
        sums += torch.stack([term.sum(dtype=torch.float64) for term in terms]).cpu()
    return n_classes, sums
