"""What to use: a method, and a calibrator with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segcal.calibrators import CALIBRATORS
from segcal.compare.ranking import Ranking
from segcal.report.findings import Change, Findings, lost_classes, unbeaten
from segcal.report.probabilities import before_and_after
from segcal.report.words import listed, name_of


def advice(findings: Findings) -> str:
    """Which method to use, and which calibrator with it."""
    metrics = [metric for metric in findings.decide if metric in findings.leaders]
    if not metrics:
        return "No method can be recommended: there are no scores to choose by."
    if findings.ranking is None:
        text = "There is only one method; to choose, compare it with others on the same data."
        return text + _calibrators(findings, findings.names)
    if len(findings.silent) == len(findings.names):
        return "No method can be recommended: none predicts foreground."
    labels = listed([name_of(metric) for metric in metrics], "or")
    best = set.intersection(*(unbeaten(findings.ranking, metric) for metric in metrics))
    best -= set(findings.silent)
    best = best - set(lost_classes(findings)) or best
    if best:
        return _choice(findings, findings.ranking, best, labels)
    firsts: dict[str, list[str]] = {}
    for metric in metrics:
        first = findings.first(findings.leaders[metric])
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
            text = f" {label} lowers the validation NLL of {name} most, but does not help on test."
            return f"{text} There {listed(_to(findings, each) for each in helpful)} would have."
        best = "it lowers the validation NLL most. Its numbers here are of test cases."
        return f" Apply {_to(findings, chosen)}: {best}"
    if len(helpful) == 1:
        return f" Apply {_to(findings, helpful[0])}."
    each = listed((_to(findings, change) for change in helpful), "or")
    return f" Apply {each}; segcal calibrate --again adds the validation NLL that chooses."


def _to(findings: Findings, change: Change) -> str:
    numbers = before_and_after(change, findings.results.metrics.decide)
    label, name = CALIBRATORS[change.calibrator].label, findings.names[change.contender]
    return f"{label} to {name} ({numbers})"
