"""Tables of ranks, and of the tests between every two contenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from segcal.compare import Results
from segcal.compare.ranking import SIGNIFICANT, Ranking, rank_results
from segcal.compare.tables.cells import N_SAMPLES, calibrated, labels_of
from segcal.compare.tables.records import Cell, Row, Table
from segcal.metrics import METRICS

ALL = "all data sets"


def ranking(results: Results, dataset: str | None = None, *, calibrator: str = "") -> Table | None:
    """Sum-rank, mean case rank and how stable a first place is, per data set, and over all where
    there are several.

    `None` with a single contender, who has nobody to be ranked against.
    """
    names = results.datasets if dataset is None else (dataset,)
    if any(len(results.main(name)) < 2 for name in names):
        return None
    found = [rank_results(results, name, calibrator=calibrator) for name in names]
    metrics = [m for m in found[0].values if any((r.dataset, m) in r.sum_rank for r in found)]
    columns = [f"{METRICS[m].label} rank" for m in metrics] + ["sum of ranks", "mean case rank"]
    columns += ["first overall (%)"] + [f"first in {METRICS[m].label} (%)" for m in metrics]
    rows = _overall(found, metrics) if len(found) > 1 else []
    for one in found:
        rows += _rows(one, metrics, one.dataset if len(found) > 1 else "")
    notes = _notes(found)
    if any(cell.best for row in rows for cell in row.cells):
        notes.append("Bold is the best of a column.")
    title = calibrated("Ranks", calibrator)
    digits = (*(1 for _ in metrics), 1, 2, *(0 for _ in range(len(metrics) + 1)))
    only = found[0].dataset if len(found) == 1 else ""
    return Table(
        "ranking",
        f"{title}: {', '.join(names)}",
        tuple(columns),
        tuple(rows),
        tuple(notes),
        digits,
        only,
    )


def _rows(one: Ranking, metrics: Sequence[str], block: str) -> list[Row]:
    labels = labels_of(one.contenders)
    parts = [
        one.sum_rank.get((one.dataset, m), pd.Series(np.nan, index=list(labels))) for m in metrics
    ]
    parts += [one.sum_rank["sum"], one.case_rank["mean"]]
    empty = pd.Series(np.nan, index=list(labels))
    shares = [100 * one.stability.get(m, empty) for m in ("overall", *metrics)]
    return _marked(parts, shares, labels, block)


def _overall(found: Sequence[Ranking], metrics: Sequence[str]) -> list[Row]:
    """Over several data sets: ranks of the sums, and the mean over data sets of the mean
    case rank.
    """
    labels = labels_of(found[0].contenders)
    places = pd.concat([r.sum_rank.drop(columns=["sum", "rank"]) for r in found], axis=1)
    per_metric = [
        places[[(r.dataset, m) for r in found if (r.dataset, m) in places]].sum(axis=1)
        for m in metrics
    ]
    parts = [pd.Series(rankdata(total), index=total.index) for total in per_metric]
    parts += [
        places.sum(axis=1),
        pd.concat([r.case_rank["mean"] for r in found], axis=1).mean(axis=1),
    ]
    nothing = [pd.Series(np.nan, index=list(labels))] * (len(metrics) + 1)
    return _marked(parts, nothing, labels, ALL)


def _marked(
    lower: Sequence[pd.Series[float]],
    higher: Sequence[pd.Series[float]],
    labels: Mapping[str, str],
    block: str,
) -> list[Row]:
    """Rows whose best is marked: the lowest of ranks, the highest of shares."""
    cells: dict[str, list[Cell]] = {key: [] for key in labels}
    for column, sign in [*((c, 1) for c in lower), *((c, -1) for c in higher)]:
        best = (sign * column).min()
        for key in labels:
            value = float(column[key])
            known = not np.isnan(value)
            cells[key].append(
                Cell(
                    value if known else None,
                    best=bool(known and sign * value == best and column.nunique() > 1),
                )
            )
    return [Row(label, tuple(cells[key]), key, block) for key, label in labels.items()]


def _notes(found: Sequence[Ranking]) -> list[str]:
    lines = [
        (
            "Rank of the mean over cases, and the sum of these ranks; a missed case counts as the"
            " worst value that anyone had, one in which an object is rightly left out that another"
            " invents as perfect."
        ),
        (
            "Mean case rank: contenders are ranked in every case and metric; mean over metrics,"
            " then over cases."
        ),
    ]
    if len(found) > 1:
        lines.append(
            "Over all data sets: ranks are of the sums over data sets, the mean case rank is the"
            " mean over them."
        )
    if any(r.stability.isna().any(axis=None) for r in found):
        lines.append("With one patient there is nothing to draw: no share of first places.")
    else:
        lines.append(
            f"First: in how many of {N_SAMPLES:,} bootstrap samples of patients; overall by mean"
            " case rank."
        )
    for one in found:
        for metric in one.values:
            if (one.dataset, metric) not in one.sum_rank:
                lines.append(
                    f"{METRICS[metric].label} has no value in any case of {one.dataset} and is left"
                    " out."
                )
    return lines


def tests(results: Results, dataset: str, calibrator: str, with_published: bool) -> Table | None:
    """Median difference and corrected p of every two contenders; `None` for one contender or one
    patient.
    """
    if len(results.main(dataset)) < 2:
        return None
    one = rank_results(results, dataset, calibrator=calibrator)
    if one.patients.nunique() < 2:
        return None
    labels, metrics = labels_of(one.contenders), list(one.pairwise)
    columns = [
        text
        for m in metrics
        for text in (f"{METRICS[m].label} {METRICS[m].arrow} difference", f"{METRICS[m].label} p")
    ]
    rows = []
    for i, (a, b) in enumerate(combinations(labels, 2)):
        cells: list[Cell] = []
        for m in metrics:
            line = one.pairwise[m].iloc[i]
            difference, p, n = float(line["difference"]), float(line["p_holm"]), int(line["n"])
            note = "" if p >= SIGNIFICANT or _shows(line, m) else f"{labels[line['better']]} better"
            cells += [Cell(difference if np.isfinite(difference) else None, n=n)]
            cells += [Cell(p, n=n, best=p < SIGNIFICANT, note=note)]
        rows.append(Row(f"{labels[a]} − {labels[b]}", tuple(cells), f"{a} - {b}"))
    correction = (
        f", with Holm's correction over the {len(rows)} pairs of a metric" if len(rows) > 1 else ""
    )
    notes = [
        f"The median difference over {_n_patients(one)}; p of paired Wilcoxon signed-rank "
        f"tests{correction}. Bold: below {SIGNIFICANT}."
    ]
    if any(cell.value is None for row in rows for cell in row.cells):
        notes.append(
            "A dash: the median falls on patients in whom one of the two missed an object, or has"
            " no value."
        )
    if any(cell.note for row in rows for cell in row.cells):
        notes.append(
            "Better: by the test, where the median difference does not show it; the test ranks all"
            " differences by size, a missed case as the largest."
        )
    hopeless = [METRICS[m].label for m in metrics if one.pairwise[m]["note"].ne("").all()]
    if hopeless:
        notes.append(
            f"{', '.join(hopeless)}: too few patients for any difference to be significant."
        )
    title = calibrated("Tests between contenders", calibrator)
    digits = (4, -2) * len(metrics)
    return Table(
        "tests",
        f"{title}: {dataset}",
        tuple(columns),
        tuple(rows),
        tuple(notes),
        digits,
        dataset,
        "pair",
    )


def _shows(line: pd.Series[Any], metric: str) -> bool:
    """Whether the sign of the median difference a − b tells who is better by the test."""
    gain = float(line["difference"]) * (1 if METRICS[metric].better == "higher" else -1)
    return bool(
        np.isfinite(gain) and line["better"] == {1: line["a"], -1: line["b"]}.get(np.sign(gain))
    )


def _n_patients(one: Ranking) -> str:
    """How many patients the tests of each metric are over: those of whom anyone has a value."""
    counts = {METRICS[m].label: int(table["n"].iloc[0]) for m, table in one.pairwise.items()}
    if len(set(counts.values())) == 1:
        return f"{max(counts.values())} patients"
    return (
        "the patients of whom anyone has a value"
        f" ({', '.join(f'{label} {n}' for label, n in counts.items())})"
    )
