r"""The NLL as a function of the temperature, from one pass over the data, and where it is least.

In $b = 1/T$ the NLL of a voxel is convex, with the derivatives $E_s[l] - l_y$ and
$\mathrm{Var}_s[l]$, $s = \mathrm{softmax}(bl)$. One pass sums it, with both derivatives, at 25
temperatures from `LOWEST` to `HIGHEST`, for each patient and each ring around predicted foreground.
All that follows needs no data any more: temperatures of any union of rings, the NLL with them, and
intervals over patients. A search would read the data about five times for every set of voxels.
Between the points is a polynomial of degree 5 in $\log b$ with the same values and derivatives: its
minimum is within 2e-5 of the true temperature, and within 1e-4 where nearly all is certain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import stdtrit
from torch import Tensor

from segcal.calibrators.fitting import (
    HIGHEST,
    LOWEST,
    NO_VOXELS,
    NOT_FINITE,
    Batches,
    cases,
    counted,
    within,
)
from segcal.types import UserError

GRID = np.linspace(-math.log(HIGHEST), -math.log(LOWEST), 25)  # log b; T = 1 in the middle
STEP = GRID[1] - GRID[0]
LEVEL = 0.95  # of all intervals
SWEEPS = 100

AT_LOWEST = f"the temperature ran into its lower bound {LOWEST:g}"
AT_LOWEST += ": these logits separate the labels (almost) perfectly"
AT_HIGHEST = f"the temperature ran into its upper bound {HIGHEST:g}"
AT_HIGHEST += ": these logits say (almost) nothing about the labels"
FLAT = "the NLL does not depend on the temperature: there are no such voxels, or logits are all"
FLAT += " equal, or certain and right"

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curves:
    """Sums over the voxels of each patient and ring, a ring for each radius and one beyond."""

    n_classes: int
    n_voxels: Array  # (P, R)
    sums: Array  # (P, R, 3, G): at each point of `GRID`, NLL and its derivatives by log b


def curves(batches: Batches, radii: Sequence[int] = ()) -> Curves:
    """One pass over the data; ring i is within `radii[i]` of predicted foreground, not of i - 1."""
    n_classes, n_rings = 0, len(radii) + 1
    sums: dict[object, Tensor] = {}
    for case in cases(batches):
        n_classes = case.log_probs.shape[1]
        ring = torch.zeros_like(case.foreground, dtype=torch.uint8)
        for radius in radii:
            ring += ~within(case.foreground, radius)
        empty = torch.zeros(n_rings, 3 * len(GRID) + 1, dtype=torch.float64)
        of_patient = sums.setdefault(case.patient, empty)
        for i in range(n_rings):
            for x, y in counted(case, ring == i):
                of_patient[i, 0] += len(y)
                of_patient[i, 1:] += along_grid(x, y).flatten()
    table = np.stack([of_patient.numpy() for of_patient in sums.values()]) if sums else np.zeros(1)
    if not table[..., 0].any():
        raise UserError(NO_VOXELS)
    if not np.isfinite(table).all():
        raise UserError(NOT_FINITE)
    return Curves(n_classes, table[..., 0], table[..., 1:].reshape(len(table), n_rings, 3, -1))


def along_grid(x: Tensor, y: Tensor) -> Tensor:
    """NLL and its derivatives by log b (3, G), summed over voxels (K, v) with labels (v)."""
    highest, winner = x.max(0, keepdim=True)
    x = x - highest  # at most 0: no overflow, and little cancellation in the variance
    true = x.gather(0, y[None]).sum(dtype=torch.float64)
    # All classes but the winner, whose term is exactly 1: its place is taken by the last class.
    others, place = x[:-1].clone(), winner.clamp_max(len(x) - 2)
    others.scatter_(0, place, torch.where(winner < len(x) - 1, x[-1:], others.gather(0, place)))
    rows = []
    for b in np.exp(GRID).tolist():
        e = (others * b).exp_()
        rest = e.sum(0)
        first = e.mul_(others).sum(0)
        second = e.mul_(others).sum(0)
        mean, square = first.div_(1 + rest), second.div_(1 + rest)
        variance = square.addcmul_(mean, mean, value=-1)
        nll, mean_, var = (v.sum(dtype=torch.float64) for v in (rest.log1p_(), mean, variance))
        slope = b * (mean_ - true)
        rows.append(torch.stack([nll - b * true, slope, b * b * var + slope]))
    return torch.stack(rows, 1).cpu()


def at(sums: Array, log_b: Array) -> Array:
    """Sums (P, R, 3, G) between the points of the grid, for each ring at its `log_b`: (P, R, 3)."""
    i = np.clip(((log_b - GRID[0]) / STEP).astype(int), 0, len(GRID) - 2)
    t = ((log_b - GRID[i]) / STEP)[:, None]
    scale = STEP ** np.arange(3)
    ends = [np.take_along_axis(sums, (i + k)[None, :, None, None], 3)[..., 0] for k in (0, 1)]
    (f, d, s), (f1, d1, s1) = (np.moveaxis(end * scale, -1, 0)[..., None] for end in ends)
    # what is missing at the right end of the parabola through the left one
    f1, d1, s1 = f1 - f - d - s / 2, d1 - d - s, s1 - s
    last = (10 * f1 - 4 * d1 + s1 / 2, 7 * d1 - 15 * f1 - s1, 6 * f1 - 3 * d1 + s1 / 2)
    c = np.concatenate((f, d, s / 2, *last), -1)  # (P, R, 6): the coefficients
    n = np.arange(6)
    powers = t**n
    value, slope = c * powers, (c * n)[..., 1:] * powers[:, :-1]
    curvature = (c * n * (n - 1))[..., 2:] * powers[:, :-2]
    return np.stack([part.sum(-1) for part in (value, slope, curvature)], -1) / scale


class Solution(NamedTuple):
    """Temperatures of least NLL."""

    temperatures: Array  # (M,)
    nll: float
    nll_before: float
    n_voxels: int
    influence: Array  # (P, M): of each patient on the log of each temperature
    problems: tuple[str | None, ...]  # why a temperature is not determined

    def interval(self, m: int = 0) -> list[float] | None:
        """The interval of a temperature over patients; None if there is none."""
        return interval_of(self.influence[:, m], float(self.temperatures[m]))


def solve(curves: Curves, weights: Array, free: Sequence[bool] | None = None) -> Solution:
    """The temperatures of least NLL, where $b$ of a ring is the mean of all $1/T$ by `weights`.

    `weights` is (R, M); rings without a weight do not count. The NLL is convex in all b together:
    the minimum along one after the other, again and again, is the minimum. Temperatures that are
    not `free` stay 1.
    """
    rings = weights.any(1)
    w, sums = weights[rings], curves.sums[:, rings]
    total = sums.sum(0, keepdims=True)
    b = np.ones(w.shape[1])
    chosen = [m for m in range(len(b)) if free is None or free[m]]
    problems: list[str | None] = [None] * len(b)
    for _ in range(SWEEPS):
        before = b.copy()
        for m in chosen:
            b[m], problems[m] = _least(total, w, b, m)
        if len(chosen) == 1 or np.abs(np.log(b / before)).max() < 1e-10:
            break
    n = int(curves.n_voxels[:, rings].sum())
    nll, start = (at(total, np.log(w @ x))[..., 0].sum() / n for x in (b, np.ones_like(b)))
    settled = [m for m in chosen if problems[m] is None]
    influence = _influence(sums, w, b, settled)
    return Solution(1 / b, float(nll), float(start), n, influence, tuple(problems))


def _least(total: Array, w: Array, b: Array, m: int) -> tuple[float, str | None]:
    """The b of number m at which the NLL is least, the others held; what is wrong with it."""

    def slope(log_b: float) -> float:
        there = b.copy()
        there[m] = math.exp(log_b)
        of_rings = w @ there
        return float(at(total, np.log(of_rings))[0, :, 1] / of_rings @ w[:, m])

    low, high = slope(GRID[0]), slope(GRID[-1])
    if low == high == 0:
        return 1.0, FLAT
    if high <= 0:
        return 1 / LOWEST, AT_LOWEST
    if low >= 0:
        return 1 / HIGHEST, AT_HIGHEST
    return math.exp(brentq(slope, GRID[0], GRID[-1], xtol=1e-13, rtol=1e-13)), None


def _influence(sums: Array, w: Array, b: Array, settled: list[int]) -> Array:
    """By how much each patient moves the log of each temperature; NaN where it is not settled.

    With the gradient $g_p$ of the patient's NLL and the Hessian $H$ of all: $H^{-1} g_p / b$."""
    of_rings = w @ b
    parts = at(sums, np.log(of_rings))
    gradients = (parts[..., 1] / of_rings) @ w  # (P, M)
    curvature = (parts[..., 2] - parts[..., 1]).sum(0) / of_rings**2
    hessian = (w.T * curvature) @ w
    out = np.full(gradients.shape, np.nan)
    square = np.ix_(settled, settled)
    out[:, settled] = np.linalg.solve(hessian[square], gradients[:, settled].T).T / b[settled]
    return out


def half_width(influence: Array) -> float:
    """Half of the interval of a sum of influences: a t interval over patients, NaN for one."""
    n = len(influence)
    if n < 2:
        return math.nan
    error = math.sqrt(n / (n - 1) * float((influence**2).sum()))
    return float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error


def interval_of(influence: Array, temperature: float) -> list[float] | None:
    """The interval of a temperature, symmetric in its logarithm (a sandwich estimate)."""
    factor = math.exp(half_width(influence))
    return None if math.isnan(factor) else [temperature / factor, temperature * factor]
