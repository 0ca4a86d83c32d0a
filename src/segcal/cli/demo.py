"""The verb that shows all steps on built-in data: demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Option

from segcal.cli.app import AsJson, Out, app, show
from segcal.cli.study import Board


@app.command(epilog="Example: segcal demo --out demo")
def demo(
    out: Annotated[Path, Out] = Path("demo"),
    workers: Annotated[int, Option(min=1, help="Networks trained at a time.")] = 2,
    as_json: AsJson = False,
) -> None:
    """All steps on built-in data: seven methods are trained, calibrated, ranked and reported."""
    from segcal.study import engines

    engines.warm_up()
    from segcal.demo import run_demo

    with Board() as board:
        done = run_demo(out, workers=workers, say=board.say, watch=board)
    title = "16 test phantoms, means over cases; networks trained to the end; T (above 1: too sure)"
    title += " and settings from validation"
    table = Table(*map(_head, done.rows[0]), title=title)
    for row in done.rows:
        table.add_row(*(v if isinstance(v, str) else f"{v:.3f}" for v in row.values()))
    outcome = {"methods": done.rows, "summary": done.summary, "report": str(done.report)}
    show(outcome, table, as_json)
    if not as_json:
        print(f"{done.summary}\nThe report: {done.report}")


def _head(key: str) -> str:
    """The head of a column: `DSC ↑` of `dice`, `NLL + TS` of `nll_ts`."""
    from segcal.calibrators import CALIBRATORS
    from segcal.metrics import METRICS

    metric, _, calibrator = key.rpartition("_")
    if calibrator in CALIBRATORS:
        return f"{METRICS[metric].label} + {CALIBRATORS[calibrator].label}"
    row = METRICS.get(key)
    others = {"rank": "mean case rank", "temperature": "T"}
    return f"{row.label} {row.arrow}" if row else others.get(key, key)
