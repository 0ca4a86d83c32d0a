"""Paired tests between every two contenders."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata, wilcoxon

from segcal.metrics import METRICS
from segcal.ranking.bootstrap import patient_groups
from segcal.ranking.ranks import losses

SIGNIFICANT = 0.05
Floats = NDArray[np.float64]


def pairwise(values: pd.DataFrame, metric: str, patients: Mapping[str, str] | pd.Series[str] | None = None) -> pd.DataFrame:
    """Paired Wilcoxon signed-rank tests between every two contenders, with Holm's correction over all pairs.

    A row per pair: `a`, `b`, `difference` (the median of a − b over the cases where both have a value), `p`, `p_holm`, `n`
    and a `note`. With `patients`, cases of one patient are averaged first. Where only one of two has a value the difference
    counts as the largest there is.
    """
    loss = losses(values, metric)
    if patients is not None and len(loss):
        loss = loss.groupby(patient_groups(loss.index, patients)).mean()
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
    return median, signed_rank_p(apart), len(apart)


def signed_rank_p(differences: Floats) -> float:
    """The two-sided p of Wilcoxon's signed-rank test of paired differences; those of 0 are left out, and 1 if none is left.

    Exact for up to 50, ties or not, which SciPy does with ties by drawing permutations, a second per pair.

    >>> signed_rank_p(np.array([1.0, 2.0, 2.0, 3.0, 4.0, 0.0]))  # 2 of 2^5 ways to choose signs
    0.0625
    """
    apart = differences[differences != 0]
    if len(apart) > 50:
        return float(wilcoxon(apart, method="asymptotic").pvalue)
    doubled = np.rint(2 * rankdata(np.abs(apart))).astype(int)  # whole numbers: ties have half ranks
    ways = np.zeros(doubled.sum() + 1)  # how many choices of signs give each sum of ranks
    ways[0] = 1
    for rank in doubled:
        ways[rank:] += ways[:-rank].copy()
    above = doubled[apart > 0].sum()
    return float(min(1.0, 2 * ways[: min(above, doubled.sum() - above) + 1].sum() / 2.0 ** len(apart)))


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
