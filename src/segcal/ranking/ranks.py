"""Ranks of contenders: in every case, of their means, and added up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from segcal.metrics import METRICS
from segcal.types import UserError, check_choice


def ranks(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rank of each contender (column) in each row: 1 is best, ties share the mean of their ranks.

    A NaN ranks last where another contender has a value; a row without any value is left out.

    >>> ranks(pd.DataFrame({"a": [0.9, 0.5], "b": [0.8, 0.5], "c": [0.7, float("nan")]}), "dice").values.tolist()
    [[1.0, 2.0, 3.0], [1.5, 1.5, 3.0]]
    """
    loss = losses(values, metric)
    return pd.DataFrame(rankdata(loss, axis=1), index=loss.index, columns=values.columns, dtype=float)


def counted(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Values as they count in an order of means: where only some have one, a NaN is the worst value anyone had.

    An exception is an object that is not there: who rightly leaves it out has no Dice, who invents it has 0; here the first
    gets 1. Rows without any value are left out.

    >>> counted(pd.DataFrame({"a": [2.0, 1.0], "b": [float("nan"), 3.0]}), "asd").values.tolist()
    [[2.0, 3.0], [1.0, 3.0]]
    """
    loss = losses(values, metric)
    filled = _rightly_empty(values, metric).loc[loss.index]
    finite = loss.to_numpy()[np.isfinite(loss)]
    worst = filled.to_numpy()[loss == finite.max()][0] if finite.size else np.nan
    return filled.mask(np.isinf(loss), worst)


def _rightly_empty(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Dice is NaN only where an object is neither there nor predicted; then all others have 0, and this one is perfect."""
    if METRICS[metric].of != "confusion":
        return values
    invented = (values.max(axis=1) == 0) & values.notna().any(axis=1)
    return values.mask(values.isna() & invented.to_numpy()[:, None], 1.0)


def losses(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Lower is better, infinite where a value is missing that others have; rows without any are left out."""
    check_choice("metric", metric, tuple(METRICS))
    known = _rightly_empty(values, metric)[values.notna().any(axis=1)]
    better = METRICS[metric].better
    loss = -known if better == "higher" else known.abs() if better == "zero" else known
    return loss.astype(float).fillna(np.inf)


def sum_rank(means: Mapping[tuple[str, str], pd.Series[float]]) -> pd.DataFrame:
    """Rank the contenders per (data set, metric) by their means, add up, rank the sums.

    A row per contender; a column per (data set, metric), then `sum` and `rank`. A metric that nobody has is left out.

    >>> dice, ece = pd.Series({"a": 0.8, "b": 0.9}), pd.Series({"a": 0.2, "b": 0.1})
    >>> sum_rank({("x", "dice"): dice, ("x", "ece"): ece})["sum"].to_dict()
    {'a': 4.0, 'b': 2.0}
    """
    if not means:
        raise UserError("there is nothing to rank; got no means")
    contenders = list(next(iter(means.values())).index)
    table = pd.DataFrame(index=pd.Index(contenders))
    for key, values in means.items():
        if set(values.index) != set(contenders):
            raise UserError(
                f"the contenders of {key} are {list(values.index)}, others have {contenders}; give each the same"
            )
        found = ranks(values[contenders].to_frame().T, key[1])
        if len(found):
            table[key] = found.iloc[0]
    total = table.sum(axis=1)
    return table.assign(sum=total, rank=rankdata(total))


def mean_case_rank(per_case: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Rank the contenders per case and metric; the mean over metrics per case, then over cases.

    A row per contender; a column per metric (its mean rank over cases), then `mean` and `rank`.
    """
    mean = case_ranks(per_case).mean()
    table = pd.DataFrame({metric: ranks(values, metric).mean() for metric, values in per_case.items()})
    return table.assign(mean=mean, rank=rankdata(mean, nan_policy="omit"))


def case_ranks(per_case: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Per case the mean of the ranks over those metrics that have a value there."""
    found = pd.concat([ranks(values, metric) for metric, values in per_case.items()])
    return found.groupby(level=0, sort=True).mean()
