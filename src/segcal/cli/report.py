"""The verbs that show runs: figures, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from segcal.cli.app import AsJson, Published, Runs, app, bar, show
from segcal.hardware import before_torch


@app.command(epilog="Example: segcal figures runs/ce runs/mbls --out figures --format pdf")
def figures(
    runs: Runs,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder; files are DATASET-FIGURE.FORMAT.")
    ],
    format: Annotated[str, typer.Option(help="svg, pdf or png.")] = "svg",
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Only this figure (segcal list figures). Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the figures that compare finished runs."""
    before_torch()
    from segcal.compare import read_results
    from segcal.figures import save_figures

    rows = save_figures(read_results(runs), out, format=format, keys=figure or ())
    table = Table("figure", "shows", "file", title=Text(str(out)))
    for row in rows:
        drawn = bool(row["file"])
        text = Path(row["file"]).name if drawn else f"left out: needs {row['needs']}"
        file = Text(text, style="" if drawn else "yellow", overflow="fold")
        table.add_row(row["figure"], row["label"], file)
    show(rows, table, as_json)


@app.command(epilog="Example: segcal report runs/ce runs/mbls -o report.html")
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    cases: Annotated[
        int, typer.Option(min=1, help="How many cases the slice viewer shows, at most.")
    ] = 4,
    no_viewer: Annotated[
        bool, typer.Option("--no-viewer", help="Leave the slice viewer out.")
    ] = False,
    published: Published = False,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of runs in one HTML file: words, tables, figures, cases, provenance."""
    before_torch()
    from segcal.compare import read_results
    from segcal.report import build_report, check_target, save_report, summaries

    check_target(out)
    results = read_results(runs)
    with bar() as shown:
        task = shown.add_task("reading", total=None)

        def progress(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total)

        html = build_report(
            results, n_cases=cases, viewer=not no_viewer, published=published, progress=progress
        )
    save_report(out, html)
    size = out.stat().st_size
    texts = {dataset: summary.text for dataset, summary in summaries(results).items()}
    if as_json:
        show({"report": str(out), "bytes": size, "summary": texts}, Table(), as_json)
        return
    print(f"{out} ({size / 1e6:.1f} MB)")
    for text in texts.values():
        print(f"\n{text}")
