"""Ranks of contenders: in every case, of their means, and added up."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy.stats import rankdata

from segcal.compare.ranking.no_value import losses, rounded


def ranks(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rank of each contender (column) in each row: 1 is best, ties share their mean rank.

    What is lacking ranks last; a row without any value is left out.

    >>> table = pd.DataFrame({"a": [0.9, 0.5], "b": [0.8, 0.5], "c": [0.7, float("nan")]})
    >>> ranks(table, "dice").values.tolist()
    [[1.0, 2.0, 3.0], [1.5, 1.5, 3.0]]
    """
    loss = losses(values, metric)
    return pd.DataFrame(rankdata(loss, axis=1), loss.index, values.columns, dtype=float)


def sum_rank(means: Mapping[tuple[str, str], pd.Series[float]]) -> pd.DataFrame:
    """Rank the contenders per (data set, metric) by their means, add up, rank the sums.

    A row per contender; a column per (data set, metric), then `sum` and `rank`. A metric that
    nobody has is left out.

    >>> dice, ece = pd.Series({"a": 0.8, "b": 0.9}), pd.Series({"a": 0.2, "b": 0.1})
    >>> sum_rank({("x", "dice"): dice, ("x", "ece"): ece})["sum"].to_dict()
    {'a': 4.0, 'b': 2.0}
    """
    table = pd.DataFrame(index=next(iter(means.values())).index)
    for key, values in means.items():
        places = ranks(values[table.index].to_frame().T, key[1])
        if len(places):
            table[key] = places.iloc[0]
    total = table.sum(axis=1)
    return table.assign(sum=total, rank=rankdata(total))


def mean_case_rank(per_case: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Rank the contenders per case and metric; the mean over metrics per case, then over cases.

    A row per contender; a column per metric (its mean rank over cases), then `mean` and `rank`."""
    mean = case_ranks(per_case).mean()
    table = pd.DataFrame({m: ranks(values, m).mean() for m, values in per_case.items()})
    return table.assign(mean=mean, rank=rankdata(rounded(mean.to_numpy()), nan_policy="omit"))


def case_ranks(per_case: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Per case the mean of the ranks over those metrics that have a value there."""
    places = pd.concat([ranks(values, metric) for metric, values in per_case.items()])
    return places.groupby(level=0, sort=True).mean()
