"""Calibration, overlap and surface metrics: functions, the table `METRICS`, torchmetrics classes.

>>> import torch
>>> from segcal import metrics
>>> logits = torch.tensor([[[0.0, 0.0], [9.0, 9.0]]])  # two classes, two voxels
>>> labels = torch.tensor([[1, 1]])
>>> round(metrics.ece(metrics.reliability(logits, labels)).item(), 4)
0.0001
>>> metrics.dice(metrics.label_map(logits), labels, n_classes=2)
tensor([1.], dtype=torch.float64)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor

from segcal.metrics.by_distance import BANDS, Bands, bands
from segcal.metrics.calibration import (
    accuracy,
    ace,
    brier,
    brier_calibration,
    brier_refinement,
    cece,
    cece_perfect,
    class_cece,
    class_misplaced,
    class_misplaced_perfect,
    class_volume_ratio,
    confidence_gap,
    ece,
    ece_perfect,
    mce,
    misplaced,
    misplaced_perfect,
    nll,
    overconfidence,
    per_foreground,
    underconfidence,
    volume_ratio,
)
from segcal.metrics.edges import N_BINS, N_FINE
from segcal.metrics.logistic import class_intercept, class_slope, intercept, slope
from segcal.metrics.masks import MASKS
from segcal.metrics.overlap import confusion, dice, dice_of_confusion, label_map
from segcal.metrics.sets import SETS, reliability_of_sets
from segcal.metrics.statistics import (
    Bins,
    Reliability,
    reliability,
    reliability_of_probs,
)
from segcal.metrics.surface import Surface, asd, assd, hd95, mean_distance, missed, surfaces

if TYPE_CHECKING:
    from segcal.metrics.modules import CalibrationScores, CalibrationScoresOfProbs, OverlapScores

__all__ = ["BANDS", "MASKS", "METRICS", "N_BINS", "N_FINE", "SETS", "Bands", "Bins", "Metric"]
__all__ += ["CalibrationScores", "CalibrationScoresOfProbs", "OverlapScores"]
__all__ += ["Reliability", "Surface", "accuracy", "ace", "asd", "assd", "bands", "brier"]
__all__ += ["brier_calibration", "brier_refinement", "cece", "cece_perfect", "confidence_gap"]
__all__ += ["confusion", "dice", "dice_of_confusion", "ece", "ece_perfect", "hd95", "intercept"]
__all__ += ["label_map", "mce", "mean_distance", "misplaced", "misplaced_perfect"]
__all__ += ["missed", "nll", "overconfidence", "per_foreground", "reliability"]
__all__ += ["reliability_of_probs", "reliability_of_sets", "slope", "surfaces", "underconfidence"]
__all__ += ["volume_ratio"]


@dataclass(frozen=True)
class Metric:
    """A row of `METRICS`."""

    function: Callable[[Any], Tensor]
    label: str
    better: str  # "higher", "lower", "zero" or "one"
    of: str  # what it takes: "bins" for one number; "confusion", "surfaces" for one per class
    help: str
    unit: str = ""
    voxels: tuple[str, ...] = ()  # of "bins": the sets it is computed over, the default one first
    per_foreground: bool = False  # over all voxels, it is divided by the reference's foreground
    per_class: Callable[[Any], Tensor] | None = None  # of "bins": (K,), or (K-1,) of foreground
    fine: bool = False  # of "bins": it takes fine bins

    @property
    def arrow(self) -> str:
        """Which way is better, as printed beside the label."""
        return {"higher": "↑", "lower": "↓", "zero": "→0", "one": "→1"}[self.better]

    def over(self, voxels: str, bins: Reliability) -> Tensor:
        """Its value from the statistics of a set of voxels."""
        value = self.function(bins)
        return per_foreground(value, bins) if voxels == "all" and self.per_foreground else value


_UNBIASED, _EVERY = ("all", "near"), ("all", "near", "reference")


def _calibration(
    function: Callable[[Any], Tensor],
    label: str,
    better: str,
    help: str,
    voxels: tuple[str, ...],
    **options: Any,
) -> Metric:
    return Metric(function, label, better, "bins", help, voxels=voxels, **options)


def _proper(
    function: Callable[[Any], Tensor], label: str, help: str, voxels: tuple[str, ...] = _EVERY
) -> Metric:
    return _calibration(function, label, "lower", help, voxels, per_foreground=True)


_PAPER = ("reference", "near")
_ALL: dict[str, Any] = {"voxels": ("all",)}

METRICS: dict[str, Metric] = {
    "dice": Metric(dice_of_confusion, "DSC", "higher", "confusion", "Dice similarity"),
    "asd": Metric(
        asd,
        "ASD",
        "lower",
        "surfaces",
        "average distance from predicted to reference surface",
        "mm",
    ),
    "assd": Metric(
        assd, "ASSD", "lower", "surfaces", "average distance between both surfaces", "mm"
    ),
    "hd95": Metric(hd95, "HD95", "lower", "surfaces", "95th percentile Hausdorff distance", "mm"),
    "missed": Metric(missed, "Missed", "lower", "surfaces", "objects missed or invented"),
    "misplaced": _calibration(
        ece,
        "Misplaced",
        "lower",
        "misplaced confidence: probability in the wrong place, as a share of the true foreground",
        **_ALL,
        per_foreground=True,
        per_class=class_misplaced,
    ),
    "misplaced_perfect": _calibration(
        misplaced_perfect,
        "Misplaced if perfect",
        "lower",
        "the misplaced confidence that a perfect network has by chance",
        **_ALL,
        per_class=class_misplaced_perfect,
    ),
    "nll": _proper(
        nll, "NLL", "negative log-likelihood: how surprising the reference is to the network"
    ),
    "brier": _proper(brier, "Brier", "Brier score: squared error of the probabilities"),
    "brier_calibration": _proper(
        brier_calibration,
        "Brier calibration",
        "part of the Brier score from wrong probabilities",
        _UNBIASED,
    ),
    "brier_refinement": _proper(
        brier_refinement,
        "Brier refinement",
        "what right probabilities would leave of it",
        _UNBIASED,
    ),
    "volume_ratio": _calibration(
        volume_ratio,
        "E/O",
        "one",
        "expected over true volume; above 1: the probabilities add up to too much",
        **_ALL,
        per_class=class_volume_ratio,
    ),
    "slope": _calibration(
        slope,
        "Slope",
        "one",
        "calibration slope; below 1: probabilities are too extreme",
        ("near",),
        per_class=class_slope,
        fine=True,
    ),
    "intercept": _calibration(
        intercept,
        "Intercept",
        "zero",
        "calibration intercept; below 0: foreground is expected too often",
        ("near",),
        per_class=class_intercept,
        fine=True,
    ),
    "confidence_gap": _calibration(
        confidence_gap,
        "Confidence gap",
        "zero",
        "mean confidence − accuracy; above 0: overconfident",
        _EVERY,
        per_foreground=True,
    ),
    "overconfidence": _proper(
        overconfidence, "Overconfidence", "part of the error from overconfident bins"
    ),
    "underconfidence": _proper(
        underconfidence, "Underconfidence", "part of the error from underconfident bins"
    ),
    "ece": _calibration(
        ece, "ECE", "lower", "expected calibration error: confidence against accuracy", _PAPER
    ),
    "cece": _calibration(
        cece,
        "CECE",
        "lower",
        "class-wise ECE: of every class's probability, mean over classes",
        _PAPER,
        per_class=class_cece,
    ),
    "mce": _calibration(
        mce, "MCE", "lower", "maximum calibration error: the largest gap of a bin", _PAPER
    ),
    "ace": _calibration(
        ace, "ACE", "lower", "average calibration error: mean gap over bins", _PAPER
    ),
    "accuracy": _calibration(
        accuracy, "Accuracy", "higher", "share of voxels that are right", _PAPER
    ),
    "ece_perfect": _calibration(
        ece_perfect,
        "ECE if perfect",
        "lower",
        "what ECE over reference voxels would be if all probabilities were right",
        **_ALL,
    ),
    "cece_perfect": _calibration(
        cece_perfect,
        "CECE if perfect",
        "lower",
        "what CECE over reference voxels would be if all probabilities were right",
        **_ALL,
    ),
}


def __getattr__(name: str) -> Any:
    # torchmetrics takes seconds to import: only for those who use it
    if name in ("CalibrationScores", "CalibrationScoresOfProbs", "OverlapScores"):
        return getattr(import_module("segcal.metrics.modules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
