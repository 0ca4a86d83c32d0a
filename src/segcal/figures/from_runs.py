"""The table `FIGURES`: how each figure is drawn from finished runs, and what it shows.

A function of the table gives `None` where the runs have no values for its figure; its docstring is
the caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from segcal.compare import Results, ranking
from segcal.compare.names import Settings
from segcal.corruptions import CORRUPTIONS
from segcal.data.orientation import edges, turned
from segcal.figures import calibration, comparison, pictures, series
from segcal.figures.looks import looks_of
from segcal.folders import read_log, save_figure
from segcal.predictors import open_predictor
from segcal.types import UserError, check_choice


def main_scores(results: Results, dataset: str, metric: str, **condition: str) -> pd.DataFrame:
    """A row per case, a column per main contender that was scored under the condition."""
    table = results.per_case(dataset, metric, results.overall_class(dataset, metric), **condition)
    return table[[c.key for c in results.main(dataset) if c.key in table.columns]]


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


def dice_vs_ece(results: Results, dataset: str) -> Figure | None:
    """Better is right and down. Left: a point per test case (per patient, if they have several),
    and an ellipse that contains half of them if they are normally distributed. Right, enlarged: the
    means, and ellipses that contain the true mean with 95 % confidence. Ellipses ignore that all
    methods have the same cases: for differences see the paired tests."""
    looks, patients = looks_of(results.main(dataset)), results.patients(dataset)
    dice, ece = (main_scores(results, dataset, metric) for metric in ("dice", "ece"))
    if not patients[dice.index].duplicated().any():
        return comparison.dice_vs_ece(dice, ece, looks)
    # Cases of a patient are similar: as single points they make the ellipse of the mean too small.
    dice, ece = (table.groupby(patients[table.index]).mean() for table in (dice, ece))
    return comparison.dice_vs_ece(dice, ece, looks, unit="patient")


def robustness(results: Results, dataset: str) -> Figure | None:
    """DSC against ECE for corrupted test images: markers shrink as the corruption grows. The
    largest is the clean image. Means over test cases. Nothing was trained or fitted again."""
    scores = results.scores
    scores = scores[(scores["dataset"] == dataset) & (scores["split"] == "test")]
    clean, parts = _means(results, dataset, ""), []
    for kind, row in CORRUPTIONS.items():
        levels = []
        for name in scores["corruption"].unique():
            if name.startswith(f"{kind}:") and "@" not in name:
                severity = float(name.partition(":")[2])
                levels.append(_means(results, dataset, name).assign(severity=severity))
        corrupted = pd.concat(levels) if levels else clean.iloc[:0]
        if len(corrupted):  # contenders of which every run was scored
            same = clean[clean.index.isin(corrupted.index)].assign(severity=row.neutral)
            parts.append(pd.concat([same, corrupted]).assign(kind=row.label))
    if not parts:
        return None
    table = pd.concat(parts).rename_axis("contender").reset_index()
    return series.robustness(table, looks_of(results.main(dataset)))


def _means(results: Results, dataset: str, corruption: str) -> pd.DataFrame:
    """Mean Dice and ECE over cases, of the contenders that were scored under a corruption."""
    means = {}
    for metric in ("dice", "ece"):
        means[metric] = main_scores(results, dataset, metric, corruption=corruption).mean()
    return pd.concat(means, axis=1, join="inner")


def sensitivity(results: Results, dataset: str) -> Figure | None:
    """DSC and ECE on the validation split for each setting that was tried. A ring marks the setting
    with the best DSC (in a fold), which is used everywhere else. Lines are means over seeds and
    folds, small dots single runs."""
    tuned = [c for c in results.main(dataset) if len(c.tried) > 1]
    rows = []
    for c in tuned:
        for setting in sorted(c.tried, key=_order):
            for run in c.runs_tried[setting]:
                kept = results.runs[run][c.weights]
                scores = {"dice": kept["val_dice"], "ece": kept["val_ece"]}
                row = {"contender": c.key, "setting": setting, "chosen": run in c.runs}
                rows.append(row | scores)
    return series.sensitivity(pd.DataFrame(rows), looks_of(tuned)) if rows else None


def _order(settings: Settings) -> list[tuple[bool, Any]]:
    """Numbers in their order, before texts."""
    return [(isinstance(value, str), value) for _, value in settings]


def _bins(results: Results, dataset: str, kind: str) -> dict[str, Any]:
    """One kind of bins of the contenders that have it; the drawing functions name the others."""
    bins = {}
    for c in results.main(dataset):
        with suppress(UserError):
            stored = results.bins(c)
            bins[c.key] = stored.get(kind, stored["top"])  # runs may differ in their fine bins
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
    method, then the voxels per bin and the ECEs. Foreground voxels of all cases are pooled."""
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
    network. With more than six classes: a matrix of true classes (rows) and logits (columns)."""
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
    return comparison.mean_logits(values, looks_of(results.main(dataset)), results.classes(dataset))


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


def median_case(results: Results, dataset: str) -> str:
    """The median case by Dice, mean over contenders; cases without Dice are left out."""
    means = main_scores(results, dataset, "dice").mean(axis=1).dropna()
    order = means.sort_values(kind="stable").index
    return str(order[(len(order) - 1) // 2])


def qualitative(results: Results, dataset: str) -> Figure | None:
    """The median test case by DSC, mean over methods, in its slice with most foreground. Top: image
    and outlines of the predicted classes; middle: reference and confidence of the predicted class;
    bottom: reliability over the foreground voxels of the whole case. Letters are the sides of the
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

    outcomes = {}
    for key, prediction in predictions.items():
        top = metrics.reliability(prediction.slices, label).top
        bins = {"count": top.count.numpy(), "conf": top.conf.numpy(), "hit": top.hit.numpy()}
        labels = shown(metrics.label_map(prediction.slices)[z])
        confidence = shown(torch.softmax(prediction.slices[z], 0).amax(0))
        outcomes[key] = pictures.Outcome(labels, confidence, bins)
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

    @property
    def caption(self) -> str:
        """What the figure shows: the docstring of `draw`, in one line."""
        return " ".join((self.draw.__doc__ or "").split())


_BINS = "bins of the test split"
_NOISE = "test scores of corrupted images (segcal evaluate --noise-series)"
_WEIGHTS = "the networks' weights and the prepared data set where it was"
FORMATS = ("svg", "pdf", "png")
_ROWS = (
    FigureRow(rank_heatmap, "Ranks", "runs of two methods"),
    FigureRow(dice_vs_ece, "DSC against ECE", "test scores"),
    FigureRow(reliability, "Reliability", _BINS),
    FigureRow(reliability_per_class, "Reliability per class", _BINS),
    FigureRow(risk_coverage, "Risk and coverage", _BINS),
    FigureRow(mean_logits, "Mean logits", _BINS),
    FigureRow(qualitative, "One case", _WEIGHTS),
    FigureRow(robustness, "Robustness to corruption", _NOISE),
    FigureRow(sensitivity, "Sensitivity to settings", "runs of a method with several settings"),
    FigureRow(learning_curves, "Learning curves", "log.csv of the runs"),
)
FIGURES: dict[str, FigureRow] = {row.draw.__name__: row for row in _ROWS}


def save_figures(
    results: Results, out: Path, *, format: str = "svg", keys: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Draw figures of some runs, or all figures, into a folder, as `<data set>-<key>.<format>`.

    A row per data set and figure has its file; `None` where there was nothing to draw."""
    check_choice("format", format, FORMATS)
    for key in keys:
        check_choice("figure", key, tuple(FIGURES))
    rows: list[dict[str, Any]] = []
    for dataset in results.datasets:
        for key in keys or FIGURES:
            row, path = FIGURES[key], out / f"{dataset}-{key}.{format}"
            figure = row.draw(results, dataset)
            if figure is not None:
                save_figure(path, figure)
            file = None if figure is None else str(path)
            texts = {"label": row.label, "caption": row.caption, "needs": row.needs}
            rows.append({"dataset": dataset, "figure": key, **texts, "file": file})
    return rows
