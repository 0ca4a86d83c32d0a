"""The table `FIGURES`: how each figure is drawn from finished runs, and what it shows.

A function of the table gives `None` where the runs have no values for its figure; its docstring is
the caption, in which {measure} and {voxels} follow from the metrics that lead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from segcal import metrics
from segcal.calibrators import CALIBRATORS
from segcal.compare import Results, ranking
from segcal.compare.metric_sets import PERFECT, MetricSet
from segcal.compare.names import Settings
from segcal.corruptions import CORRUPTIONS
from segcal.data.orientation import edges, turned
from segcal.figures import calibration, comparison, pictures, series
from segcal.figures.collected import (
    best_calibrator,
    bins_of,
    main_scores,
    means_under,
    perfect_of,
    validated,
    validation_columns,
    validation_label,
)
from segcal.figures.looks import WORDS, looks_of
from segcal.folders import read_log
from segcal.predictors import open_predictor
from segcal.types import UserError
from segcal.voxels import near


def rank_heatmap(results: Results, dataset: str) -> Figure | None:
    """Rank of each method per metric and overall; 1 is best. Sum-rank: methods are ranked by their
    means over test cases, and the ranks are added, in a third panel over all data sets. Mean case
    rank: methods are ranked on every test case, and the ranks are averaged over cases."""
    values = _known_values(results, dataset)
    if len(results.main(dataset)) < 2 or not values:
        return None
    tables = {"sum-rank": _sum_ranks({dataset: values})}
    tables["mean case rank"] = ranking.mean_case_rank(values).drop(columns="rank")
    n = len(results.datasets)
    if n > 1:
        every = {name: _known_values(results, name) for name in results.datasets}
        tables[f"sum-rank, {n} data sets"] = _sum_ranks(every)
    order = tables["sum-rank"]["rank"].sort_values(kind="stable").index
    labels = {key: row.label for key, row in metrics.METRICS.items()} | {"rank": "overall"}
    tables = {title: table.loc[order].rename(columns=labels) for title, table in tables.items()}
    return comparison.rank_heatmap(tables, looks_of(results.main(dataset)))


def _known_values(results: Results, dataset: str) -> dict[str, pd.DataFrame]:
    """The values to rank by, without the metrics that have no value at all."""
    values = ranking.main_values(results, dataset)
    return {metric: table for metric, table in values.items() if table.notna().any(axis=None)}


def _sum_ranks(values: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """The rank per metric, over the sum of its ranks in all data sets, and the overall rank."""
    means = {}
    for dataset, tables in values.items():
        for metric, table in tables.items():
            means[dataset, metric] = ranking.counted(table, metric).mean()
    ranks = ranking.sum_rank(means)
    sums = {}
    for metric in dict.fromkeys(metric for _, metric in means):
        sums[metric] = ranks[[key for key in means if key[1] == metric]].sum(axis=1)
    return pd.DataFrame(sums).rank().assign(rank=ranks["rank"])


def dice_vs_calibration(results: Results, dataset: str) -> Figure | None:
    """Better is right and down. Left: a point per test case (per patient, if they have several),
    and an ellipse that contains half of them if they are normally distributed. Right, enlarged: the
    means, and ellipses that contain the true mean with 95 % confidence. Ellipses ignore that all
    methods have the same cases: for differences see the paired tests.{dashes}"""
    looks, patients = looks_of(results.main(dataset)), results.patients(dataset)
    metric, unit = results.metrics.of_figures, "case"
    dice, error = (main_scores(results, dataset, name) for name in ("dice", metric))
    if patients[dice.index].duplicated().any():
        # Cases of a patient are similar: as points they make the ellipse of the mean too small.
        dice, error = (table.groupby(patients[table.index]).mean() for table in (dice, error))
        unit = "patient"
    values = main_scores(results, dataset, PERFECT[metric]) if metric in PERFECT else pd.DataFrame()
    perfect = {str(key): float(mean) for key, mean in values.mean().dropna().items()}
    more: Any = {"metric": metric, "unit": unit, "perfect": perfect}
    return comparison.dice_vs_calibration(dice, error, looks, **more)


def robustness(results: Results, dataset: str) -> Figure | None:
    """DSC against {measure} for corrupted test images: markers shrink as the corruption grows. The
    largest is the clean image. Means over test cases. Nothing was trained or fitted
    again.{dashes}"""
    scores = results.scores
    scores = scores[(scores["dataset"] == dataset) & (scores["split"] == "test")]
    clean, parts = means_under(results, dataset, ""), []
    for kind, row in CORRUPTIONS.items():
        levels = []
        for name in scores["corruption"].unique():
            if name.startswith(f"{kind}:") and "@" not in name:
                severity = float(name.partition(":")[2])
                levels.append(means_under(results, dataset, name).assign(severity=severity))
        corrupted = pd.concat(levels) if levels else clean.iloc[:0]
        if len(corrupted):  # contenders of which every run was scored
            same = clean[clean.index.isin(corrupted.index)].assign(severity=row.neutral)
            parts.append(pd.concat([same, corrupted]).assign(kind=row.label))
    if not parts:
        return None
    table = pd.concat(parts).rename_axis("contender").reset_index()
    return series.robustness(table, looks_of(results.main(dataset)))


def sensitivity(results: Results, dataset: str) -> Figure | None:
    """DSC and calibration on the validation split for each setting that was tried. A ring marks the
    setting that validation chose (in a fold), which is used everywhere else. Lines are means over
    seeds and folds, small dots single runs.{dashes}"""
    tuned = [c for c in results.main(dataset) if len(c.tried) > 1]
    rows, records = [], []
    for c in tuned:
        for setting in sorted(c.tried, key=_order):
            for run in c.runs_tried[setting]:
                rows.append({"contender": c.key, "setting": setting, "chosen": run in c.runs})
                records.append(results.runs[run][c.weights])
    if not rows:
        return None
    metric = validated(results, records)
    names = ["val_dice", *validation_columns(metric, records)]
    scores = pd.DataFrame(records)[names].rename(columns=lambda name: name.removeprefix("val_"))
    table = pd.DataFrame(rows).join(scores)
    return series.sensitivity(table, looks_of(tuned), validation_label(results, metric))


def _order(settings: Settings) -> list[tuple[bool, Any]]:
    """Numbers in their order, before texts."""
    return [(isinstance(value, str), value) for _, value in settings]


def reliability(results: Results, dataset: str) -> Figure | None:
    """How often predictions of a given confidence are right. Bars: accuracy in 15 bins of the
    predicted class's confidence; hatching: the gap to the bin's mean confidence (red:
    overconfident); below: the share of voxels per bin. Bins with very few voxels are faint.
    Pooled over {voxels} of all test cases, so the printed ECE differs from the mean over cases in
    the tables."""
    bins = bins_of(results, dataset, "top")
    looks, perfect = looks_of(results.main(dataset)), perfect_of(results, dataset)
    return calibration.reliability(bins, looks, perfect=perfect) if bins else None


def calibrated(results: Results, dataset: str) -> Figure | None:
    """Reliability of the first method before and after the calibrator with the lowest NLL on
    validation cases, or of audits on cases that it was not fitted on, drawn as above. Pooled over
    {voxels} of all test cases; no case was calibrated by what was fitted on its patient."""
    for c in results.main(dataset):
        found = best_calibrator(results, c)
        with suppress(UserError):  # older runs have no bins of these voxels
            if found:
                pair = [results.bins(c, calibrator=name)["top"] for name in ("", found)]
                perfect = [perfect_of(results, dataset, name).get(c.key) for name in ("", found)]
                more: Any = {"method": c.label, "perfect": perfect}
                return calibration.before_and_after(*pair, name=CALIBRATORS[found].label, **more)
    return None


def reliability_per_class(results: Results, dataset: str) -> Figure | None:
    """The same for the probability of each foreground class: bars are how often a voxel with that
    probability is of the class. With many methods and classes, a panel per class has a line per
    method, then the voxels per bin and the ECEs. Pooled over {voxels} of all cases."""
    parts = {}
    for key, bins in bins_of(results, dataset, "per_class").items():
        if not np.isnan(bins["count"]).any():  # confidence maps know the predicted class alone
            parts[key] = {name: sums[1:] for name, sums in bins.items()}
    if not parts:
        return None
    looks, classes = looks_of(results.main(dataset)), results.data(dataset)["classes"]
    return calibration.reliability_per_class(parts, looks, classes)


def risk_coverage(results: Results, dataset: str) -> Figure | None:
    """The error rate among the voxels that are kept when the least confident ones are left out.
    Lower is better; a curve that rises to the right means that errors have low confidence. The
    right end is the error rate of all voxels, the number the area under the curve. Pooled over
    {voxels} of all test cases."""
    bins = bins_of(results, dataset, "fine")
    return series.risk_coverage(bins, looks_of(results.main(dataset))) if bins else None


def distance(results: Results, dataset: str) -> Figure | None:
    """Where confidence is wrong: above, mean confidence less accuracy in bands of 1 mm around the
    outline of the predicted foreground, inside it at the left of 0 and outside at the right. Above
    0: overconfident. Below, how often the predicted class is right. The other panels are the same
    for each class's own probability and how often a voxel is of the class. Voxels are chosen by the
    prediction alone, so a calibrated network is at 0. All test cases are pooled."""
    bands = {}
    for c in results.main(dataset):
        with suppress(UserError):
            bands[c.key] = results.bins(c, voxels="reference").get("bands", {})
    # Older runs have none, and without predicted foreground there is no outline.
    bands = {key: sums for key, sums in bands.items() if sums and np.any(sums["count"])}
    if not bands:
        return None
    return series.distance(bands, looks_of(results.main(dataset)), results.classes(dataset)[1:])


def mean_logits(results: Results, dataset: str) -> Figure | None:
    """The mean logit of each class (numbered bars) over all test voxels of a true class (groups).
    The higher the bar of the true class (hatched) is above the others, the more confident the
    network. With more than six classes: a matrix of true classes (rows) and logits (columns)."""
    # CE and MbLS; if one of them is missing, the first four contenders.
    kinds = ("mean_logits", "voxels")  # of all voxels; older runs have them with these bins
    means, voxels = (bins_of(results, dataset, kind, "reference") for kind in kinds)
    pair = []
    for c in results.main(dataset):
        if c.method in ("ce", "mbls") and not c.variant and c.key in means:
            pair.append(c.key)
    values = {}
    for key in pair if len(pair) == 2 else list(means)[:4]:
        values[key] = np.where(voxels[key][:, None] > 0, means[key], np.nan)
    if not values:
        return None
    return comparison.mean_logits(values, looks_of(results.main(dataset)), results.classes(dataset))


def learning_curves(results: Results, dataset: str) -> Figure | None:
    """DSC and calibration on the validation split by epoch. Lines are means over seeds and folds,
    bands go from the lowest to the highest; a marker is at the best mean DSC. Outliers in the first
    tenth of the epochs are outside the axes.{dashes}"""
    logs = {}  # of the chosen runs; a run without log.csv, such as an ensemble, is left out
    for c in results.main(dataset):
        tables = [read_log(Path(results.runs[run]["folder"])) for run in c.runs]
        if any(tables):
            logs[c.key] = [table for table in tables if table]
    if not logs:
        return None
    first = [table[0] for tables in logs.values() for table in tables]
    metric = validated(results, first)
    columns: dict[str, type] = {"epoch": int, "val_dice": float}
    columns |= dict.fromkeys(validation_columns(metric, first), float)
    curves = {}
    for key, tables in logs.items():
        curves[key] = [pd.DataFrame(table)[[*columns]].astype(columns) for table in tables]
    label = validation_label(results, metric)
    return series.learning_curves(curves, looks_of(results.main(dataset)), label)


def median_case(results: Results, dataset: str) -> str:
    """The median case by Dice, mean over contenders; cases without Dice are left out."""
    means = main_scores(results, dataset, "dice").mean(axis=1).dropna()
    order = means.sort_values(kind="stable").index
    return str(order[(len(order) - 1) // 2])


def qualitative(results: Results, dataset: str) -> Figure | None:
    """The median test case by DSC, mean over methods, in its slice with most foreground. Top: image
    and outlines of the predicted classes; middle: reference and confidence of the predicted class;
    bottom: reliability over {voxels} of the whole case. Letters are the sides of the
    patient: right, left, anterior, posterior, superior, inferior."""
    case, scored, predictions = median_case(results, dataset), results.rows(), {}
    scored = scored[(scored["dataset"] == dataset) & (scored["case"] == case)]
    for c in results.main(dataset):
        run = next(run for run in c.runs if run in set(scored["run"]))
        try:
            predictor = open_predictor(Path(results.runs[run]["folder"]), weights=c.weights)
            predictions[c.key] = predictor.case(case)
        except UserError:
            return None
    first = next(iter(predictions.values()))
    image, label = first.image, first.label
    if image is None or label is None:
        return None
    data = results.data(dataset)
    sides = edges(data["orientation"], data["recipe"]["axis"])
    z = int((label > 0).flatten(1).sum(1).argmax())

    def shown(slice: Tensor) -> NDArray[Any]:
        return turned(slice.numpy(), sides["flip"])

    outcomes, by_paper = {}, results.metrics.voxels == "reference"
    for key, prediction in predictions.items():
        logits = prediction.logits[None]
        bins = metrics.reliability_of_sets(logits, label[None], near(logits))
        top = bins[results.metrics.voxels].coarser().top
        sums = {"count": top.count.numpy(), "conf": top.conf.numpy(), "hit": top.hit.numpy()}
        labels = shown(metrics.label_map(prediction.slices)[z])
        confidence = shown(torch.softmax(prediction.slices[z], 0).amax(0))
        perfect = metrics.ece_perfect(bins["all"].coarser()).item() if by_paper else None
        outcomes[key] = pictures.Outcome(labels, confidence, sums, perfect)
    view: Any = {"edges": sides, "aspect": first.spacing[1] / first.spacing[2]}
    view["title"] = f"{case}, slice {z + 1} of {len(label)}"
    looks, slices = looks_of(results.main(dataset)), (shown(image[z, 0]), shown(label[z]))
    return pictures.qualitative(*slices, outcomes, looks, data["classes"], **view)


@dataclass(frozen=True)
class FigureRow:
    """A row of `FIGURES`: `draw(results, dataset)`, how it is printed, and what it needs."""

    draw: Callable[[Results, str], Figure | None]
    label: str
    needs: str
    basis: str = ""  # over what its numbers are, as an exported figure says

    def caption(self, metrics: MetricSet) -> str:
        """What the figure shows: the docstring of `draw`, in one line."""
        text = (self.draw.__doc__ or "").format(**WORDS[metrics.key])
        return " ".join(text.split())


_BINS = "bins of the test split"
_NOISE = "test scores of corrupted images (segcal evaluate --noise-series)"
_WEIGHTS = "the networks' weights and the prepared data set where it was"
_MEANS, _POOLED = (
    "means over test cases",
    "all test cases pooled: not the mean over cases of the tables",
)
_ROWS = (
    FigureRow(rank_heatmap, "Ranks", "runs of two methods", _MEANS),
    FigureRow(dice_vs_calibration, "DSC against calibration", "test scores", _MEANS),
    FigureRow(reliability, "Reliability", _BINS, _POOLED),
    FigureRow(calibrated, "Before and after calibration", "a fitted calibrator", _POOLED),
    FigureRow(reliability_per_class, "Reliability per class", _BINS, _POOLED),
    FigureRow(
        distance, "By distance to the outline", f"{_BINS} with predicted foreground", _POOLED
    ),
    FigureRow(risk_coverage, "Risk and coverage", _BINS, _POOLED),
    FigureRow(mean_logits, "Mean logits", _BINS, _POOLED),
    FigureRow(qualitative, "One case", _WEIGHTS),
    FigureRow(robustness, "Robustness to corruption", _NOISE, _MEANS),
    FigureRow(sensitivity, "Sensitivity to settings", "runs of a method with several settings"),
    FigureRow(learning_curves, "Learning curves", "log.csv of the runs"),
)
FIGURES: dict[str, FigureRow] = {row.draw.__name__: row for row in _ROWS}
