"""The findings on a data set in sentences: who is best, is it significant, and what to use."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from segcal.calibrators import CALIBRATORS
from segcal.compare.ranking import SIGNIFICANT, Ranking
from segcal.compare.tables import p_text
from segcal.metrics import METRICS
from segcal.report.advice import advice
from segcal.report.findings import EFFECTS, Findings
from segcal.report.words import MINUS, NBSP, listed, number_of

GROUPS = {"Segmentation": ("dice", "asd"), "Calibration": ("ece", "cece")}
MISSED = (
    "Means of distances leave them out, ranks count them as the worst. Where a method invents an"
    " object, ranks count a correctly empty prediction as perfect."
)


@dataclass(frozen=True)
class Tile:
    """A value to see at a glance."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Summary:
    """The summary of one data set."""

    lead: str
    advice: str
    tiles: list[Tile]
    sections: dict[str, list[str]]  # paragraphs by title
    cautions: list[str]

    @property
    def text(self) -> str:
        """The shortest form: one paragraph."""
        return f"{self.lead} {self.advice}"


def summarise(findings: Findings) -> Summary:
    """The findings in sentences."""
    return Summary(
        lead=_lead(findings),
        advice=advice(findings),
        tiles=_tiles(findings),
        sections=_sections(findings),
        cautions=_cautions(findings),
    )


def _lead(findings: Findings) -> str:
    n_methods = len(findings.names)
    compared = f"{n_methods} methods were compared"
    if n_methods == 1:
        compared = f"{listed(findings.names.values())} was scored"
    size = number_of(findings.n_cases, "test case")
    if findings.n_patients != findings.n_cases:
        size += f" of {number_of(findings.n_patients, 'patient')}"
    text = f"{compared} on {findings.dataset} ({size})."
    return f"{text} {_headline(findings, 'dice')} {_headline(findings, 'ece')}"


def _headline(findings: Findings, metric: str) -> str:
    """One sentence on the best mean of a metric."""
    label = METRICS[metric].label
    if metric not in findings.leaders:
        return f"No method has a {label}."
    leader = findings.leaders[metric]
    value, interval = _mean(findings, metric, leader.order[0])
    if findings.ranking is None:
        return f"The mean {label} is {value}{interval}."
    names = listed(findings.names[key] for key in leader.tied)
    if len(leader.tied) > 1:
        return f"{names} share the best mean {label} ({value})."
    if findings.n_patients < 2:
        test = "one patient allows no test"
    elif leader.worse_than:
        test = f"but is significantly worse than {_names(findings, leader.worse_than)} by the test"
    elif leader.better_than:
        test = f"significantly better than {_names(findings, leader.better_than)}"
    else:
        test = "not significantly better than any other"
    return f"{names} has the best mean {label} ({value}), {test}."


def _names(findings: Findings, keys: Collection[str]) -> str:
    n_others = len(findings.names) - 1
    if len(keys) == n_others > 2:
        return f"all {n_others} others"
    return listed(findings.names[key] for key in keys)


def _mean(findings: Findings, metric: str, key: str) -> tuple[str, str]:
    """A mean with its unit, and its interval in brackets; empty if there is none."""
    mean, low, high = findings.means[metric].loc[key].to_numpy(dtype=float)
    unit = METRICS[metric].unit
    value = f"{mean:.3f}{NBSP}{unit}" if unit else f"{mean:.3f}"
    return value, "" if math.isnan(low) else f" ({low:.3f} to {high:.3f})"


def _stability(ranking: Ranking, column: str, key: str) -> str:
    share = 100 * float(ranking.stability[column][key])
    return "" if math.isnan(share) else f"first in {share:.0f}{NBSP}% of bootstrap samples"


def _tiles(findings: Findings) -> list[Tile]:
    tiles = []
    for metric, leader in findings.leaders.items():
        label = f"{METRICS[metric].label} {METRICS[metric].arrow}"
        value, interval = _mean(findings, metric, leader.order[0])
        if findings.ranking is None:
            tiles.append(Tile(label, value, interval.strip(" ()")))
        elif metric in ("dice", "ece"):
            names = listed(findings.names[key] for key in leader.tied)
            tiles.append(Tile(f"Best {label}", names, value + interval))
    if findings.ranking is not None:
        first = str(findings.ranking.case_rank["mean"].idxmin())
        note = _stability(findings.ranking, "overall", first) or "no bootstrap with one patient"
        tiles.append(Tile("Best case rank", findings.names[first], note))
    gaps = findings.gaps
    if len(gaps):
        note = f"underconfident: {(gaps['high'] < 0).sum()}"
        tiles.append(Tile("Overconfident", f"{(gaps['low'] > 0).sum()} of {len(gaps)}", note))
    n_classes = len(findings.results.data(findings.dataset)["classes"])
    note = f"{number_of(findings.n_patients, 'patient')}, classes: {n_classes}"
    return [*tiles, Tile("Test cases", str(findings.n_cases), note)]


# Sections
# ------------------------------------------------------------------------------


def _sections(findings: Findings) -> dict[str, list[str]]:
    sections = {}
    for title, metrics in GROUPS.items():
        known = [metric for metric in metrics if metric in findings.leaders]
        sections[title] = [_on_metric(findings, metric) for metric in known]
    if len(findings.gaps):
        sections["Confidence"] = [_confidence(findings)]
    for name in dict.fromkeys(change.calibrator for change in findings.changes):
        sections[f"After {CALIBRATORS[name].label}"] = [_calibrated(findings, name)]
    if any(findings.missed.values()):
        counts = listed(f"{findings.names[key]} {n:g}" for key, n in findings.missed.items())
        text = f"Over all cases and classes: {counts}. {MISSED}"
        sections["Missed or invented objects"] = [text]
    sections["Limits"] = [_limits(findings)]
    return {title: paragraphs for title, paragraphs in sections.items() if paragraphs}


def _on_metric(findings: Findings, metric: str) -> str:
    """Who leads on a metric: means, tests, stability."""
    leader = findings.leaders[metric]
    first, *others = leader.order
    text = f"{METRICS[metric].label}: {findings.names[first]} "
    text += "".join(_mean(findings, metric, first))
    for second in others[:1]:
        between = "tied with" if second in leader.tied else "then"
        text += f", {between} {findings.names[second]} {_mean(findings, metric, second)[0]}"
    text += "."
    if findings.n_patients > 1:
        text += _tested("Significantly better than", findings, leader.better_than)
        text += _tested("No significant difference to", findings, leader.not_better_than)
        text += _tested("Despite its mean significantly worse than", findings, leader.worse_than)
    if findings.ranking is not None and (stability := _stability(findings.ranking, metric, first)):
        text += f" {stability.capitalize()}."
    return text


def _tested(relation: str, findings: Findings, tests: dict[str, float]) -> str:
    """A sentence on tests of one outcome; with several, p is the one closest to the threshold."""
    if not tests:
        return ""
    significant = max(tests.values()) < SIGNIFICANT
    p = p_text(max(tests.values()) if significant else min(tests.values()))
    if not p.startswith("<"):
        sign = "=" if len(tests) == 1 or p == "1" else "≤" if significant else "≥"
        p = f"{sign} {p}"
    p = f"p {p}".replace(" ", NBSP)
    return f" {relation} {_names(findings, tests)} ({p})."


def _confidence(findings: Findings) -> str:
    groups: dict[str, list[str]] = {"Overconfident": [], "Underconfident": [], "Neither": []}
    for key, (mean, low, high) in findings.gaps.iterrows():
        group = "Overconfident" if low > 0 else "Underconfident" if high < 0 else "Neither"
        gap = f"{mean:+.3f}".replace("-", MINUS)
        groups[group].append(f"{findings.names[str(key)]} ({gap})")
    return f"Mean confidence minus accuracy over the foreground. {_grouped(groups)}"


def _calibrated(findings: Findings, calibrator: str) -> str:
    """What a calibrator did to the ECE of each contender."""
    groups: dict[str, list[str]] = {effect: [] for effect in EFFECTS}
    for change in findings.changes:
        if change.calibrator == calibrator:
            name = findings.names[change.contender]
            groups[change.effect].append(f"{name} ({change.numbers})")
    text = f"{METRICS['ece'].label} before and after. {_grouped(groups)}"
    return text if CALIBRATORS[calibrator].keeps_labels else f"{text} It may change the label map."


def _grouped(groups: dict[str, list[str]]) -> str:
    """The groups that have members, a sentence each."""
    return " ".join(f"{title}: {listed(names)}." for title, names in groups.items() if names)


def _limits(findings: Findings) -> str:
    results, contenders = findings.results, findings.results.main(findings.dataset)
    epochs, n_seeds = set(), 1
    for contender in contenders:
        settings = [results.runs[run]["settings"] for run in contender.runs]
        epochs |= {s["training"]["epochs"] for s in settings if "training" in s}
        n_seeds = max(n_seeds, len({s["seed"] for s in settings}))
    text = f"Epochs of training: {listed(map(str, sorted(epochs)))}. " if epochs else ""
    if n_seeds > 1:
        text += f"Means over up to {n_seeds} seeds are compared."
    else:
        text += "One seed: intervals and tests do not cover the variation between trainings."
    others = [c.label for c in results.on(findings.dataset) if c not in contenders]
    return text + (f" Only in tables and figures: {listed(others)}." if others else "")


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
                lacks = f"{findings.names[str(key)]} has no {METRICS[metric].label}"
                count = f"in {n} of {findings.n_cases} cases"
                cautions.append(f"{lacks} {count}; its mean is over the others.")
    tests = findings.ranking.pairwise.items()
    few = [METRICS[metric].label for metric, table in tests if table["note"].ne("").all()]
    if few:
        cautions.append(f"Too few patients for any significant difference in {listed(few)}.")
    return cautions
