"""Tables for the terminal: no number is ever cut; what is too wide becomes several tables below
each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as Shown
from rich.text import Text

from segcal.compare.tables.records import Cell, Table, blocks

FRAME = 3  # characters that a column takes beside its text: a space on each side, a line
NARROWEST = 8  # what labels are folded to at most


def to_rich(table: Table) -> RenderableType:
    """For the terminal: best in bold, second underlined, notes below; `*` and `+` where there are
    no styles, as in a file.

    It fits the width it is given: heads are folded first, then the columns are dealt out to several
    tables."""
    return _Fitted(table)


@dataclass(frozen=True)
class _Fitted:
    """A table that learns width and styles when it is printed."""

    table: Table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        styled = console.color_system is not None  # a file has none
        parts = _parts(self.table, options.max_width, styled)
        for i, (columns, widths) in enumerate(parts):
            title = (
                f"{self.table.title} ({i + 1} of {len(parts)})"
                if len(parts) > 1
                else self.table.title
            )
            yield Text(title, style="italic")
            yield _shown(self.table, columns, widths, styled)
        for note in self.table.notes:
            yield Text(note if styled else _unstyled(note))


def _parts(table: Table, width: int, styled: bool) -> list[tuple[list[int], list[int]]]:
    """Which columns stand together, and the widths of the labels and of these columns."""
    labels = max(cell_len(text) for row in table.rows for text in (row.label, row.block))
    cells = [
        max(cell_len(_cell(table, row.cells[i], i, styled).plain) for row in table.rows)
        for i in range(len(table.columns))
    ]
    everything = list(range(len(table.columns)))
    whole = [max(cell, cell_len(head)) for cell, head in zip(cells, table.columns, strict=True)]
    if _total([labels, *whole]) <= width:
        return [(everything, [labels, *whole])]
    folded = [
        max(cell, *(cell_len(word) for word in head.split()))
        for cell, head in zip(cells, table.columns, strict=True)
    ]
    labels = min(labels, max(NARROWEST, width - _total([0, max(folded)])))
    parts: list[list[int]] = [[]]
    for i in everything:
        if parts[-1] and _total([labels, *(folded[j] for j in [*parts[-1], i])]) > width:
            parts.append([])
        parts[-1].append(i)
    return [(part, [labels, *(folded[i] for i in part)]) for part in parts]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + FRAME * len(widths) + 1


def _shown(table: Table, columns: Sequence[int], widths: Sequence[int], styled: bool) -> Shown:
    shown = Shown(
        width=_total(widths)
    )  # also where the screen is narrower: a folded line is better than a lost number
    shown.add_column("", width=widths[0], overflow="fold")
    for i, width in zip(columns, widths[1:], strict=True):
        shown.add_column(Text(table.columns[i]), justify="right", width=width, overflow="fold")
    for block, rows in blocks(table):
        if block:
            shown.add_section()
            shown.add_row(Text(block, style="italic"))
        for row in rows:
            shown.add_row(
                Text(row.label), *(_cell(table, row.cells[i], i, styled) for i in columns)
            )
    return shown


def _cell(table: Table, cell: Cell, column: int, styled: bool) -> Text:
    style = "bold" if cell.best else "underline" if cell.second else ""
    text, paper = table.text(cell, column), table.paper(cell, column)
    if styled:
        return Text.assemble((text, style), paper)  # no style beyond our own value
    marked = any(row.cells[column].best or row.cells[column].second for row in table.rows)
    mark = (
        "*" if cell.best else "+" if cell.second else " " if marked else ""
    )  # numbers stay below each other
    return Text(text + mark + paper)


def _unstyled(note: str) -> str:
    """A sentence about marks where they are signs."""
    if re.search(r"\bBold(:| is the )", note) is None:
        return note
    return re.sub(r"\bBold(?=:| is the )", "*", note, count=1).replace(
        ", underlined the second", ", + the second", 1
    )
