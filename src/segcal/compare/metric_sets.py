"""The sets of metrics that order contenders and lead tables, sentences and figures."""

from __future__ import annotations

from dataclasses import dataclass

from segcal.metrics import METRICS
from segcal.types import check_choice

PERFECT = {"ece": "ece_perfect", "cece": "cece_perfect"}
"""Beside a metric over reference voxels: what a perfectly calibrated network would have."""


@dataclass(frozen=True)
class MetricSet:
    """A row of `METRIC_SETS`; of its metrics follow ranks, tests, tiles and advice."""

    key: str
    lead: tuple[str, ...]  # the metrics that order; each over all classes
    decide: tuple[str, ...]  # of these, what decides beside Dice, and whether a calibrator helps
    voxels: str  # the set that reliability figures and other calibration scores are of
    of_figures: str  # the calibration metric that figures show against Dice

    @property
    def distance(self) -> str:
        """Its surface distance."""
        return next(m for m in self.lead if METRICS[m].of == "surfaces")

    def voxels_of(self, metric: str) -> str:
        """The set of voxels that a calibration score is read over; empty for overlap."""
        known = METRICS[metric].voxels
        if self.key == "paper" and "reference" in known:
            return "reference"
        return known[0] if known else ""


_MAIN, _PAPER = ("dice", "assd", "misplaced", "nll"), ("dice", "asd", "ece", "cece")
METRIC_SETS = {
    "main": MetricSet("main", _MAIN, ("misplaced", "nll"), "near", "misplaced"),
    "paper": MetricSet("paper", _PAPER, ("ece",), "reference", "ece"),
}
"""`main`: nothing depends on voxels that the answer chooses. `paper`: as the paper ranks."""

OF_CONFIDENCE = MetricSet("main", _MAIN[:3], ("misplaced",), "near", "misplaced")
"""`main` without the NLL, for confidence maps: only the predicted class has a probability."""


def metric_set(key: str) -> MetricSet:
    """A row of `METRIC_SETS`."""
    check_choice("metrics", key, tuple(METRIC_SETS))
    return METRIC_SETS[key]
