"""The findings on a data set in sentences: who is best, is it significant, and what to use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.compare.ranking import Ranking
from segcal.compare.tables import p_text
from segcal.metrics import METRICS
from segcal.report.findings import Change, Findings, find, unbeaten

MINUS = "−"
NBSP = "\u00a0"  # keeps a number and its unit on one line
OUTCOMES = {
    "worse": "Significantly worse than",
    "better": "Significantly better than",
    "neither": "No significant difference to",
}
MISSED = (
    "Means of distances leave them out, ranks count them as the worst. Where a method invents an"
    " object, ranks count a correctly empty prediction as perfect."
)
USES = {"dice": "for outlines", "ece": "for probabilities"}


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names in a row.

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', '')
    """
    *others, final = list(names) or [""]
    return f"{', '.join(others)} {last} {final}" if others else final


def number_of(n: int, singular: str) -> str:
    """A number of things.

    >>> number_of(1, "case"), number_of(3, "case")
    ('1 case', '3 cases')
    """
    return f"{n} {singular}" if n == 1 else f"{n} {singular}s"


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
    return Summary(_lead(f), _advice(f), _tiles(f), _sections(f), _cautions(f))


def _lead(findings: Findings) -> str:
    n_methods, size = len(findings.names), number_of(findings.n_cases, "test case")
    if findings.n_patients != findings.n_cases:
        size += f" of {number_of(findings.n_patients, 'patient')}"
    compared = "were compared" if n_methods > 1 else "was scored"
    text = f"{number_of(n_methods, 'method')} {compared} on {findings.dataset} ({size})."
    return f"{text} {_headline(findings, 'dice')} {_headline(findings, 'ece')}"


def _headline(findings: Findings, metric: str) -> str:
    label, leader = METRICS[metric].label, findings.leaders.get(metric)
    if leader is None:
        return f"No method has a {label}."
    value = _mean(findings, metric, leader.order[0])[0]
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
    """A mean with its unit, and its interval in brackets; empty if there is none."""
    mean, low, high = findings.means[metric].loc[key].to_numpy(dtype=float)
    unit = METRICS[metric].unit
    value = f"{mean:.3f}{NBSP}{unit}" if unit else f"{mean:.3f}"
    return value, "" if math.isnan(low) else f" ({low:.3f} to {high:.3f})"


def _stability(ranking: Ranking, column: str, key: str) -> str:
    share = 100 * float(ranking.stability[column][key])
    return "" if math.isnan(share) else f"first in {share:.1f}{NBSP}% of bootstrap samples"


def _tiles(findings: Findings) -> list[tuple[str, str, str]]:
    tiles = []
    for metric, leader in findings.leaders.items():
        label = f"{METRICS[metric].label} {METRICS[metric].arrow}"
        value, interval = _mean(findings, metric, leader.order[0])
        if findings.ranking is None:
            tiles.append((label, value, interval.strip(" ()")))
        elif metric in USES:
            tiles.append((f"Best {label}", _names(findings, leader.tied), value + interval))
    if findings.ranking is not None:
        first = str(findings.ranking.case_rank["mean"].idxmin())
        note = _stability(findings.ranking, "overall", first) or "no bootstrap with one patient"
        tiles.append(("Best case rank", findings.names[first], note))
    gaps = findings.gaps
    if len(gaps):
        note = f"underconfident: {(gaps['high'] < 0).sum()}"
        tiles.append(("Overconfident", f"{(gaps['low'] > 0).sum()} of {len(gaps)}", note))
    n_classes = len(findings.results.data(findings.dataset)["classes"])
    note = f"{number_of(findings.n_patients, 'patient')}, classes: {n_classes}"
    return [*tiles, ("Test cases", str(findings.n_cases), note)]


def _sections(findings: Findings) -> dict[str, str]:
    sections = {METRICS[m].label: _on_metric(findings, m) for m in findings.leaders}
    if len(findings.gaps):
        sections["Confidence"] = _confidence(findings)
    for name in dict.fromkeys(change.calibrator for change in findings.changes):
        sections[f"After {CALIBRATORS[name].label}"] = _calibrated(findings, name)
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


def _confidence(findings: Findings) -> str:
    groups: dict[str, list[str]] = {"Overconfident": [], "Underconfident": [], "Neither": []}
    for key, (mean, low, high) in findings.gaps.iterrows():
        group = "Overconfident" if low > 0 else "Underconfident" if high < 0 else "Neither"
        gap = f"{mean:+.3f}".replace("-", MINUS)
        groups[group].append(f"{findings.names[str(key)]} ({gap})")
    return f"Mean confidence minus accuracy over the foreground. {_grouped(groups)}"


def _calibrated(findings: Findings, calibrator: str) -> str:
    groups: dict[str, list[str]] = {}
    for change in findings.changes:
        if change.calibrator == calibrator:
            text = f"{findings.names[change.contender]} ({_numbers(change)})"
            groups.setdefault(change.effect.capitalize(), []).append(text)
    text = f"{METRICS['ece'].label} before and after. {_grouped(groups)}"
    return text if CALIBRATORS[calibrator].keeps_labels else f"{text} It may change the label map."


def _numbers(change: Change) -> str:
    return f"{change.before:.4f} to {change.after:.4f}"


def _grouped(groups: dict[str, list[str]]) -> str:
    return " ".join(f"{title}: {listed(names)}." for title, names in groups.items() if names)


def _cautions(findings: Findings) -> list[str]:
    """What makes the comparison weak."""
    failed = findings.results.failed
    cautions = [f"{name} failed and is left out: {error}" for name, error in failed.items()]
    if findings.n_patients < 2:
        unit = "test case" if findings.n_cases == 1 else "patient"
        return [*cautions, f"One {unit} only: no interval, no test, and the order means little."]
    if findings.ranking is None:
        return cautions
    for metric in ("dice", "ece", "cece"):  # missing distances are counted as missed objects
        values = findings.ranking.values[metric].dropna(how="all")
        for key, n in values.isna().sum().items():
            if n:
                lacks = f"{findings.names[str(key)]} has no {METRICS[metric].label} in {n} of"
                cautions.append(f"{lacks} {findings.n_cases} cases; its mean is over the others.")
    tests = findings.ranking.pairwise.items()
    few = [METRICS[metric].label for metric, table in tests if table["note"].ne("").all()]
    if few:
        cautions.append(f"Too few patients for any significant difference in {listed(few)}.")
    return cautions


def _advice(findings: Findings) -> str:
    """Which method to use, and which calibrator with it."""
    metrics = [metric for metric in USES if metric in findings.leaders]
    if not metrics:
        return "No method can be recommended: there are no scores to choose by."
    if findings.ranking is None:
        text = "There is only one method; to choose, compare it with others on the same data."
        return text + _calibrators(findings, findings.names)
    labels = " or ".join(METRICS[metric].label for metric in metrics)
    best = set.intersection(*(unbeaten(findings.ranking, metric) for metric in metrics))
    if best:
        return _choice(findings, findings.ranking, best, labels)
    firsts = {metric: findings.leaders[metric].order[0] for metric in metrics}
    uses = listed(f"{findings.names[key]} {USES[metric]}" for metric, key in firsts.items())
    text = f"{uses}: each method is significantly worse than another in {labels}."
    return text + _calibrators(findings, firsts.values())


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
    """The best calibrator that lowers ECE and keeps the label map, and those that raise ECE."""
    text, unchanged, ece = "", list[str](), METRICS["ece"].label
    for key in dict.fromkeys(keys):
        changes = [change for change in findings.changes if change.contender == key]
        best = ""
        for change in sorted(changes, key=lambda change: change.after):
            row = CALIBRATORS[change.calibrator]
            applied = f"{row.label} to {findings.names[key]} ({ece} {_numbers(change)})"
            if change.effect == "significantly lower" and row.keeps_labels and not best:
                best = f" Apply {applied}."
                text += best
            elif change.effect == "significantly higher":
                text += f" Do not apply {applied}."
            elif change.effect == "not significant":
                unchanged.append(row.label)
    if unchanged and not text:
        return f" {listed(dict.fromkeys(unchanged))} did not change {ece} significantly."
    return text
