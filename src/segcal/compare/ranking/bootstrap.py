"""How certain a mean and a first place are: patients are drawn again, many times."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from segcal.compare.ranking.no_value import counted, loss_of
from segcal.compare.ranking.ranks import case_ranks
from segcal.metrics import METRICS

Floats = NDArray[np.float64]
N_SAMPLES, LEVEL = 2000, 0.95  # of intervals
Patients: TypeAlias = "Mapping[str, str] | pd.Series[str]"  # the patient of each case


def bootstrap_means(
    values: pd.DataFrame,
    patients: Patients,
    n: int = N_SAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> pd.DataFrame:
    """The `mean` over cases per contender, and a percentile interval from `low` to `high`.

    `n` samples of patients are drawn, each patient with all cases; every contender has the same
    samples. NaN are left out of a mean. With fewer than two patients there is no interval."""
    ones = values.where(values.isna(), 1.0)
    return bootstrap_ratios(values, ones, patients, n, seed, level)


def bootstrap_ratios(
    top: pd.DataFrame,
    bottom: pd.DataFrame,
    patients: Patients,
    n: int = N_SAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> pd.DataFrame:
    """The same for the sum of `top` over cases, divided by that of `bottom`, drawn together.

    NaN where the divisor is 0."""
    groups, known = patient_groups(top.index, patients), top.notna() & bottom.notna()
    over, under = (table.where(known, 0.0).to_numpy(dtype=float) for table in (top, bottom))
    drawn = _sampled_ratios(over, under, groups, _draws(groups.max(initial=-1) + 1, n, seed))
    mean = _ratio(over.sum(axis=0), under.sum(axis=0))
    several = np.array([len(np.unique(groups[known[key]])) > 1 for key in top], dtype=bool)
    several &= ~np.isnan(mean)
    limits = np.full((2, len(several)), np.nan)
    if several.any():
        quantiles = [(1 - level) / 2, (1 + level) / 2]
        limits[:, several] = np.nanquantile(drawn[:, several], quantiles, axis=0)
    columns = {"mean": mean, "low": limits[0], "high": limits[1]}
    return pd.DataFrame(columns, index=top.columns)


def stability(
    per_case: Mapping[str, pd.DataFrame], patients: Patients, *, n: int = N_SAMPLES, seed: int = 0
) -> pd.DataFrame:
    """The share of samples of patients in which each contender is first.

    A row per contender, a column per metric, and `overall` by mean case rank. Ties share a first
    place. NaN with fewer than two patients, because every sample would be the same."""
    cases = pd.Index(sorted({case for values in per_case.values() for case in values.index}))
    groups = patient_groups(cases, patients)
    draws = _draws(groups.max(initial=-1) + 1, n, seed)
    shares = {}
    for metric, values in per_case.items():
        table = counted(values, metric).reindex(cases)
        shares[metric] = _first(table, METRICS[metric].better, groups, draws)
    shares["overall"] = _first(case_ranks(per_case).reindex(cases), "lower", groups, draws)
    return pd.DataFrame(shares)


def _first(
    values: pd.DataFrame, better: str, groups: NDArray[np.intp], draws: Floats
) -> pd.Series[float]:
    """The share of draws in which each column has the best mean."""
    if draws.shape[1] < 2 or not values.notna().any(axis=None):
        return pd.Series(np.nan, index=values.columns)
    array = values.to_numpy(dtype=float)
    known = ~np.isnan(array)
    means = _sampled_ratios(np.where(known, array, 0), known.astype(float), groups, draws)
    loss = loss_of(means, better)
    loss = np.where(np.isnan(loss), np.inf, loss)
    # Equal columns may differ in the last bit, because sums are added in different orders.
    first = np.isclose(loss, loss.min(axis=1, keepdims=True), rtol=1e-12, atol=1e-15)
    return pd.Series((first / first.sum(axis=1, keepdims=True)).mean(axis=0), index=values.columns)


def patient_groups(cases: pd.Index, patients: Patients) -> NDArray[np.intp]:
    """The number of each case's patient; a case whose patient is not known has its own number."""
    names = np.array([str(patients.get(case, case)) for case in cases], dtype=object)
    return pd.factorize(names)[0]


@lru_cache(maxsize=8)
def _draws(n_patients: int, n: int, seed: int) -> Floats:
    """How often each patient is in each of n samples (n, patients), the same for all metrics."""
    if not n_patients:
        return np.zeros((n, 0))
    shares = np.full(n_patients, 1 / n_patients)
    drawn = np.random.default_rng(seed).multinomial(n_patients, shares, size=n).astype(float)
    drawn.flags.writeable = False  # because it is cached
    return drawn


def _sampled_ratios(top: Floats, bottom: Floats, groups: NDArray[np.intp], draws: Floats) -> Floats:
    """The ratio of sums over the cases of each sample (n, contenders), from sums per patient."""
    member = np.zeros((draws.shape[1], len(top)))
    member[groups, np.arange(len(top))] = 1
    return _ratio(draws @ (member @ top), draws @ (member @ bottom))


def _ratio(top: Floats, bottom: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)
