"""Who is better, and how sure is that: ranks, intervals over patients, paired tests, and how stable a first place is.

Values come as tables with a row per case and a column per contender. Which way is better stands in `METRICS`. No rule
rewards a missed object: where one contender has no value and another has, it ranks last, and counts in an order of means as
the worst value that anyone had on any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata, wilcoxon

from segcal.metrics import METRICS
from segcal.results import Contender, Results
from segcal.types import UserError, check_choice, check_range

MAIN = ("dice", "asd", "ece", "cece")
"""The metrics that the paper ranks by."""
SIGNIFICANT = 0.05
Floats = NDArray[np.float64]


def ranks(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rank of each contender (column) in each row: 1 is best, ties share the mean of their ranks.

    A NaN ranks last where another contender has a value; a row without any value is left out.

    >>> ranks(pd.DataFrame({"a": [0.9, 0.5], "b": [0.8, 0.5], "c": [0.7, float("nan")]}), "dice").values.tolist()
    [[1.0, 2.0, 3.0], [1.5, 1.5, 3.0]]
    """
    loss = _losses(values, metric)
    return pd.DataFrame(rankdata(loss, axis=1), index=loss.index, columns=values.columns, dtype=float)


def counted(values: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Values as they count in an order of means: where only some have one, a NaN is the worst value anyone had.

    An exception is an object that is not there: who rightly leaves it out has no Dice, who invents it has 0; here the first
    gets 1. Rows without any value are left out.

    >>> counted(pd.DataFrame({"a": [2.0, 1.0], "b": [float("nan"), 3.0]}), "asd").values.tolist()
    [[2.0, 3.0], [1.0, 3.0]]
    """
    loss = _losses(values, metric)
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


def _losses(values: pd.DataFrame, metric: str) -> pd.DataFrame:
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
    mean = _case_ranks(per_case).mean()
    table = pd.DataFrame({metric: ranks(values, metric).mean() for metric, values in per_case.items()})
    return table.assign(mean=mean, rank=rankdata(mean, nan_policy="omit"))


def _case_ranks(per_case: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Per case the mean of the ranks over those metrics that have a value there."""
    found = pd.concat([ranks(values, metric) for metric, values in per_case.items()])
    return found.groupby(level=0, sort=True).mean()


def bootstrap_means(
    values: pd.DataFrame, patients: Mapping[str, str] | pd.Series[str], *, n: int = 2000, seed: int = 0, level: float = 0.95
) -> pd.DataFrame:
    """The mean over cases per contender, with a percentile interval (`low`, `high`) from `n` samples of patients.

    All cases of a drawn patient come together, and every contender sees the same draws. NaN are left out of a mean; with
    fewer than two patients there is no interval.
    """
    check_range("n", n, 1)
    check_range("level", level, 0, 1)
    groups = _groups(values.index, patients)
    drawn = _sampled_means(values, groups, _draws(groups.max(initial=-1) + 1, n, seed))
    known = values.notna().to_numpy()
    several = [len(np.unique(groups[column])) > 1 for column in known.T]
    limits = np.full((2, len(several)), np.nan)
    if any(several):
        limits[:, several] = np.nanquantile(drawn[:, several], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return pd.DataFrame({"mean": values.mean().to_numpy(), "low": limits[0], "high": limits[1]}, index=values.columns)


def stability(
    per_case: Mapping[str, pd.DataFrame], patients: Mapping[str, str] | pd.Series[str], *, n: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """How often each contender is first when patients are drawn anew: a share per metric, and `overall` by mean case rank.

    A row per contender; ties share a first place. NaN with fewer than two patients, where a draw says nothing.
    """
    check_range("n", n, 1)
    tables = {metric: (counted(values, metric), METRICS[metric].better) for metric, values in per_case.items()}
    tables["overall"] = (_case_ranks(per_case), "lower")
    cases = pd.Index(sorted({case for values in per_case.values() for case in values.index}))
    groups = _groups(cases, patients)
    draws = _draws(groups.max(initial=-1) + 1, n, seed)
    return pd.DataFrame(
        {key: _first(table.reindex(cases), better, groups, draws) for key, (table, better) in tables.items()}
    )


def _first(values: pd.DataFrame, better: str, groups: NDArray[np.intp], draws: Floats) -> pd.Series[float]:
    """The share of draws in which each column has the best mean."""
    if draws.shape[1] < 2 or not values.notna().any(axis=None):
        return pd.Series(np.nan, index=values.columns)
    means = _sampled_means(values, groups, draws)
    loss = -means if better == "higher" else np.abs(means) if better == "zero" else means
    loss = np.where(np.isnan(loss), np.inf, loss)
    # Equal columns may differ in the last bit, since sums are not always added up in the same order.
    first = np.isclose(loss, loss.min(axis=1, keepdims=True), rtol=1e-12, atol=1e-15)
    return pd.Series((first / first.sum(axis=1, keepdims=True)).mean(axis=0), index=values.columns)


def _groups(cases: pd.Index, patients: Mapping[str, str] | pd.Series[str]) -> NDArray[np.intp]:
    """The number of each case's patient; a case that no patient is known for stands alone."""
    codes, _ = pd.factorize(np.array([str(patients.get(case, case)) for case in cases], dtype=object))
    return codes


@lru_cache(maxsize=8)
def _draws(n_patients: int, n: int, seed: int) -> Floats:
    """How often each patient is in each of n samples, drawn with replacement (n, patients); the same for all metrics."""
    shares = np.full(n_patients, 1 / max(n_patients, 1))
    drawn = np.random.default_rng(seed).multinomial(n_patients, shares, size=n).astype(float)
    drawn.flags.writeable = False  # it is kept for the next who asks
    return drawn


def _sampled_means(values: pd.DataFrame, groups: NDArray[np.intp], draws: Floats) -> Floats:
    """The mean over the cases of each sample (n, contenders): sums per patient, weighted by how often each was drawn."""
    array = values.to_numpy(dtype=float)
    member = np.zeros((draws.shape[1], len(array)))
    member[groups, np.arange(len(array))] = 1
    known = ~np.isnan(array)
    with np.errstate(invalid="ignore"):  # a sample in which a contender has no case has no mean
        return (draws @ (member @ np.where(known, array, 0))) / (draws @ (member @ known))


def pairwise(values: pd.DataFrame, metric: str, patients: Mapping[str, str] | pd.Series[str] | None = None) -> pd.DataFrame:
    """Paired Wilcoxon signed-rank tests between every two contenders, with Holm's correction over all pairs.

    A row per pair: `a`, `b`, `difference` (the median of a − b over the cases where both have a value), `p`, `p_holm`, `n`
    and a `note`. With `patients`, cases of one patient are averaged first. Where only one of two has a value the difference
    counts as the largest there is.
    """
    loss = _losses(values, metric)
    if patients is not None and len(loss):
        loss = loss.groupby(_groups(loss.index, patients)).mean()
    rows = []
    for a, b in combinations(values.columns, 2):
        difference, p, n = _compared(loss[a].to_numpy(), loss[b].to_numpy())
        sign = -1 if METRICS[metric].better == "higher" else 1
        rows.append({"a": a, "b": b, "difference": sign * difference, "p": p, "n": n})
    table = pd.DataFrame(rows, columns=["a", "b", "difference", "p", "n"])
    table.insert(4, "p_holm", holm(table["p"].to_numpy(dtype=float)))
    # The smallest p of n pairs is 2 / 2^n, when all differences have one sign.
    hopeless = len(table) * 2.0 ** (1 - table["n"]) > SIGNIFICANT
    return table.assign(note=np.where(hopeless, "too few cases for any difference to be significant", ""))


def _compared(a: Floats, b: Floats) -> tuple[float, float, int]:
    """The median difference, p and the number of pairs of two columns of losses."""
    with np.errstate(invalid="ignore"):
        apart = a - b  # inf - inf is NaN: both missed it
    finite = apart[np.isfinite(apart)]
    median = float(np.median(finite)) if finite.size else np.nan
    largest = 2 * np.abs(finite).max(initial=0.5)
    apart = np.nan_to_num(apart, nan=0.0, posinf=largest, neginf=-largest)
    p = float(wilcoxon(apart).pvalue) if np.any(apart) else 1.0
    return median, p, len(apart)


def holm(p: Floats) -> Floats:
    """Holm's step-down correction of p-values for testing all of them at once.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p)
    steps = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(steps, 1.0)
    return corrected


@dataclass(frozen=True, eq=False)
class Ranking:
    """Who is better on one data set: everything above for the main contenders and metrics."""

    dataset: str
    calibrator: str
    contenders: tuple[Contender, ...]
    values: Mapping[str, pd.DataFrame]  # per metric: cases x contenders, means over classes
    patients: pd.Series[str]  # the patient of each case
    means: Mapping[str, pd.DataFrame]  # per metric: mean, low and high of each contender
    sum_rank: pd.DataFrame  # columns (data set, metric), sum, rank
    case_rank: pd.DataFrame  # columns of metrics, mean, rank
    stability: pd.DataFrame  # columns of metrics, overall
    pairwise: Mapping[str, pd.DataFrame]  # per metric: a, b, difference, p, p_holm, n, note


def rank_results(results: Results, dataset: str, *, calibrator: str = "", n: int = 2000, seed: int = 0) -> Ranking:
    """Rank the main contenders on a data set, as they are or after a calibrator; needs at least two."""
    check_choice("data set", dataset, results.datasets)
    contenders = results.main(dataset)
    if len(contenders) < 2:
        raise UserError(f"there is one contender only on {dataset}, {contenders[0].key}; name runs of another to rank them")
    values = main_values(results, dataset, calibrator=calibrator)
    patients = results.patients(dataset).reindex(values["dice"].index)
    some = {metric: table for metric, table in values.items() if table.notna().any(axis=None)}
    if not some:
        raise UserError(f"no contender on {dataset} has a value of {', '.join(values)}; there is nothing to rank")
    return Ranking(
        dataset,
        calibrator,
        contenders,
        values,
        patients,
        {metric: bootstrap_means(table, patients, n=n, seed=seed) for metric, table in values.items()},
        sum_rank({(dataset, metric): counted(table, metric).mean() for metric, table in some.items()}),
        mean_case_rank(some),
        stability(some, patients, n=n, seed=seed),
        {metric: pairwise(table, metric, patients) for metric, table in some.items()},
    )


def main_values(results: Results, dataset: str, *, calibrator: str = "") -> dict[str, pd.DataFrame]:
    """Per main metric the values of the main contenders on each case, means over classes; all must have them."""
    contenders = results.main(dataset)
    results.require(contenders, calibrator=calibrator)
    kinds = {metric: results.overall_class(dataset, metric) for metric in MAIN}
    columns = [c.key for c in contenders]
    return {
        metric: results.per_case(dataset, metric, kind, calibrator=calibrator)[columns] for metric, kind in kinds.items()
    }
