"""Sentences on what probabilities are worth: verdicts, volumes, calibrators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from segcal.calibrators import CALIBRATORS
from segcal.compare.ranking import VERDICTS
from segcal.report.findings import Change, Findings
from segcal.report.words import MINUS, grouped, listed, name_of

APART = "one temperature cannot serve both"  # a warning of a fit
UNDECIDED = "Neither too much nor too little in all (classes may differ)"
MOVED = 0.05  # further from 1: a calibrator spoils E/O


def by_verdict(findings: Findings) -> dict[str, list[str]]:
    """The contenders of each verdict."""
    groups = {}
    for name in VERDICTS:
        keys = [key for key, each in findings.confidences.items() if each.verdict == name]
        if keys:
            groups[name] = keys
    return groups


def on_confidence(findings: Findings) -> str:
    """Who is over- and who is underconfident, by how much, where."""
    groups = {}
    for name, keys in by_verdict(findings).items():
        groups[name.capitalize()] = [_gaps(findings, key) for key in keys]
    text = "Mean confidence minus accuracy, per voxel near predicted foreground and (all) over all"
    text += f" voxels, per foreground voxel. {grouped(groups)}"
    if "Mixed" in groups:
        text += " Mixed: too sure near the organ and too unsure far away, or the reverse; or only"
        text += " the volume is off."
    if findings.temperatures:
        cases = "all audited" if findings.results.out_of_fold else "validation"
        text += f" T is the temperature that TS fits on {cases} cases: above 1 where these say"
        text += " overconfident, and undecided where its interval holds 1."
    two = [findings.names[key] for key, fits in findings.temperatures.items() if _apart(fits)]
    if two:
        text += f" One temperature cannot serve both, near and over all voxels, for {listed(two)}:"
        text += " use TS2."
    return text


def _apart(fits: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a fit warns that the temperatures near and over all voxels differ."""
    return any(APART in text for fit in fits for text in fit.get("warnings", ()))


def _gaps(findings: Findings, key: str) -> str:
    each = findings.confidences[key]
    near = "nothing predicted" if math.isnan(each.near.mean) else f"{each.near.mean:+.3f}"
    gaps = f"{near}, all {each.all.mean:+.2f}".replace("-", MINUS)
    return f"{findings.names[key]} ({gaps}{_temperature(findings.temperatures.get(key, []))})"


def _temperature(fits: Sequence[Mapping[str, Any]]) -> str:
    """The temperature of one run with its interval, or from the lowest to the highest of several.

    Where it was fitted near predicted foreground, that over all voxels is beside it.

    >>> every = {"temperature": 1.37, "interval": [1.33, 1.41]}
    >>> near = {"temperature": 1.68, "interval": [1.6, 1.75], "voxels": "near", "over_all": every}
    >>> _temperature([near])
    '; T 1.68 (1.60 to 1.75) near, 1.37 (1.33 to 1.41) over all voxels'
    >>> _temperature([{"temperature": 1.5}, {"temperature": 1.25}])
    '; T 1.25 to 1.50'
    """
    if not fits:
        return ""
    if any(fit.get("voxels") != "near" or not fit.get("over_all") for fit in fits):
        return f"; T {_range(fits)}"
    return f"; T {_range(fits)} near, {_range([fit['over_all'] for fit in fits])} over all voxels"


def _range(fits: Sequence[Mapping[str, Any]]) -> str:
    known = sorted(fit["temperature"] for fit in fits)
    if len(known) > 1:
        return f"{known[0]:.2f} to {known[-1]:.2f}"
    low, high = fits[0].get("interval") or (None, None)
    return f"{known[0]:.2f}" + (f" ({low:.2f} to {high:.2f})" if low is not None else "")


def on_volumes(findings: Findings) -> str:
    """Expected over true volume of each contender and class, with its direction."""
    groups: dict[str, list[str]] = {"Too much": [], "Too little": [], UNDECIDED: []}
    for key, each in findings.confidences.items():
        mean, low, high = each.ratio
        group = "Too much" if low > 1 else "Too little" if high < 1 else UNDECIDED
        parts = findings.volumes.loc[key].dropna()
        classes = [f"{name} {value:.2f}" for name, value in parts.items()]
        text = f"{findings.names[key]} {mean:.2f}"
        groups[group].append(text + (f" ({', '.join(classes)})" if len(classes) > 1 else ""))
    text = "The sum of the probabilities over the true volume, of all cases together."
    return f"{text} {grouped(groups)}"


def on_calibrator(findings: Findings, calibrator: str) -> str:
    """What a calibrator did to each contender."""
    groups: dict[str, list[str]] = {}
    for change in findings.changes:
        if change.calibrator == calibrator:
            numbers = before_and_after(change, findings.results.metrics.decide)
            text = f"{findings.names[change.contender]} ({numbers})"
            groups.setdefault(change.effect, []).append(text)
    text = f"Before and after. {grouped(groups)}"
    return text if CALIBRATORS[calibrator].keeps_labels else f"{text} It may change the label map."


def before_and_after(change: Change, decides: Iterable[str]) -> str:
    """Means before and after of what decides, and of the paper's ECE, with the perfect value.

    E/O is added where a calibrator that is better otherwise makes it worse."""
    texts = []
    for metric in dict.fromkeys((*decides, "ece")):
        if metric in change.means:
            before, after = change.means[metric]
            texts.append(f"{name_of(metric)} {before:.3f} to {after:.3f}")
            if metric == "ece":
                texts[-1] = texts[-1].replace("ECE", "ECE of reference voxels")
                perfect = change.means.get("ece_perfect")
                both = perfect and " to ".join(f"{value:.3f}" for value in perfect)
                texts[-1] += f", if perfect {both}" if perfect else ""
    before, after = change.means.get("volume_ratio", (1.0, 1.0))
    if change.effect == "Better" and abs(after - 1) > abs(before - 1) + MOVED:
        texts.append(f"but E/O {before:.2f} to {after:.2f}")
    return "; ".join(texts)
