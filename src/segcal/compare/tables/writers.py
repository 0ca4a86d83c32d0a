"""Tables as text: for spreadsheets, pages and papers. `FORMATS` holds them by key."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from segcal.compare.tables.records import Cell, Table, blocks
from segcal.folders import read_json, whole_or_not, write_json
from segcal.types import UserError

INDEX = "tables.json"
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {c: f"\\{c}" for c in "&%$#_{}"}
LATEX |= {
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\to$",
    "±": r"$\pm$",
    "−": "$-$",
    "—": "---",
    "σ": r"$\sigma$",
}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
# How wide a table becomes is known to LaTeX alone, so it decides.
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def to_csv(table: Table) -> str:
    """Numbers for a spreadsheet, unrounded: beside a mean its interval, number of cases, note and
    the paper's value.
    """
    parts = {"low": "low", "high": "high", "n": "n", "published": "paper", "note": "note"}
    used = [
        [
            part
            for part in parts
            if any(getattr(row.cells[i], part) not in (None, 0, "") for row in table.rows)
        ]
        for i in range(len(table.columns))
    ]
    block = ["block"] if any(row.block for row in table.rows) else []
    head = [table.first, *block]
    for name, own in zip(table.columns, used, strict=True):
        head += [name, *(f"{name} {parts[part]}" for part in own)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        line: list[object] = [row.label, *([row.block] if block else [])]
        for cell, own in zip(row.cells, used, strict=True):
            line += [cell.value, *(getattr(cell, part) for part in own)]
        writer.writerow(line)
    return file.getvalue()


def to_markdown(table: Table) -> str:
    """For a page: best in bold, second underlined."""

    def cell_text(cell: Cell, column: int) -> str:
        text = _markdown(table.text(cell, column))
        marked = f"**{text}**" if cell.best else f"<u>{text}</u>" if cell.second else text
        return marked + _markdown(table.paper(cell, column))

    lines = [f"**{_markdown(table.title)}**", ""]
    lines += [
        _line("", *map(_markdown, table.columns)),
        _line("---", *("---:" for _ in table.columns)),
    ]
    for block, rows in blocks(table):
        if block:
            lines.append(_line(f"*{_markdown(block)}*", *("" for _ in table.columns)))
        lines += [
            _line(_markdown(row.label), *(cell_text(c, i) for i, c in enumerate(row.cells)))
            for row in rows
        ]
    return "\n".join([*lines, "", *(f"- {_markdown(note)}" for note in table.notes)]) + "\n"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\|*_<>[]`" else c for c in text)


def to_latex(table: Table) -> str:
    """For a paper, with booktabs: best in bold, second underlined; scaled down if it is wider than
    the text.
    """

    def cell_text(cell: Cell, column: int) -> str:
        text = _latex(table.text(cell, column))
        marked = (
            rf"\textbf{{{text}}}"
            if cell.best
            else rf"\underline{{{text}}}"
            if cell.second
            else text
        )
        return marked + _latex(table.paper(cell, column))

    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(table.title)}}}",
    ]
    lines += [rf"\label{{tab:{_plain(table)}}}", FITTED]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines += [" & ".join(["", *map(_latex, table.columns)]).strip() + r" \\", r"\midrule"]
    for i, (block, rows) in enumerate(blocks(table)):
        if i:
            lines.append(r"\midrule")
        if block:
            lines.append(
                rf"\multicolumn{{{len(table.columns) + 1}}}{{l}}{{\emph{{{_latex(block)}}}}} \\"
            )
        for row in rows:
            lines.append(
                " & ".join([_latex(row.label), *(cell_text(c, j) for j, c in enumerate(row.cells))])
                + r" \\"
            )
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if table.notes:
        lines += [r"\par\smallskip\footnotesize", _latex(" ".join(table.notes))]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


def _plain(table: Table) -> str:
    name = "-".join(filter(None, (table.key, table.dataset)))
    return "".join(c if c.isalnum() or c in "-." else "-" for c in name)


FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "csv": ("csv", to_csv),
    "markdown": ("md", to_markdown),
    "latex": ("tex", to_latex),
}
"""Text formats: the ending of the file, and the writer."""


def save_tables(tables: Sequence[Table], out: Path) -> list[Path]:
    """Write every table in every format into a folder, and all of them into `tables.json`; whole or
    not at all.

    A folder with tables is replaced; any other that is not empty is left alone.
    """
    out = out.resolve()
    if out.exists() and not _ours(out):
        raise UserError(f"{out} holds other things than tables; choose a new folder with --out")
    texts = {
        f"{_plain(t)}.{ending}": write(t) for t in tables for ending, write in FORMATS.values()
    }
    with whole_or_not(out, sorted(texts)) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        write_json(folder / INDEX, {"files": sorted(texts), "tables": [t.values() for t in tables]})
    return [out / name for name in sorted([*texts, INDEX])]


def _ours(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    known = read_json(folder / INDEX) or {}
    names = {path.name for path in folder.iterdir()}
    return names <= {INDEX, *(known.get("files", []) if isinstance(known, dict) else [])}
