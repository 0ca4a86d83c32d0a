"""Tables of ranks, and of the tests between every two contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from segcal.compare.ranking import N_SAMPLES, SIGNIFICANT, Ranking, rank_results
from segcal.compare.tables.records import P_VALUE, Entry, Request, Row, Table
from segcal.metrics import METRICS

RANKS = (
    "Rank of the mean over cases, and the sum of these ranks; a missed case counts as the"
    " worst value that anyone had, one in which an object is rightly left out that another"
    " invents as perfect.",
    "Mean case rank: contenders are ranked in every case and metric; mean over metrics,"
    " then over cases.",
)
ALL_DATA = (
    "Over all data sets: ranks are of the sums over data sets, the mean case rank is the mean over"
    " them."
)
FIRST = (
    f"First: in how many of {N_SAMPLES:,} bootstrap samples of patients; overall by mean case rank."
)
ONE_PATIENT = "With one patient there is nothing to draw: no share of first places."
DASH = (
    "A dash: the median falls on patients in whom one of the two missed an object, or has no value."
)
BETTER = (
    "Better: by the test, where the median difference does not show it; the test ranks all"
    " differences by size, a missed case as the largest."
)


def ranking(request: Request) -> Table | None:
    """Sum-rank, mean case rank and the stability of first places, per data set and over all.

    `None` for a single contender."""
    results, calibrator = request.results, request.calibrator
    datasets = [request.dataset] if request.dataset else results.datasets
    if any(len(results.main(name)) < 2 for name in datasets):
        return None
    rankings = [rank_results(results, name, calibrator=calibrator) for name in datasets]
    several = len(rankings) > 1
    metrics = [m for m in rankings[0].values if any((r.dataset, m) in r.sum_rank for r in rankings)]
    labels = [METRICS[m].label for m in metrics]
    columns = [f"{label} rank" for label in labels] + ["sum of ranks", "mean case rank"]
    columns += ["first overall (%)", *(f"first in {label} (%)" for label in labels)]
    digits = [1] * len(labels) + [1, 2] + [0] * (len(labels) + 1)
    rows = _overall(rankings, metrics) if several else []
    for r in rankings:
        nothing = pd.Series(np.nan, index=[c.key for c in r.contenders])
        places = [r.sum_rank.get((r.dataset, metric), nothing) for metric in metrics]
        places += [r.sum_rank["sum"], r.case_rank["mean"]]
        shares = [100 * r.stability.get(name, nothing) for name in ("overall", *metrics)]
        rows += _marked(r, places, shares, r.dataset if several else "")
    notes = [*RANKS, ALL_DATA] if several else [*RANKS]
    notes.append(ONE_PATIENT if any(r.stability.isna().any(axis=None) for r in rankings) else FIRST)
    for r in rankings:
        for metric in r.values:
            if (r.dataset, metric) not in r.sum_rank:
                where = f"in any case of {r.dataset} and is left out"
                notes.append(f"{METRICS[metric].label} has no value {where}.")
    if any(entry.best for row in rows for entry in row.cells):
        notes.append("Bold is the best of a column.")
    return request.table(columns, rows, notes, digits)


def _overall(rankings: Sequence[Ranking], metrics: Sequence[str]) -> list[Row]:
    """Over several data sets: ranks of the sums, and the mean of the mean case ranks."""
    ranks = pd.concat([r.sum_rank.drop(columns=["sum", "rank"]) for r in rankings], axis=1)
    places = []
    for metric in metrics:
        names = [(r.dataset, metric) for r in rankings if (r.dataset, metric) in ranks]
        total = ranks[names].sum(axis=1)
        places.append(pd.Series(rankdata(total), index=total.index))
    case_ranks = pd.concat([r.case_rank["mean"] for r in rankings], axis=1)
    places += [ranks.sum(axis=1), case_ranks.mean(axis=1)]
    shares = [places[0] * np.nan] * (len(metrics) + 1)
    return _marked(rankings[0], places, shares, "all data sets")


def _marked(
    r: Ranking, places: Sequence[pd.Series[float]], shares: Sequence[pd.Series[float]], block: str
) -> list[Row]:
    """Rows whose best is marked: the lowest of places, the highest of shares."""
    rows = []
    for c in r.contenders:
        entries = []
        for i, column in enumerate([*places, *shares]):
            value, best = float(column[c.key]), column.min() if i < len(places) else column.max()
            is_best = bool(value == best and column.nunique() > 1)
            entries.append(Entry(None if np.isnan(value) else value, best=is_best))
        rows.append(Row(c.label, tuple(entries), c.key, block))
    return rows


def tests(request: Request) -> Table | None:
    """Median difference and corrected p of every two contenders; `None` for one, or one patient."""
    if len(request.contenders) < 2:
        return None
    r = rank_results(request.results, request.dataset, calibrator=request.calibrator)
    if r.patients.nunique() < 2:
        return None
    labels, columns = {c.key: c.label for c in r.contenders}, []
    for metric in r.pairwise:
        label = METRICS[metric].label
        columns += [f"{label} {METRICS[metric].arrow} difference", f"{label} p"]
    rows = []
    for lines in zip(*(table.to_dict("records") for table in r.pairwise.values()), strict=True):
        entries: list[Entry] = []
        for metric, line in zip(r.pairwise, lines, strict=True):
            difference, p, n = line["difference"], line["p_holm"], line["n"]
            hidden = p < SIGNIFICANT and not _shows(line, metric)
            note = f"{labels[line['better']]} better" if hidden else ""
            entries.append(Entry(difference if np.isfinite(difference) else None, n=n))
            entries.append(Entry(p, n=n, best=p < SIGNIFICANT, note=note))
        a, b = lines[0]["a"], lines[0]["b"]
        rows.append(Row(f"{labels[a]} − {labels[b]}", tuple(entries), f"{a} - {b}"))
    digits = (4, P_VALUE) * len(r.pairwise)
    return request.table(columns, rows, _test_notes(r, rows), digits, "pair")


def _shows(line: dict[Any, Any], metric: str) -> bool:
    """Whether the sign of the median difference a − b shows which is better by the test."""
    gain = line["difference"] * (1 if METRICS[metric].better == "higher" else -1)
    shown = {1: line["a"], -1: line["b"]}.get(np.sign(gain))
    return bool(np.isfinite(gain) and line["better"] == shown)


def _test_notes(r: Ranking, rows: Sequence[Row]) -> Iterator[str]:
    entries = [entry for row in rows for entry in row.cells]
    counts = {METRICS[m].label: int(table["n"].iloc[0]) for m, table in r.pairwise.items()}
    patients = f"{max(counts.values())} patients"
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{label} {n}" for label, n in counts.items())
        patients = f"the patients of whom anyone has a value ({each})"
    correction = f", with Holm's correction over the {len(rows)} pairs of a metric"
    tests = f"p of paired Wilcoxon signed-rank tests{correction if len(rows) > 1 else ''}"
    yield f"The median difference over {patients}; {tests}. Bold: below {SIGNIFICANT}."
    if any(entry.value is None for entry in entries):
        yield DASH
    if any(entry.note for entry in entries):
        yield BETTER
    few = [METRICS[m].label for m, table in r.pairwise.items() if table["note"].ne("").all()]
    if few:
        yield f"{', '.join(few)}: too few patients for any difference to be significant."
