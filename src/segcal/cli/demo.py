"""The verb that shows all steps on built-in data: demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Option

from segcal.cli.app import AsJson, Out, app, show
from segcal.cli.study import Board

SHOWS = (
    "Each row is a method that learned the same few phantoms. DSC says how well it finds them;"
    " misplaced confidence and NLL say what its probabilities are worth, before and after (+) a"
    " calibrator that was fitted on validation cases."
)
NEXT = """
Next:
  your own images    segcal prepare mine --images 'own/*/image.nii.gz' --labels 'own/*/seg.nii.gz'
                     segcal study quick --data cases/mine --out studies/mine
  nnU-Net's folders  segcal prepare mine --from Dataset123_Mine
  predictions        segcal audit PREDICTIONS --labels LABELS    (nnU-Net's, or any)"""


@app.command(epilog="Example: segcal demo --out demo")
def demo(
    out: Annotated[Path | None, Out] = None,
    quick: Annotated[bool, Option("--quick", help="Two methods, in about a minute.")] = False,
    workers: Annotated[int, Option(min=1, help="Networks trained at a time.")] = 2,
    as_json: AsJson = False,
) -> None:
    """All steps on built-in data: methods are trained, calibrated, ranked and reported.

    By default in the folder demo, or demo-quick."""
    from segcal.study import engines

    engines.warm_up()
    from segcal.demo import run_demo

    plan = "demo-quick" if quick else "demo"
    with Board() as board:
        done = run_demo(out or Path(plan), workers=workers, say=board.say, watch=board, plan=plan)
    title = "16 test phantoms, means over cases; weights of the last epoch; T (above 1: too sure)"
    title += " and settings from validation"
    table = Table(*map(_head, done.rows[0]), title=title)
    for row in done.rows:
        table.add_row(*(v if isinstance(v, str) else f"{v:.3f}" for v in row.values()))
    files = {"report": str(done.report), "picture": str(done.picture)}
    outcome = {"methods": done.rows, "summary": done.summary} | files
    show(outcome, table, as_json)
    if not as_json:
        print(f"{SHOWS}\n\n{done.summary}\n")
        print(f"Report: {done.report}\nBefore and after calibration: {done.picture}\n{NEXT}")


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
