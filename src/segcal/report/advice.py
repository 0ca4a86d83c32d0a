"""Which method to use, as far as the tests decide it."""

from __future__ import annotations

from collections.abc import Iterable

from segcal.calibrators import CALIBRATORS
from segcal.compare.ranking import Ranking
from segcal.metrics import METRICS
from segcal.report.findings import HIGHER, LOWER, UNCHANGED, Change, Findings, unbeaten
from segcal.report.words import listed

USES = {"dice": "for outlines", "ece": "for probabilities"}


def advice(findings: Findings) -> str:
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
    text, unchanged = "", list[str]()
    for key in dict.fromkeys(keys):
        changes = [change for change in findings.changes if change.contender == key]
        lower = [c for c in changes if c.effect == LOWER and CALIBRATORS[c.calibrator].keeps_labels]
        if lower:
            best = min(lower, key=lambda change: change.after)
            text += f" Apply {_applied(findings, best)}."
        for change in changes:
            if change.effect == HIGHER:
                text += f" Do not apply {_applied(findings, change)}."
            elif change.effect == UNCHANGED:
                unchanged.append(CALIBRATORS[change.calibrator].label)
    if unchanged and not text:
        names = listed(dict.fromkeys(unchanged))
        return f" {names} did not change {METRICS['ece'].label} significantly."
    return text


def _applied(findings: Findings, change: Change) -> str:
    label, name = CALIBRATORS[change.calibrator].label, findings.names[change.contender]
    return f"{label} to {name} ({METRICS['ece'].label} {change.numbers})"
