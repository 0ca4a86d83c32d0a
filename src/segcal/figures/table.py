"""The table `FIGURES`: how each figure is drawn from finished runs, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from segcal.compare import Results
from segcal.figures import from_runs
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
_NOISE = "test scores of corrupted images (segcal evaluate --noise-series)"
_SETTINGS = "runs of a method with several settings"
_WEIGHTS = "the networks' weights and the prepared data set where it was"

_ROWS = (
    FigureRow(from_runs.rank_heatmap, "Ranks", "runs of two methods"),
    FigureRow(from_runs.dice_vs_ece, "DSC against ECE", "test scores"),
    FigureRow(from_runs.reliability, "Reliability", _BINS),
    FigureRow(from_runs.reliability_per_class, "Reliability per class", _BINS),
    FigureRow(from_runs.risk_coverage, "Risk and coverage", _BINS),
    FigureRow(from_runs.mean_logits, "Mean logits", _BINS),
    FigureRow(from_runs.qualitative, "One case", _WEIGHTS),
    FigureRow(from_runs.robustness, "Robustness to corruption", _NOISE),
    FigureRow(from_runs.sensitivity, "Sensitivity to settings", _SETTINGS),
    FigureRow(from_runs.learning_curves, "Learning curves", "log.csv of the runs"),
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
