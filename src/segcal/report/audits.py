"""The verdict on one predictor in at most eight sentences: the same for terminal and report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.calibrators import CALIBRATORS
from segcal.compare.ranking import Confidence, Interval, ratios_of_sums
from segcal.figures.collected import out_of_fold_order
from segcal.folders import read_fits
from segcal.folders.audits import KIND
from segcal.metrics import BANDS
from segcal.report.findings import Change, Findings
from segcal.report.probabilities import APART
from segcal.report.words import MINUS, listed, number_of

FEWEST = 10
"""So many patients a verdict needs."""

RARE = 0.01  # a band with a smaller share of the voxels in all bands is not named
N_WORST = 3


@dataclass(frozen=True)
class Judged:
    """The verdict, its sentences, and the numbers in them."""

    verdict: str  # overconfident, underconfident, calibrated, mixed or too few
    lead: str
    points: dict[str, str]  # a sentence by its title
    numbers: dict[str, dict[str, float | None]]  # near, all and ratio: mean, low and high
    calibrator: str | None  # that helps on cases it was not fitted on, and keeps the label map
    volume_ratio: dict[str, float | None]
    worst: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences."""
        return self.lead, *self.points.values()


def is_of_audit(findings: Findings) -> bool:
    """Whether the findings are of one audited predictor."""
    runs = findings.results.runs.values()
    return len(findings.names) == 1 and all(info.get("kind") == KIND for info in runs)


def judged(findings: Findings) -> Judged:
    """What the scores of one predictor say."""
    (key,) = findings.names
    found = findings.confidences[key]
    few = findings.n_patients < FEWEST
    verdict = "too few" if few or found.verdict == "undecided" else found.verdict
    ratios, chosen = _ratios(findings), _helpful(findings)
    worst = _worst(findings)
    said = listed(f"{case} ({100 * value:.0f} %)" for case, value in worst.items())
    points = {
        "Where": _on_bands(findings, key),
        "Misplaced confidence": _on_misplaced(findings, key),
        "Expected over true volume": _on_volumes(found, ratios),
        "Temperature": _on_temperature(findings, key, chosen),
        "Calibrators": _on_calibrators(findings, chosen),
        "Worst cases": f"Worst cases by misplaced confidence: {said}." if worst else "",
    }
    numbers = {}
    for name, interval in found._asdict().items():
        numbers[name] = {end: _known(value) for end, value in interval._asdict().items()}
    kept = {title: text for title, text in points.items() if text}
    lead = _on_verdict(findings, found, verdict)
    helps = chosen.calibrator if chosen is not None and _keeps_labels(chosen) else None
    return Judged(verdict, lead, kept, numbers, helps, ratios, tuple(worst))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", MINUS)


def _range(low: float, high: float, digits: int = 1) -> str:
    """The ends of a 95 % interval; the first sentence says that they are that."""
    if math.isnan(low):
        return "no interval"
    return f"{low:.{digits}f} to {high:.{digits}f}".replace("-", MINUS)


def _on_verdict(findings: Findings, found: Confidence, verdict: str) -> str:
    size = number_of(findings.n_cases, "case")
    if findings.n_patients != findings.n_cases:
        size += f" of {number_of(findings.n_patients, 'patient')}"
    titles = {
        "overconfident": "Overconfident",
        "underconfident": "Underconfident",
        "calibrated": "Calibrated, as far as these cases tell",
        "mixed": "Mixed: too sure in one place and too unsure in another",
    }
    title = titles.get(verdict)
    if title is None and findings.n_patients < FEWEST:
        n = number_of(findings.n_patients, "patient")
        title = f"Too few patients for a verdict ({n}, {FEWEST} are needed)"
    elif title is None:
        title = "Too few patients for a verdict: the intervals are too wide"
    near, everywhere = found.near, found.all
    parts = []
    if not math.isnan(near.mean):
        ends = _range(100 * near.low, 100 * near.high)
        parts.append(f"{_signed(100 * near.mean)} points near predicted foreground ({ends})")
    ends = _range(100 * everywhere.low, 100 * everywhere.high, 0)
    share = f"{_signed(100 * everywhere.mean, 0)} % of the foreground's volume"
    parts.append(f"{share} over all voxels ({ends})")
    what = f"Confidence less accuracy, {size}, with 95 % intervals"
    text = f"{title}. {what}: {', '.join(parts)}."
    if findings.silent:
        n_missed = number_of(int(sum(findings.missed.values())), "object")
        text = f"It predicts no foreground in any case and misses {n_missed}. {text}"
    return text


def _on_bands(findings: Findings, key: str) -> str:
    """Where the gap is largest, by distance to the predicted outline."""
    contender = next(c for c in findings.results.contenders if c.key == key)
    bands = findings.results.bins(contender)["bands"]
    count = bands["count"]
    gaps = {}
    for name, n, conf, hit in zip(BANDS, count, bands["conf"], bands["hit"], strict=True):
        if n > RARE * count.sum():
            gaps[name] = (conf / n, hit / n)
    if not gaps:
        return ""
    worst = max(gaps, key=lambda name: abs(gaps[name][0] - gaps[name][1]))
    side, number = worst.split()
    conf, hit = (100 * value for value in gaps[worst])
    band = f"{int(number) - 1} to {number} mm {side} the predicted outline"
    return f"The gap is largest {band}: mean confidence {conf:.0f} %, right {hit:.0f} %."


def _on_misplaced(findings: Findings, key: str) -> str:
    mean, low, high = map(float, findings.means["misplaced"].loc[key].to_numpy(dtype=float))
    text = f"Probability equal to {100 * mean:.0f} % of the foreground is in the wrong place"
    perfect = findings.results.per_case(findings.dataset, "misplaced_perfect", "all")
    if "nll" not in findings.means:
        return f"{text} ({_range(100 * low, 100 * high, 0)})."
    ends = f"{_range(100 * low, 100 * high, 0)}; {100 * perfect[key].mean():.0f} % by chance alone"
    return f"{text} ({ends}). NLL {findings.means['nll']['mean'][key]:.3f}."


def _ratios(findings: Findings) -> dict[str, float | None]:
    """Expected over true volume of each class."""
    results, dataset, ratios = findings.results, findings.dataset, {}
    for name in results.data(dataset)["classes"]:
        means = ratios_of_sums(results, dataset, "volume_ratio", name)["mean"]
        ratios[name] = _known(float(means.iloc[0]))
    return ratios


def _on_volumes(found: Confidence, ratios: dict[str, float | None]) -> str:
    ratio: Interval = found.ratio
    if math.isnan(ratio.mean):
        return ""
    direction = ", too much" if ratio.low > 1 else ", too little" if ratio.high < 1 else ""
    text = f"Expected over true volume: {ratio.mean:.2f} ({_range(ratio.low, ratio.high, 2)})"
    known = {name: value for name, value in ratios.items() if value is not None}
    parts = [f"{name} {value:.2f}" for name, value in known.items()] if len(known) > 1 else []
    if len(parts) > 4:
        far = sorted(known, key=lambda name: -abs(math.log(max(known[name], 1e-9))))[:3]
        parts = [f"furthest {name} {known[name]:.2f}" for name in far]
    return f"{text}{direction}{'; ' * bool(parts)}{', '.join(parts)}."


def _on_temperature(findings: Findings, key: str, chosen: Change | None) -> str:
    fits = findings.temperatures.get(key)
    if not fits:
        return _on_regions(findings)
    fit: dict[str, Any] = fits[0]
    low, high = fit.get("interval") or (math.nan, math.nan)
    text = f"Temperature {fit['temperature']:.2f}"
    ends = _range(low, high, 2)
    if fit["voxels"] == "near":
        of_all = f"{fit['over_all']['temperature']:.2f} over all voxels"
        text += f" near predicted foreground ({ends}), {of_all} (above 1: too sure)."
    else:
        text += f" over all voxels ({ends}; above 1: too sure)."
    if any(APART in warning for warning in fit.get("warnings", ())):
        text += " One temperature cannot serve both"
        text += ": use two (ts2)." if chosen is None or chosen.calibrator == "ts2" else "."
    return text


def _on_regions(findings: Findings) -> str:
    """The temperature of each region of a region-based network."""
    info, parts = next(iter(findings.results.runs.values())), []
    fits = read_fits(Path(info["folder"]))
    for i, region in enumerate(info["data"]["classes"]):
        fit = fits.get(f"ts_{i}")
        if fit is not None:
            low, high = fit.get("interval") or (math.nan, math.nan)
            parts.append(f"{region} {fit['temperature']:.2f} ({_range(low, high, 2)})")
    return f"Temperature of each region: {', '.join(parts)} (above 1: too sure)." if parts else ""


def _helpful(findings: Findings) -> Change | None:
    """The calibrator that helps on cases it was not fitted on, by `out_of_fold_order`; one that can
    change the label map only if no other helps."""
    helpful = {c.calibrator: c for c in findings.changes if c.effect == "Better"}
    (contender,) = findings.results.main(findings.dataset)
    for name in out_of_fold_order(findings.results, contender):
        if name in helpful:
            return helpful[name]
    return next(iter(helpful.values()), None)


def _on_calibrators(findings: Findings, chosen: Change | None) -> str:
    if "nll" not in findings.means:
        return "No calibrator was fitted: that needs the probabilities of all classes."
    if not findings.changes:
        return "No calibrator was fitted: that needs at least two patients."
    if chosen is None:
        labels = listed(CALIBRATORS[c.calibrator].label for c in findings.changes)
        if findings.n_patients < FEWEST:
            n = number_of(findings.n_patients, "patient")
            return f"Whether a calibrator helps cannot be told from {n} ({labels})."
        return f"On cases that they were not fitted on, no calibrator helps clearly ({labels})."
    label, means = CALIBRATORS[chosen.calibrator].label, chosen.means
    parts = []
    for metric, name in (("misplaced", "misplaced"), ("nll", "NLL")):
        before, after = means[metric]
        parts.append(f"{name} {before:.3f} to {after:.3f}")
    advice = "apply it" if _keeps_labels(chosen) else "but it can change the label map"
    return f"{label} helps on cases that it was not fitted on: {', '.join(parts)}; {advice}."


def _keeps_labels(change: Change) -> bool:
    return CALIBRATORS[change.calibrator].keeps_labels


def _worst(findings: Findings) -> dict[str, float]:
    """The cases with the most misplaced confidence, and how much."""
    (key,) = findings.names
    values = findings.results.per_case(findings.dataset, "misplaced", "all")[key].dropna()
    worst = values.sort_values(ascending=False)[:N_WORST]
    return {str(case): float(value) for case, value in worst.items()}
