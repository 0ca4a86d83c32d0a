"""Tables and figures of other rooms as parts of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from segcal.compare import Results
from segcal.compare.tables import TABLES, Cell, Table
from segcal.figures import FIGURES, looks_of
from segcal.metrics import METRICS
from segcal.report.sprites import data_uri
from segcal.report.views import CellView, Column, RowView, TableView
from segcal.report.words import JOINED, MINUS

MANY_PIXELS = 20_000
"""A figure with larger images than this is embedded as PNG: as vectors they only grow."""

WIDE = 5.0  # inches: such a figure is made for a page, not for a column
BLOCKS = {
    "ranking": "Data set",
    "robustness": "Images",
    "backbones": "Network",
    "penalty": "Variants of",
}
HEADS = {"tests": "Pair", "selection": "Setting"}
SCORES = ("dice", "asd", "hd95", "missed", "ece", "cece", "confidence_gap", "nll", "brier")
PRINTED = ("dice", "ece")


@dataclass(frozen=True)
class Picture:
    """A figure ready for the page."""

    id: str
    label: str
    caption: str
    address: str  # the picture itself, as a data address
    wide: bool


# Tables
# ------------------------------------------------------------------------------


def tables(results: Results, dataset: str, id: str, *, published: bool) -> Iterator[TableView]:
    """Every table that the runs have something for; the choice of settings stands elsewhere."""
    for key, make in TABLES.items():
        if key != "selection":
            made = make(results, dataset, published=published)
            if made is not None:
                yield table_view(made, f"{id}-table-{key}", colours(results))


def colours(results: Results) -> dict[str, str]:
    """The colour of each contender, by key."""
    return {key: look.colour for key, look in looks_of(results.contenders).items()}


def table_view(table: Table, id: str, marks: Mapping[str, str] | None = None) -> TableView:
    """A table's values as they are printed; rows of contenders get their colour.

    Blocks become a column, so that rows may be sorted across them.
    """
    blocks = any(row.block for row in table.rows)
    columns = [Column(HEADS.get(table.key, "Method"), text=True)] + [
        Column(BLOCKS.get(table.key, "Part"), text=True)
    ] * blocks
    columns += [Column(_joined(text), first=_first(text)) for text in table.columns]
    rows = [
        RowView(
            row.label,
            [CellView.words(row.block)] * blocks
            + [_cell(table, cell, i) for i, cell in enumerate(row.cells)],
            (marks or {}).get(row.key, ""),
        )
        for row in table.rows
    ]
    title = table.title.removesuffix(f": {table.dataset}") if table.dataset else table.title
    return TableView(id, title, columns, rows, list(table.notes))


def _joined(header: str) -> str:
    """An arrow stays on the line of its metric."""
    return re.sub(r" (?=[↑↓→])", JOINED, header)


def _first(header: str) -> str:
    """A first click puts the best on top: the highest where that is better."""
    return "descending" if "↑" in header or "%" in header else "ascending"


def _cell(table: Table, cell: Cell, column: int) -> CellView:
    def text(value: float) -> str:
        return table.text(Cell(value), column).replace("-", MINUS)

    if cell.value is None:
        return CellView("–", sort="", spread=cell.note, published=_paper(table, cell, column))
    low, high = cell.low, cell.high
    known = low is not None and high is not None
    return CellView(
        text(cell.value),
        sort=repr(float(cell.value)),
        best=bool(cell.best),
        second=bool(cell.second),
        spread=" ".join(filter(None, [f"± {text((high - low) / 2)}" if known else "", cell.note])),  # type: ignore[operator]
        published=_paper(table, cell, column),
        note=f"{text(low)} to {text(high)}" if known else "",  # type: ignore[arg-type]
    )


def _paper(table: Table, cell: Cell, column: int) -> str:
    return "" if cell.published is None else table.text(Cell(cell.published), column)


def case_tables(results: Results, dataset: str, id: str) -> list[TableView]:
    """Every case's score by every contender, a table per metric."""
    found = []
    for metric in SCORES:
        row = METRICS[metric]
        table = results.per_case(dataset, metric, results.overall_class(dataset, metric))
        if table.notna().any(axis=None):
            names = {c.key: c.label for c in results.on(dataset)}
            columns = [Column("Case", text=True)]
            first = "descending" if row.better == "higher" else "ascending"
            columns += [Column(names[key], first=first) for key in table.columns]
            digits = 0 if metric == "missed" else 3
            rows = [
                RowView(str(case), [CellView.number(float(v), digits) for v in values])
                for case, values in zip(table.index, table.to_numpy(), strict=True)
            ]
            title = " ".join(
                filter(None, (row.label, row.arrow, f"({row.unit})" if row.unit else ""))
            )
            found.append(
                TableView(f"{id}-case-{metric}", title, columns, rows, print=metric in PRINTED)
            )
    return found


# Figures
# ------------------------------------------------------------------------------


def figures(results: Results, dataset: str, id: str, keys: list[str]) -> Iterator[Picture]:
    """The figures that the runs have something for."""
    for key in keys:
        row = FIGURES[key]
        figure = row.draw(results, dataset)
        if figure is not None:
            wide = figure.get_figwidth() > WIDE
            yield Picture(f"{id}-figure-{key}", row.label, row.caption, address_of(figure), wide)


def address_of(figure: Figure) -> str:
    """A figure as SVG, or as PNG where it holds photographs.

    As an image of its own, and not as part of the page's tree, it keeps its styles and identifiers
    to itself."""
    out = io.BytesIO()
    if _n_pixels(figure) > MANY_PIXELS:
        figure.savefig(out, format="png", dpi=200)
        return data_uri(out.getvalue())
    with matplotlib.rc_context({"svg.hashsalt": "segcal"}):  # the same runs give the same page
        figure.savefig(out, format="svg", metadata={"Date": None})
    return data_uri(out.getvalue(), "image/svg+xml")


def _n_pixels(figure: Figure) -> int:
    images: list[Any] = [image for ax in figure.axes for image in ax.get_images()]
    return sum(image.get_array().size for image in images)
