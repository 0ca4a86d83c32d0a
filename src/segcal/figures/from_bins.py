"""From the bins, logs and settings of finished runs to figures; `None` where there are none."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from segcal.compare import Results
from segcal.figures import calibration, logits, series
from segcal.figures.looks import _values_of, looks_of
from segcal.folders import read_rows
from segcal.losses import LOSSES
from segcal.types import UserError


def _bins(results: Results, dataset: str, kind: str) -> dict[str, Any]:
    """One kind of bins of the contenders that have it; the drawing functions name the others."""
    bins = {}
    for c in results.main(dataset):
        with suppress(UserError):
            stored = results.bins(c)
            # An older evaluation stored no fine bins.
            bins[c.key] = stored["top"] if kind == "fine" and "fine" not in stored else stored[kind]
    return bins


def reliability(results: Results, dataset: str) -> Figure | None:
    """A diagram per contender, over all test cases, pooled."""
    bins = _bins(results, dataset, "top")
    return calibration.reliability(bins, looks_of(results.main(dataset))) if bins else None


def reliability_per_class(results: Results, dataset: str) -> Figure | None:
    """A diagram per contender and foreground class."""
    # The voxels are foreground, so the frequency of the background is 0 by definition.
    parts = {}
    for key, bins in _bins(results, dataset, "per_class").items():
        parts[key] = {name: sums[1:] for name, sums in bins.items()}
    if not parts:
        return None
    looks, classes = looks_of(results.main(dataset)), results.data(dataset)["classes"]
    return calibration.reliability_per_class(parts, looks, classes)


def risk_coverage(results: Results, dataset: str) -> Figure | None:
    """From the fine bins of confidence, or from the fifteen."""
    bins = _bins(results, dataset, "fine")
    return series.risk_coverage(bins, looks_of(results.main(dataset))) if bins else None


def mean_logits(results: Results, dataset: str) -> Figure | None:
    """CE and MbLS; if one of them is missing, the first four contenders."""
    means, voxels = (_bins(results, dataset, kind) for kind in ("mean_logits", "voxels"))
    pair = []
    for c in results.main(dataset):
        if c.method in ("ce", "mbls") and not c.variant and c.key in means:
            pair.append(c.key)
    values = {}
    for key in pair if len(pair) == 2 else list(means)[:4]:
        values[key] = np.where(voxels[key][:, None] > 0, means[key], np.nan)
    if not values:
        return None
    return logits.mean_logits(values, looks_of(results.main(dataset)), results.classes(dataset))


def penalty_shape(results: Results, dataset: str) -> Figure | None:
    """With the margin that validation chose, or the default."""
    margin = LOSSES["mbls"].settings["margin"]
    for c in results.main(dataset):
        if c.method == "mbls":
            return logits.penalty_shape(dict(_values_of(c.setting)).get("margin", margin))
    return logits.penalty_shape(margin)


def learning_curves(results: Results, dataset: str) -> Figure | None:
    """From `log.csv` of the chosen runs; runs without one are left out."""
    logs = {}
    for c in results.main(dataset):
        tables = []
        for run in c.runs:
            rows = read_rows(Path(results.runs[run]["folder"]) / "log.csv")
            if rows:
                columns = pd.DataFrame(rows)[["epoch", "val_dice", "val_ece"]]
                tables.append(columns.apply(pd.to_numeric))
        if tables:
            logs[c.key] = tables
    return series.learning_curves(logs, looks_of(results.main(dataset))) if logs else None
