"""What the page's tables are made of: words and numbers ready to print, and what to sort
them by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from segcal.report.words import MINUS


@dataclass(frozen=True)
class Column:
    """A column's head; `first` says which way a first click sorts."""

    label: str
    first: str = ""  # "ascending" or "descending"; empty for the page's own choice
    text: bool = False


@dataclass(frozen=True)
class CellView:
    """A cell as printed, with the value that it sorts by: empty where it has none, `None` to sort
    by its words.
    """

    text: str
    sort: str | None = None
    best: bool = False
    second: bool = False
    spread: str = ""
    published: str = ""
    note: str = ""
    text_only: bool = False

    @classmethod
    def words(cls, text: str) -> CellView:
        """A cell of words."""
        return cls(text, text_only=True)

    @classmethod
    def number(cls, value: float, digits: int = 3) -> CellView:
        """A cell of a number, or of a dash where there is none."""
        return (
            cls("–", sort="")
            if math.isnan(value)
            else cls(f"{value:.{digits}f}".replace("-", MINUS), sort=repr(float(value)))
        )


@dataclass(frozen=True)
class RowView:
    """A row: its label, and its colour where it has one."""

    label: str
    cells: list[CellView]
    colour: str = ""


@dataclass(frozen=True)
class TableView:
    """A table of the page."""

    id: str
    title: str
    columns: list[Column]
    rows: list[RowView]
    notes: list[str] = field(default_factory=list)
    wrap: bool = False
    print: bool = True

    def named(self, title: str) -> TableView:
        """The same under another title."""
        return replace(self, title=title)
