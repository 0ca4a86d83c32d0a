"""What the scores on one data set show, as values; `summary` puts them into sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results, ranking
from segcal.compare.metric_sets import PERFECT
from segcal.compare.ranking import SIGNIFICANT, Confidence, Ranking
from segcal.figures.collected import main_scores
from segcal.folders import read_fits
from segcal.unlearned import unlearned

Fits = list[dict[str, dict[str, Any]]]  # of each run: the facts by calibrator


@dataclass(frozen=True)
class Leader:
    """The contender with the best mean of a metric, tested against the others."""

    order: list[str]  # keys from the best to the worst mean; those without a mean are left out
    tied: list[str]  # the first, and those with the same mean
    # By outcome (better, worse, neither): the others, with the corrected p of the paired test.
    tests: dict[str, dict[str, float]]


class Change(NamedTuple):
    """What a calibrator did to a contender."""

    contender: str
    calibrator: str
    # By metric: means before and after. The metrics that decide come first, then the paper's ECE,
    # what a perfect network would have, and E/O, where they are known.
    means: dict[str, tuple[float, float]]
    effect: str  # one of `EFFECTS`
    val_nll: tuple[float, float] | None = None  # over all voxels of the validation cases


EFFECTS = {  # by the signs of the significant changes; negative is lower
    frozenset({-1}): "Better",
    frozenset({1}): "Worse",
    frozenset({-1, 1}): "Better in one, worse in the other",
    frozenset[int](): "No significant change",
}
DISAGREE = "Mean and test disagree"


@dataclass(frozen=True, eq=False)
class Findings:
    """What the summary reports on one data set."""

    results: Results
    dataset: str
    names: dict[str, str]  # the label of each main contender by its key
    n_cases: int
    n_patients: int
    # Per metric, and for a perfect network: mean, low and high of each contender.
    means: dict[str, pd.DataFrame]
    missed: dict[str, float]  # objects missed or invented by each contender
    silent: list[str]  # the contenders that predict no foreground in any case
    ranking: Ranking | None  # None for a single contender
    leaders: dict[str, Leader]  # per metric that has a mean
    confidences: dict[str, Confidence]  # of each contender that was scored over all voxels
    volumes: pd.DataFrame  # expected over true volume: a row per contender, a column per class
    temperatures: dict[str, list[dict[str, Any]]]  # the facts of each run's fit, by contender
    changes: list[Change]

    @property
    def decide(self) -> tuple[str, ...]:
        """The metrics that decide what to use."""
        return "dice", *self.results.metrics.decide

    def first(self, leader: Leader) -> str:
        """The best mean, of those that predict foreground: to predict nothing may score well."""
        known = [key for key in leader.order if key not in self.silent]
        return (known or leader.order)[0]


def find(results: Results, dataset: str) -> Findings:
    """The findings on a data set."""
    names = {c.key: c.label for c in results.main(dataset)}
    keys = list(names)
    lead = results.metrics.lead
    values = {m: main_scores(results, dataset, m) for m in (*lead, "missed")}
    patients = results.patients(dataset).reindex(values["dice"].index)
    means = {m: ranking.bootstrap_means(values[m], patients) for m in lead}
    for metric in set(lead) & set(PERFECT):
        perfect = main_scores(results, dataset, PERFECT[metric])
        if not perfect.empty:
            means[PERFECT[metric]] = ranking.bootstrap_means(perfect, patients)
    near = main_scores(results, dataset, "ece", voxels="near")
    fits = _fits(results, dataset)
    known = [m for m in lead if means[m]["mean"].notna().any()]
    ranked = ranking.rank_results(results, dataset) if len(keys) > 1 else None
    return Findings(
        results=results,
        dataset=dataset,
        names=names,
        n_cases=len(values["dice"]),
        n_patients=patients.nunique(),
        means=means,
        missed={key: float(values["missed"][key].sum()) for key in keys},
        silent=[str(key) for key in near if near[key].isna().all()],
        ranking=ranked,
        leaders={m: _leader(ranked, m) if ranked else Leader(keys, keys, {}) for m in known},
        confidences=ranking.confidences(results, dataset, keys),
        volumes=_volumes(results, dataset, keys),
        temperatures={
            key: [fit["ts"] for fit in of_runs]
            for key, of_runs in fits.items()
            if all("ts" in fit for fit in of_runs)
        },
        changes=_changes(results, dataset, fits),
    )


def lost_classes(findings: Findings) -> dict[str, dict[str, list[str]]]:
    """By contender, the classes that validation never predicts, each with the runs that do not."""
    lost: dict[str, dict[str, list[str]]] = {}
    for c in findings.results.main(findings.dataset):
        for run in c.runs:
            for kind in unlearned(findings.results.runs[run], c.weights):
                lost.setdefault(c.key, {}).setdefault(kind, []).append(run)
    return lost


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


def _volumes(results: Results, dataset: str, keys: list[str]) -> pd.DataFrame:
    means = {}
    for name in results.data(dataset)["classes"]:
        means[name] = ranking.ratios_of_sums(results, dataset, "volume_ratio", name)["mean"]
    return pd.DataFrame(means).reindex(keys)


def _fits(results: Results, dataset: str) -> dict[str, Fits]:
    """What was fitted for each run of a contender; older fits know less."""
    fits = {}
    for c in results.main(dataset):
        fits[c.key] = [read_fits(Path(results.runs[run]["folder"]), c.weights) for run in c.runs]
    return fits


def _val_nll(fits: Fits, calibrator: str) -> tuple[float, float] | None:
    """Validation NLL before and after a calibrator, mean over runs; `None` if a fit lacks it."""
    known = [fit.get(calibrator, {}).get("val_nll") or {} for fit in fits]
    if not all(known):
        return None
    before, after = (float(np.mean([nll[when] for nll in known])) for when in ("before", "after"))
    return before, after


def _changes(results: Results, dataset: str, fits: Mapping[str, Fits]) -> list[Change]:
    """What every fitted calibrator did; paired tests of all that decides, corrected together."""
    patients, decides = results.patients(dataset), results.metrics.decide
    beside, ratios = ("ece", "ece_perfect"), {}
    for name in ("", *CALIBRATORS):
        of_all = ranking.ratios_of_sums(results, dataset, "volume_ratio", calibrator=name)
        ratios[name] = of_all["mean"].to_dict()
    tests, lines = list[Any](), list[Any]()
    for name in CALIBRATORS:
        pairs = {}
        for metric in dict.fromkeys((*decides, *beside)):
            both = [main_scores(results, dataset, metric, calibrator=key) for key in ("", name)]
            pairs[metric] = dict(zip(("before", "after"), both, strict=True))
        for key in map(str, pairs[decides[0]]["after"]):
            means = {}
            for metric, pair in pairs.items():
                if all(key in table for table in pair.values()):
                    values = pd.DataFrame({when: table[key] for when, table in pair.items()})
                    means[metric] = (values["before"].mean(), values["after"].mean())
                    if metric in decides:
                        test = ranking.pairwise(values, metric, patients).iloc[0]
                        agree = test["better"] == values.mean().idxmin()
                        tests.append((len(lines), test["p"], test["better"], agree))
            if key in ratios[""] and key in ratios[name]:
                means["volume_ratio"] = (ratios[""][key], ratios[name][key])
            lines.append((key, name, means))
    corrected = ranking.holm(np.array([p for _, p, *_ in tests], dtype=float))
    significant = [test for test, p in zip(tests, corrected, strict=True) if p < SIGNIFICANT]
    changes = []
    for i, line in enumerate(lines):
        own = [(better, agree) for of, _, better, agree in significant if of == i]
        signs = frozenset(-1 if better == "after" else 1 for better, _ in own)
        effect = EFFECTS[signs] if all(agree for _, agree in own) else DISAGREE
        key, name, means = line
        changes.append(Change(key, name, means, effect, _val_nll(fits[key], name)))
    return changes
