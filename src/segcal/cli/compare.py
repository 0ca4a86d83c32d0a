"""The verbs about several runs: compare, pack."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from segcal.cli.app import AsJson, Calibrator, Published, Runs, app, show
from segcal.hardware import before_torch

AS_WIDE_AS_NEEDED = 10_000  # a file has no width
FORMATS = ("terminal", "csv", "markdown", "latex")
TABLES = (
    "Only this table; may be repeated: discriminative, calibration, ranking, tests, seeds, posthoc,"
    " penalty, robustness, backbones or selection."
)


@app.command(epilog="Example: segcal compare runs/ce runs/mbls --table calibration --format latex")
def compare(
    runs: Runs,
    table: Annotated[list[str] | None, typer.Option(help=TABLES)] = None,
    format: Annotated[str, typer.Option(help="terminal, csv, markdown or latex.")] = "terminal",
    out: Annotated[
        Path | None, typer.Option(help="Also write every table in every format into this folder.")
    ] = None,
    published: Published = False,
    calibrator: Calibrator = "",
    weights: Annotated[
        str | None, typer.Option(help="Only scores of these weights: best or last.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs by means with intervals, ranks and tests, each method at its chosen setting."""
    from segcal.types import check_choice

    check_choice("format", format, FORMATS)
    before_torch()
    from segcal.compare import read_results, tables

    results = read_results(runs, weights=weights)
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
        known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
        console = Console(width=None if known else AS_WIDE_AS_NEEDED)
        for one in made:
            console.print(tables.to_rich(one, console), "", crop=False)
    else:
        _, write = tables.FORMATS[format]
        titled = format == "csv" and len(made) > 1  # otherwise a file does not name its tables
        print("\n".join(f"# {one.title}\n" * titled + write(one) for one in made), end="")


@app.command(epilog="Example: segcal pack studies/paper-acdc --out results/acdc")
def pack(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    as_json: AsJson = False,
) -> None:
    """Copy runs without weights and images, small enough to publish.

    compare, figures and report read the copy like the runs.
    """
    before_torch()
    from segcal.compare import pack

    packed = pack(runs, out)
    table = Table("folder", "runs", "size")
    table.add_row(packed["out"], str(packed["runs"]), f"{packed['bytes'] / 1e3:,.0f} kB")
    show(packed, table, as_json)
