"""The verb that ends it all: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from segcal.cli.app import AsJson, app, bar, show
from segcal.hardware import before_torch


@app.command(epilog="Example: segcal report runs/ce runs/mbls -o report.html")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Finished and evaluated runs, or folders of runs such as a study's."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    cases: Annotated[
        int, typer.Option(min=1, help="How many cases the slice viewer shows, at most.")
    ] = 4,
    no_viewer: Annotated[
        bool, typer.Option("--no-viewer", help="Leave the slice viewer out.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Put the paper's values beside, where it has any.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of runs in one HTML file that opens anywhere: words, tables, figures, cases,
    provenance.
    """
    before_torch()
    from segcal.compare import read_results
    from segcal.report import build_report, check_target, save_report, summaries

    check_target(out)
    results = read_results(runs)
    with bar() as shown:
        task = shown.add_task("reading", total=None)
        html = build_report(
            results,
            n_cases=cases,
            viewer=not no_viewer,
            published=published,
            progress=lambda what, done, total: shown.update(
                task, description=what, completed=done, total=total
            ),
        )
    save_report(out, html)
    size = out.stat().st_size
    told = {dataset: summary.text for dataset, summary in summaries(results).items()}
    if as_json:
        show({"report": str(out), "bytes": size, "summary": told}, Table(), as_json)
        return
    print(f"{out} ({size / 1e6:.1f} MB)")
    for text in told.values():
        print(f"\n{text}")
