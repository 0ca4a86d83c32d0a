"""The values behind the figures of runs, from `Results`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Results
from segcal.compare.metric_sets import PERFECT
from segcal.figures.looks import axis_label
from segcal.folders import read_fits
from segcal.types import UserError


def main_scores(results: Results, dataset: str, metric: str, **condition: str) -> pd.DataFrame:
    """A row per case, a column per main contender that was scored under the condition."""
    table = results.per_case(dataset, metric, results.overall_class(dataset, metric), **condition)
    return table[[c.key for c in results.main(dataset) if c.key in table.columns]]


def means_under(results: Results, dataset: str, corruption: str) -> pd.DataFrame:
    """Means over cases of what is drawn, of the contenders scored under a corruption.

    Beside a metric over reference voxels is what a perfect network would have."""
    means = {}
    for metric in ("dice", results.metrics.of_figures):
        means[metric] = main_scores(results, dataset, metric, corruption=corruption).mean()
    table = pd.concat(means, axis=1, join="inner")
    if results.metrics.of_figures in PERFECT:  # older runs have none
        perfect = PERFECT[results.metrics.of_figures]
        table[perfect] = main_scores(results, dataset, perfect, corruption=corruption).mean()
    return table


def validated(results: Results, records: Iterable[Mapping[str, Any]]) -> str:
    """The metric that validation is shown by: NLL, or ECE for the paper's set and older runs."""
    known = all("val_nll" in record for record in records)
    return "nll" if known and results.metrics.key == "main" else "ece"


def validation_columns(metric: str, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns of a validation score, in its order; the perfect value if all records have it."""
    names = [f"val_{metric}"]
    if metric in PERFECT and all(f"val_{PERFECT[metric]}" in record for record in records):
        names.append(f"val_{PERFECT[metric]}")
    return names


def validation_label(results: Results, metric: str) -> str:
    """The axis of a validation score; over reference voxels no ECE is better than another."""
    if metric == "ece" and results.metrics.key == "main":
        return "validation ECE,\nreference voxels"
    return f"validation {axis_label(metric)}"


def bins_of(results: Results, dataset: str, kind: str, voxels: str = "") -> dict[str, Any]:
    """One kind of bins of the contenders that have it; the drawing functions name the others."""
    bins = {}
    for c in results.main(dataset):
        with suppress(UserError):
            stored = results.bins(c, voxels=voxels)
            bins[c.key] = stored.get(kind, stored["top"])  # runs may differ in their fine bins
    return bins


def out_of_fold_order(results: Results, contender: Contender) -> list[str]:
    """The calibrators of an audit that keep the label map, by their NLL on cases that they were not
    fitted on; where that is the same in print, the simpler one comes first."""
    means = {}
    for name, row in CALIBRATORS.items():
        values = main_scores(results, contender.dataset, "nll", calibrator=name)
        if row.keeps_labels and contender.key in values:
            means[name] = round(float(values[contender.key].mean()), 3)
    return sorted(means, key=lambda name: means[name])


def best_calibrator(results: Results, contender: Contender) -> str:
    """The calibrator with the lowest validation NLL among those that all runs have; else empty.

    Of an audit, the first by `out_of_fold_order`."""
    if results.out_of_fold:
        return next(iter(out_of_fold_order(results, contender)), "")
    nll: dict[str, list[float]] = {}
    for run in contender.runs:
        fits = read_fits(Path(results.runs[run]["folder"]), contender.weights)
        for name, fit in fits.items():
            if name in CALIBRATORS and "val_nll" in fit:
                nll.setdefault(name, []).append(fit["val_nll"]["after"])
    known = {name: sum(each) for name, each in nll.items() if len(each) == len(contender.runs)}
    return min(known, key=lambda name: known[name], default="")


def perfect_of(results: Results, dataset: str, calibrator: str = "") -> dict[str, float]:
    """The pooled ECE of a perfect network over reference voxels, mean over runs; else it is 0."""
    if results.metrics.voxels != "reference":
        return {}
    rows = results.scores
    wanted: dict[str, Any] = {"dataset": dataset, "split": "test"}
    wanted |= {"corruption": "", "calibrator": calibrator}
    wanted |= {"case": "pooled", "metric": "ece_perfect", "chosen": True}
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return {str(key): mean for key, mean in rows.groupby("contender")["value"].mean().items()}
