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
    """A row of `FIGURES`: `draw(results, dataset)`, how it is printed, and what it needs.

    `draw` gives `None` where the runs do not have what the figure needs."""

    draw: Callable[[Results, str], Figure | None]
    label: str
    needs: str

    @property
    def caption(self) -> str:
        """What the figure shows: the docstring of `draw`, in one line."""
        return " ".join((self.draw.__doc__ or "").split())


_BINS = "bins of the test split"
_DICE = "runs of ce, mbls and one of ce_dice and mbls_dice"
_NETWORKS = "runs of a method on several networks"
_NOISE = "test scores of corrupted images (segcal evaluate --noise-series)"
_SCORES = "test scores"
_SETTINGS = "runs of a method with several settings"
_WEIGHTS = "the networks' weights and the prepared data set where it was"

FIGURES: dict[str, FigureRow] = {
    "radar": FigureRow(from_scores.radar, "Segmentation and calibration at a glance", _SCORES),
    "rank_heatmap": FigureRow(from_scores.rank_heatmap, "Ranks", _SCORES),
    "dice_vs_ece": FigureRow(from_scores.dice_vs_ece, "DSC against ECE", _SCORES),
    "reliability": FigureRow(from_bins.reliability, "Reliability", _BINS),
    "reliability_per_class": FigureRow(
        from_bins.reliability_per_class, "Reliability per class", _BINS
    ),
    "risk_coverage": FigureRow(from_bins.risk_coverage, "Risk and coverage", _BINS),
    "mean_logits": FigureRow(from_bins.mean_logits, "Mean logits", _BINS),
    "qualitative": FigureRow(from_networks.qualitative, "One case", _WEIGHTS),
    "robustness": FigureRow(from_scores.robustness, "Robustness to corruption", _NOISE),
    "sensitivity": FigureRow(from_scores.sensitivity, "Sensitivity to settings", _SETTINGS),
    "backbones": FigureRow(from_scores.backbones, "Networks", _NETWORKS),
    "objectives": FigureRow(from_scores.objectives, "With and without Dice", _DICE),
    "learning_curves": FigureRow(
        from_bins.learning_curves, "Learning curves", "log.csv of the runs"
    ),
    "penalty_shape": FigureRow(from_bins.penalty_shape, "The margin penalty", "nothing"),
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
