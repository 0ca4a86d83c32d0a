"""The table `FIGURES`: how each figure is drawn from finished runs, and what is seen in it."""

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
    """A row of `FIGURES`: `draw(results, dataset)`, how it is printed, what is seen in it, and what
    it is made from.

    `draw` gives `None` where the runs do not hold what the figure needs.
    """

    draw: Callable[[Results, str], Figure | None]
    label: str
    caption: str
    needs: str


FIGURES: dict[str, FigureRow] = {
    "radar": FigureRow(
        from_scores.radar,
        "Segmentation and calibration at a glance",
        "One line per method, further out is better. An axis is a data set where there are three or"
        " more, else a class where there are three or more, else a metric. Values are means over"
        " test cases. Each axis goes from the worst method (inner ring) to the best (outer ring),"
        " but at least over 5 % of its value; both ends are printed.",
        "test scores",
    ),
    "rank_heatmap": FigureRow(
        from_scores.rank_heatmap,
        "Ranks",
        "Rank of each method per metric and overall, 1 is best. Left, sum-rank: methods are ranked"
        " by their means over test cases, and the ranks added up. Right, mean case rank: methods"
        " are ranked on every test case, and the ranks averaged over cases. Where there are several"
        " data sets, a third panel adds the ranks up over all of them. The colour is the rank, as"
        " the bar at the side says.",
        "test scores",
    ),
    "dice_vs_ece": FigureRow(
        from_scores.dice_vs_ece,
        "DSC against ECE",
        "Better is right and down. Left, a point per test case (per patient, its cases averaged,"
        " where there are several of one), and an ellipse that would hold half of them if they were"
        " normally distributed. Right, enlarged, the means over cases with the ellipse in which the"
        " true mean lies with 95 % confidence. Ellipses take no account of the methods being tested"
        " on the same cases: for differences see the paired tests.",
        "test scores",
    ),
    "reliability": FigureRow(
        from_bins.reliability,
        "Reliability",
        "How often predictions of a given confidence are right: bars are the accuracy in 15 bins of"
        " the predicted class's confidence, hatching the gap to the bin's mean confidence (red: too"
        " confident), below the share of voxels in each bin; bins with very few are faint. Over the"
        " foreground voxels of all test cases thrown together; the printed ECE is of those, and"
        " differs from the mean over cases in the tables.",
        "bins of the test split",
    ),
    "reliability_per_class": FigureRow(
        from_bins.reliability_per_class,
        "Reliability per class",
        "The same for the probability of each foreground class by itself: bars are how often a"
        " voxel with that probability is of the class. Where there are too many methods and"
        " classes, a panel per class has a line per method, and below it the voxels per bin and the"
        " ECE of each. Over the foreground voxels of all test cases thrown together.",
        "bins of the test split",
    ),
    "risk_coverage": FigureRow(
        from_bins.risk_coverage,
        "Risk and coverage",
        "The error rate among the voxels that are kept when the least confident ones are set aside;"
        " lower is better, and a curve that rises to the right says that confidence finds the"
        " errors. Right end: the error rate of all. Over the foreground voxels of all test cases"
        " thrown together; the number is the area under the curve.",
        "bins of the test split",
    ),
    "mean_logits": FigureRow(
        from_bins.mean_logits,
        "Mean logits",
        "The mean logit of each class (bars, numbered), over all test voxels of each true class"
        " (groups). The further the true class's bar (hatched) stands above the others, the surer"
        " the network is. With more than six classes the same as a matrix: a row per true class, a"
        " column per logit.",
        "bins of the test split",
    ),
    "qualitative": FigureRow(
        from_networks.qualitative,
        "One case",
        "The test case whose DSC, mean over methods, is the median of all, in its slice with most"
        " foreground. Top: image and outlines of the predicted classes; middle: reference and"
        " confidence of the predicted class; bottom: reliability over the foreground voxels of the"
        " whole case. Letters are the sides of the patient: right, left, anterior, posterior,"
        " superior, inferior.",
        "the networks' weights and the prepared data set where it was",
    ),
    "robustness": FigureRow(
        from_scores.robustness,
        "Robustness to corruption",
        "DSC against ECE as the test images get worse: markers shrink as the corruption grows, the"
        " largest is the clean image. Means over test cases; nothing was trained or fitted again.",
        "test scores of corrupted images (segcal evaluate --noise-series)",
    ),
    "sensitivity": FigureRow(
        from_scores.sensitivity,
        "Sensitivity to settings",
        "DSC and ECE on the validation split at the epoch that was kept, for each setting that was"
        " tried; a ring marks the one with the best DSC (in a fold), which stands for the method"
        " everywhere else. Lines are means over seeds and folds, small dots single runs.",
        "runs of a method with several settings",
    ),
    "backbones": FigureRow(
        from_scores.backbones,
        "Networks",
        "The same methods on different networks. Points are means over test cases, bars their 95 %"
        " intervals from 2,000 bootstrap samples of patients.",
        "runs of a method on several networks",
    ),
    "objectives": FigureRow(
        from_scores.objectives,
        "With and without Dice",
        "What each objective contributes to the sum of all: widths are shares, numbers the means"
        " over test cases. For DSC a larger share is better, for calibration errors a smaller one."
        " A bar is a data set where there are several, else a class.",
        "runs of ce, mbls and one of ce_dice and mbls_dice",
    ),
    "learning_curves": FigureRow(
        from_bins.learning_curves,
        "Learning curves",
        "DSC and ECE on the validation split by epoch. Lines are means over seeds and folds, bands"
        " go from the lowest to the highest; a marker stands at the best mean DSC. Axes leave out"
        " what lies far off in the first tenth of the epochs.",
        "log.csv of the runs",
    ),
    "penalty_shape": FigureRow(
        from_bins.penalty_shape,
        "The margin penalty",
        "What a logit distance costs, and the derivative that training sees: a linear penalty pulls"
        " on every distance, the one with a margin only on those beyond it. No data; the margin is"
        " the one chosen for MbLS, or its default.",
        "nothing",
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
    """Draw the figures of some runs into a folder, as `<data set>-<key>.<format>`; all of them
    unless some are named.

    A row per data set and figure says what it shows and which file it is: `None` where there was
    nothing to draw."""
    check_choice("format", format, FORMATS)
    for key in keys:
        check_choice("figure", key, tuple(FIGURES))
    found = []
    for name in results.datasets if dataset is None else (dataset,):
        for key in keys or FIGURES:
            row = FIGURES[key]
            figure = row.draw(results, name)
            path = out / f"{name}-{key}.{format}"
            if figure is not None:
                save_figure(path, figure)
            about: dict[str, Any] = {
                "dataset": name,
                "figure": key,
                "label": row.label,
                "caption": row.caption,
                "needs": row.needs,
            }
            found.append(about | {"file": None if figure is None else str(path)})
    return found
