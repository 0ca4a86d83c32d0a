"""Paired tests between every two contenders."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata, wilcoxon

from segcal.compare.ranking.bootstrap import patient_groups
from segcal.compare.ranking.no_value import Floats, losses, rounded
from segcal.metrics import METRICS

SIGNIFICANT = 0.05


class SignedRank(NamedTuple):
    """What Wilcoxon's signed-rank test says of paired differences."""

    p: float  # two-sided
    sign: int  # of W+ - W-: 1 if the positive differences have the larger rank sum


def pairwise(
    values: pd.DataFrame, metric: str, patients: Mapping[str, str] | pd.Series[str] | None = None
) -> pd.DataFrame:
    """Paired Wilcoxon signed-rank tests of every two contenders, with Holm's correction.

    A row per pair: `a`, `b`, `difference` (the median of a − b), `p`, `p_holm`, `better` (whom the
    test is in favour of; empty for neither), `n` and a `note`. With `patients`, cases of one
    patient are averaged first. Where only one of two has a value the difference is infinite, and
    the largest there is for the test; where both lack one that others have, it is 0. The sign of
    the median may differ from `better`, because the test also weighs how large differences are."""
    loss = losses(values, metric)
    if patients is not None and len(loss):
        loss = loss.groupby(patient_groups(loss.index, patients)).mean()
    rows = []
    for a, b in combinations(values.columns, 2):
        one, other = loss[a].to_numpy(), loss[b].to_numpy()
        with np.errstate(invalid="ignore"):
            apart = np.where(one == other, 0.0, one - other)  # two infinite losses do not differ
            apart = rounded(apart, np.maximum(np.abs(one), np.abs(other)))
            median = float(np.median(apart)) if apart.size else np.nan
        largest = 2 * np.abs(apart[np.isfinite(apart)]).max(initial=0.5)
        p, sign = signed_rank(np.clip(apart, -largest, largest))
        difference = -median if METRICS[metric].better == "higher" else median
        better = {-1: a, 0: "", 1: b}[sign]  # a positive difference of losses is against a
        rows.append((a, b, difference, p, better, len(loss)))
    table = pd.DataFrame(rows, columns=["a", "b", "difference", "p", "better", "n"])
    table.insert(4, "p_holm", holm(table["p"].to_numpy(dtype=float)))
    # The smallest p of n pairs is 2 / 2^n, when all differences have one sign.
    hopeless = len(table) * 2.0 ** (1 - table["n"]) > SIGNIFICANT
    few = "too few cases for any difference to be significant"
    return table.assign(note=np.where(hopeless, few, ""))


def signed_rank(differences: Floats) -> SignedRank:
    """Wilcoxon's signed-rank test without differences of 0; p is 1 if none is left.

    Exact for up to 50, also with ties, for which SciPy draws permutations, a second per pair.

    >>> signed_rank(np.array([1.0, 2.0, 2.0, 3.0, 4.0, 0.0]))  # 2 of 2^5 ways to choose signs
    SignedRank(p=0.0625, sign=1)
    """
    apart = rounded(differences[differences != 0])
    doubled = np.rint(2 * rankdata(np.abs(apart))).astype(int)  # ties have half ranks
    above = int(doubled[apart > 0].sum())
    sign = int(np.sign(2 * above - doubled.sum()))
    if len(apart) > 50:
        return SignedRank(float(wilcoxon(apart, method="asymptotic").pvalue), sign)
    ways = np.zeros(doubled.sum() + 1)  # how many choices of signs give each sum of ranks
    ways[0] = 1
    for rank in doubled:
        ways[rank:] += ways[:-rank].copy()
    as_far = ways[: min(above, doubled.sum() - above) + 1].sum()
    return SignedRank(float(min(1.0, 2 * as_far / 2.0 ** len(apart))), sign)


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
