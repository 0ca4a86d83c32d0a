"""How far the same method comes out differently with another seed, beside how far methods are
apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import f_oneway

from segcal.compare import Results
from segcal.compare.ranking import MAIN
from segcal.compare.tables.cells import calibrated, main_columns
from segcal.compare.tables.records import NONE, Cell, Row, Table
from segcal.metrics import METRICS

DIGITS = {"confusion": 4, "bins": 4, "surfaces": 3}


def seeds(results: Results, dataset: str, calibrator: str, with_published: bool) -> Table | None:
    """The mean and standard deviation over seeds of each contender, and both spreads; `None`
    without a second seed.
    """
    contenders = results.main(dataset)
    results.require(contenders, calibrator=calibrator)
    columns = main_columns(results, dataset, calibrator)
    keys = [c.key for c in contenders]
    if not _same_seeds(_rows(results, dataset, calibrator), keys):
        return None
    means = [
        means_by_seed(results, dataset, m, calibrator=calibrator).reindex(columns=keys)
        for m in MAIN
    ]
    rows = [
        Row(
            c.label,
            tuple(_cell(table[c.key].tolist()) for table in means),
            c.key,
            "mean ± SD over seeds",
        )
        for c in contenders
    ]
    notes = [
        f"A mean over test cases per seed, {len(means[0])} seeds; surface distances of the cases"
        " without a missed object."
    ]
    if len(contenders) > 1:
        parts = [spreads(table) for table in means]
        for i, label in enumerate(("SD between seeds", "SD between methods")):
            rows.append(
                Row(label, tuple(Cell(part[i], n=len(means[0])) for part in parts), block="spread")
            )
        notes.append(
            "Between seeds: the root of the mean variance within a method. Between methods: of"
            " their means over seeds."
        )
        p = ", ".join(
            f"{METRICS[m].label} {p_text(part[2])}" for m, part in zip(MAIN, parts, strict=True)
        )
        notes.append(f"p of a one-way analysis of variance over the means per seed: {p}.")
    headers = tuple(c.header for c in columns)
    digits = tuple(DIGITS[METRICS[c.metric].of] for c in columns)
    title = f"{calibrated('Seeds', calibrator)}: {dataset}"
    return Table("seeds", title, headers, tuple(rows), tuple(notes), digits, dataset)


def _rows(results: Results, dataset: str, calibrator: str, corruption: str = "") -> pd.DataFrame:
    rows = results.rows(calibrator=calibrator, corruption=corruption)
    return rows[rows["dataset"] == dataset]  # contenders have the same keys on every data set


def _same_seeds(rows: pd.DataFrame, keys: Sequence[str]) -> bool:
    """Whether all contenders have the same two seeds or more, each of them on the same cases (folds
    differ in theirs).
    """
    rows = rows[rows["contender"].isin(keys)]
    cases = {
        (key, seed): frozenset(part["case"])
        for (key, seed), part in rows.groupby(["contender", "seed"])
    }
    found = {seed for _, seed in cases}
    return len(found) > 1 and len(cases) == len(found) * len(keys) and len(set(cases.values())) == 1


def means_by_seed(
    results: Results, dataset: str, metric: str, *, calibrator: str = "", corruption: str = ""
) -> pd.DataFrame:
    """Means over test cases: a row per seed, a column per contender; folds together. NaN where none
    has a value.
    """
    rows = _rows(results, dataset, calibrator, corruption)
    seeds_run = sorted(rows["seed"].unique())
    rows = rows[rows["class"] == results.overall_class(dataset, metric)]
    values = rows[rows["metric"] == metric].set_index(["run", "case"])
    if METRICS[metric].of == "surfaces":
        missed = rows[rows["metric"] == "missed"].set_index(["run", "case"])["value"] > 0
        values = values[~missed.reindex(values.index, fill_value=False)]
    return values.pivot_table(
        index="seed", columns="contender", values="value", aggfunc="mean"
    ).reindex(index=seeds_run)


def spreads(means: pd.DataFrame) -> tuple[float | None, float | None, float | None]:
    """Of means (seed, contender): the deviation between seeds, between contenders, and p of an
    analysis of variance.

    None of them where a mean does not exist.

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


def _cell(values: list[float]) -> Cell:
    if np.isnan(values).any():
        return Cell(n=int(np.isfinite(values).sum()))
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return Cell(mean, mean - deviation, mean + deviation, len(values))


def p_text(p: float | None) -> str:
    """A p-value as printed.

    >>> p_text(0.0312), p_text(1e-9), p_text(None)
    ('0.031', '< 0.0001', '—')
    """
    return NONE if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"
