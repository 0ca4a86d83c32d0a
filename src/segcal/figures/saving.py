"""The figures of finished runs as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segcal.compare import Results
from segcal.figures import layout
from segcal.figures.from_runs import FIGURES
from segcal.folders import path_of, save_figure
from segcal.folders.files import sweep
from segcal.types import AnyPath, check_choice

FORMATS = ("svg", "pdf", "png")


def save_figures(
    results: Results, out: AnyPath, *, format: str = "svg", keys: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Draw figures of some runs, or all figures, into a folder, as `<data set>-<key>.<format>`.

    A row per data set and figure has its file; `None` where there was nothing to draw."""
    check_choice("format", format, FORMATS)
    for key in keys:
        check_choice("figure", key, tuple(FIGURES))
    sweep(Path(out))
    rows: list[dict[str, Any]] = []
    for dataset in results.datasets:
        for key in keys or FIGURES:
            row, path = FIGURES[key], path_of(Path(out), dataset, f"-{key}.{format}")
            figure = row.draw(results, dataset)
            if figure is not None:
                save_figure(path, layout.told(figure, row.basis))
            file = None if figure is None else str(path)
            texts = {"caption": row.caption(results.metrics), "needs": row.needs, "file": file}
            rows.append({"dataset": dataset, "figure": key, "label": row.label, **texts})
    return rows
