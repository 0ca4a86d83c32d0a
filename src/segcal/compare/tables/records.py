"""The one model of a table: entries, rows, columns, and the sentences under it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Results

NONE = "—"
"""How a value that does not exist is printed."""

P_VALUE = -2  # stands for the decimals of a column of p values


def p_text(p: float | None, least: float = 1e-4) -> str:
    """A p value as printed, to two significant digits.

    >>> p_text(0.0312), p_text(1e-9), p_text(1e-9, least=0), p_text(None)
    ('0.031', '< 0.0001', '1e-09', '—')
    """
    return NONE if p is None else f"< {least:f}".rstrip("0") if p < least else f"{p:.2g}"


@dataclass(frozen=True)
class Entry:
    """A number of a table; `None` if there is none."""

    value: float | None = None
    low: float | None = None  # the interval, if there is one
    high: float | None = None
    n: int = 0  # the number of cases (or runs) that it is the mean of
    best: bool = False  # in its column and block
    second: bool = False
    published: float | None = None  # the paper's value
    note: str = ""  # "2 missed", "6 without", "CE better"
    of: int = 0  # the number of cases in which any contender has a value or missed the object


@dataclass(frozen=True)
class Row:
    """A line of a table, usually a contender. Rows of one block are compared with each other."""

    label: str
    cells: tuple[Entry, ...]  # one per column
    key: str = ""
    block: str = ""  # the heading over the row and its neighbours, if any


@dataclass(frozen=True)
class Table:
    """A table as values."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    digits: tuple[int, ...] = ()  # decimals of each column, or `P_VALUE`
    dataset: str = ""  # empty if there are several
    first: str = "method"  # what the labels of the rows are

    def text(self, entry: Entry, column: int) -> str:
        """An entry as text: the mean, half of its interval, its note.

        >>> table = Table("t", "", ("DSC",), (), digits=(3,))
        >>> table.text(Entry(0.8712, 0.86, 0.88, note="1 missed"), 0)
        '0.871 ± 0.010 (1 missed)'
        """
        text = NONE if entry.value is None else self._number(entry.value, column)
        if entry.low is not None and entry.high is not None:
            text += f" ± {self._number((entry.high - entry.low) / 2, column)}"
        return f"{text} ({entry.note})" if entry.note else text

    def paper(self, entry: Entry, column: int) -> str:
        """The paper's value as printed behind ours: ` [0.867]`; empty if there is none."""
        return "" if entry.published is None else f" [{self._number(entry.published, column)}]"

    def _number(self, value: float, column: int) -> str:
        digits = self.digits[column] if self.digits else 3
        return p_text(value, least=0) if digits == P_VALUE else f"{value:.{digits}f}"

    def values(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Request:
    """What a table is asked to show."""

    key: str
    label: str
    results: Results
    dataset: str  # empty for all
    calibrator: str = ""
    published: bool = False  # with the paper's values

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """The main contenders on the data set."""
        return self.results.main(self.dataset)

    def table(
        self,
        columns: Iterable[str],
        rows: Iterable[Row],
        notes: Iterable[str],
        digits: Sequence[int],
        first: str = "method",
    ) -> Table:
        """The table; its title names the calibrator and the data sets."""
        suffix = f" with {CALIBRATORS[self.calibrator].label}" if self.calibrator else ""
        title = f"{self.label}{suffix}: {self.dataset or ', '.join(self.results.datasets)}"
        parts = tuple(columns), tuple(rows), tuple(notes), tuple(digits)
        return Table(self.key, title, *parts, self.dataset, first)
