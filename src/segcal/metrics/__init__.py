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

from segcal.metrics.calibration import (
    N_BINS,
    Bins,
    Reliability,
    accuracy,
    ace,
    brier,
    cece,
    confidence_gap,
    ece,
    mce,
    nll,
    overconfidence,
    reliability,
    reliability_of_probs,
    underconfidence,
)
from segcal.metrics.masks import MASKS
from segcal.metrics.overlap import confusion, dice, dice_of_confusion, label_map
from segcal.metrics.surface import Surface, asd, assd, hd95, mean_distance, missed, surfaces

if TYPE_CHECKING:
    from segcal.metrics.modules import CalibrationScores, CalibrationScoresOfProbs, OverlapScores

__all__ = ["MASKS", "METRICS", "N_BINS", "Bins", "Metric", "Reliability", "Surface"]
__all__ += ["CalibrationScores", "CalibrationScoresOfProbs", "OverlapScores"]
__all__ += ["accuracy", "ace", "asd", "assd", "brier", "cece", "confidence_gap", "confusion"]
__all__ += ["dice", "dice_of_confusion", "ece", "hd95", "label_map", "mce", "mean_distance"]
__all__ += ["missed", "nll", "overconfidence", "reliability", "reliability_of_probs", "surfaces"]
__all__ += ["underconfidence"]


@dataclass(frozen=True)
class Metric:
    """A row of `METRICS`."""

    function: Callable[[Any], Tensor]
    label: str
    better: str  # "higher", "lower" or "zero"
    of: str  # what it takes: "bins" for one number; "confusion", "surfaces" for one per class
    help: str
    unit: str = ""

    @property
    def arrow(self) -> str:
        """Which way is better, as printed beside the label."""
        return {"higher": "↑", "lower": "↓", "zero": "→0"}[self.better]


_OVER, _UNDER = "part of ECE from overconfident bins", "part of ECE from underconfident bins"
_GAP = "mean confidence − accuracy"

METRICS: dict[str, Metric] = {
    "dice": Metric(dice_of_confusion, "DSC", "higher", "confusion", "Dice similarity"),
    "asd": Metric(asd, "ASD", "lower", "surfaces", "average distance to the reference", "mm"),
    "assd": Metric(assd, "ASSD", "lower", "surfaces", "average symmetric distance", "mm"),
    "hd95": Metric(hd95, "HD95", "lower", "surfaces", "95th percentile Hausdorff distance", "mm"),
    "missed": Metric(missed, "Missed", "lower", "surfaces", "objects missed or invented"),
    "ece": Metric(ece, "ECE", "lower", "bins", "expected calibration error"),
    "cece": Metric(cece, "CECE", "lower", "bins", "class-wise expected calibration error"),
    "mce": Metric(mce, "MCE", "lower", "bins", "maximum calibration error"),
    "ace": Metric(ace, "ACE", "lower", "bins", "average calibration error"),
    "overconfidence": Metric(overconfidence, "Overconfidence", "lower", "bins", _OVER),
    "underconfidence": Metric(underconfidence, "Underconfidence", "lower", "bins", _UNDER),
    "confidence_gap": Metric(confidence_gap, "Confidence gap", "zero", "bins", _GAP),
    "nll": Metric(nll, "NLL", "lower", "bins", "negative log-likelihood"),
    "brier": Metric(brier, "Brier", "lower", "bins", "Brier score"),
    "accuracy": Metric(accuracy, "Accuracy", "higher", "bins", "share of voxels that are right"),
}


def __getattr__(name: str) -> Any:
    # torchmetrics takes seconds to import: only for those who use it
    if name in ("CalibrationScores", "CalibrationScoresOfProbs", "OverlapScores"):
        return getattr(import_module("segcal.metrics.modules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
