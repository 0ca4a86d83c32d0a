"""Reliability diagrams: accuracy against confidence, the gap between them, and how many voxels each
bin holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from segcal.figures.style import (
    DOUBLE,
    INK,
    MM,
    OVER,
    PALE,
    SINGLE,
    SMALL,
    SOFT,
    UNDER,
    add_handles,
    add_legend,
    colour_of,
    legend_size,
    look_of,
    panels,
    say,
    say_missing,
    shortened,
    styled,
)
from segcal.figures.values import BinSums, Floats, bin_ece

MOST_DIAGRAMS = 16
"""More diagrams than these are drawn as lines, a panel per class."""

RARE = 0.002
"""Bins with a smaller share of the voxels are drawn faintly: their accuracy is that of a few."""


@styled
def reliability(bins: Mapping[str, BinSums], labels: Mapping[str, str]) -> Figure:
    """A reliability diagram per contender, over the confidence of the predicted class, with its
    ECE.
    """
    n = len(bins)
    columns = min(n, 4)
    rows = -(-n // columns)
    figure, axes = _diagram_grid(rows, columns)
    for i, (key, sums) in enumerate(bins.items()):
        row, column = divmod(i, columns)
        draw_diagram(axes[2 * row, column], sums, key)
        draw_counts(axes[2 * row + 1, column], sums, key)
        axes[2 * row, column].set_title(shortened(labels[key], 28))
    return _finished(figure, axes, n, labels, bins)


@styled
def reliability_per_class(
    bins: Mapping[str, BinSums], labels: Mapping[str, str], classes: Sequence[str]
) -> Figure:
    """Reliability of each class's probability; the sums of a contender are (classes, bins).

    A row of diagrams per contender and a column per class; where those would be too many, a panel
    per class with a line per contender."""
    if len(bins) * len(classes) > MOST_DIAGRAMS:
        return _as_lines(bins, labels, classes)
    cells = [(key, k) for key in bins for k in range(len(classes))]
    columns = min(len(cells), {1: 4, 2: 4, 3: 6}.get(len(classes), len(classes)))
    figure, axes = _diagram_grid(-(-len(cells) // columns), columns)
    for i, (key, k) in enumerate(cells):
        row, column = divmod(i, columns)
        part = {what: values[k] for what, values in bins[key].items()}
        draw_diagram(axes[2 * row, column], part, key)
        draw_counts(axes[2 * row + 1, column], part, key)
        axes[2 * row, column].set_title(shortened(f"{labels[key]}: {classes[k]}", 90 // columns))
    return _finished(figure, axes, len(cells), labels, bins, x="probability", y="frequency")


def _diagram_grid(rows: int, columns: int) -> tuple[Figure, NDArray[Any]]:
    width = SINGLE if columns < 3 else DOUBLE
    each = min(width / columns, 62 * MM)
    height = rows * (0.95 * each + 14 * MM) + 10 * MM
    return panels(2 * rows, columns, width=width, height=height, height_ratios=[3, 1] * rows)


def _finished(
    figure: Figure,
    axes: NDArray[Any],
    n: int,
    labels: Mapping[str, str],
    bins: Mapping[str, BinSums],
    x: str = "confidence",
    y: str = "accuracy",
) -> Figure:
    """Axis labels at the edges, empty places emptied, a legend, and who is missing."""
    rows, columns = axes.shape[0] // 2, axes.shape[1]
    _same_height([axes[2 * (i // columns) + 1, i % columns] for i in range(n)])
    for row, column in np.ndindex(rows, columns):
        top, bottom = axes[2 * row : 2 * row + 2, column]
        place = row * columns + column
        if place >= n:
            top.set_axis_off()
            bottom.set_axis_off()
        last = place + columns >= n  # nothing stands below it
        top.tick_params(labelbottom=False, labelleft=column == 0)
        bottom.tick_params(labelbottom=last, labelleft=column == 0)
        top.set_ylabel(y if column == 0 else "")
        bottom.set(ylabel="voxels" if column == 0 else "", xlabel=x if last else "")
    handles = [
        Patch(facecolor=PALE, edgecolor=INK, linewidth=0.5, label=y),
        Patch(
            facecolor="none",
            edgecolor=OVER,
            hatch="/////",
            linewidth=0.5,
            label=f"gap: {x} above {y}",
        ),
        Patch(
            facecolor="none",
            edgecolor=UNDER,
            hatch="\\\\\\\\\\",
            linewidth=0.5,
            label=f"gap: {x} below {y}",
        ),
        Line2D([], [], color=SOFT, linestyle="--", linewidth=0.7, label="perfect"),
    ]
    add_handles(figure, handles)
    say_missing(figure, [text for key, text in labels.items() if key not in bins])
    return figure


def draw_diagram(ax: Axes, bins: BinSums, key: str, *, text: bool = True) -> None:
    """One diagram: a bar of accuracy per bin, the gap up or down to the mean confidence, the
    diagonal, the ECE.
    """
    n_bins = len(bins["count"])
    ax.plot([0, 1], [0, 1], color=SOFT, linestyle="--", linewidth=0.7, zorder=3)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    _plain_ticks(ax)
    known = np.flatnonzero(bins["count"] > 0)
    if not len(known):
        say(ax, "no voxels")
        return
    centre = (known + 0.5) / n_bins
    accuracy, confidence = (bins[what][known] / bins["count"][known] for what in ("hit", "conf"))
    rare = bins["count"][known] < RARE * np.sum(bins["count"])
    for these, strength in ((~rare, 1.0), (rare, 0.3)):
        _draw_bars(
            ax, centre[these], accuracy[these], confidence[these], n_bins, colour_of(key), strength
        )
    if text:
        ax.text(
            0.04, 0.96, f"ECE {bin_ece(bins):.3f}", transform=ax.transAxes, va="top", fontsize=SMALL
        )


def _draw_bars(
    ax: Axes,
    centre: Floats,
    accuracy: Floats,
    confidence: Floats,
    n_bins: int,
    colour: str,
    strength: float,
) -> None:
    ax.bar(centre, accuracy, width=1 / n_bins, color=colour, alpha=0.3 * strength, linewidth=0)
    for sign, ink, hatch in ((1, OVER, "/////"), (-1, UNDER, "\\\\\\\\\\")):
        mine = sign * (confidence - accuracy) > 0
        low, size = np.minimum(accuracy, confidence)[mine], np.abs(confidence - accuracy)[mine]
        look: dict[str, Any] = {
            "facecolor": "none",
            "edgecolor": ink,
            "hatch": hatch,
            "linewidth": 0.4,
            "alpha": strength,
        }
        ax.bar(centre[mine], size, bottom=low, width=0.9 / n_bins, **look)
    ax.hlines(
        accuracy,
        centre - 0.5 / n_bins,
        centre + 0.5 / n_bins,
        color=colour,
        linewidth=1,
        alpha=strength,
    )


def _plain_ticks(ax: Axes) -> None:
    ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    ax.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


def _same_height(counts: Sequence[Axes]) -> None:
    """One scale for all counts, as high as the highest bar needs."""
    highest = max((float(ax.dataLim.y1) for ax in counts), default=1.0)
    top = min(1.0, max(0.1, math.ceil(10 * highest) / 10))
    for ax in counts:
        ax.set(ylim=(0, top), yticks=[0, top])


def draw_counts(ax: Axes, bins: BinSums, key: str) -> None:
    """The share of the voxels in each bin."""
    n_bins, total = len(bins["count"]), float(np.sum(bins["count"]))
    part = np.asarray(bins["count"]) / max(total, 1)
    ax.bar(
        (np.arange(n_bins) + 0.5) / n_bins,
        part,
        width=0.9 / n_bins,
        color=colour_of(key),
        alpha=0.6,
        linewidth=0,
    )
    ax.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 1])
    ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _as_lines(
    bins: Mapping[str, BinSums], labels: Mapping[str, str], classes: Sequence[str]
) -> Figure:
    """A panel per class: frequency over mean probability, a line per contender; under it voxels per
    bin and each ECE.
    """
    columns = min(len(classes), 4)
    rows = -(-len(classes) // columns)
    _, room = legend_size([labels[key] for key in bins], DOUBLE)
    figure, axes = panels(
        3 * rows, columns, height=rows * 72 * MM + room, height_ratios=[3, 0.8, 0.8] * rows
    )
    each = {
        (key, k): {what: values[k] for what, values in bins[key].items()}
        for key in bins
        for k in range(len(classes))
    }
    highest = max((e for part in each.values() if not np.isnan(e := bin_ece(part))), default=1.0)
    for i in range(rows * columns):
        row, column = divmod(i, columns)
        top, middle, bottom = trio = axes[3 * row : 3 * row + 3, column]
        if i >= len(classes):
            for ax in trio:
                ax.set_axis_off()
            continue
        top.plot([0, 1], [0, 1], color=SOFT, linestyle="--", linewidth=0.7)
        top.set(xlim=(0, 1), ylim=(0, 1), title=shortened(classes[i], 24))
        _plain_ticks(top)
        for place, key in enumerate(bins):
            _draw_line(trio, each[key, i], key, place)
        top.tick_params(labelbottom=False)
        middle.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 1], xlabel="probability")
        middle.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        middle.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        bottom.set(xticks=[], xlim=(-0.6, len(bins) - 0.4), ylim=(0, 1.1 * highest or 1))
        for ax, name in zip(trio, ("frequency", "voxels", "ECE ↓"), strict=True):
            ax.set_ylabel(name if column == 0 else "")
            ax.tick_params(labelleft=column == 0)
    add_legend(figure, bins, labels)
    say_missing(figure, [text for key, text in labels.items() if key not in bins])
    return figure


def _draw_line(trio: Iterable[Axes], part: BinSums, key: str, place: int) -> None:
    top, middle, bottom = trio
    known = part["count"] > 0
    count = part["count"][known]
    look = look_of(key).of_line() | {"markersize": 2.5}
    top.plot(part["conf"][known] / count, part["hit"][known] / count, clip_on=False, **look)
    middle.stairs(
        part["count"] / max(np.sum(part["count"]), 1),
        color=colour_of(key),
        linewidth=0.8,
        edges=_edges(part),
    )
    bottom.bar(place, bin_ece(part), color=colour_of(key), width=0.8)


def _edges(part: BinSums) -> Floats:
    return np.linspace(0, 1, len(part["count"]) + 1)
