"""The table `FIGURES`: how each figure is drawn from finished runs, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from segcal.compare import Results
from segcal.figures import from_bins, from_networks, from_scores
from segcal.folders import save_figure
from segcal.types import check_choice

FORMATS = ("svg", "pdf", "png")


@dataclass(frozen=True)
class FigureRow:
    """A row of `FIGURES`: `draw(results, dataset)`, its label, its caption, and what it needs.

    `draw` gives `None` where the runs do not have what the figure needs."""

    draw: Callable[[Results, str], Figure | None]
    label: str
    needs: str
    caption: str


FIGURES: dict[str, FigureRow] = {
    "radar": FigureRow(
        from_scores.radar,
        "Segmentation and calibration at a glance",
        "test scores",
        "A line per method; further out is better. Values are means over test cases. An axis is a"
        " data set, a class or a metric. It goes from the worst method (inner ring) to the best"
        " (outer ring), but at least over 5 % of its value; both ends are printed.",
    ),
    "rank_heatmap": FigureRow(
        from_scores.rank_heatmap,
        "Ranks",
        "test scores",
        "Rank of each method per metric and overall; 1 is best. Sum-rank: methods are ranked by"
        " their means over test cases, and the ranks are added. Mean case rank: methods are ranked"
        " on every test case, and the ranks are averaged over cases. With several data sets, a"
        " third panel adds the ranks over all of them.",
    ),
    "dice_vs_ece": FigureRow(
        from_scores.dice_vs_ece,
        "DSC against ECE",
        "test scores",
        "Better is right and down. Left: a point per test case (or per patient, if patients have"
        " several), and an ellipse that contains half of them if they are normally distributed."
        " Right, enlarged: the means, and ellipses that contain the true mean with 95 % confidence."
        " Ellipses ignore that all methods have the same cases: for differences see the paired"
        " tests.",
    ),
    "reliability": FigureRow(
        from_bins.reliability,
        "Reliability",
        "bins of the test split",
        "How often predictions of a given confidence are right. Bars: accuracy in 15 bins of the"
        " predicted class's confidence; hatching: the gap to the mean confidence of the bin (red:"
        " overconfident); below: the share of voxels per bin. Bins with very few voxels are faint."
        " Foreground voxels of all test cases are pooled, so the printed ECE differs from the mean"
        " over cases in the tables.",
    ),
    "reliability_per_class": FigureRow(
        from_bins.reliability_per_class,
        "Reliability per class",
        "bins of the test split",
        "The same for the probability of each foreground class: bars are how often a voxel with"
        " that probability is of the class. With many methods and classes, a panel per class has a"
        " line per method, and below it the voxels per bin and the ECEs. Foreground voxels of all"
        " test cases are pooled.",
    ),
    "risk_coverage": FigureRow(
        from_bins.risk_coverage,
        "Risk and coverage",
        "bins of the test split",
        "The error rate among the voxels that are kept when the least confident ones are left out."
        " Lower is better; a curve that rises to the right means that errors have low confidence."
        " The right end is the error rate of all voxels, the number the area under the curve."
        " Foreground voxels of all test cases are pooled.",
    ),
    "mean_logits": FigureRow(
        from_bins.mean_logits,
        "Mean logits",
        "bins of the test split",
        "The mean logit of each class (numbered bars) over all test voxels of each true class"
        " (groups). The higher the bar of the true class (hatched) is above the others, the more"
        " confident the network. With more than six classes: a matrix with a row per true class and"
        " a column per logit.",
    ),
    "qualitative": FigureRow(
        from_networks.qualitative,
        "One case",
        "the networks' weights and the prepared data set where it was",
        "The median test case by DSC, mean over methods, in its slice with most foreground. Top:"
        " image and outlines of the predicted classes; middle: reference and confidence of the"
        " predicted class; bottom: reliability over the foreground voxels of the whole case."
        " Letters are the sides of the patient: right, left, anterior, posterior, superior,"
        " inferior.",
    ),
    "robustness": FigureRow(
        from_scores.robustness,
        "Robustness to corruption",
        "test scores of corrupted images (segcal evaluate --noise-series)",
        "DSC against ECE for corrupted test images: markers shrink as the corruption grows; the"
        " largest is the clean image. Means over test cases. Nothing was trained or fitted again.",
    ),
    "sensitivity": FigureRow(
        from_scores.sensitivity,
        "Sensitivity to settings",
        "runs of a method with several settings",
        "DSC and ECE on the validation split for each setting that was tried. A ring marks the"
        " setting with the best DSC (in a fold), which is used everywhere else. Lines are means"
        " over seeds and folds, small dots single runs.",
    ),
    "backbones": FigureRow(
        from_scores.backbones,
        "Networks",
        "runs of a method on several networks",
        "The same methods on different networks. Points are means over test cases, bars their 95 %"
        " intervals from 2,000 bootstrap samples of patients.",
    ),
    "objectives": FigureRow(
        from_scores.objectives,
        "With and without Dice",
        "runs of ce, mbls and one of ce_dice and mbls_dice",
        "The share of each objective in the sum of all; numbers are means over test cases. A larger"
        " share of DSC is better, a smaller one of a calibration error. A bar is a data set, or a"
        " class if there is one data set.",
    ),
    "learning_curves": FigureRow(
        from_bins.learning_curves,
        "Learning curves",
        "log.csv of the runs",
        "DSC and ECE on the validation split by epoch. Lines are means over seeds and folds, bands"
        " go from the lowest to the highest; a marker is at the best mean DSC. Outliers in the"
        " first tenth of the epochs are outside the axes.",
    ),
    "penalty_shape": FigureRow(
        from_bins.penalty_shape,
        "The margin penalty",
        "nothing",
        "The penalty on a logit distance, and its derivative: a linear penalty acts on every"
        " distance, the one with a margin only on larger distances. The margin is the one chosen"
        " for MbLS, or its default.",
    ),
}


def save_figures(
    results: Results,
    out: Path,
    *,
    format: str = "svg",
    keys: Sequence[str] = (),
    dataset: str | None = None,
) -> list[dict[str, Any]]:
    """Draw figures of some runs, or all figures, into a folder, as `<data set>-<key>.<format>`.

    A row per data set and figure has its file; `None` where there was nothing to draw."""
    check_choice("format", format, FORMATS)
    for key in keys:
        check_choice("figure", key, tuple(FIGURES))
    rows: list[dict[str, Any]] = []
    for name in results.datasets if dataset is None else (dataset,):
        for key in keys or FIGURES:
            row = FIGURES[key]
            figure, path = row.draw(results, name), out / f"{name}-{key}.{format}"
            if figure is not None:
                save_figure(path, figure)
            file = None if figure is None else str(path)
            texts = {"label": row.label, "caption": row.caption, "needs": row.needs}
            rows.append({"dataset": name, "figure": key, **texts, "file": file})
    return rows
