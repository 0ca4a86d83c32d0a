"""The outcome in words with numbers: who is best on what, is it sure, how stable, and what
to use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segcal.calibrators import CALIBRATORS
from segcal.metrics import METRICS
from segcal.report.advice import ECE, advice, advice_alone
from segcal.report.findings import Change, Findings, Lead, Mean, Overall
from segcal.report.words import (
    change_text,
    interval,
    listed,
    number_of,
    p_text,
    score,
    share,
    signed,
)


@dataclass(frozen=True)
class Tile:
    """A value to see at a glance."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Point:
    """Findings under a title, a paragraph each."""

    title: str
    paragraphs: list[str]


@dataclass(frozen=True)
class Summary:
    """What a reader takes home."""

    lead: str
    advice: str
    tiles: list[Tile]
    points: list[Point]
    cautions: list[str]

    @property
    def text(self) -> str:
        """The shortest form: one paragraph."""
        return f"{self.lead} {self.advice}"


def summarise(found: Findings) -> Summary:
    """The findings in words."""
    if found.overall is None:
        return Summary(
            _alone(found),
            advice_alone(found),
            _tiles_alone(found),
            _common_points(found),
            _cautions(found),
        )
    n = len(found.names)
    opening = f"{number_of(n, 'method')} were compared on {_data(found)}."
    groups = {"Segmentation": ("dice", "asd"), "Calibration": ("ece", "cece")}
    points = [
        Point(title, [on_metric(found, found.leads[m]) for m in metrics if m in found.leads])
        for title, metrics in groups.items()
        if any(m in found.leads for m in metrics)
    ]
    points.append(Point("All metrics together", [_overall(found, found.overall)]))
    headlines = [
        _headline(found, "dice", "segments best"),
        _headline(found, "ece", "is calibrated best"),
    ]
    return Summary(
        " ".join([opening, *headlines]),
        advice(found, found.overall),
        _tiles(found, found.overall),
        points + _common_points(found),
        _cautions(found),
    )


# The leaders
# ------------------------------------------------------------------------------


def _data(found: Findings) -> str:
    of = (
        "" if found.n_patients == found.n_cases else f" of {number_of(found.n_patients, 'patient')}"
    )
    return f"{found.dataset} ({number_of(found.n_cases, 'test case')}{of})"


def _headline(found: Findings, metric: str, does: str) -> str:
    """One sentence on who leads."""
    own = found.leads.get(metric)
    if own is None:
        return f"No method has a value of {METRICS[metric].label}."
    value = f"{METRICS[metric].label} {score(metric, own.means[own.first].value)}"
    if len(own.tied) > 1:
        return f"{listed(found.names[k] for k in own.tied)} are level at the best mean {value}."
    return f"{found.names[own.first]} {does} by the mean ({value}), {_how_sure(found, own)}."


def _how_sure(found: Findings, own: Lead) -> str:
    n = len(found.names) - 1
    if found.n_patients < 2:
        return "which one patient cannot make sure of"
    if own.contrary:
        return (
            f"though by the paired test {_whom(found, own.contrary, n)} {_is(own.contrary)}"
            " significantly better"
        )
    if len(own.beaten) == n:
        return f"significantly better than {_all_others(n)}"
    if not own.beaten:
        return f"though not significantly better than {'the other' if n == 1 else 'any other'}"
    return f"significantly better than {len(own.beaten)} of the {n} others"


def _all_others(n: int) -> str:
    return {1: "the other", 2: "both others"}.get(n, f"all {n} others")


def on_metric(found: Findings, own: Lead) -> str:
    """Who leads on a metric: values, tests, stability."""
    n = len(found.names) - 1
    text = f"{METRICS[own.metric].label}: {found.names[own.first]} "
    text += _with_interval(own.metric, own.means[own.first])
    for second in own.order[1:2]:
        how = "level with" if second in own.tied else "before"
        text += f", {how} {found.names[second]} {score(own.metric, own.means[second].value)}"
    sentences = [text]
    if METRICS[own.metric].of == "surfaces" and any(found.missed.values()):
        sentences.append(
            "The means are over cases without a missed object; the order counts one as the worst"
            " distance"
        )
    if own.metric in found.empty:
        sentences.append(
            "The order counts an object that is rightly left out as perfect where another"
            " invents it"
        )
    if own.beaten:
        most = " at most" if len(own.beaten) > 1 else ""
        sentences.append(
            f"The lead over {_whom(found, own.beaten, n)} is significant"
            f" ({p_text(own.p_beaten)}{most})"
        )
    if own.uneven:
        whom = _whom(found, own.uneven, n)
        sentences.append(
            "It has larger differences on its side, not more: in the median patient it is worse"
            f" than {whom}"
        )
    if own.unsure and found.n_patients > 1:
        least = " at least" if len(own.unsure) > 1 else ""
        sentences.append(
            f"The lead over {_whom(found, own.unsure, n)} is not significant"
            f" ({p_text(own.p_unsure)}{least})"
        )
    if own.contrary:
        whom = _whom(found, own.contrary, n)
        sentences.append(
            f"Its mean is better than that of {whom}, yet by the paired test it is significantly"
            " worse"
        )
    if not math.isnan(own.stability):
        sentences.append(f"It is first in {share(own.stability)} of bootstrap samples")
    return ". ".join(sentences) + "."


def _whom(found: Findings, keys: Sequence[str], n: int) -> str:
    return f"all {n} others" if len(keys) == n > 2 else listed(found.names[k] for k in keys)


def _is(keys: Sequence[str]) -> str:
    return "is" if len(keys) == 1 else "are"


def _overall(found: Findings, ranks: Overall) -> str:
    """The two ranks over all metrics, and how stable the first place is."""
    by_sum, by_case = _lowest(ranks.sums), _lowest(ranks.case_ranks)
    labels = listed(METRICS[m].label for m in found.leads)
    text = (
        f"Over {labels}, {_are(found, by_sum)} first by the sum of ranks"
        f" ({ranks.sums[by_sum[0]]:g})"
    )
    how = f"by the mean rank per case ({ranks.case_ranks[by_case[0]]:.2f})"
    text += f" and {how}." if by_sum == by_case else f", {_are(found, by_case)} first {how}."
    stable = ranks.stability[by_case[0]]
    if not math.isnan(stable):
        text += (
            f" By the mean rank, {found.names[by_case[0]]} stays first in {share(stable)} of"
            " bootstrap samples."
        )
    return text


def _lowest(values: Mapping[str, float]) -> list[str]:
    return [key for key, value in values.items() if value == min(values.values())]


def _are(found: Findings, keys: Sequence[str]) -> str:
    return f"{listed(found.names[k] for k in keys)} {'is' if len(keys) == 1 else 'are together'}"


# What holds for one method too
# ------------------------------------------------------------------------------


def _common_points(found: Findings) -> list[Point]:
    points = [Point("Too sure, or not sure enough", [_confidence(found)])] if found.gaps else []
    for key in dict.fromkeys(change.calibrator for change in found.changes):
        points.append(Point(f"After {CALIBRATORS[key].label}", [_calibrated(found, key)]))
    if any(found.missed.values()):
        counts = listed(f"{found.names[key]} {n:g}" for key, n in found.missed.items())
        text = f"{counts}, over all cases and classes. They have no surface distance and rank last."
        points.append(Point("Missed or invented objects", [text]))
    return [*points, Point("What these numbers cannot say", [_limits(found)])]


def _confidence(found: Findings) -> str:
    parts = []
    for side, word in {
        "over": "overconfident",
        "under": "underconfident",
        "": "neither for sure",
    }.items():
        own = sorted(
            (gap for gap in found.gaps if gap.side == side), key=lambda gap: -abs(gap.mean.value)
        )
        if own:
            each = [f"{found.names[gap.contender]} ({signed(gap.mean.value)})" for gap in own]
            parts.append(f"{word}: {listed(each)}")
    return f"Mean confidence less accuracy, over the foreground; {'; '.join(parts)}."


def _calibrated(found: Findings, key: str) -> str:
    """What one calibrator did to the ECE of each."""
    own = [change for change in found.changes if change.calibrator == key]
    lower = [change for change in own if change.after < change.before]
    parts = [
        _changed(found, lower, "lowers"),
        _changed(found, [c for c in own if c.after > c.before], "raises"),
    ]
    same = [found.names[c.contender] for c in own if c.after == c.before]
    others = [label for k, label in found.names.items() if k not in {c.contender for c in own}]
    parts += [
        f"{CALIBRATORS[key].label} leaves the {ECE} of {listed(same)} as it is." if same else ""
    ]
    parts += [f"It was not fitted to {listed(others)}." if others else ""]
    parts += ["" if CALIBRATORS[key].keeps_labels else "It may change the label map."]
    return " ".join(filter(None, parts))


def _changed(found: Findings, own: Sequence[Change], does: str) -> str:
    if not own:
        return ""
    sure = [found.names[c.contender] for c in own if c.helps or c.harms]
    how = (
        "significantly"
        if len(sure) == len(own)
        else f"significantly for {listed(sure)}"
        if sure
        else "not significantly"
    )
    numbers = listed(f"{found.names[c.contender]} ({change_text(c.before, c.after)})" for c in own)
    return f"{own[0].label} {does} the {ECE} of {numbers}, {how}."


def _limits(found: Findings) -> str:
    epochs = listed(str(e) for e in found.epochs)
    text = f"All were trained for {epochs} {'epoch' if found.epochs == (1,) else 'epochs'}"
    if found.n_seeds == (1,):
        text += (
            " with one seed each: intervals and tests speak for other patients, not for training"
            " anew."
        )
    else:
        text += (
            f", with {listed(str(n) for n in found.n_seeds)} seeds each, whose means are compared."
        )
    if found.others:
        text += (
            f" {listed(found.others)} stand in tables and figures of their own, not in this"
            " summary."
        )
    return text


def _cautions(found: Findings) -> list[str]:
    """What makes the comparison weak, to be seen before its numbers are believed."""
    gone = [f"{name} failed and is left out: {why}" for name, why in found.failed.items()]
    for (metric, key), n in found.without.items():
        lacks = f"{found.names[key]} has no {METRICS[metric].label} in {n} of {found.n_cases} cases"
        gone.append(f"{lacks}; its mean is over the others.")
    return gone + _weak(found)


def _weak(found: Findings) -> list[str]:
    if found.n_patients < 2:
        what = "test case" if found.n_cases == 1 else "patient"
        return [
            f"There is one {what} only: no interval, test or stability can be computed, and the"
            " order means little."
        ]
    thin = found.overall.hopeless if found.overall is not None else ()
    if thin and not set(found.leads) <= set(thin):
        labels = listed(METRICS[m].label for m in thin)
        return [
            f"Too few patients have a value of {labels} for any difference there to be significant."
        ]
    if thin:
        pairs = number_of(len(found.names) * (len(found.names) - 1) // 2, "pair")
        return [
            f"With {found.n_patients} patients and {pairs} of methods no difference could be"
            " significant."
        ]
    return []


# Tiles, and one method only
# ------------------------------------------------------------------------------


def _alone(found: Findings) -> str:
    (key,) = found.names
    known = {
        metric: means[key]
        for metric, means in found.means.items()
        if not math.isnan(means[key].value)
    }
    scores = listed(
        f"{METRICS[metric].label} {_with_interval(metric, mean)}" for metric, mean in known.items()
    )
    return f"{found.names[key]} alone was run on {_data(found)}: {scores or 'it has no score'}."


def _with_interval(metric: str, mean: Mean) -> str:
    return score(metric, mean.value) + interval(mean.low, mean.high)


def _tiles(found: Findings, ranks: Overall) -> list[Tile]:
    tiles = []
    for metric in ("dice", "ece"):
        if own := found.leads.get(metric):
            names = listed(found.names[key] for key in own.tied)
            label = f"Best {METRICS[metric].label} {METRICS[metric].arrow}"
            tiles.append(Tile(label, names, _with_interval(metric, own.means[own.first])))
    first = _lowest(ranks.case_ranks)[0]
    stable = ranks.stability[first]
    note = (
        "no stability from one patient"
        if math.isnan(stable)
        else f"first in {share(stable)} of bootstrap samples"
    )
    tiles.append(Tile("Best case rank", found.names[first], note))
    sides = [gap.side for gap in found.gaps]
    if sides:
        under = f"underconfident: {sides.count('under')}"
        tiles.append(Tile("Overconfident", f"{sides.count('over')} of {len(sides)}", under))
    return [*tiles, _size(found)]


def _tiles_alone(found: Findings) -> list[Tile]:
    (key,) = found.names
    known = {
        metric: means[key]
        for metric, means in found.means.items()
        if not math.isnan(means[key].value)
    }
    tiles = [
        Tile(
            f"{METRICS[m].label} {METRICS[m].arrow}",
            score(m, mean.value),
            interval(mean.low, mean.high).strip(" ()"),
        )
        for m, mean in known.items()
    ]
    return [*tiles, _size(found)]


def _size(found: Findings) -> Tile:
    classes = number_of(found.n_classes, "class", "classes")
    return Tile(
        "Test cases", str(found.n_cases), f"{number_of(found.n_patients, 'patient')}, {classes}"
    )
