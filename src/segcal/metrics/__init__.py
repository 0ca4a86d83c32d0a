"""Calibration, overlap and surface metrics: functions, the table `METRICS`, and thin torchmetrics
classes.

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

__all__ = [
    "MASKS",
    "METRICS",
    "N_BINS",
    "Bins",
    "CalibrationScores",
    "CalibrationScoresOfProbs",
    "Metric",
    "OverlapScores",
    "Reliability",
    "Surface",
]
__all__ += [
    "accuracy",
    "ace",
    "asd",
    "assd",
    "brier",
    "cece",
    "confidence_gap",
    "confusion",
    "dice",
]
__all__ += [
    "dice_of_confusion",
    "ece",
    "hd95",
    "label_map",
    "mce",
    "mean_distance",
    "missed",
    "nll",
    "overconfidence",
]
__all__ += ["reliability", "reliability_of_probs", "surfaces", "underconfidence"]


@dataclass(frozen=True)
class Metric:
    """A row of `METRICS`: a function, how it is printed, which way is better, and what the function
    takes.

    `of` is `bins` (a `Reliability`, giving one number), or `confusion` or `surfaces` (giving a
    number per foreground class)."""

    function: Callable[[Any], Tensor]
    label: str
    better: str  # "higher", "lower" or "zero"
    of: str
    unit: str = ""

    @property
    def arrow(self) -> str:
        """Which way is better, as printed beside the label."""
        return {"higher": "↑", "lower": "↓", "zero": "→0"}[self.better]


METRICS: dict[str, Metric] = {
    "dice": Metric(dice_of_confusion, "DSC", "higher", "confusion"),
    "asd": Metric(asd, "ASD", "lower", "surfaces", "mm"),
    "assd": Metric(assd, "ASSD", "lower", "surfaces", "mm"),
    "hd95": Metric(hd95, "HD95", "lower", "surfaces", "mm"),
    "missed": Metric(missed, "Missed", "lower", "surfaces"),
    "ece": Metric(ece, "ECE", "lower", "bins"),
    "cece": Metric(cece, "CECE", "lower", "bins"),
    "mce": Metric(mce, "MCE", "lower", "bins"),
    "ace": Metric(ace, "ACE", "lower", "bins"),
    "overconfidence": Metric(overconfidence, "Overconfidence", "lower", "bins"),
    "underconfidence": Metric(underconfidence, "Underconfidence", "lower", "bins"),
    "confidence_gap": Metric(confidence_gap, "Confidence gap", "zero", "bins"),
    "nll": Metric(nll, "NLL", "lower", "bins"),
    "brier": Metric(brier, "Brier", "lower", "bins"),
    "accuracy": Metric(accuracy, "Accuracy", "higher", "bins"),
}


def __getattr__(name: str) -> Any:
    if name in (
        "CalibrationScores",
        "CalibrationScoresOfProbs",
        "OverlapScores",
    ):  # torchmetrics takes seconds to import: only for those who use it
        return getattr(import_module("segcal.metrics.modules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
