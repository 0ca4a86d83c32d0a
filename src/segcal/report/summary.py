"""The findings on a data set in sentences: who is best, is it significant, and what to use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.compare.metric_sets import PERFECT
from segcal.compare.ranking import VERDICTS, Ranking
from segcal.compare.tables import p_text
from segcal.metrics import METRICS
from segcal.report.audits import is_of_audit, judged
from segcal.report.findings import Change, Findings, Leader, find, unbeaten
from segcal.report.probabilities import (
    before_and_after,
    by_verdict,
    on_calibrator,
    on_confidence,
    on_volumes,
)
from segcal.report.words import NBSP, capital, listed, name_of, number_of
from segcal.unlearned import remedy, unlearned

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
    return Summary(_lead(f), _advice(f) + by_paper, _tiles(f), _sections(f), _cautions(f))


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
    return " ".join([text, *(_headline(findings, metric) for metric in _decide(findings))])


def _decide(findings: Findings) -> tuple[str, ...]:
    """The metrics that decide what to use."""
    return "dice", *findings.results.metrics.decide


def _headline(findings: Findings, metric: str) -> str:
    label, leader = name_of(metric), findings.leaders.get(metric)
    if leader is None:
        return f"No method has a {label}."
    first = _first(findings, leader)
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


def _first(findings: Findings, leader: Leader) -> str:
    """The best mean, but of those that predict foreground: to predict nothing may score well."""
    known = [key for key in leader.order if key not in findings.silent]
    return (known or leader.order)[0]


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
        first = _first(findings, leader)
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
    """Which methods never predict a class on validation, in how many of their runs."""
    cautions, runs = [], findings.results.runs
    for c in findings.results.main(findings.dataset):
        lacking = {run: unlearned(runs[run], c.weights) for run in c.runs}
        for kind in dict.fromkeys(kind for kinds in lacking.values() for kind in kinds):
            those = [run for run, kinds in lacking.items() if kind in kinds]
            which = "" if len(c.runs) == 1 else f" in {len(those)} of {len(c.runs)} runs"
            never = f"{findings.names[c.key]} never predicts {kind} on validation{which}"
            cautions.append(f"{never}; {remedy(runs[those[0]]['settings'])}.")
    return cautions


def _advice(findings: Findings) -> str:
    """Which method to use, and which calibrator with it."""
    metrics = [metric for metric in _decide(findings) if metric in findings.leaders]
    if not metrics:
        return "No method can be recommended: there are no scores to choose by."
    if findings.ranking is None:
        text = "There is only one method; to choose, compare it with others on the same data."
        return text + _calibrators(findings, findings.names)
    labels = listed([name_of(metric) for metric in metrics], "or")
    best = set.intersection(*(unbeaten(findings.ranking, metric) for metric in metrics))
    best -= set(findings.silent)
    if best:
        return _choice(findings, findings.ranking, best, labels)
    firsts: dict[str, list[str]] = {}
    for metric in metrics:
        first = _first(findings, findings.leaders[metric])
        firsts.setdefault(first, []).append(name_of(metric))
    uses = listed(f"{findings.names[key]} for {listed(names)}" for key, names in firsts.items())
    text = f"{uses}: each method is significantly worse than another in {labels}."
    return text + _calibrators(findings, firsts)


def _choice(findings: Findings, ranking: Ranking, keys: set[str], labels: str) -> str:
    """The choice among methods that no other beats in any of the metrics."""
    first = str(ranking.case_rank["mean"][[k for k in findings.names if k in keys]].idxmin())
    ranked = f"{findings.names[first]} has the best mean rank per case"
    names = listed((label for key, label in findings.names.items() if key in keys), "or")
    if findings.n_patients < 2:
        text = f"One patient does not decide it; {ranked}."
    elif len(keys) == len(findings.names):
        text = f"No method is significantly better than another in {labels}."
        text += f" {ranked}; the simplest method is as good a choice."
    else:
        text = f"{names}: no other method is significantly better in {labels}."
        text += f" Of these, {ranked}." if len(keys) > 1 else ""
    return text + _calibrators(findings, [first])


def _calibrators(findings: Findings, keys: Iterable[str]) -> str:
    """The calibrator that validation chooses, or all that help, and those that do harm."""
    text, unchanged, decides = "", list[str](), findings.results.metrics.decide
    for key in dict.fromkeys(keys):
        changes = [change for change in findings.changes if change.contender == key]
        text += _applied(findings, [c for c in changes if CALIBRATORS[c.calibrator].keeps_labels])
        for change in changes:
            if change.effect == "Worse":
                text += f" Do not apply {_to(findings, change)}."
            elif change.effect == "No significant change":
                unchanged.append(CALIBRATORS[change.calibrator].label)
    if unchanged and not text:
        labels = listed([name_of(metric) for metric in decides], "or")
        return f" {listed(dict.fromkeys(unchanged))} did not change {labels} significantly."
    return text


def _applied(findings: Findings, changes: Sequence[Change]) -> str:
    """Which calibrator of one contender to apply: test scores do not choose among several."""
    helpful = [change for change in changes if change.effect == "Better"]
    if not helpful:
        return ""
    if findings.results.out_of_fold:  # these scores are of cases that none was fitted on
        helpful = [min(helpful, key=lambda change: round(change.means["nll"][1], 3))]
    known = [(*change.val_nll, change) for change in changes if change.val_nll]
    if len(known) == len(changes):
        before, after, chosen = min(known, key=lambda each: each[1])
        name, label = findings.names[chosen.contender], CALIBRATORS[chosen.calibrator].label
        if after >= before:
            return f" No calibrator lowers the validation NLL of {name}."
        if chosen.effect != "Better":
            return f" {label} lowers the validation NLL of {name} most, but gains nothing on test."
        best = "it lowers the validation NLL most. Its numbers here are of test cases."
        return f" Apply {_to(findings, chosen)}: {best}"
    if len(helpful) == 1:
        return f" Apply {_to(findings, helpful[0])}."
    each = listed((_to(findings, change) for change in helpful), "or")
    return f" Apply {each}; segcal calibrate --again adds the validation NLL that chooses."


def _to(findings: Findings, change: Change) -> str:
    numbers = before_and_after(change, dict.fromkeys((*findings.results.metrics.decide, "ece")))
    label, name = CALIBRATORS[change.calibrator].label, findings.names[change.contender]
    return f"{label} to {name} ({numbers})"
