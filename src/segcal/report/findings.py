"""What the scores on one data set show, as values; `summary` puts them into sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results, ranking
from segcal.compare.ranking import MAIN, SIGNIFICANT, Ranking
from segcal.figures.from_runs import main_scores


@dataclass(frozen=True)
class Leader:
    """The contender with the best mean of a metric, tested against the others."""

    order: list[str]  # keys from the best to the worst mean; those without a mean are left out
    tied: list[str]  # the first, and those with the same mean
    # By outcome (better, worse, neither): the others, with the corrected p of the paired test.
    tests: dict[str, dict[str, float]]


class Change(NamedTuple):
    """What a calibrator did to a contender's ECE."""

    contender: str
    calibrator: str
    before: float
    after: float
    effect: str  # significantly lower or higher, not significant, mean and test disagree


@dataclass(frozen=True, eq=False)
class Findings:
    """What the summary reports on one data set."""

    results: Results
    dataset: str
    names: dict[str, str]  # the label of each main contender by its key
    n_cases: int
    n_patients: int
    means: dict[str, pd.DataFrame]  # per metric: mean, low and high of each contender
    missed: dict[str, float]  # objects missed or invented by each contender
    ranking: Ranking | None  # None for a single contender
    leaders: dict[str, Leader]  # per metric that has a mean
    gaps: pd.DataFrame  # confidence gap: mean, low and high of each contender that has one
    changes: list[Change]


def find(results: Results, dataset: str) -> Findings:
    """The findings on a data set."""
    names = {c.key: c.label for c in results.main(dataset)}
    keys = list(names)
    values = {m: main_scores(results, dataset, m) for m in (*MAIN, "missed")}
    patients = results.patients(dataset).reindex(values["dice"].index)
    means = {m: ranking.bootstrap_means(values[m], patients) for m in MAIN}
    known = [m for m in MAIN if means[m]["mean"].notna().any()]
    ranked = ranking.rank_results(results, dataset) if len(keys) > 1 else None
    return Findings(
        results=results,
        dataset=dataset,
        names=names,
        n_cases=len(values["dice"]),
        n_patients=patients.nunique(),
        means=means,
        missed={key: float(values["missed"][key].sum()) for key in keys},
        ranking=ranked,
        leaders={m: _leader(ranked, m) if ranked else Leader(keys, keys, {}) for m in known},
        gaps=_gaps(results, dataset),
        changes=_changes(results, dataset),
    )


def _leader(ranked: Ranking, metric: str) -> Leader:
    means, ranks = ranked.means[metric]["mean"], ranked.sum_rank[(ranked.dataset, metric)]
    order = [str(key) for key in ranks.sort_values(kind="stable").index if means.notna()[key]]
    first = order[0]
    tests: dict[str, dict[str, float]] = {"better": {}, "worse": {}, "neither": {}}
    for row in ranked.pairwise[metric].to_dict("records"):
        others = {row["a"], row["b"]} - {first}
        if len(others) == 1:
            outcome = "better" if row["better"] == first else "worse"
            outcome = outcome if row["p_holm"] < SIGNIFICANT else "neither"
            tests[outcome][others.pop()] = row["p_holm"]
    return Leader(order, [key for key in order if ranks[key] == ranks[first]], tests)


def unbeaten(ranked: Ranking, metric: str) -> set[str]:
    """The contenders that no other is significantly better than."""
    keys = {c.key for c in ranked.contenders}
    for row in ranked.pairwise[metric].to_dict("records"):
        if row["p_holm"] < SIGNIFICANT:
            keys -= {row["a"], row["b"]} - {row["better"]}
    return keys


def _gaps(results: Results, dataset: str) -> pd.DataFrame:
    """Mean confidence minus accuracy, the largest first."""
    values = main_scores(results, dataset, "confidence_gap")
    if not len(values):
        return pd.DataFrame()
    means = ranking.bootstrap_means(values, results.patients(dataset)).dropna(subset="mean")
    return means.sort_values("mean", key=abs, ascending=False, kind="stable")


def _changes(results: Results, dataset: str) -> list[Change]:
    """What every fitted calibrator did to the ECE; paired tests, corrected together."""
    before, patients = main_scores(results, dataset, "ece"), results.patients(dataset)
    tests = []
    for name in CALIBRATORS:
        after = main_scores(results, dataset, "ece", calibrator=name)
        for key in map(str, after):
            pair = pd.DataFrame({"before": before[key], "after": after[key]})
            test = ranking.pairwise(pair, "ece", patients).iloc[0]
            tests.append((key, name, pair.mean(), test))
    corrected = ranking.holm(np.array([float(test["p"]) for *_, test in tests]))
    changes = []
    for (key, name, mean, test), p in zip(tests, corrected, strict=True):
        lower = mean["after"] < mean["before"]
        effect = "significantly lower" if lower else "significantly higher"
        if p >= SIGNIFICANT:
            effect = "not significant"
        elif test["better"] != mean.idxmin():
            effect = "mean and test disagree"
        changes.append(Change(key, name, mean["before"], mean["after"], effect))
    return changes
