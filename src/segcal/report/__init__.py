"""The report: one HTML file with everything in it, which opens anywhere and needs no network."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from segcal.compare import Results
from segcal.compare.metric_sets import PERFECT
from segcal.compare.tables import TABLES, Entry, Row, Table
from segcal.figures import FIGURES
from segcal.figures.looks import axis_label
from segcal.folders import replacing, sweep
from segcal.metrics import METRICS
from segcal.report.page import render
from segcal.report.summary import Summary, summarise
from segcal.report.viewer import BUDGET, data_uri, viewer_data
from segcal.report.volumes import volume_table
from segcal.types import AnyPath, UserError, check_range

__all__ = ["Summary", "build_report", "check_target", "save_report", "summaries"]

Step = Callable[[str], None]
RELIABILITY = ("reliability", "calibrated", "reliability_per_class")
OF_CASES = ("qualitative",)
MANY_PIXELS = 20_000  # in the images of a figure: its SVG would be larger than its PNG
WIDE = 5.0  # inches: a wider figure takes the whole page
# Of every case, after the metrics that lead.
SCORES = ("hd95", "missed", "volume_ratio", "confidence_gap", "brier", "ece", "cece")


def build_report(
    results: Results,
    *,
    n_cases: int = 4,
    viewer: bool = True,
    published: bool = False,
    progress: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> str:
    """The report of some runs as HTML.

    The slice viewer shows `n_cases` cases of each data set; `published` adds the paper's values.
    `progress` gets the step that starts, the number of finished steps, and that of all steps.
    """
    check_range("cases", n_cases, 1)
    total = len(results.datasets) * (2 + (n_cases if viewer else 0))
    done = count()

    def step(text: str) -> None:
        progress(text, next(done), total)

    parts = []
    for dataset in results.datasets:
        part = _dataset(results, dataset, published, step)
        parts.append(part | _viewer(results, dataset, n_cases if viewer else 0, step))
    html = render(results, parts)
    progress("done", total, total)
    return html


def summaries(results: Results) -> dict[str, Summary]:
    """The summary of each data set."""
    return {dataset: summarise(results, dataset) for dataset in results.datasets}


def check_target(path: AnyPath) -> None:
    """Refuse a folder as the target, before any work is done."""
    if Path(path).is_dir():
        raise UserError(f"{path} is a folder; name a file for the report, such as report.html")


def save_report(path: AnyPath, html: str) -> None:
    """Write the report whole or not at all."""
    check_target(path)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        with replacing(path) as partial:
            partial.write_text(html, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write the report to {path}: {reason}; choose another -o") from None


def _dataset(results: Results, dataset: str, published: bool, step: Step) -> dict[str, Any]:
    """Everything that the page shows of one data set, except the viewer."""
    step(f"{dataset}: tables")
    made = {key: make(results, dataset, published=published) for key, make in TABLES.items()}
    made["volumes"] = volume_table(results, dataset)
    tables = {key: table for key, table in made.items() if table is not None}
    part: dict[str, Any] = {
        "name": dataset,
        "summary": summarise(results, dataset),
        "selection": tables.pop("selection", None),
        "tables": list(tables.values()),
        "scores": list(_case_tables(results, dataset)),
    }
    step(f"{dataset}: figures")
    others = [key for key in FIGURES if key not in (*RELIABILITY, *OF_CASES)]
    kinds = {"figures": others, "reliability": RELIABILITY, "pictures": OF_CASES}
    for name, keys in kinds.items():
        part[name] = list(_figures(results, dataset, keys))
    return part


def _figures(results: Results, dataset: str, keys: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Figures as images with styles of their own: SVG, or PNG if a figure has photographs."""
    for key in keys:
        row, out = FIGURES[key], io.BytesIO()
        figure = row.draw(results, dataset)
        if figure is None:
            continue
        images: list[Any] = [image for ax in figure.axes for image in ax.get_images()]
        if sum(image.get_array().size for image in images) > MANY_PIXELS:
            figure.savefig(out, format="png", dpi=200)
            address = data_uri(out.getvalue())
        else:
            with matplotlib.rc_context({"svg.hashsalt": "segcal"}):  # the same page every time
                figure.savefig(out, format="svg", metadata={"Date": None})
            address = data_uri(out.getvalue(), "image/svg+xml")
        wide = figure.get_figwidth() > WIDE
        caption = row.caption(results.metrics)
        yield {"key": key, "row": row, "caption": caption, "address": address, "wide": wide}


def _case_tables(results: Results, dataset: str) -> Iterator[Table]:
    """The score of every case by every contender, a table per metric.

    Beside one over reference voxels is what a perfect network would have."""
    names = {c.key: c.label for c in results.on(dataset)}
    for metric in dict.fromkeys((*results.metrics.lead, *SCORES)):
        values = results.per_case(dataset, metric, results.overall_class(dataset, metric))
        if values.isna().all(axis=None):
            continue
        title, columns = axis_label(metric), {names[str(key)]: values[key] for key in values}
        if metric in PERFECT:
            shown = title if results.metrics.key == "paper" else METRICS[metric].label
            title = f"{shown}, reference voxels"
            perfect = results.per_case(dataset, PERFECT[metric], "all")
            for key in perfect:
                columns[f"{names[str(key)]}, if perfect"] = perfect[key]
        rows = []
        table = pd.DataFrame(columns).astype(object)
        for case, scores in table.where(table.notna(), None).iterrows():
            rows.append(Row(str(case), tuple(Entry(score) for score in scores)))
        digits = (0 if metric == "missed" else 3,) * len(columns)
        yield Table(metric, title, tuple(columns), tuple(rows), digits=digits, first="case")


def _viewer(results: Results, dataset: str, n_cases: int, step: Step) -> dict[str, Any]:
    """The slice viewer, or a sentence that says why there is none."""
    if not n_cases:
        return {"viewer": None, "no_viewer": "The slice viewer was left out, as asked."}
    budget = BUDGET // len(results.datasets)
    try:
        data = viewer_data(results, dataset, n_cases=n_cases, budget=budget, step=step)
    except UserError as error:
        return {"viewer": None, "no_viewer": f"There is no slice viewer: {error}."}
    return {"viewer": data, "no_viewer": ""}
