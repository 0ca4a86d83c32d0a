"""The verb that compares runs in tables: compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Option

from segcal.cli.app import (
    AsJson,
    ByMetrics,
    Calibrator,
    Names,
    OnlyWeights,
    Published,
    Runs,
    app,
    console,
    show,
)
from segcal.types import check_choice

FORMATS = ("terminal", "csv", "markdown", "latex")
TABLES = "Only this table: discriminative, calibration, confidence, reference, ranking, tests,"
TABLES += " seeds, posthoc, penalty, robustness, backbones or selection. May be repeated."
ALSO = "Also write every table in every format into this folder."


@app.command(epilog="Example: segcal compare runs/ce runs/mbls --table calibration --format latex")
def compare(
    runs: Runs,
    table: Annotated[Names, Option(help=TABLES)] = None,
    format: Annotated[str, Option(help="terminal, csv, markdown or latex.")] = "terminal",
    out: Annotated[Path | None, Option(help=ALSO)] = None,
    metrics: ByMetrics = "main",
    published: Published = False,
    calibrator: Calibrator = "",
    weights: OnlyWeights = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs by means with intervals, ranks and tests, each method at its chosen setting."""
    from segcal.compare import read_results, tables

    check_choice("format", format, FORMATS)
    results = read_results(runs, weights=weights, metrics=metrics)
    made = tables.all_tables(results, table or (), calibrator=calibrator, published=published)
    if format == "csv" or as_json:  # other formats have it among their notes
        for line in tables.failed_note(results.failed):
            print(f"note: {line}", file=sys.stderr)
    if out is not None:
        for path in tables.save_tables(made, out):
            print(f"wrote {path}", file=sys.stderr)
    if as_json:
        show([one.values() for one in made], Table(), as_json)
    elif format == "terminal":
        terminal = console(10_000)  # a file has no width
        for one in made:
            terminal.print(tables.to_rich(one, terminal), "", crop=False)
    else:
        _, write = tables.FORMATS[format]
        titled = format == "csv" and len(made) > 1  # otherwise a file does not name its tables
        print("\n".join(f"# {one.title}\n" * titled + write(one) for one in made), end="")
