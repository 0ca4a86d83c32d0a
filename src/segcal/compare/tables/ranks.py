"""Tables of ranks, and of the tests between every two contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from segcal.compare.ranking import SIGNIFICANT, Ranking, rank_results
from segcal.compare.tables.entries import N_SAMPLES
from segcal.compare.tables.records import Entry, Request, Row, Table
from segcal.metrics import METRICS


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
        rows += _rows(r, metrics, r.dataset if several else "")
    notes = list(_notes(rankings))
    if any(entry.best for row in rows for entry in row.cells):
        notes.append("Bold is the best of a column.")
    dataset, parts = "" if several else datasets[0], (tuple(columns), tuple(rows), tuple(notes))
    return Table("ranking", request.title("Ranks"), *parts, tuple(digits), dataset)


def _rows(r: Ranking, metrics: Sequence[str], block: str) -> list[Row]:
    nothing = pd.Series(np.nan, index=[c.key for c in r.contenders])
    places = [r.sum_rank.get((r.dataset, metric), nothing) for metric in metrics]
    places += [r.sum_rank["sum"], r.case_rank["mean"]]
    shares = [100 * r.stability.get(name, nothing) for name in ("overall", *metrics)]
    return _marked(r, places, shares, block)


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


def _notes(rankings: Sequence[Ranking]) -> Iterator[str]:
    yield (
        "Rank of the mean over cases, and the sum of these ranks; a missed case counts as the"
        " worst value that anyone had, one in which an object is rightly left out that another"
        " invents as perfect."
    )
    yield (
        "Mean case rank: contenders are ranked in every case and metric; mean over metrics,"
        " then over cases."
    )
    if len(rankings) > 1:
        yield (
            "Over all data sets: ranks are of the sums over data sets, the mean case rank is the"
            " mean over them."
        )
    if any(r.stability.isna().any(axis=None) for r in rankings):
        yield "With one patient there is nothing to draw: no share of first places."
    else:
        yield (
            f"First: in how many of {N_SAMPLES:,} bootstrap samples of patients; overall by mean"
            " case rank."
        )
    for r in rankings:
        for metric in r.values:
            if (r.dataset, metric) not in r.sum_rank:
                label = METRICS[metric].label
                yield f"{label} has no value in any case of {r.dataset} and is left out."


def tests(request: Request) -> Table | None:
    """Median difference and corrected p of every two contenders; `None` for one, or one patient."""
    if len(request.contenders) < 2:
        return None
    r = rank_results(request.results, request.dataset, calibrator=request.calibrator)
    if r.patients.nunique() < 2:
        return None
    labels = {c.key: c.label for c in r.contenders}
    columns: list[str] = []
    for metric in r.pairwise:
        label = METRICS[metric].label
        columns += [f"{label} {METRICS[metric].arrow} difference", f"{label} p"]
    rows = []
    for i, (a, b) in enumerate(combinations(labels, 2)):
        entries: list[Entry] = []
        for metric, table in r.pairwise.items():
            line = table.iloc[i]
            difference, p, n = float(line["difference"]), float(line["p_holm"]), int(line["n"])
            hidden = p < SIGNIFICANT and not _shows(line, metric)
            note = f"{labels[line['better']]} better" if hidden else ""
            entries.append(Entry(difference if np.isfinite(difference) else None, n=n))
            entries.append(Entry(p, n=n, best=p < SIGNIFICANT, note=note))
        rows.append(Row(f"{labels[a]} − {labels[b]}", tuple(entries), f"{a} - {b}"))
    title, notes = request.title("Tests between contenders"), tuple(_test_notes(r, rows))
    digits = (4, -2) * len(r.pairwise)
    return Table("tests", title, tuple(columns), tuple(rows), notes, digits, r.dataset, "pair")


def _shows(line: pd.Series[Any], metric: str) -> bool:
    """Whether the sign of the median difference a − b shows which is better by the test."""
    gain = float(line["difference"]) * (1 if METRICS[metric].better == "higher" else -1)
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
    yield (
        f"The median difference over {patients}; p of paired Wilcoxon signed-rank"
        f" tests{correction if len(rows) > 1 else ''}. Bold: below {SIGNIFICANT}."
    )
    if any(entry.value is None for entry in entries):
        yield (
            "A dash: the median falls on patients in whom one of the two missed an object, or has"
            " no value."
        )
    if any(entry.note for entry in entries):
        yield (
            "Better: by the test, where the median difference does not show it; the test ranks all"
            " differences by size, a missed case as the largest."
        )
    few = [METRICS[m].label for m, table in r.pairwise.items() if table["note"].ne("").all()]
    if few:
        yield f"{', '.join(few)}: too few patients for any difference to be significant."
