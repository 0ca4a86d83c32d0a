"""The verb about figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from segcal.cli.app import AsJson, app, show
from segcal.hardware import before_torch


@app.command(epilog="Example: segcal figures runs/ce runs/mbls --out figures --format pdf")
def figures(
    runs: Annotated[
        list[Path], typer.Argument(help="Finished and evaluated runs, or folders of them.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the figures go, as DATASET-FIGURE.FORMAT.")
    ],
    format: Annotated[str, typer.Option(help="svg, pdf or png.")] = "svg",
    figure: Annotated[
        list[str] | None, typer.Option(help="One figure, such as reliability. May be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the figures that compare finished runs."""
    before_torch()
    from segcal.compare import read_results
    from segcal.figures import save_figures

    done = save_figures(read_results(runs), out, format=format, keys=figure or ())
    table = Table("figure", "shows", "file", title=Text(str(out)))
    for row in done:
        file = Path(row["file"]).name if row["file"] else f"left out: needs {row['needs']}"
        table.add_row(
            row["figure"],
            row["label"],
            Text(file, style="" if row["file"] else "yellow", overflow="fold"),
        )
    show(done, table, as_json)
