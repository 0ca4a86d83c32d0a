"""The verbs about several runs: compare, pack."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from segcal.cli.app import AsJson, app, show
from segcal.hardware import before_torch

AS_WIDE_AS_NEEDED = 10_000  # a file has no width


@app.command(epilog="Example: segcal compare runs/ce runs/mbls --table calibration --format latex")
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Finished and evaluated runs, or folders of runs such as a study's."),
    ],
    table: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Only this, and may be repeated: discriminative, calibration, ranking, tests,"
                " seeds, posthoc, penalty, "
                "robustness, backbones or selection."
            )
        ),
    ] = None,
    format: Annotated[str, typer.Option(help="terminal, csv, markdown or latex.")] = "terminal",
    out: Annotated[
        Path | None, typer.Option(help="Also write every table in every format into this folder.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Put the paper's values beside, where it has any.")
    ] = False,
    calibrator: Annotated[
        str, typer.Option(help="Compare after a fitted calibrator: ts, lts or vs.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Compare runs: means with intervals, ranks, tests; per method the setting that validation
    chose.
    """
    from segcal.types import check_choice

    check_choice("format", format, ("terminal", "csv", "markdown", "latex"))
    before_torch()
    from segcal.compare import read_results
    from segcal.compare.tables import FORMATS, all_tables, failed_note, save_tables, to_rich

    results = read_results(runs)
    tables = all_tables(results, table, calibrator=calibrator, published=published)
    for line in (
        failed_note(results.failed) if format == "csv" or as_json else ()
    ):  # the others have it among their notes
        print(f"note: {line}", file=sys.stderr)
    for path in save_tables(tables, out) if out is not None else ():
        print(f"wrote {path}", file=sys.stderr)
    if as_json:
        show([one.values() for one in tables], Table(), as_json)
    elif format == "terminal":
        known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
        console = Console(width=None if known else AS_WIDE_AS_NEEDED)
        for one in tables:
            console.print(to_rich(one), "", crop=False)
    else:
        titled = format == "csv" and len(tables) > 1  # else nothing tells them apart
        print(
            "\n".join(f"# {one.title}\n" * titled + FORMATS[format][1](one) for one in tables),
            end="",
        )


@app.command(epilog="Example: segcal pack studies/paper-acdc --out results/acdc")
def pack(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Finished and evaluated runs, or folders of runs such as a study's."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    as_json: AsJson = False,
) -> None:
    """Copy what runs found, without weights and images, small enough to publish; compare, figures
    and report read it.
    """
    before_torch()
    from segcal.compare import pack as packed

    said = packed(runs, out)
    table = Table("folder", "runs", "size")
    table.add_row(said["out"], str(said["runs"]), f"{said['bytes'] / 1e3:,.0f} kB")
    show(said, table, as_json)
