"""The findings on a data set in sentences: who is best, is it significant, and what to use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.compare.metric_sets import PERFECT
from segcal.compare.ranking import VERDICTS, Ranking
from segcal.compare.tables import p_text
from segcal.metrics import METRICS
from segcal.report.advice import advice
from segcal.report.audits import is_of_audit, judged
from segcal.report.findings import Findings, find, lost_classes
from segcal.report.probabilities import (
    by_verdict,
    on_calibrator,
    on_confidence,
    on_volumes,
)
from segcal.report.words import NBSP, capital, listed, name_of, number_of
from segcal.unlearned import remedy

OUTCOMES = {
    "worse": "Significantly worse than",
    "better": "Significantly better than",
    "neither": "No significant difference to",
}
MISSED = (
    "Means of distances leave them out, ranks count them as the worst. Where a method invents an"
    " object, ranks count a correctly empty prediction as perfect."
)
PAPER = (
    "This follows from the paper's metrics. Reference voxels are chosen by the answer: ECE and CECE"
    " over them do not say how far probabilities can be trusted; --metrics main does."
)
UNKNOWN = "The confidence gap over all voxels was not scored; segcal evaluate --again adds it."


@dataclass(frozen=True)
class Summary:
    """The summary of one data set."""

    lead: str
    advice: str
    tiles: list[tuple[str, str, str]]  # label, value, note
    sections: dict[str, str]  # a paragraph by its title
    cautions: list[str]

    @property
    def text(self) -> str:
        """The shortest form: one paragraph."""
        return f"{self.lead} {self.advice}"


def summarise(results: Results, dataset: str) -> Summary:
    """The findings on a data set in sentences."""
    f = find(results, dataset)
    if is_of_audit(f):
        return _of_audit(f)
    by_paper = f" {PAPER}" if results.metrics.key == "paper" else ""
    return Summary(_lead(f), advice(f) + by_paper, _tiles(f), _sections(f), _cautions(f))


def _of_audit(findings: Findings) -> Summary:
    """The summary of one audited predictor: its verdict."""
    found = judged(findings)
    sections, info = dict(found.points), next(iter(findings.results.runs.values()))
    advice = sections.pop("Calibrators")
    tiles = [("Verdict", found.verdict.capitalize(), ""), *_tiles(findings, verdicts=False)]
    return Summary(found.lead, advice, tiles, sections, [*info["audit"]["warnings"]])


def _lead(findings: Findings) -> str:
    n_methods, size = len(findings.names), number_of(findings.n_cases, "test case")
    if findings.n_patients != findings.n_cases:
        size += f" of {number_of(findings.n_patients, 'patient')}"
    compared = "were compared" if n_methods > 1 else "was scored"
    text = f"{number_of(n_methods, 'method')} {compared} on {findings.dataset} ({size})."
    for key in findings.silent:
        count = number_of(int(findings.missed[key]), "object")
        text += f" {findings.names[key]} predicts no foreground and misses {count}."
    return " ".join([text, *(_headline(findings, metric) for metric in findings.decide)])


def _headline(findings: Findings, metric: str) -> str:
    label, leader = name_of(metric), findings.leaders.get(metric)
    if leader is None:
        return f"No method has a {label}."
    first = findings.first(leader)
    value = _mean(findings, metric, first)[0]
    if metric == "misplaced":
        share = 100 * float(value)
        value += f": probability equal to {share:.0f}{NBSP}% of the foreground is misplaced"
    value += _perfect(findings, metric, first)
    if first != leader.order[0]:
        among = f"Best mean {label} of those that predict foreground"
        return f"{among}: {findings.names[first]} ({value})."
    title = f"Mean {label}" if findings.ranking is None else f"Best mean {label}"
    text = f"{title}: {_names(findings, leader.tied)} ({value})"
    if findings.ranking is None or findings.n_patients < 2:
        return f"{text}."
    test = "not significantly better than any other"
    if leader.tests["worse"]:
        test = f"but significantly worse than {_names(findings, leader.tests['worse'])}"
    elif leader.tests["better"]:
        test = f"significantly better than {_names(findings, leader.tests['better'])}"
    return f"{text}, {test}."


def _names(findings: Findings, keys: Iterable[str]) -> str:
    return listed(findings.names[key] for key in keys)


def _on_metric(findings: Findings, metric: str) -> str:
    """Who leads on a metric: means, tests, stability."""
    leader = findings.leaders[metric]
    first, *others = leader.order
    text = f"{findings.names[first]} {''.join(_mean(findings, metric, first))}"
    for second in others[:1]:
        between = "tied with" if second in leader.tied else "then"
        text += f", {between} {findings.names[second]} {_mean(findings, metric, second)[0]}"
        text += _in_brackets(_perfect(findings, metric, second))
    if findings.ranking is None or findings.n_patients < 2:
        return f"{text}."
    sentences = [text]
    for outcome, relation in OUTCOMES.items():
        names = []
        for key, p in leader.tests[outcome].items():
            p_value = f"p = {p_text(p)}".replace("= <", "<").replace(" ", NBSP)
            names.append(f"{findings.names[key]} ({p_value})")
        if names:
            sentences.append(f"{relation} {listed(names)}")
    stability = _stability(findings.ranking, metric, first).capitalize()
    return ". ".join([*sentences, stability]) + "."


def _mean(findings: Findings, metric: str, key: str) -> tuple[str, str]:
    """A mean with its unit; in brackets its interval and what a perfect network has, if known."""
    mean, low, high = findings.means[metric].loc[key].to_numpy(dtype=float)
    unit = METRICS[metric].unit
    value = f"{mean:.3f}{NBSP}{unit}" if unit else f"{mean:.3f}"
    beside = _perfect(findings, metric, key)
    return value, _in_brackets(("" if math.isnan(low) else f"{low:.3f} to {high:.3f}") + beside)


def _in_brackets(text: str) -> str:
    """What stands behind a value, if anything does.

    >>> _in_brackets("; if perfect 0.221"), _in_brackets("")
    (' (if perfect 0.221)', '')
    """
    text = text.removeprefix("; ")
    return f" ({text})" if text else ""


def _perfect(findings: Findings, metric: str, key: str) -> str:
    """What a perfect network would have, if that is known and not 0."""
    means = findings.means.get(PERFECT.get(metric, ""))
    known = means is not None and key in means.index
    return f"; if perfect {means['mean'][key]:.3f}" if means is not None and known else ""


def _stability(ranking: Ranking, column: str, key: str) -> str:
    share = 100 * float(ranking.stability[column][key])
    return "" if math.isnan(share) else f"first in {share:.1f}{NBSP}% of bootstrap samples"


def _tiles(findings: Findings, *, verdicts: bool = True) -> list[tuple[str, str, str]]:
    tiles = []
    for metric, leader in findings.leaders.items():
        label = f"{METRICS[metric].label} {METRICS[metric].arrow}"
        first = findings.first(leader)
        value, interval = _mean(findings, metric, first)
        if findings.ranking is None:
            tiles.append((label, value, interval.strip(" ()")))
        elif first != leader.order[0]:
            note = f"{value}{interval}; of those that predict foreground"
            tiles.append((f"Best {label}", findings.names[first], note))
        else:
            tiles.append((f"Best {label}", _names(findings, leader.tied), value + interval))
    if findings.ranking is not None:
        first = str(findings.ranking.case_rank["mean"].idxmin())
        note = _stability(findings.ranking, "overall", first) or "no bootstrap with one patient"
        tiles.append(("Best case rank", findings.names[first], note))
    groups = by_verdict(findings)
    if groups and verdicts:
        named = [f"{name}: {_names(findings, keys)}" for name, keys in groups.items()]
        n_over = len(groups.get(VERDICTS[0], ()))
        value = f"{n_over} of {len(findings.confidences)}"
        tiles.append((VERDICTS[0].capitalize(), value, "; ".join(named)))
    n_classes = len(findings.results.data(findings.dataset)["classes"])
    note = f"{number_of(findings.n_patients, 'patient')}, classes: {n_classes}"
    return [*tiles, ("Test cases", str(findings.n_cases), note)]


def _sections(findings: Findings) -> dict[str, str]:
    sections = {"Confidence": on_confidence(findings) if findings.confidences else UNKNOWN}
    if findings.confidences:
        sections["Expected over true volume"] = on_volumes(findings)
    sections |= {capital(name_of(m)): _on_metric(findings, m) for m in findings.leaders}
    for name in dict.fromkeys(change.calibrator for change in findings.changes):
        sections[f"After {CALIBRATORS[name].label}"] = on_calibrator(findings, name)
    if any(findings.missed.values()):
        counts = listed(f"{findings.names[key]} {n:g}" for key, n in findings.missed.items())
        sections["Missed or invented objects"] = f"Over all cases and classes: {counts}. {MISSED}"
    runs, contenders = findings.results.runs, findings.results.main(findings.dataset)
    others = [c for c in findings.results.on(findings.dataset) if c not in contenders]
    limits = []
    if all(len({runs[run]["settings"].get("seed") for run in c.runs}) == 1 for c in contenders):
        limits.append("One seed: intervals and tests do not cover another training.")
    if others:
        limits.append(f"Only in tables and figures: {listed(c.label for c in others)}.")
    return sections | ({"Limits": " ".join(limits)} if limits else {})


def _cautions(findings: Findings) -> list[str]:
    """What makes the comparison weak."""
    failed = findings.results.failed
    cautions = [f"{name} failed and is left out: {error}" for name, error in failed.items()]
    cautions += _unlearned(findings)
    if findings.n_patients < 2:
        unit = "test case" if findings.n_cases == 1 else "patient"
        return [*cautions, f"One {unit} only: no interval, no test, and the order means little."]
    if findings.ranking is None:
        return cautions
    for metric in findings.results.metrics.lead:
        if METRICS[metric].of == "surfaces":  # without a distance an object was missed, as is said
            continue
        values = findings.ranking.values[metric].dropna(how="all")
        for key, n in values.isna().sum().items():
            if n:
                lacks = f"{findings.names[str(key)]} has no {name_of(metric)} in {n} of"
                cautions.append(f"{lacks} {findings.n_cases} cases; its mean is over the others.")
    tests = findings.ranking.pairwise.items()
    few = [name_of(metric) for metric, table in tests if table["note"].ne("").all()]
    if few:
        cautions.append(f"Too few patients for any significant difference in {listed(few)}.")
    return cautions


def _unlearned(findings: Findings) -> list[str]:
    """Which classes each method never predicts on validation, and in how many of its runs."""
    cautions, runs, lost = [], findings.results.runs, lost_classes(findings)
    for c in findings.results.main(findings.dataset):
        n, of_each = len(c.runs), lost.get(c.key, {}).items()
        kinds = [kind + f" ({len(those)} of {n} runs)" * (n > 1) for kind, those in of_each]
        if kinds:
            never = f"{findings.names[c.key]} never predicts {listed(kinds)} on validation"
            cautions.append(f"{never}; {remedy(runs[c.runs[0]]['settings'])}.")
    return cautions
