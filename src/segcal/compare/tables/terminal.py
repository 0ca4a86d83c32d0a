"""Tables for the terminal: no number is cut; a table that is too wide is split into several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from segcal.compare.tables.records import Entry, Table

FRAME = 3  # characters of a column beside its text: a space on each side, a line
NARROWEST = 8  # the least width of labels


def to_rich(table: Table) -> RenderableType:
    """For the terminal: best in bold, second underlined; `*` and `+` where there are no styles.

    To fit the width, heads are folded first, then the columns are split over several tables."""
    return _Fitted(table)


@dataclass(frozen=True)
class _Fitted:
    """A table that adapts to width and styles when it is printed."""

    table: Table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        styled = console.color_system is not None  # a file has none
        parts = _parts(self.table, options.max_width, styled)
        for i, (columns, widths) in enumerate(parts):
            part = f" ({i + 1} of {len(parts)})" if len(parts) > 1 else ""
            yield Text(self.table.title + part, style="italic")
            yield _shown(self.table, columns, widths, styled)
        for note in self.table.notes:
            yield Text(note if styled else _unstyled(note))


def _parts(table: Table, width: int, styled: bool) -> list[tuple[list[int], list[int]]]:
    """The columns of each part, and the widths of the labels and of these columns."""
    labels = max(cell_len(text) for row in table.rows for text in (row.label, row.block))
    whole, folded = [], []
    for i, head in enumerate(table.columns):
        texts = [_text(table, row.cells[i], i, styled).plain for row in table.rows]
        entries = max(map(cell_len, texts))
        whole.append(max(entries, cell_len(head)))
        folded.append(max(entries, *map(cell_len, head.split())))
    if _total([labels, *whole]) <= width:
        return [(list(range(len(whole))), [labels, *whole])]
    labels = min(labels, max(NARROWEST, width - _total([0, max(folded)])))
    parts: list[tuple[list[int], list[int]]] = []
    for i, column in enumerate(folded):
        if not parts or _total([*parts[-1][1], column]) > width:
            parts.append(([], [labels]))
        parts[-1][0].append(i)
        parts[-1][1].append(column)
    return parts


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + FRAME * len(widths) + 1


def _shown(table: Table, columns: Sequence[int], widths: Sequence[int], styled: bool) -> RichTable:
    # On a narrower screen a line is folded, so that no number is lost.
    shown = RichTable(width=_total(widths))
    shown.add_column("", width=widths[0], overflow="fold")
    for i, width in zip(columns, widths[1:], strict=True):
        shown.add_column(Text(table.columns[i]), justify="right", width=width, overflow="fold")
    for block, rows in table.blocks():
        if block:
            shown.add_section()
            shown.add_row(Text(block, style="italic"))
        for row in rows:
            entries = [_text(table, row.cells[i], i, styled) for i in columns]
            shown.add_row(Text(row.label), *entries)
    return shown


def _text(table: Table, entry: Entry, column: int, styled: bool) -> Text:
    text, paper = table.text(entry, column), table.paper(entry, column)
    if styled:
        style = "bold" if entry.best else "underline" if entry.second else ""
        return Text.assemble((text, style), paper)
    marked = any(row.cells[column].best or row.cells[column].second for row in table.rows)
    space = " " if marked else ""  # numbers stay below each other
    mark = "*" if entry.best else "+" if entry.second else space
    return Text(text + mark + paper)


def _unstyled(note: str) -> str:
    """A sentence about marks where they are signs."""
    changed = re.sub(r"\bBold(?=:| is the )", "*", note, count=1)
    return changed.replace(", underlined the second", ", + the second", 1)
