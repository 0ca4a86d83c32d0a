"""Who is better, and how sure is that: ranks, intervals over patients, paired tests, and how stable
a first place is.

Values come as tables with a row per case and a column per contender. Which way is better stands in
`METRICS`, what no value counts as in `no_value`: nothing rewards a missed object, or an invented
one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from segcal.compare import Contender, Results
from segcal.compare.ranking.bootstrap import bootstrap_means, stability
from segcal.compare.ranking.no_value import counted, credited
from segcal.compare.ranking.pairs import SIGNIFICANT, SignedRank, holm, pairwise, signed_rank
from segcal.compare.ranking.ranks import mean_case_rank, ranks, sum_rank
from segcal.types import UserError, check_choice

__all__ = [
    "MAIN",
    "SIGNIFICANT",
    "Ranking",
    "SignedRank",
    "bootstrap_means",
    "counted",
    "credited",
    "holm",
]
__all__ += [
    "main_values",
    "mean_case_rank",
    "pairwise",
    "rank_results",
    "ranks",
    "signed_rank",
    "stability",
    "sum_rank",
]

MAIN = ("dice", "asd", "ece", "cece")
"""The metrics that the paper ranks by."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Who is better on one data set: everything above for the main contenders and metrics."""

    dataset: str
    calibrator: str
    contenders: tuple[Contender, ...]
    values: Mapping[
        str, pd.DataFrame
    ]  # per metric: cases x contenders, as they compare: `main_values`
    patients: pd.Series[str]  # the patient of each case
    means: Mapping[
        str, pd.DataFrame
    ]  # per metric: mean, low and high of each contender, over the cases it has
    sum_rank: pd.DataFrame  # columns (data set, metric), sum, rank
    case_rank: pd.DataFrame  # columns of metrics, mean, rank
    stability: pd.DataFrame  # columns of metrics, overall
    pairwise: Mapping[str, pd.DataFrame]  # per metric: a, b, difference, p, p_holm, better, n, note


def rank_results(
    results: Results, dataset: str, *, calibrator: str = "", n: int = 2000, seed: int = 0
) -> Ranking:
    """Rank the main contenders on a data set, as they are or after a calibrator; needs at least
    two.
    """
    check_choice("data set", dataset, results.datasets)
    contenders = results.main(dataset)
    if len(contenders) < 2:
        raise UserError(
            f"there is one contender only on {dataset}, {contenders[0].key}; name runs of another"
            " to rank them"
        )
    own = _own_values(results, dataset, calibrator)
    values = _as_they_compare(results, dataset, calibrator, own)
    patients = results.patients(dataset).reindex(values["dice"].index)
    some = {metric: table for metric, table in values.items() if table.notna().any(axis=None)}
    if not some:
        raise UserError(
            f"no contender on {dataset} has a value of {', '.join(values)}; there is nothing to"
            " rank"
        )
    return Ranking(
        dataset,
        calibrator,
        contenders,
        values,
        patients,
        {metric: bootstrap_means(table, patients, n=n, seed=seed) for metric, table in own.items()},
        sum_rank(
            {(dataset, metric): counted(table, metric).mean() for metric, table in some.items()}
        ),
        mean_case_rank(some),
        stability(some, patients, n=n, seed=seed),
        {metric: pairwise(table, metric, patients) for metric, table in some.items()},
    )


def main_values(results: Results, dataset: str, *, calibrator: str = "") -> dict[str, pd.DataFrame]:
    """Per main metric the values of the main contenders on each case, means over classes; all must
    have them.

    They are as they compare, which is `credited`: who rightly leaves out what another invents has a
    perfect value."""
    return _as_they_compare(results, dataset, calibrator, _own_values(results, dataset, calibrator))


def _as_they_compare(
    results: Results, dataset: str, calibrator: str, own: Mapping[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    missed = results.per_case(dataset, "missed", results.mean_class(dataset), calibrator=calibrator)
    return {metric: credited(values, metric, missed) for metric, values in own.items()}


def _own_values(results: Results, dataset: str, calibrator: str) -> dict[str, pd.DataFrame]:
    contenders = results.main(dataset)
    results.require(contenders, calibrator=calibrator)
    kinds = {metric: results.overall_class(dataset, metric) for metric in MAIN}
    columns = [c.key for c in contenders]
    return {
        metric: results.per_case(dataset, metric, kind, calibrator=calibrator)[columns]
        for metric, kind in kinds.items()
    }
