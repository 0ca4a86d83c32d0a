"""How much the same method differs between seeds, beside how much methods differ."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import f_oneway

from segcal.compare import Results
from segcal.compare.tables.entries import main_columns
from segcal.compare.tables.records import Entry, Request, Row, Table, p_text
from segcal.metrics import METRICS

SPREADS = (
    "Between seeds: the root of the mean variance within a method. Between methods: of their means"
    " over seeds."
)


def seeds(request: Request) -> Table | None:
    """The mean and standard deviation over seeds of each contender, and both spreads.

    Ensembles are left out. `None` unless all others have the same seeds, at least two, each on the
    same cases."""
    results, dataset, calibrator = request.results, request.dataset, request.calibrator
    columns = main_columns(request)
    contenders = [c for c in request.contenders if c.members == 1]
    keys = [c.key for c in contenders]
    results.require(contenders, calibrator=calibrator)
    scores = _rows(results, dataset, calibrator)
    scores = scores[scores["contender"].isin(keys)]
    cases = scores.groupby(["contender", "seed"])["case"].agg(frozenset)
    n_seeds = scores["seed"].nunique()
    if n_seeds < 2 or len(cases) < n_seeds * len(keys) or cases.nunique() > 1:
        return None
    means = {}
    for column in columns:
        table = means_by_seed(results, dataset, column.metric, calibrator=calibrator)
        means[METRICS[column.metric].label] = table.reindex(columns=keys)
    rows = []
    for c in contenders:
        entries = tuple(_entry(table[c.key].tolist()) for table in means.values())
        rows.append(Row(c.label, entries, c.key, "mean ± SD over seeds"))
    over = f"A mean over test cases per seed, {n_seeds} seeds"
    notes = [f"{over}; surface distances of the cases without a missed object."]
    if len(contenders) > 1:
        parts = {label: spreads(table) for label, table in means.items()}
        for i, label in enumerate(("SD between seeds", "SD between methods")):
            entries = tuple(Entry(part[i], n=n_seeds) for part in parts.values())
            rows.append(Row(label, entries, block="spread"))
        p = ", ".join(f"{label} {p_text(part[2])}" for label, part in parts.items())
        notes += [SPREADS, f"p of a one-way analysis of variance over the means per seed: {p}."]
    headers, digits = [c.header for c in columns], [c.digits + 1 for c in columns]
    return request.table(headers, rows, notes, digits)


def _rows(results: Results, dataset: str, calibrator: str, corruption: str = "") -> pd.DataFrame:
    rows = results.rows(calibrator=calibrator, corruption=corruption)
    return rows[rows["dataset"] == dataset]  # contenders have the same keys on every data set


def means_by_seed(
    results: Results, dataset: str, metric: str, *, calibrator: str = "", corruption: str = ""
) -> pd.DataFrame:
    """Means over the test cases of all folds: a row per seed, a column per contender."""
    rows = _rows(results, dataset, calibrator, corruption)
    seeds_run = sorted(rows["seed"].unique())
    rows = rows[rows["class"] == results.overall_class(dataset, metric)]
    rows = rows.set_index(["contender", "run", "case"])
    values = rows[rows["metric"] == metric]
    if METRICS[metric].of == "surfaces":
        missed = rows[rows["metric"] == "missed"]["value"] > 0
        values = values[~missed.reindex(values.index, fill_value=False)]
    means = values.pivot_table(index="seed", columns="contender", values="value", aggfunc="mean")
    return means.reindex(index=seeds_run)


def spreads(means: pd.DataFrame) -> tuple[float | None, float | None, float | None]:
    """The deviations of means (seed, contender) between seeds and contenders, and p of an ANOVA.

    None of them if a mean does not exist.

    >>> spreads(pd.DataFrame({"a": [1.0, 3.0], "b": [5.0, 7.0]}))[:2]
    (1.4142135623730951, 2.8284271247461903)
    """
    if means.isna().any(axis=None):
        return None, None, None
    values = means.to_numpy()
    within = float(np.sqrt(values.var(axis=0, ddof=1).mean()))
    between = float(values.mean(axis=0).std(ddof=1))
    p = float(f_oneway(*values.T).pvalue) if within > 0 else float("nan")
    return within, between, None if np.isnan(p) else p


def _entry(values: list[float]) -> Entry:
    if np.isnan(values).any():
        return Entry(n=int(np.isfinite(values).sum()))
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return Entry(mean, mean - deviation, mean + deviation, len(values))
