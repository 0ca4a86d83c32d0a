"""Tables as text: for spreadsheets, pages and papers. `FORMATS` holds the formats by key."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from segcal.compare.tables.records import Row, Table
from segcal.folders import as_cell, read_json, whole_or_not, write_json
from segcal.types import AnyPath, UserError

INDEX = "tables.json"
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {c: f"\\{c}" for c in "&%$#_{}"}
LATEX |= {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\to$", "±": r"$\pm$", "−": "$-$"}
LATEX |= {"—": "---", "σ": r"$\sigma$"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
# LaTeX alone knows how wide a table becomes, so it decides.
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
CSV_PARTS = {"low": "low", "high": "high", "n": "n", "published": "paper", "note": "note"}


def to_csv(table: Table) -> str:
    """Unrounded numbers: means, and beside them interval, number of cases, paper's value, note."""
    block = ["block"] if any(row.block for row in table.rows) else []
    head, used = [table.first, *block], []
    for i, name in enumerate(table.columns):
        entries = [row.cells[i] for row in table.rows]
        parts = [p for p in CSV_PARTS if any(getattr(e, p) not in (None, 0, "") for e in entries)]
        head += [name, *(f"{name} {CSV_PARTS[part]}" for part in parts)]
        used.append(parts)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(as_cell, head))
    for row in table.rows:
        line: list[object] = [row.label, row.block] if block else [row.label]
        for entry, parts in zip(row.cells, used, strict=True):
            line += [entry.value, *(getattr(entry, part) for part in parts)]
        writer.writerow(map(as_cell, line))
    return file.getvalue()


def lines_of(
    table: Table, escape: Callable[[str], str], best: str, second: str, other: str = "@"
) -> Iterator[tuple[Row, bool, list[str]]]:
    """Each row, whether it begins a block, and its entries as text.

    `best`, `second` and `other` are the patterns of entries in columns that have marks."""
    block, marked = None, []
    for column in zip(*(row.cells for row in table.rows), strict=True):
        marked.append(any(entry.best or entry.second for entry in column))
    for row in table.rows:
        texts = []
        for i, entry in enumerate(row.cells):
            unmarked = other if marked[i] else "@"
            pattern = best if entry.best else second if entry.second else unmarked
            text = pattern.replace("@", escape(table.text(entry, i)))
            texts.append(text + escape(table.paper(entry, i)))
        yield row, row.block != block, texts
        block = row.block


def to_markdown(table: Table) -> str:
    """For a page: best in bold, second underlined."""
    lines = [f"**{_markdown(table.title)}**", "", _line("", *map(_markdown, table.columns))]
    lines.append(_line("---", *("---:" for _ in table.columns)))
    for row, begins, texts in lines_of(table, _markdown, "**@**", "<u>@</u>"):
        if begins and row.block:
            lines.append(_line(f"*{_markdown(row.block)}*", *("" for _ in table.columns)))
        lines.append(_line(_markdown(row.label), *texts))
    return "\n".join([*lines, "", *(f"- {_markdown(note)}" for note in table.notes)]) + "\n"


def _line(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _markdown(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\|*_<>[]`" else c for c in text)


def to_latex(table: Table) -> str:
    """For a paper, with booktabs; scaled down if it is wider than the text."""
    lines = [r"% needs \usepackage{booktabs,graphicx}", r"\begin{table}", r"\centering"]
    lines += [rf"\caption{{{_latex(table.title)}}}", rf"\label{{tab:{_file_name(table)}}}", FITTED]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines.append(" & ".join(["", *map(_latex, table.columns)]).strip() + r" \\")
    span = len(table.columns) + 1
    for row, begins, texts in lines_of(table, _latex, r"\textbf{@}", r"\underline{@}"):
        if begins:
            lines.append(r"\midrule")
        if begins and row.block:
            lines.append(rf"\multicolumn{{{span}}}{{l}}{{\emph{{{_latex(row.block)}}}}} \\")
        lines.append(" & ".join([_latex(row.label), *texts]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if table.notes:
        lines += [r"\par\smallskip\footnotesize", _latex(" ".join(table.notes))]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


def _file_name(table: Table) -> str:
    name = "-".join(filter(None, (table.key, table.dataset)))
    return "".join(c if c.isalnum() or c in "-." else "-" for c in name)


FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "csv": ("csv", to_csv),
    "markdown": ("md", to_markdown),
    "latex": ("tex", to_latex),
}
"""Text formats: the ending of the file, and the writer."""


def save_tables(tables: Sequence[Table], out: AnyPath) -> list[Path]:
    """Write every table in every format into a folder, and all into one JSON file.

    An older folder of tables is replaced; any other that is not empty is left alone."""
    out = Path(out).resolve()
    if out.exists() and not _is_ours(out):
        raise UserError(f"{out} holds other things than tables; choose a new folder with --out")
    texts = {}
    for table in tables:
        for ending, write in FORMATS.values():
            texts[f"{_file_name(table)}.{ending}"] = write(table)
    with whole_or_not(out, sorted(texts)) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        write_json(folder / INDEX, {"files": sorted(texts), "tables": [t.values() for t in tables]})
    return [out / name for name in sorted([*texts, INDEX])]


def _is_ours(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    index = read_json(folder / INDEX)
    known = index.get("files", []) if isinstance(index, dict) else []
    return {path.name for path in folder.iterdir()} <= {INDEX, *known}
