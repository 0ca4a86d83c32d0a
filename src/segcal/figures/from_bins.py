"""From the bins, logs and settings of finished runs to figures; `None` where there are none.

The docstring of each public function is the caption of its figure."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from segcal.compare import Results
from segcal.figures import calibration, logits, series
from segcal.figures.looks import looks_of
from segcal.folders import read_log
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
    """How often predictions of a given confidence are right. Bars: accuracy in 15 bins of the
    predicted class's confidence; hatching: the gap to the bin's mean confidence (red:
    overconfident); below: the share of voxels per bin. Bins with very few voxels are faint.
    Foreground voxels of all test cases are pooled, so the printed ECE differs from the mean over
    cases in the tables."""
    bins = _bins(results, dataset, "top")
    return calibration.reliability(bins, looks_of(results.main(dataset))) if bins else None


def reliability_per_class(results: Results, dataset: str) -> Figure | None:
    """The same for the probability of each foreground class: bars are how often a voxel with that
    probability is of the class. With many methods and classes, a panel per class has a line per
    method, and below it the voxels per bin and the ECEs. Foreground voxels of all test cases are
    pooled."""
    # The voxels are foreground, so the frequency of the background is 0 by definition.
    parts = {}
    for key, bins in _bins(results, dataset, "per_class").items():
        parts[key] = {name: sums[1:] for name, sums in bins.items()}
    if not parts:
        return None
    looks, classes = looks_of(results.main(dataset)), results.data(dataset)["classes"]
    return calibration.reliability_per_class(parts, looks, classes)


def risk_coverage(results: Results, dataset: str) -> Figure | None:
    """The error rate among the voxels that are kept when the least confident ones are left out.
    Lower is better; a curve that rises to the right means that errors have low confidence. The
    right end is the error rate of all voxels, the number the area under the curve. Foreground
    voxels of all test cases are pooled."""
    bins = _bins(results, dataset, "fine")
    return series.risk_coverage(bins, looks_of(results.main(dataset))) if bins else None


def mean_logits(results: Results, dataset: str) -> Figure | None:
    """The mean logit of each class (numbered bars) over all test voxels of a true class (groups).
    The higher the bar of the true class (hatched) is above the others, the more confident the
    network. With more than six classes: a matrix with a row per true class and a column per
    logit."""
    # CE and MbLS; if one of them is missing, the first four contenders.
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
    """The penalty on a logit distance, and its derivative: a linear penalty acts on every distance,
    the one with a margin only on larger distances. The margin is the one chosen for MbLS, or its
    default."""
    margin = LOSSES["mbls"].settings["margin"]
    for c in results.main(dataset):
        if c.method == "mbls":
            settings = Counter(c.chosen.values()).most_common(1)[0][0]
            return logits.penalty_shape(dict(settings).get("margin", margin))
    return logits.penalty_shape(margin)


def learning_curves(results: Results, dataset: str) -> Figure | None:
    """DSC and ECE on the validation split by epoch. Lines are means over seeds and folds, bands go
    from the lowest to the highest; a marker is at the best mean DSC. Outliers in the first tenth of
    the epochs are outside the axes."""
    logs = {}  # of the chosen runs; a run without log.csv, such as an ensemble, is left out
    for c in results.main(dataset):
        tables = []
        for run in c.runs:
            rows = read_log(Path(results.runs[run]["folder"]))
            if rows:
                columns = pd.DataFrame(rows)[["epoch", "val_dice", "val_ece"]]
                tables.append(columns.apply(pd.to_numeric))
        if tables:
            logs[c.key] = tables
    return series.learning_curves(logs, looks_of(results.main(dataset))) if logs else None
