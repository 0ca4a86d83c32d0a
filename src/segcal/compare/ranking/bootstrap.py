"""How sure a mean and a first place are: patients drawn anew, many times."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from segcal.compare.ranking.no_value import counted
from segcal.compare.ranking.ranks import case_ranks
from segcal.metrics import METRICS
from segcal.types import check_range

Floats = NDArray[np.float64]


def bootstrap_means(
    values: pd.DataFrame,
    patients: Mapping[str, str] | pd.Series[str],
    *,
    n: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """The mean over cases per contender, with a percentile interval (`low`, `high`) from `n`
    samples of patients.

    All cases of a drawn patient come together, and every contender sees the same draws. NaN are
    left out of a mean; with fewer than two patients there is no interval."""
    check_range("n", n, 1)
    check_range("level", level, 0, 1)
    groups = patient_groups(values.index, patients)
    drawn = _sampled_means(values, groups, _draws(groups.max(initial=-1) + 1, n, seed))
    known = values.notna().to_numpy()
    several = [len(np.unique(groups[column])) > 1 for column in known.T]
    limits = np.full((2, len(several)), np.nan)
    if any(several):
        limits[:, several] = np.nanquantile(
            drawn[:, several], [(1 - level) / 2, (1 + level) / 2], axis=0
        )
    return pd.DataFrame(
        {"mean": values.mean().to_numpy(), "low": limits[0], "high": limits[1]},
        index=values.columns,
    )


def stability(
    per_case: Mapping[str, pd.DataFrame],
    patients: Mapping[str, str] | pd.Series[str],
    *,
    n: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """How often each contender is first when patients are drawn anew: a share per metric, and
    `overall` by mean case rank.

    A row per contender; ties share a first place. NaN with fewer than two patients, where a draw
    says nothing."""
    check_range("n", n, 1)
    tables = {
        metric: (counted(values, metric), METRICS[metric].better)
        for metric, values in per_case.items()
    }
    tables["overall"] = (case_ranks(per_case), "lower")
    cases = pd.Index(sorted({case for values in per_case.values() for case in values.index}))
    groups = patient_groups(cases, patients)
    draws = _draws(groups.max(initial=-1) + 1, n, seed)
    return pd.DataFrame(
        {
            key: _first(table.reindex(cases), better, groups, draws)
            for key, (table, better) in tables.items()
        }
    )


def _first(
    values: pd.DataFrame, better: str, groups: NDArray[np.intp], draws: Floats
) -> pd.Series[float]:
    """The share of draws in which each column has the best mean."""
    if draws.shape[1] < 2 or not values.notna().any(axis=None):
        return pd.Series(np.nan, index=values.columns)
    means = _sampled_means(values, groups, draws)
    loss = -means if better == "higher" else np.abs(means) if better == "zero" else means
    loss = np.where(np.isnan(loss), np.inf, loss)
    # Equal columns may differ in the last bit, since sums are not always added up in the same
    # order.
    first = np.isclose(loss, loss.min(axis=1, keepdims=True), rtol=1e-12, atol=1e-15)
    return pd.Series((first / first.sum(axis=1, keepdims=True)).mean(axis=0), index=values.columns)


def patient_groups(
    cases: pd.Index, patients: Mapping[str, str] | pd.Series[str]
) -> NDArray[np.intp]:
    """The number of each case's patient; a case that no patient is known for stands alone."""
    codes, _ = pd.factorize(
        np.array([str(patients.get(case, case)) for case in cases], dtype=object)
    )
    return codes


@lru_cache(maxsize=8)
def _draws(n_patients: int, n: int, seed: int) -> Floats:
    """How often each patient is in each of n samples, drawn with replacement (n, patients); the
    same for all metrics.
    """
    shares = np.full(n_patients, 1 / max(n_patients, 1))
    drawn = np.random.default_rng(seed).multinomial(n_patients, shares, size=n).astype(float)
    drawn.flags.writeable = False  # it is kept for the next who asks
    return drawn


def _sampled_means(values: pd.DataFrame, groups: NDArray[np.intp], draws: Floats) -> Floats:
    """The mean over the cases of each sample (n, contenders): sums per patient, weighted by how
    often each was drawn.
    """
    array = values.to_numpy(dtype=float)
    member = np.zeros((draws.shape[1], len(array)))
    member[groups, np.arange(len(array))] = 1
    known = ~np.isnan(array)
    with np.errstate(invalid="ignore"):  # a sample in which a contender has no case has no mean
        return (draws @ (member @ np.where(known, array, 0))) / (draws @ (member @ known))
