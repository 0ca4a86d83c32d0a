"""The table of volumes in the report: expected against true, and how often their intervals held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Results
from segcal.compare.tables import Entry, Row, Table
from segcal.conformal import Coverage, Guarantee, coverage, interval
from segcal.metrics import METRICS
from segcal.scoring.volumes import COVERED, EXPECTED, SPREAD, TRUE, VOLUMES, VOXEL, load_guarantee

RATIO = METRICS["volume_ratio"]
COLUMNS = f"{RATIO.label} {RATIO.arrow}", "Width (%)", "Covered (%)"


def volume_table(results: Results, dataset: str) -> Table | None:
    """A row per class, contender and calibrator; `None` if no run has volumes.

    Of several seeds the first is shown: a patient counts once."""
    scores, rows, notes = results.scores, list[Row](), list[str]()
    used = scores["chosen"] & (scores["split"] == "test") & (scores["corruption"] == "")
    scores = scores[used & scores["metric"].isin(VOLUMES)]
    for c in results.main(dataset):
        for calibrator in ("", *CALIBRATORS):
            label = c.label + (f" + {CALIBRATORS[calibrator].label}" if calibrator else "")
            for kind, cases, level in _by_class(results, c, scores, calibrator):
                row, held = _row(c, label, kind, cases, level)
                rows.append(row)
                if held is not None and held.verdict:
                    notes.append(f"{label}, {kind}: {held.sentence()}.")
    if not rows:
        return None
    rows.sort(key=lambda row: results.classes(dataset).index(row.block))
    notes = [*_explanations(results, dataset, rows), *notes]
    title, digits = f"Volumes: {dataset}", (2, 0, 0)
    return Table("volumes", title, COLUMNS, tuple(rows), tuple(notes), digits, dataset)


def _by_class(
    results: Results, c: Contender, scores: pd.DataFrame, calibrator: str
) -> Iterator[tuple[str, pd.DataFrame, float | None]]:
    """For each class its cases with their volumes, from the first seed of every fold.

    The level is that of the intervals; `None` unless all folds have intervals of one level."""
    parts, levels = [], set()
    for run in _first_seeds(results, c):
        rows = scores[(scores["run"] == run) & (scores["weights"] == c.weights)]
        rows = rows[rows["calibrator"] == calibrator]
        guarantee = load_guarantee(Path(results.runs[run]["folder"]), calibrator, c.weights)
        levels.add(guarantee.level if guarantee else None)
        parts.append(_cases(rows, guarantee))
    table = pd.concat(parts) if parts else pd.DataFrame()
    level = levels.pop() if len(levels) == 1 else None
    if len(table):
        for kind, cases in table.groupby("class", sort=False):
            yield str(kind), cases, level


def _first_seeds(results: Results, c: Contender) -> list[str]:
    """The run with the lowest seed of each fold."""
    first: dict[int, str] = {}
    for run in sorted(c.runs, key=lambda run: results.runs[run]["settings"]["seed"]):
        first.setdefault(results.runs[run]["settings"]["fold"], run)
    return list(first.values())


def _cases(rows: pd.DataFrame, guarantee: Guarantee | None) -> pd.DataFrame:
    """A row per case and class with its volumes and, with a guarantee, the relative width."""
    if not len(rows):
        return pd.DataFrame()
    table = rows.pivot_table("value", ["case", "class", "patient"], "metric").reset_index()
    voxels = table.loc[table[VOXEL].notna()].set_index("case")[VOXEL]
    if EXPECTED not in table:  # of confidence maps
        return pd.DataFrame()
    table = table[table[EXPECTED].notna()].reset_index(drop=True)
    table[VOXEL] = table["case"].map(voxels)
    if guarantee is not None and COVERED in table:
        for kind, part in table.groupby("class"):
            expected, spread, voxel = (part[name].to_numpy() for name in (EXPECTED, SPREAD, VOXEL))
            low, high = interval(expected, spread, voxel, guarantee.quantile(str(kind)))
            table.loc[part.index, "width"] = (high - low) / expected
            table.loc[part.index, "fitted"] = len(guarantee.scores[str(kind)])
    return table


def _row(
    c: Contender, label: str, kind: str, cases: pd.DataFrame, level: float | None
) -> tuple[Row, Coverage | None]:
    true, ratio = cases[TRUE].sum(), None
    if true > 0:
        ratio = float(cases[EXPECTED].sum() / true)
    if level is None or "width" not in cases:
        return Row(label, (Entry(ratio), Entry(), Entry()), c.key, kind), None
    each = zip(cases["patient"].map(str), cases[COVERED].map(bool), strict=True)
    held = coverage(each, level, int(cases["fitted"].min()))  # of several folds the fewest
    low, high = (100 * end for end in held.bounds)
    note = f"{low:.0f} to {high:.0f}; {held.held} of {held.patients}"
    width = Entry(100 * float(np.median(cases["width"])))
    return Row(label, (Entry(ratio), width, Entry(100 * held.share, note=note)), c.key, kind), held


def _explanations(results: Results, dataset: str, rows: list[Row]) -> Iterator[str]:
    """What the columns mean."""
    yield f"{RATIO.label}: summed expected over summed true volume of the test cases."
    if any(row.cells[1].value is not None for row in rows):
        yield "Width: median width of the volume interval, relative to the expected volume."
        yield (
            "Covered: patients for whom the interval held in all of their cases, with the exact"
            " 95 % binomial interval."
        )
    if any(len(_first_seeds(results, c)) < len(c.runs) for c in results.main(dataset)):
        yield "Of several seeds the first is shown."
    if results.out_of_fold:
        yield "An audit has no validation cases, so it gives no volume intervals."
    elif any(row.cells[1].value is None for row in rows):
        yield "Without a width no interval was fitted, or not of one level: see segcal calibrate."
