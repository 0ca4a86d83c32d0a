"""Which contender is better, and how certain that is.

Ranks, intervals over patients, paired tests, and how stable a first place is. Values come as tables
with a row per case and a column per contender. `METRICS` says which direction is better, `no_value`
what a missing value counts as: nothing rewards a missed or an invented object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from segcal.compare import Contender, Results
from segcal.compare.ranking.bootstrap import LEVEL, N_SAMPLES, bootstrap_means, stability
from segcal.compare.ranking.no_value import counted, credited
from segcal.compare.ranking.pairs import SIGNIFICANT, holm, pairwise, signed_rank
from segcal.compare.ranking.ranks import mean_case_rank, ranks, sum_rank
from segcal.compare.ranking.sums import SUMS, ratios_of_sums, summed
from segcal.compare.ranking.verdicts import VERDICTS, Confidence, Interval, confidences, verdict
from segcal.types import UserError, check_choice

__all__ = ["LEVEL", "N_SAMPLES", "SIGNIFICANT", "SUMS", "VERDICTS", "Confidence", "Interval"]
__all__ += ["Ranking", "bootstrap_means", "confidences", "counted", "credited", "holm"]
__all__ += ["main_values", "mean_case_rank", "pairwise", "rank_results", "ranks", "ratios_of_sums"]
__all__ += ["signed_rank", "stability", "sum_rank", "summed", "verdict"]

Tables = Mapping[str, pd.DataFrame]  # by metric


@dataclass(frozen=True, eq=False)
class Ranking:
    """The ranking of the main contenders on one data set, by the metrics that lead."""

    dataset: str
    contenders: tuple[Contender, ...]
    values: Tables  # cases x contenders, as `main_values` gives them
    patients: pd.Series[str]  # the patient of each case
    means: Tables  # mean, low and high of each contender, over the cases for which it has a value
    sum_rank: pd.DataFrame  # columns (data set, metric), sum, rank
    case_rank: pd.DataFrame  # columns of metrics, mean, rank
    stability: pd.DataFrame  # columns of metrics, overall
    pairwise: Tables  # a, b, difference, p, p_holm, better, n, note


def rank_results(
    results: Results, dataset: str, *, calibrator: str = "", n: int = N_SAMPLES, seed: int = 0
) -> Ranking:
    """Rank the main contenders on a data set, at least two, without or with a calibrator."""
    check_choice("data set", dataset, results.datasets)
    contenders = results.main(dataset)
    if len(contenders) < 2:
        only = f"there is one contender only on {dataset}, {contenders[0].key}"
        raise UserError(f"{only}; name runs of another to rank them")
    values = main_values(results, dataset, calibrator=calibrator)
    printed = main_values(results, dataset, calibrator=calibrator, credit=False)
    patients = results.patients(dataset).reindex(values["dice"].index)
    some = {metric: table for metric, table in values.items() if table.notna().any(axis=None)}
    if not some:
        nobody = f"no contender on {dataset} has a value of {', '.join(values)}"
        raise UserError(f"{nobody}; there is nothing to rank")
    means = {m: bootstrap_means(table, patients, n=n, seed=seed) for m, table in printed.items()}
    order = {(dataset, metric): counted(table, metric).mean() for metric, table in some.items()}
    tests = {metric: pairwise(table, metric, patients) for metric, table in some.items()}
    first = stability(some, patients, n=n, seed=seed)
    places = sum_rank(order), mean_case_rank(some), first
    return Ranking(dataset, contenders, values, patients, means, *places, tests)


def main_values(
    results: Results, dataset: str, *, calibrator: str = "", credit: bool = True
) -> dict[str, pd.DataFrame]:
    """Per metric that leads the values of the main contenders on each case, means over classes.

    All contenders must have them. `credit` makes values fair, as `credited` says."""
    contenders = results.main(dataset)
    results.require(contenders, calibrator=calibrator)
    missed = results.per_case(dataset, "missed", results.mean_class(dataset), calibrator=calibrator)
    values = {}
    for metric in results.metrics.lead:
        kind = results.overall_class(dataset, metric)
        table = results.per_case(dataset, metric, kind, calibrator=calibrator)
        table = table[[c.key for c in contenders]]
        values[metric] = credited(table, metric, missed) if credit else table
    return values
