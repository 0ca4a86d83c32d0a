"""From the bins, logs and settings of finished runs to figures; `None` where the runs hold nothing
for one.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from segcal.compare import Results
from segcal.figures import calibration, logits, series
from segcal.folders import read_rows
from segcal.losses import LOSSES
from segcal.types import UserError


def _labels(results: Results, dataset: str) -> dict[str, str]:
    return {c.key: c.label for c in results.main(dataset)}


def _bins(results: Results, dataset: str) -> dict[str, dict[str, Any]]:
    """The bins of the contenders that have some; the functions that draw say who is missing."""
    found = {}
    for c in results.main(dataset):
        with suppress(UserError):
            found[c.key] = results.bins(c)
    return found


def reliability(results: Results, dataset: str) -> Figure | None:
    """A diagram per contender, of all test cases thrown together."""
    bins = _bins(results, dataset)
    return (
        calibration.reliability({k: b["top"] for k, b in bins.items()}, _labels(results, dataset))
        if bins
        else None
    )


def reliability_per_class(results: Results, dataset: str) -> Figure | None:
    """A diagram per contender and foreground class."""
    bins = _bins(results, dataset)
    if not bins:
        return None
    # Among voxels of the foreground none is background: its frequency is 0 by definition, and its
    # diagram says nothing.
    parts = {k: {what: sums[1:] for what, sums in b["per_class"].items()} for k, b in bins.items()}
    return calibration.reliability_per_class(
        parts, _labels(results, dataset), results.data(dataset)["classes"]
    )


def risk_coverage(results: Results, dataset: str) -> Figure | None:
    """From the fine bins of confidence, or from the fifteen where an older evaluation left no fine
    ones.
    """
    bins = _bins(results, dataset)
    fine = {key: b.get("fine", b["top"]) for key, b in bins.items()}
    return series.risk_coverage(fine, _labels(results, dataset)) if bins else None


def mean_logits(results: Results, dataset: str) -> Figure | None:
    """CE beside MbLS; where one of them is missing, the first four contenders."""
    bins = _bins(results, dataset)
    wanted = [c.key for c in results.main(dataset) if c.method in ("ce", "mbls") and not c.variant]
    pair = {key: bins[key] for key in wanted if key in bins}
    shown = pair if len(pair) == 2 else dict(list(bins.items())[:4])
    if not shown:
        return None
    values = {
        k: np.where(b["voxels"][:, None] > 0, b["mean_logits"], np.nan) for k, b in shown.items()
    }
    return logits.mean_logits(
        values, _labels(results, dataset), next(iter(shown.values()))["classes"]
    )


def penalty_shape(results: Results, dataset: str) -> Figure | None:
    """With the margin that validation chose, or the default."""
    settings = next((c.setting for c in results.main(dataset) if c.method == "mbls"), "")
    chosen = settings.partition(" (")[0]  # where folds chose differently, what most of them did
    margin = dict(part.split("=") for part in chosen.split()).get(
        "margin", LOSSES["mbls"].settings["margin"]
    )
    return logits.penalty_shape(float(margin))


def learning_curves(results: Results, dataset: str) -> Figure | None:
    """From `log.csv` of the chosen runs."""
    logs = {}
    for c in results.main(dataset):
        tables = [
            pd.DataFrame(read_rows(Path(results.runs[run]["folder"]) / "log.csv")) for run in c.runs
        ]
        known = [t[["epoch", "val_dice", "val_ece"]].apply(pd.to_numeric) for t in tables if len(t)]
        if known:
            logs[c.key] = known
    return series.learning_curves(logs, _labels(results, dataset)) if logs else None
