"""Is a contender over- or underconfident? The one rule, from voxels that no answer chooses.

Three numbers per contender, each with an interval over patients: confidence less accuracy `near`
predicted foreground (per voxel, mean over cases), the same over `all` voxels (per voxel of the
reference's foreground), and expected over true volume. The last two are ratios of sums over all
cases, those without foreground too. More certain background changes none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from segcal.compare.ranking.bootstrap import bootstrap_means
from segcal.compare.ranking.sums import ratios_of_sums
from segcal.compare.records import Results

VERDICTS = ("overconfident", "underconfident", "mixed", "calibrated", "undecided")

LEAST = {"near": 0.01, "all": 0.05, "ratio": 0.05}
"""The smallest deviation that matters: one point of confidence, and 5 % of the organ.

With many patients the interval of any smaller one excludes 0, but it changes no use of the
probabilities; seeds of one method differ by more."""

WIDEST = 5
"""An interval that reaches further than so many times `LEAST` does not show calibration."""


class Interval(NamedTuple):
    """A mean and its bootstrap interval over patients; NaN where there is none."""

    mean: float
    low: float
    high: float


class Confidence(NamedTuple):
    """What the probabilities of a contender are worth."""

    near: Interval  # confidence less accuracy, per voxel near predicted foreground
    all: Interval  # the same over all voxels, per voxel of the reference's foreground
    ratio: Interval  # expected over true volume of all foreground

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return verdict(self.near, self.all, self.ratio)


def verdict(near: Interval, everywhere: Interval, ratio: Interval) -> str:
    """Over- or underconfident, both, neither, or not decided by these patients.

    A deviation counts if its interval excludes no deviation and its mean is at least `LEAST`.
    `mixed`: the gaps near the organ and over all voxels have different signs, or neither counts
    but probabilities add up to another volume, so that what is too sure and too unsure cancels.
    `calibrated`: nothing counts, and the intervals are narrow enough to say so. Without any
    predicted foreground there is no `near`, and of confidence maps no `ratio`: the others decide.

    >>> verdict(Interval(0.04, 0.02, 0.06), Interval(0.2, 0.1, 0.3), Interval(0.9, 0.8, 1.0))
    'overconfident'
    >>> verdict(Interval(0.04, 0.02, 0.06), Interval(-2, -3, -1), Interval(3.0, 2.0, 4.0))
    'mixed'
    """
    excess = Interval(*(value - 1 for value in ratio))
    parts = {"near": near, "all": everywhere, "ratio": excess}
    signs = {name: _sign(part, LEAST[name]) for name, part in parts.items()}
    gaps = {signs["near"], signs["all"]} - {0}
    if gaps:
        return "mixed" if len(gaps) > 1 else "overconfident" if 1 in gaps else "underconfident"
    if signs["ratio"]:
        return "mixed"
    for name, part in parts.items():
        if name != "all" and math.isnan(part.mean):
            continue
        furthest = max(abs(part.low), abs(part.high))
        if math.isnan(furthest) or furthest > WIDEST * LEAST[name]:
            return "undecided"
    return "calibrated"


def _sign(part: Interval, least: float) -> int:
    if abs(part.mean) < least:
        return 0
    return 1 if part.low > 0 else -1 if part.high < 0 else 0


def confidences(
    results: Results, dataset: str, keys: Sequence[str], *, calibrator: str = ""
) -> dict[str, Confidence]:
    """What the probabilities of contenders are worth; those without these scores are left out."""
    condition = {"calibrator": calibrator}
    near = results.per_case(dataset, "confidence_gap", "all", voxels="near", **condition)
    parts = [bootstrap_means(near, results.patients(dataset))]
    for metric in ("confidence_gap", "volume_ratio"):
        parts.append(ratios_of_sums(results, dataset, metric, **condition))
    gaps = parts[1].dropna(subset="mean").index
    known = [key for key in keys if key in gaps and all(key in part.index for part in parts)]
    return {key: Confidence(*(Interval(*part.loc[key]) for part in parts)) for key in known}
