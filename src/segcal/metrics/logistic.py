r"""Calibration slope and intercept: logistic recalibration of each class's probability.

$\mathrm{logit} P(y = k) = a + b \, \mathrm{logit}(s_k)$, fitted to the voxels of each bin at its
mean probability. A perfect network
has slope 1 and intercept 0. A slope below 1: probabilities are too extreme (Van Calster et al.,
Journal of Clinical Epidemiology 2016). With fine bins it is within 3 % of a fit of all voxels,
but where a network is three times too sharp 0.39 instead of 0.33: all log-odds beyond 9 share a
bin. The intercept is fitted together with the slope. Scores are
of voxels near the prediction: far away, where all share one bin, its mean would decide the slope.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.metrics.statistics import Reliability

Floats = NDArray[np.float64]

MAX_STEPS = 100
STEEPEST = 50.0  # beyond this, labels are separable and the slope is infinite
NONE = (math.nan, math.nan)
ENDS = 1e-12  # mean probabilities are kept this far from 0 and 1


def slope(bins: Reliability) -> Tensor:
    """The calibration slope, mean over the foreground classes that have one."""
    return class_slope(bins).nanmean()


def intercept(bins: Reliability) -> Tensor:
    """The calibration intercept, mean over the foreground classes that have one."""
    return class_intercept(bins).nanmean()


def class_slope(bins: Reliability) -> Tensor:
    """The slope of each foreground class (K-1,); NaN where all or no voxels are of the class."""
    return _fits(bins)[:, 1]


def class_intercept(bins: Reliability) -> Tensor:
    """The intercept of each foreground class (K-1,)."""
    return _fits(bins)[:, 0]


@lru_cache(maxsize=1)  # slope and intercept are asked for one after the other
def _fits(bins: Reliability) -> Tensor:
    """Intercept and slope of each foreground class (K-1, 2)."""
    classes = bins.classes
    parts = (part[1:].cpu().numpy() for part in (classes.count, classes.conf, classes.hit))
    fits = [_fit(*of_class) for of_class in zip(*parts, strict=True)]
    return torch.tensor(fits, dtype=torch.float64)


def _fit(count: Floats, conf: Floats, hit: Floats) -> tuple[float, float]:
    """Maximum likelihood by Newton's method; a step that makes it worse is halved.

    The two equations are solved by hand: the result then has the same digits every time.
    """
    used = count > 0
    count, conf, hit = count[used], conf[used], hit[used]
    n_hits = hit.sum()
    if len(count) < 2 or n_hits <= 0 or n_hits >= count.sum():
        return NONE
    mean = np.clip(conf / count, ENDS, 1 - ENDS)
    x = np.log(mean) - np.log1p(-mean)
    a, b = 0.0, 1.0
    value = _loss(a + b * x, count, hit)
    for _ in range(MAX_STEPS):
        prob = 1 / (1 + np.exp(-(a + b * x).clip(-700, 700)))
        rest, weight = count * prob - hit, count * prob * (1 - prob)
        to_a, to_b = float(rest.sum()), float((rest * x).sum())
        aa, ab, bb = float(weight.sum()), float((weight * x).sum()), float((weight * x * x).sum())
        determinant = aa * bb - ab * ab
        if determinant <= 1e-12 * aa * bb:  # one probability only: no slope
            return NONE
        step_a, step_b = bb * to_a - ab * to_b, aa * to_b - ab * to_a
        step_a, step_b = step_a / determinant, step_b / determinant
        if to_a * step_a + to_b * step_b < 1e-10:
            return a, b
        length = 1.0
        while _loss(a - length * step_a + (b - length * step_b) * x, count, hit) >= value:
            length /= 2
            if length < 1e-6:
                return a, b
        a, b = a - length * step_a, b - length * step_b
        value = _loss(a + b * x, count, hit)
        if abs(b) > STEEPEST:
            return NONE
    return a, b


def _loss(log_odds: Floats, count: Floats, hit: Floats) -> float:
    return float((count * np.logaddexp(0, log_odds) - hit * log_odds).sum())
