"""The verb `audit`: how far can stored probabilities be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Argument, Exit, Option

from segcal.cli.app import Again, AsJson, Names, app, counting, note, show

if TYPE_CHECKING:
    from segcal.auditing import Audit

PATH = "An nnU-Net model folder (validated with --npz), or a folder of probability maps."
LABELS = "The folder of reference labels; an nnU-Net folder names its own."
IMAGES = "The folder of images, to read spacing from where maps and labels have none."
PATIENTS = "A CSV (case,patient) or JSON file, where patients have several cases."
KIND = "softmax, regions, logits or confidence; by default what the format says."
NAME = "What the predictor is called in comparisons; by default nnU-Net's trainer, or the folder."
WITH = "A calibrator: ts, ts2 or vs; by default ts and ts2. Repeatable."
KEEP_GOING = "Leave out cases that cannot be read, list them, and exit with 1."
WRITE = "Also write calibrated maps of the cases: confidence, probabilities, or both with a comma."
OUT = "The audit's folder; by default audits/DATASET."
MaybePath = Path | None


@app.command(
    epilog="Example: segcal audit nnUNet_results/Dataset004/nnUNetTrainer__nnUNetPlans__2d"
)
def audit(
    path: Annotated[Path, Argument(help=PATH)],
    out: Annotated[MaybePath, Option("--out", "-o", help=OUT)] = None,
    labels: Annotated[MaybePath, Option(help=LABELS)] = None,
    images: Annotated[MaybePath, Option(help=IMAGES)] = None,
    patients: Annotated[MaybePath, Option(help=PATIENTS)] = None,
    kind: Annotated[str | None, Option(help=KIND)] = None,
    name: Annotated[str | None, Option(help=NAME)] = None,
    calibrators: Annotated[Names, Option("--with", help=WITH)] = None,
    resample: Annotated[
        bool, Option("--resample", help="Move references to the grid of the maps.")
    ] = False,
    keep_going: Annotated[bool, Option("--keep-going", help=KEEP_GOING)] = False,
    workers: Annotated[int, Option(help="Processes here.")] = 1,
    ray: Annotated[str, Option(help="Run on a Ray cluster: auto, or its address.")] = "",
    write: Annotated[str, Option(help=WRITE)] = "",
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Say how far the probabilities can be believed that a network has already made."""
    from segcal.auditing import BY_SUMS
    from segcal.auditing import audit as run

    with counting(f"auditing {path.name}") as progress:
        found = run(
            path,
            labels,
            out=out,
            images=images,
            patients=patients,
            kind=kind,
            name=name,
            calibrators=calibrators or BY_SUMS,
            resample=resample,
            keep_going=keep_going,
            workers=workers,
            ray=ray,
            write=[each.strip() for each in write.split(",") if each.strip()],
            again=again,
            progress=progress,
        )
    for line in found.about["warnings"]:
        note(line)
    if write and found.about["calibrator"] is None:
        note("no calibrated maps are written: none helps on cases that it was not fitted on")
    show(dict(found.about) | {"folder": str(found.root)}, _scores(found), as_json, *_more(found))
    for case, why in found.about["left_out"].items():
        note(f"{case}: {why.removeprefix(f'{case}: ')}", "left out")
    if found.about["left_out"]:
        raise Exit(1)


SHOWN = [("overlap", "dice"), ("overlap", "assd"), ("all", "misplaced"), ("all", "nll")]
SHOWN += [("near", "ece"), ("near", "nll"), ("reference", "ece"), ("all", "ece_perfect")]
# The set of voxels and the metric of each column.


def _scores(found: Audit) -> Table:
    """Means over cases, before and after each calibrator."""
    from segcal.metrics import METRICS

    about = found.about
    heads = []
    for voxels, metric in SHOWN:
        plain = voxels == "overlap" or metric.endswith("perfect")
        label = METRICS[metric].label
        heads.append(label if plain else f"{label} ({voxels})")
    title = f"{about['n_cases']} cases, means; each after calibrators fitted without its patient"
    table = Table("", *heads, title=title)
    for name, sets in about["scores"].items():
        row = []
        for voxels, metric in SHOWN:
            value = sets[voxels][metric]
            row.append("–" if value is None else f"{value:.4g}")
        table.add_row(name, *row)
    return table


def _more(found: Audit) -> list[str]:
    lines = ["", *found.about["sentences"], "", f"{found.root}/report.html shows it."]
    if found.about["calibrator"]:
        lines.append(
            f"segcal apply {found.root} PREDICTIONS --out CALIBRATED calibrates new predictions."
        )
    return lines
