"""Reliability diagrams: accuracy against confidence, the gap between them, the voxels per bin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from segcal.figures import layout
from segcal.figures.given import Given, looks_or_own, sums_of
from segcal.figures.layout import DOUBLE, INK, PALE, SINGLE, SMALL, SOFT
from segcal.figures.looks import Look, Looks, look_of
from segcal.figures.values import BinSums, Floats, ece_of

MOST_DIAGRAMS = 16  # more are drawn as lines, a panel per class
RARE = 0.002  # bins with a smaller share of the voxels are faint: few voxels decide their accuracy
OVER, UNDER = "#B2182B", "#2166AC"  # over- and underconfident; colour-blind readers can tell them
DIAGONAL: Any = {"color": SOFT, "linestyle": "--", "linewidth": 0.7}
# The sign of confidence less accuracy, and how that gap is drawn.
GAPS = (("above", 1, OVER, "/////"), ("below", -1, UNDER, "\\\\\\\\\\"))

# A title, the sums of the bins (B,), how it is drawn, and the ECE of a perfect network, if known.
Diagram = tuple[str, BinSums, Look, float | None]


@layout.styled
def reliability(
    bins: Mapping[str, Given] | Given,
    looks: Looks | None = None,
    *,
    perfect: Mapping[str, float] | None = None,
) -> Figure:
    """A diagram per contender, over the confidence of the predicted class, with its ECE.

    Takes what `segcal.metrics.reliability` gives, by name. `perfect` is what a perfectly calibrated
    network would have, where it is not 0."""
    bins = sums_of(bins)
    looks = looks_or_own(looks, bins)
    diagrams = []
    for key, sums in bins.items():
        title = layout.shortened(looks[key].label, 28)
        diagrams.append((title, sums, looks[key], (perfect or {}).get(key)))
    missing = layout.labels_without(looks, bins)
    return _diagrams(diagrams, min(len(diagrams), 4), "confidence", "accuracy", missing)


@layout.styled
def reliability_per_class(
    bins: Mapping[str, Given] | Given,
    looks: Looks | None = None,
    classes: Sequence[str] | None = None,
) -> Figure:
    """Reliability of the probability of each foreground class, of which `classes` are the names.

    A diagram per contender and class. If there are too many, a panel per class with a line per
    contender."""
    bins = sums_of(bins, classes=True)
    looks, classes = looks_or_own(looks, bins), classes or _numbered(bins)
    n_diagrams, missing = len(bins) * len(classes), layout.labels_without(looks, bins)
    if n_diagrams > MOST_DIAGRAMS:
        return _class_lines(bins, looks, classes, missing)
    columns = min(n_diagrams, {1: 4, 2: 4, 3: 6}.get(len(classes), len(classes)))
    diagrams = []
    for key, sums in bins.items():
        for k, name in enumerate(classes):
            title = layout.shortened(f"{looks[key].label}: {name}", 90 // columns)
            diagrams.append((title, _of_class(sums, k), looks[key], None))
    return _diagrams(diagrams, columns, "probability", "frequency", missing)


def _numbered(bins: Mapping[str, BinSums]) -> list[str]:
    """Names for classes that have none."""
    n_classes = max((len(sums["count"]) for sums in bins.values()), default=0)
    return [f"class {k}" for k in range(1, n_classes + 1)]


def _of_class(bins: BinSums, k: int) -> BinSums:
    return {name: sums[k] for name, sums in bins.items()}


@layout.styled
def before_and_after(
    before: Given,
    after: Given,
    *,
    name: str = "calibration",
    method: str = "",
    classes: Sequence[str] | None = None,
    perfect: Sequence[float | None] = (None, None),
) -> Figure:
    """Reliability of one network, `method`, before and after a calibrator, which `name` names.

    With `classes`, the names of the foreground classes, a row for each class's probability.
    `perfect` is as in `reliability`, before and after."""
    titles = (f"{method} before".strip(), f"{method} after {name}".strip())
    pair = dict(zip(titles, (before, after), strict=True))
    looks = {titles[0]: look_of("ce", label=titles[0]), titles[1]: look_of("mbls", label=titles[1])}
    diagrams: list[Diagram] = []
    for k, word in enumerate(classes or ()):
        for key, sums in sums_of(pair, classes=True).items():
            diagrams.append((f"{word}, {key}", _of_class(sums, k), looks[key], None))
    for (key, sums), of in zip(sums_of(pair).items(), perfect, strict=True) if not classes else ():
        diagrams.append((key, sums, looks[key], of))
    words = ("probability", "frequency") if classes else ("confidence", "accuracy")
    return _diagrams(diagrams, 2, *words, ())


def _share(bins: BinSums) -> Floats:
    return np.asarray(bins["count"]) / max(float(np.sum(bins["count"])), 1)


def _diagrams(
    diagrams: Sequence[Diagram], columns: int, x: str, y: str, missing: Sequence[str]
) -> Figure:
    """Diagrams in rows, each above its counts; axes are labelled at the left and at the bottom."""
    n, (rows, columns) = len(diagrams), layout.wrapped(len(diagrams), columns)
    width = SINGLE if columns < 3 else DOUBLE
    height = rows * (0.95 * min(width / columns, 62) + 14) + 10
    figure, axes = layout.panels(2 * rows, columns, width, height, height_ratios=[3, 1] * rows)
    # One scale for all counts, as high as the highest bar needs.
    highest = max(float(_share(bins).max()) for _, bins, *_ in diagrams)
    limit = min(1.0, max(0.1, math.ceil(10 * highest) / 10))
    for i, (top, bottom) in enumerate(layout.stacked(axes, n, 2)):
        title, bins, look, perfect = diagrams[i]
        draw_diagram(top, bins, look, perfect)
        top.set_title(title)
        n_bins = len(bins["count"])
        bars: Any = {"width": 0.9 / n_bins, "color": look.colour, "alpha": 0.6, "linewidth": 0}
        bottom.bar((np.arange(n_bins) + 0.5) / n_bins, _share(bins), **bars)
        _count_axes(bottom, limit)
        first, last = i % columns == 0, i + columns >= n
        top.tick_params(labelbottom=False, labelleft=first)
        bottom.tick_params(labelbottom=last, labelleft=first)
        top.set_ylabel(y if first else "")
        bottom.set(ylabel="voxels" if first else "", xlabel=x if last else "")
    handles: list[Any] = [Patch(facecolor=PALE, edgecolor=INK, linewidth=0.5, label=y)]
    for side, _, ink, hatch in GAPS:
        pattern: Any = {"facecolor": "none", "edgecolor": ink, "hatch": hatch, "linewidth": 0.5}
        handles.append(Patch(**pattern, label=f"gap: {x} {side} {y}"))
    handles.append(Line2D([], [], **DIAGONAL, label="perfect"))
    return layout.finished(figure, handles, missing=missing)


def draw_diagram(ax: Axes, bins: BinSums, look: Look, perfect: float | None = None) -> None:
    """A bar of accuracy per bin, the gap to the mean confidence, the diagonal, the ECE."""
    n_bins, n_voxels = len(bins["count"]), np.sum(bins["count"])
    ax.plot([0, 1], [0, 1], **DIAGONAL, zorder=3)
    _unit_axes(ax)
    if not n_voxels:
        layout.say(ax, "no voxels")
        return
    rare = bins["count"] < RARE * n_voxels
    for part, alpha in ((~rare, 1.0), (rare, 0.3)):
        known = np.flatnonzero(part & (bins["count"] > 0))
        accuracy, confidence = (bins[k][known] / bins["count"][known] for k in ("hit", "conf"))
        middle = (known + 0.5) / n_bins
        bars: Any = {"color": look.colour, "alpha": 0.3 * alpha, "linewidth": 0}
        ax.bar(middle, accuracy, width=1 / n_bins, **bars)
        for _, sign, ink, hatch in GAPS:
            side = sign * (confidence - accuracy) > 0
            size = np.abs(confidence - accuracy)[side]
            low = np.minimum(accuracy, confidence)[side]
            pattern: Any = {"facecolor": "none", "edgecolor": ink, "hatch": hatch, "alpha": alpha}
            ax.bar(middle[side], size, bottom=low, width=0.9 / n_bins, linewidth=0.4, **pattern)
        ends = middle - 0.5 / n_bins, middle + 0.5 / n_bins
        ax.hlines(accuracy, *ends, color=look.colour, linewidth=1, alpha=alpha)
    text = f"ECE {ece_of(bins):.3f}" + ("" if perfect is None else f"\nperfect {perfect:.3f}")
    ax.text(0.04, 0.96, text, transform=ax.transAxes, va="top", fontsize=SMALL)


def _unit_axes(ax: Axes) -> None:
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    ax.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


def _count_axes(ax: Axes, limit: float) -> None:
    _unit_axes(ax)
    ax.set(ylim=(0, limit), yticks=[0, limit])
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _class_lines(
    bins: Mapping[str, BinSums], looks: Looks, classes: Sequence[str], missing: Sequence[str]
) -> Figure:
    """A panel per class with a line per contender; below it the voxels per bin and the ECEs."""
    rows, columns = layout.wrapped(len(classes), 4)
    handles = layout.line_handles(looks[key] for key in bins)
    size: Any = {"height": 72 * rows, "height_ratios": [3, 0.8, 0.8] * rows}
    figure, axes = layout.panels(3 * rows, columns, DOUBLE, legend=handles, **size)
    errors = [ece_of(_of_class(sums, k)) for sums in bins.values() for k in range(len(classes))]
    highest = max((error for error in errors if not math.isnan(error)), default=1.0)
    for i, trio in enumerate(layout.stacked(axes, len(classes), 3)):
        top, middle, bottom = trio
        top.plot([0, 1], [0, 1], **DIAGONAL)
        _unit_axes(top)
        top.set_title(layout.shortened(classes[i], 24))
        for place, (key, sums) in enumerate(bins.items()):
            part, look = _of_class(sums, i), looks[key]
            count, known = part["count"], part["count"] > 0
            probability, frequency = (part[k][known] / count[known] for k in ("conf", "hit"))
            top.plot(probability, frequency, clip_on=False, **look.of_line(markersize=2.5))
            edges = np.linspace(0, 1, len(known) + 1)
            middle.stairs(_share(part), edges, color=look.colour, linewidth=0.8)
            bottom.bar(place, ece_of(part), color=look.colour, width=0.8)
        top.tick_params(labelbottom=False)
        _count_axes(middle, 1)
        middle.set_xlabel("probability")
        bottom.set(xticks=[], xlim=(-0.6, len(bins) - 0.4), ylim=(0, 1.1 * highest or 1))
        for ax, name in zip(trio, ("frequency", "voxels", "ECE ↓"), strict=True):
            ax.set_ylabel(name if i % columns == 0 else "")
            ax.tick_params(labelleft=i % columns == 0)
    return layout.finished(figure, handles, missing=missing)
