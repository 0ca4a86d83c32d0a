"""`scores.csv`: one row per value, the one truth for numbers. Its columns stand here alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.folders.files import existing, read_rows, write_rows
from segcal.folders.runs import SCORES, only_weights
from segcal.types import UserError

COLUMNS: dict[str, type] = {
    "run": str,
    "dataset": str,
    "network": str,
    "method": str,
    "setting": str,  # printed text; the settings themselves are in run.json
    "weights": str,  # best, last, nll
    "split": str,  # train, val, test
    "corruption": str,  # gaussian_noise:0.03; empty for clean images
    "calibrator": str,  # ts, ts2, lts, vs; empty for none
    # Of a calibration score: `all` voxels, `near` (within 5 steps of predicted foreground), the
    # foreground of the `reference`, or `empty`, all voxels of a case without foreground.
    "voxels": str,
    "case": str,  # `pooled`: all voxels of the split together
    "class": str,  # `mean` over foreground classes, `all` of them, or `<name> (region)`
    "metric": str,  # a key of METRICS, or one of VOLUMES
    "value": float,  # nan where there is none
}
"""The columns of `scores.csv` in `SCORES_VERSION`, in their order."""

SCORES_VERSION = 2
VERSION_1 = [name for name in COLUMNS if name not in ("weights", "voxels")]
"""Version 1 had one set of weights a run; calibration scores were of reference voxels."""

CALIBRATION_1 = (
    *("ece", "cece", "mce", "ace", "overconfidence", "underconfidence", "confidence_gap"),
    *("accuracy", "nll", "brier"),
)
"""The metrics of version 1 that were computed over reference voxels."""


def read_scores(root: Path) -> list[dict[str, Any]]:
    """The rows of a run's `scores.csv`, in today's format; none if there is no such file."""
    rows: list[dict[str, Any]] = list(read_rows(root / SCORES, VERSION_1))
    version = SCORES_VERSION if not rows or set(COLUMNS) <= set(rows[0]) else 1
    if version == 1:
        weights = only_weights(root)
        for row in rows:
            row["weights"] = weights
            row["voxels"] = "reference" if row["metric"] in CALIBRATION_1 else ""
    try:
        for row in rows:
            row["value"] = float(row["value"])
    except ValueError:
        problem = f"{existing(root / SCORES)} holds values that are not numbers"
        raise UserError(f"{problem}; run segcal evaluate --again on the run") from None
    return rows


def write_scores(root: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a run's `scores.csv`: a header, and rows that have every column."""
    write_rows(root / SCORES, list(COLUMNS), rows)
