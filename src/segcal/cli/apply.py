"""The verb that calibrates new predictions of an audited network: apply."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Argument, Option

from segcal.cli.app import Again, AsJson, Out, app, counting, note, show

AUDIT = Argument(help="The folder of a finished audit (segcal audit).")
PREDICTIONS = Argument(help="The folder with new probabilities of the same network.")
WHICH = "ts or ts2; by default the one that helps on cases it was not fitted on."
FOLD = "The fit for the network of this fold; by default the one for all audited cases."


@app.command(epilog="Example: segcal apply audits/hpc predictions --out calibrated")
def apply(
    audit: Annotated[Path, AUDIT],
    predictions: Annotated[Path, PREDICTIONS],
    out: Annotated[Path, Out],
    calibrator: Annotated[str | None, Option(help=WHICH)] = None,
    fold: Annotated[str | None, Option(help=FOLD)] = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate new predictions of an audited network, in their own format and geometry.

    Label maps stay as they are, and other files are copied, so that the new folder can take the
    place of the old one."""
    from segcal.auditing.applying import apply as carry_out

    options = {"out": out, "calibrator": calibrator, "fold": fold, "again": again}
    with counting("calibrating") as progress:
        applied = carry_out(audit, predictions, **options, progress=progress)  # type: ignore[arg-type]
    for sentence in applied.notes:
        note(sentence)
    table = Table("cases", "calibrator", "region", *applied.fits[0], title=str(applied.out))
    for region, fit in zip(applied.regions or ("",), applied.fits, strict=True):
        values = (f"{value:.3g}" for value in fit.values())
        table.add_row(str(len(applied.cases)), applied.calibrator, region, *values)
    show(asdict(applied) | {"out": str(applied.out)}, table, as_json)
