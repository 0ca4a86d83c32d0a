"""Tables of single cases, and figures as addresses that a page can hold."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from segcal.compare import Results
from segcal.compare.tables import Entry, Row, Table
from segcal.figures import FIGURES
from segcal.metrics import METRICS
from segcal.report.sprites import data_uri

MANY_PIXELS = 20_000  # in the images of a figure: its SVG would be larger than its PNG
WIDE = 5.0  # inches: a wider figure takes the whole page
SCORES = ("dice", "asd", "hd95", "missed", "ece", "cece", "confidence_gap", "nll", "brier")


def figures(results: Results, dataset: str, keys: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Those of the figures that can be drawn from the runs."""
    for key in keys:
        row = FIGURES[key]
        figure = row.draw(results, dataset)
        if figure is not None:
            wide = figure.get_figwidth() > WIDE
            yield {"key": key, "row": row, "address": _address(figure), "wide": wide}


def _address(figure: Figure) -> str:
    """A figure as an image with styles of its own: SVG, or PNG if it holds photographs."""
    out = io.BytesIO()
    images: list[Any] = [image for ax in figure.axes for image in ax.get_images()]
    if sum(image.get_array().size for image in images) > MANY_PIXELS:
        figure.savefig(out, format="png", dpi=200)
        return data_uri(out.getvalue())
    with matplotlib.rc_context({"svg.hashsalt": "segcal"}):  # the same runs give the same page
        figure.savefig(out, format="svg", metadata={"Date": None})
    return data_uri(out.getvalue(), "image/svg+xml")


def case_tables(results: Results, dataset: str) -> Iterator[Table]:
    """The score of every case by every contender, a table per metric."""
    names = {c.key: c.label for c in results.on(dataset)}
    for metric in SCORES:
        values = results.per_case(dataset, metric, results.overall_class(dataset, metric))
        if values.isna().all(axis=None):
            continue
        row = METRICS[metric]
        title = f"{row.label} {row.arrow}" + (f" ({row.unit})" if row.unit else "")
        rows = []
        for case, scores in values.astype(object).where(values.notna(), None).iterrows():
            rows.append(Row(str(case), tuple(Entry(score) for score in scores)))
        columns = tuple(names[str(key)] for key in values)
        digits = (0 if metric == "missed" else 3,) * len(columns)
        yield Table(metric, title, columns, tuple(rows), digits=digits, first="case")
