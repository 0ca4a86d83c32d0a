"""What a table is: cells with a mean and its interval, rows, columns and the sentences that belong
under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

NONE = "—"
"""How a value that does not exist is printed."""


@dataclass(frozen=True)
class Cell:
    """A number of a table; `None` where there is none."""

    value: float | None = None
    low: float | None = None  # the interval, where there is one
    high: float | None = None
    n: int = 0  # how many cases (or runs) it is the mean of
    best: bool = False  # in its column and block
    second: bool = False
    published: float | None = None  # what the paper has here
    note: str = ""  # "2 missed", "6 without", "CE better"
    of: int = 0  # in how many cases anyone compared has a value or missed the object


@dataclass(frozen=True)
class Row:
    """A line of a table: usually a contender. Rows of one block are compared with each other."""

    label: str
    cells: tuple[Cell, ...]
    key: str = ""
    block: str = ""  # the heading over the row and its neighbours, if any


@dataclass(frozen=True)
class Table:
    """A table as values; `segcal.compare.tables` writes it as text. A cell per column in
    every row.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    digits: tuple[int, ...] = ()  # decimals of each column; below 0: that many significant digits
    dataset: str = ""  # empty where there are several
    first: str = "method"  # what the labels of the rows are

    def text(self, cell: Cell, column: int) -> str:
        """A cell as plain text: the mean, half its interval, what is to be said of it.

        >>> table = Table("t", "", ("DSC",), (), digits=(3,))
        >>> table.text(Cell(0.8712, 0.86, 0.88, note="1 missed"), 0)
        '0.871 ± 0.010 (1 missed)'
        """
        parts = [NONE if cell.value is None else self._number(cell.value, column)]
        if cell.low is not None and cell.high is not None:
            parts.append(f"± {self._number((cell.high - cell.low) / 2, column)}")
        if cell.note:
            parts.append(f"({cell.note})")
        return " ".join(parts)

    def paper(self, cell: Cell, column: int) -> str:
        """The paper's value as it stands behind the cell's own: ` [0.867]`; empty if there
        is none.
        """
        return "" if cell.published is None else f" [{self._number(cell.published, column)}]"

    def _number(self, value: float, column: int) -> str:
        digits = self.digits[column] if self.digits else 3
        return f"{value:.{digits}f}" if digits >= 0 else f"{value:.{-digits}g}"

    def values(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)


def blocks(table: Table) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each block, under its heading."""
    for block in dict.fromkeys(row.block for row in table.rows):
        yield block, [row for row in table.rows if row.block == block]


def stacked(tables: Sequence[Table]) -> Table | None:
    """Tables of several data sets as one, a block per data set; its columns are those of all.
    `None` for no table.
    """
    if len(tables) < 2:
        return tables[0] if tables else None
    columns = {
        name: digits for t in tables for name, digits in zip(t.columns, t.digits, strict=True)
    }
    rows = []
    for table in tables:
        place = {name: i for i, name in enumerate(table.columns)}
        for row in table.rows:
            cells = tuple(row.cells[place[name]] if name in place else Cell() for name in columns)
            rows.append(
                replace(row, cells=cells, block=": ".join(filter(None, (table.dataset, row.block))))
            )
    what = tables[0].title.partition(": ")[0]
    title = f"{what}: {', '.join(t.dataset for t in tables)}"
    notes = tuple(
        f"{t.dataset}: {note}"
        for t in tables
        for note in t.notes
        if not all(note in o.notes for o in tables)
    )
    shared = tuple(note for note in tables[0].notes if all(note in t.notes for t in tables))
    digits = tuple(columns.values())
    return Table(
        tables[0].key,
        title,
        tuple(columns),
        tuple(rows),
        (*shared, *notes),
        digits,
        first=tables[0].first,
    )
