"""The verb for those who want to see it work first: demo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from segcal.cli.app import AsJson, app, show
from segcal.cli.study import Board


@app.command(epilog="Example: segcal demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where everything goes.")] = Path("demo"),
    workers: Annotated[int, typer.Option(min=1, help="Networks trained at a time.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Everything once, on built-in data: seven methods trained, chosen, calibrated, ranked and
    reported in minutes.
    """
    from segcal.study import engines

    engines.warm_up()
    from segcal.demo import run_demo

    with Board() as board:
        done = run_demo(out, workers=workers, says=board.says, watch=board)
    heads = (
        "method",
        "chosen",
        "DSC ↑",
        "ASD ↓ (mm)",
        "ECE ↓",
        "CECE ↓",
        "ECE + TS",
        "ECE + LTS",
        "mean case rank",
    )
    table = Table(*heads, title="16 test phantoms, means over cases; settings chosen on validation")
    for row in done.rows:
        table.add_row(
            *(value if isinstance(value, str) else f"{value:.3f}" for value in row.values())
        )
    show(
        {"methods": done.rows, "summary": done.summary, "report": str(done.report)}, table, as_json
    )
    if not as_json:
        print(done.summary)
        print(f"The report: {done.report}", file=sys.stdout)
