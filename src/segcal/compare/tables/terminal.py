"""Tables for the terminal: no number is cut; a table that is too wide is split into several."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from segcal.compare.tables.records import Row, Table
from segcal.compare.tables.writers import lines_of

Line = tuple[Row, bool, list[Text]]  # with whether it begins a block, and its entries

FRAME = 3  # characters of a column beside its text: a space on each side, a line
NARROWEST = 8  # the least width of labels


def to_rich(table: Table, console: Console) -> Group:
    """For the terminal: best in bold, second underlined; `*` and `+` where there are no styles.

    To fit the width, heads are folded first, then the columns are split over several tables."""
    styled = console.color_system is not None  # a file has none
    marks = ("[bold]@[/]", "[underline]@[/]", "@") if styled else ("@*", "@+", "@ ")
    lines = []
    for row, begins, texts in lines_of(table, escape, *marks):
        lines.append((row, begins, [Text.from_markup(text) for text in texts]))
    labels, parts = _parts(table, lines, console.width)
    shown: list[RenderableType] = []
    for i, widths in enumerate(parts):
        part = f" ({i + 1} of {len(parts)})" if len(parts) > 1 else ""
        grid = RichTable(width=_total([labels, *widths.values()]))
        grid.add_column("", width=labels, overflow="fold")
        for column, width in widths.items():
            head = Text(table.columns[column])
            grid.add_column(head, justify="right", width=width, overflow="fold")
        for row, begins, entries in lines:
            if begins and row.block:
                grid.add_section()
                grid.add_row(Text(row.block, style="italic"))
            grid.add_row(Text(row.label), *(entries[column] for column in widths))
        shown += [Text(table.title + part, style="italic"), grid]
    notes = table.notes if styled else map(_unstyled, table.notes)
    return Group(*shown, *map(Text, notes))


def _parts(table: Table, lines: Sequence[Line], width: int) -> tuple[int, list[dict[int, int]]]:
    """The width of the labels, and of each part the columns with their widths."""
    labels = max(cell_len(text) for row in table.rows for text in (row.label, row.block))
    whole, folded = [], []
    for i, head in enumerate(table.columns):
        entries = max(texts[i].cell_len for _, _, texts in lines)
        whole.append(max(entries, cell_len(head)))
        folded.append(max(entries, *map(cell_len, head.split())))
    widths = whole
    if _total([labels, *whole]) > width:
        widths = folded
        labels = min(labels, max(NARROWEST, width - _total([0, max(folded)])))
    parts: list[dict[int, int]] = []
    for i, column in enumerate(widths):
        if not parts or _total([labels, *parts[-1].values(), column]) > width:
            parts.append({})
        parts[-1][i] = column
    return labels, parts


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + FRAME * len(widths) + 1


def _unstyled(note: str) -> str:
    """A sentence about marks where they are signs."""
    changed = re.sub(r"\bBold(?=:| is the )", "*", note, count=1)
    return changed.replace(", underlined the second", ", + the second", 1)
