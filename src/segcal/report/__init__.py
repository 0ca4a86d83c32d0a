"""The report: one HTML file with everything in it, that opens anywhere and asks nothing of the
network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from segcal.compare import Results
from segcal.compare.tables import TABLES
from segcal.figures import FIGURES
from segcal.folders import replacing
from segcal.report import embed
from segcal.report.findings import find
from segcal.report.page import render
from segcal.report.summary import Summary, summarise
from segcal.report.viewer import BUDGET, viewer_data
from segcal.types import UserError, check_range

__all__ = ["Summary", "build_report", "check_target", "save_report", "summaries"]

Progress = Callable[[str, int, int], None]
"""Told what is at work, how many steps are done, and how many there are."""

RELIABILITY, OF_CASES = ("reliability", "reliability_per_class"), ("qualitative",)


def build_report(
    results: Results,
    *,
    n_cases: int = 4,
    viewer: bool = True,
    published: bool = False,
    progress: Progress | None = None,
) -> str:
    """The report of some runs as HTML. `n_cases` go into the slice viewer; `published` adds the
    paper's values.
    """
    check_range("cases", n_cases, 1)
    steps = _Steps(
        3 * len(results.datasets) + (n_cases * len(results.datasets) if viewer else 0), progress
    )
    parts = []
    for i, dataset in enumerate(results.datasets):
        parts.append(
            _dataset(results, dataset, f"d{i}", n_cases if viewer else 0, published, steps)
        )
    html = render(results, parts, _across(results), _selections(results))
    steps.finish()
    return html


def summaries(results: Results) -> dict[str, Summary]:
    """The outcome on each data set in words."""
    return {dataset: summarise(find(results, dataset)) for dataset in results.datasets}


def save_report(path: Path, html: str) -> None:
    """Write the report where it was asked for, whole or not at all."""
    check_target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write the report to {path}: {error.strerror or error}; choose another -o"
        ) from None


def check_target(path: Path) -> None:
    """Refuse to write a report over a folder; before any work is done."""
    if path.is_dir():
        raise UserError(
            f"{path} is a folder; name a file for the report, such as {path / 'report.html'}"
        )


class _Steps:
    """Counts what is done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def __call__(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, self.done, self.total)
        self.done += 1

    def finish(self) -> None:
        """There may have been fewer cases than asked for."""
        if self.progress is not None:
            self.progress("done", self.total, self.total)


def _dataset(
    results: Results, dataset: str, id: str, n_cases: int, published: bool, steps: _Steps
) -> dict[str, Any]:
    """Everything that the page says of one data set."""
    steps(f"{dataset}: tables")
    content: dict[str, Any] = {
        "id": id,
        "name": dataset,
        "summary": summarise(find(results, dataset)),
        "tables": list(embed.tables(results, dataset, id, published=published)),
        "scores": embed.case_tables(results, dataset, id),
    }
    steps(f"{dataset}: figures")
    others = [key for key in FIGURES if key not in (*RELIABILITY, *OF_CASES)]
    kinds = {"figures": others, "reliability": list(RELIABILITY), "pictures": list(OF_CASES)}
    content |= {
        name: list(embed.figures(results, dataset, id, keys)) for name, keys in kinds.items()
    }
    return content | _viewer(results, dataset, n_cases, steps)


def _viewer(results: Results, dataset: str, n_cases: int, steps: _Steps) -> dict[str, Any]:
    """The slice viewer, or a sentence on why there is none."""
    if not n_cases:
        return {"viewer": None, "no_viewer": "The slice viewer was left out, as asked."}
    steps(f"{dataset}: cases")
    budget = BUDGET // len(results.datasets)
    try:
        data = viewer_data(
            results,
            dataset,
            n_cases=n_cases,
            budget=budget,
            progress=lambda *_: steps(f"{dataset}: cases"),
        )
    except UserError as error:
        return {
            "viewer": None,
            "no_viewer": f"There is no slice viewer, since the cases cannot be shown: {error}.",
        }
    return {"viewer": data, "no_viewer": ""}


def _across(results: Results) -> list[Any]:
    """What is said of all data sets together, where there are several."""
    if len(results.datasets) < 2:
        return []
    made = TABLES["ranking"](results)
    return [] if made is None else [embed.table_view(made, "all-ranking", embed.colours(results))]


def _selections(results: Results) -> Iterator[Any]:
    for i, dataset in enumerate(results.datasets):
        made = TABLES["selection"](results, dataset)
        if made is not None:
            view = embed.table_view(made, f"d{i}-selection")
            yield view if len(results.datasets) == 1 else view.named(f"{view.title}: {dataset}")
