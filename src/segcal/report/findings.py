"""What the comparison found, as values: who leads on a metric, over whom for sure, and what a
calibrator changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Results
from segcal.compare.ranking import (
    MAIN,
    SIGNIFICANT,
    Ranking,
    bootstrap_means,
    credited,
    holm,
    pairwise,
    rank_results,
)
from segcal.metrics import METRICS


class Mean(NamedTuple):
    """A mean over cases and its interval; NaN where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Lead:
    """Who is first on a metric, and how sure that is. Contenders are named by their keys."""

    metric: str
    order: tuple[str, ...]  # from best to worst mean; only those that have one
    tied: tuple[str, ...]  # the first, and those with the very same mean
    means: Mapping[str, Mean]  # of each contender
    beaten: tuple[str, ...]  # those that the first is significantly better than
    unsure: tuple[str, ...]  # those that it is not
    contrary: tuple[str, ...]  # those with a worse mean that are significantly better by the test
    uneven: tuple[str, ...]  # those of the beaten that are better in the median patient
    p_beaten: float  # the largest corrected p among the beaten; NaN if there are none
    p_unsure: float  # the smallest among the unsure
    stability: float  # how often it is first under the bootstrap; NaN if that cannot be said

    @property
    def first(self) -> str:
        """The one with the best mean."""
        return self.order[0]


@dataclass(frozen=True)
class Change:
    """What a calibrator did to a contender's ECE."""

    contender: str
    calibrator: str
    before: float
    after: float
    p: float  # of the paired test, corrected for all changes that are looked at
    falls: bool  # whether the test is in favour of the ECE after it

    @property
    def label(self) -> str:
        """The calibrator as printed."""
        return CALIBRATORS[self.calibrator].label

    @property
    def helps(self) -> bool:
        """Whether the ECE falls, more than by chance."""
        return self.p < SIGNIFICANT and self.falls and self.after < self.before

    @property
    def harms(self) -> bool:
        """Whether it rises, more than by chance."""
        return self.p < SIGNIFICANT and not self.falls and self.after > self.before


@dataclass(frozen=True)
class Gap:
    """By how much a contender's mean confidence lies over its accuracy: positive is
    overconfident.
    """

    contender: str
    mean: Mean

    @property
    def side(self) -> str:
        """`over`, `under`, or empty where the interval holds 0 or there is none."""
        if math.isnan(self.mean.low) or self.mean.low <= 0 <= self.mean.high:
            return ""
        return "over" if self.mean.value > 0 else "under"


@dataclass(frozen=True)
class Overall:
    """The ranks over all metrics, per contender; less is better."""

    sums: Mapping[str, float]  # of the ranks of the means
    case_ranks: Mapping[str, float]  # the mean rank per case
    stability: Mapping[
        str, float
    ]  # how often first by that under the bootstrap; NaN if that cannot be said
    hopeless: tuple[
        str, ...
    ]  # metrics of which too few patients have a value for any difference to be significant


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything on one data set that the summary speaks of."""

    dataset: str
    names: Mapping[str, str]  # the printed label of each main contender, by its key
    others: tuple[str, ...]  # labels of contenders with tables of their own
    n_cases: int
    n_patients: int
    n_classes: int
    epochs: tuple[int, ...]
    n_seeds: tuple[int, ...]
    means: Mapping[str, Mapping[str, Mean]]  # per metric and contender
    gaps: tuple[Gap, ...]
    changes: tuple[Change, ...]
    missed: Mapping[str, float]  # objects missed or invented, per contender
    overall: Overall | None  # None where there is one contender only
    leads: Mapping[str, Lead]  # per metric that anyone has a value of
    unbeaten: Mapping[
        str, tuple[str, ...]
    ]  # per metric: those that no other is significantly better than
    failed: Mapping[str, str]  # cells of a study that are left out, and why
    without: Mapping[
        tuple[str, str], int
    ]  # per metric and contender: cases where it lacks a value that another has
    empty: tuple[
        str, ...
    ]  # metrics whose order counts an object that is rightly left out and that another invents


def find(results: Results, dataset: str, *, n: int = 2000) -> Findings:
    """Look at a data set's scores from every side."""
    main = results.main(dataset)
    ranking = rank_results(results, dataset, n=n) if len(main) > 1 else None
    tables = {m: _cases(results, dataset, m)[[c.key for c in main]] for m in (*MAIN, "missed")}
    patients = results.patients(dataset).reindex(tables["dice"].index)
    means = {
        m: means_of(ranking.means[m] if ranking else bootstrap_means(tables[m], patients, n=n))
        for m in MAIN
    }
    infos = [r["settings"] for r in results.runs.values() if r["data"]["name"] == dataset]
    fair = {m: credited(tables[m], m, tables["missed"]) for m in MAIN}
    leads = {
        m: found for m in MAIN if ranking is not None and (found := lead(ranking, m)) is not None
    }
    return Findings(
        dataset,
        {c.key: c.label for c in main},
        tuple(c.label for c in results.on(dataset) if c not in main),
        len(tables["dice"]),
        patients.nunique(),
        len(results.data(dataset)["classes"]),
        tuple(sorted({info["training"]["epochs"] for info in infos})),
        tuple(
            sorted({len({results.runs[run]["settings"]["seed"] for run in c.runs}) for c in main})
        ),
        means,
        gaps(results, dataset, main),
        changes(results, dataset, main),
        {c.key: float(tables["missed"][c.key].sum()) for c in main},
        _overall(ranking) if ranking else None,
        leads,
        {m: unbeaten(ranking, m) for m in leads} if ranking else {},
        results.failed,
        {(m, key): n for m in MAIN if m != "asd" for key, n in _without(fair[m]).items() if n},
        tuple(m for m in MAIN if (fair[m].notna() & tables[m].isna()).any(axis=None)),
    )


def _without(table: pd.DataFrame) -> dict[str, int]:
    known = table.dropna(how="all")
    return {str(key): int(n) for key, n in known.isna().sum().items()}


def _cases(results: Results, dataset: str, metric: str, **condition: str) -> pd.DataFrame:
    return results.per_case(dataset, metric, results.overall_class(dataset, metric), **condition)


def means_of(table: pd.DataFrame) -> dict[str, Mean]:
    """A table of means, as `bootstrap_means` gives it, as values."""
    return {
        str(key): Mean(*(float(v) for v in row))
        for key, row in zip(table.index, table.to_numpy(), strict=True)
    }


def _plain(column: Any) -> dict[str, float]:
    return {str(key): float(value) for key, value in column.items()}


def _overall(ranking: Ranking) -> Overall:
    hopeless = tuple(
        metric for metric, table in ranking.pairwise.items() if table["note"].ne("").all()
    )
    sums, cases = _plain(ranking.sum_rank["sum"]), _plain(ranking.case_rank["mean"])
    return Overall(sums, cases, _plain(ranking.stability["overall"]), hopeless)


def lead(ranking: Ranking, metric: str) -> Lead | None:
    """Who leads on a metric; `None` if nobody has a value."""
    column, means = (ranking.dataset, metric), means_of(ranking.means[metric])
    if all(math.isnan(mean.value) for mean in means.values()):
        return None
    ranks = _plain(ranking.sum_rank[column])
    order = tuple(
        key for key in sorted(ranks, key=ranks.__getitem__) if not math.isnan(means[key].value)
    )
    first = order[0]
    against = {key: _against(ranking, metric, first, key) for key in ranks if key != first}
    beaten = tuple(key for key, duel in against.items() if duel.won)
    contrary = tuple(key for key, duel in against.items() if duel.lost)
    unsure = tuple(key for key in against if key not in beaten + contrary)
    return Lead(
        metric,
        order,
        tuple(key for key in order if ranks[key] == ranks[first]),
        means,
        beaten,
        unsure,
        contrary,
        tuple(key for key in beaten if against[key].median < 0),
        max((against[key].p for key in beaten), default=math.nan),
        min((against[key].p for key in unsure), default=math.nan),
        _plain(ranking.stability[metric])[first],
    )


class _Duel(NamedTuple):
    """One contender against another."""

    better: int  # by the test: 1 if it is, -1 if the other is
    p: float  # corrected
    median: float  # by how much it is better in the median patient; negative: worse

    @property
    def won(self) -> bool:
        return self.p < SIGNIFICANT and self.better > 0

    @property
    def lost(self) -> bool:
        return self.p < SIGNIFICANT and self.better < 0


def _against(ranking: Ranking, metric: str, a: str, b: str) -> _Duel:
    table = ranking.pairwise[metric]
    row = table[
        ((table["a"] == a) & (table["b"] == b)) | ((table["a"] == b) & (table["b"] == a))
    ].iloc[0]
    apart = float(row["difference"]) * (1 if row["a"] == a else -1)
    better = {a: 1, b: -1}.get(row["better"], 0)
    return _Duel(
        better, float(row["p_holm"]), apart if METRICS[metric].better == "higher" else -apart
    )


def unbeaten(ranking: Ranking, metric: str) -> tuple[str, ...]:
    """The contenders that no other is significantly better than."""
    keys = [c.key for c in ranking.contenders]
    return tuple(
        a for a in keys if not any(_against(ranking, metric, a, b).lost for b in keys if b != a)
    )


def changes(results: Results, dataset: str, contenders: Sequence[Contender]) -> tuple[Change, ...]:
    """What every fitted calibrator did to the ECE of every contender that has it; paired tests,
    corrected together.
    """
    before, patients = _cases(results, dataset, "ece"), results.patients(dataset)
    found = []
    for key in CALIBRATORS:
        after = _cases(results, dataset, "ece", calibrator=key)
        for c in contenders:
            if c.key in after.columns:
                pair = pd.DataFrame({"before": before[c.key], "after": after[c.key]})
                test = pairwise(pair, "ece", patients).iloc[0]
                means, falls = pair.mean(), test["better"] == "after"
                found.append(
                    Change(
                        c.key,
                        key,
                        float(means["before"]),
                        float(means["after"]),
                        float(test["p"]),
                        falls,
                    )
                )
    corrected = holm(np.array([c.p for c in found], dtype=np.float64))
    return tuple(replace(change, p=float(p)) for change, p in zip(found, corrected, strict=True))


def gaps(results: Results, dataset: str, contenders: Sequence[Contender]) -> tuple[Gap, ...]:
    """The confidence gap of each contender that has one."""
    table = _cases(results, dataset, "confidence_gap")
    if not len(table):
        return ()
    found = means_of(bootstrap_means(table, results.patients(dataset)))
    return tuple(
        Gap(c.key, found[c.key])
        for c in contenders
        if c.key in found and not math.isnan(found[c.key].value)
    )
