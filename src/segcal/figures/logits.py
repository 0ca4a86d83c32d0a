"""What the margin does to logits: its penalty as a function, and the mean logits of networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from segcal.figures import layout
from segcal.figures.looks import Looks
from segcal.figures.style import CENTRED, INK, SINGLE, SMALL, SOFT
from segcal.figures.values import Floats

# Bars have no colour, because every colour, black and grey too, means a method.
TRUE: Any = {"facecolor": "white", "edgecolor": INK, "hatch": "//////", "linewidth": 0.6}
OTHER: Any = {"facecolor": "white", "edgecolor": SOFT, "linewidth": 0.6}
MOST_BARS = 6
"""The mean logits of more classes are drawn as a matrix."""


@layout.styled
def penalty_shape(margin: float = 10.0) -> Figure:
    """The linear penalty on a logit distance, the one with a margin, and their derivatives."""
    shared: Any = {"sharex": True, "sharey": "row", "height_ratios": [3, 2]}
    figure, axes = layout.panels(2, 2, width=SINGLE, height=70, **shared)
    reach = max(2 * margin, 1.0)
    for (top, bottom), start in zip(axes.T, (0.0, margin), strict=True):
        corners = np.array([0.0, start, reach])
        top.plot(corners, np.maximum(0, corners - start), color=INK)
        # The derivative jumps where the penalty begins, so its two levels are drawn apart.
        if start > 0:
            bottom.plot([0, start], [0, 0], color=INK)
        bottom.plot([start, reach], [1, 1], color=INK)
        for ax in (top, bottom):
            if start > 0:
                ax.axvline(start, color=SOFT, linewidth=0.6, linestyle=":")
            layout.grid(ax)
    place: Any = {"xytext": (-7, 0), "textcoords": "offset points"}
    axes[0, 1].annotate("m", (margin, 1.6 * margin), **place, color=SOFT)
    axes[0, 1].set_title(f"margin {margin:g}")
    axes[0, 0].set(title="linear", ylabel="penalty", xlim=(0, reach))
    axes[1, 0].set(ylabel="derivative", ylim=(-0.15, 1.3), yticks=[0, 1])
    figure.supxlabel("logit distance, largest logit − logit of class k", fontsize=SMALL)
    return figure


@layout.styled
def mean_logits(logits: Mapping[str, Floats], looks: Looks, classes: Sequence[str]) -> Figure:
    """A panel per contender: per true class a group of bars, the mean logits of all classes.

    `logits[key]` is (K, K): a row per true class, a column per logit; `classes` start with the
    background. A bar has the number of its class, and that of the true class is hatched. With many
    classes a panel is a matrix of the same values."""
    matrix = len(classes) > MOST_BARS
    rows, columns = layout.wrapped(len(logits), 2)
    names = [f"{k} {name}" for k, name in enumerate(classes)]
    each = 12 + 4.2 * len(classes) if matrix else 46
    shared: Any = {"sharey": True, "sharex": True}
    figure, axes = layout.panels(rows, columns, height=6 + each * rows, **shared)
    limits = _range(logits.values())
    for ax, (key, table) in zip(axes.flat, logits.items(), strict=False):
        ax.set_title(looks[key].label)
        if matrix:
            image = _draw_matrix(ax, table, names, limits)
        else:
            _draw_groups(ax, table, names)
    layout.switch_off(axes.flat[len(logits) :])
    for ax in axes[:, 0]:
        ax.set_ylabel("true class" if matrix else "mean logit")
    for ax in axes[-1]:
        ax.set_xlabel("logit of class" if matrix else "true class")
    if matrix:
        layout.colour_bar(figure, image, "mean logit", ax=axes, pad=0.01, aspect=30)
        return figure
    room = 0.1 * (limits[1] - limits[0])  # for the numbers at the ends of the bars
    axes[0, 0].set_ylim(limits[0] - room, limits[1] + room)
    handles = [Patch(**TRUE, label="logit of the true class"), Patch(**OTHER, label="of another")]
    return layout.finished(figure, handles)


def _range(tables: Iterable[Floats]) -> tuple[float, float]:
    """The lowest and the highest value of all; at least from 0 to 1."""
    known = np.concatenate([[0.0, 1.0], *(table[np.isfinite(table)] for table in tables)])
    return float(known.min()), float(known.max())


def _draw_groups(ax: Axes, table: Floats, names: Sequence[str]) -> None:
    n = len(names)
    step = 0.8 / n
    for k in range(n):
        places = np.arange(n) + step * (k - (n - 1) / 2)
        heights = np.nan_to_num(table[:, k])
        for true, bar in enumerate(ax.bar(places, heights, width=0.9 * step)):
            bar.set(**(TRUE if true == k else OTHER))
            if not np.isnan(table[true, k]):
                ink, y = INK if true == k else SOFT, heights[true]
                way, side = (1.5, "bottom") if y >= 0 else (-1.5, "top")
                place: Any = {"xytext": (0, way), "textcoords": "offset points", "va": side}
                ax.annotate(str(k), (places[true], y), **CENTRED | place, color=ink)
    for empty in np.flatnonzero(np.isnan(table).any(1)):
        ax.text(float(empty), 0, "no voxels", **CENTRED | {"va": "bottom"}, color=SOFT)
    ax.axhline(0, color=INK, linewidth=0.5)
    slanted: Any = {"rotation": 20, "ha": "right", "rotation_mode": "anchor"}
    too_long = n * max(map(len, names)) > 54  # letters that fit below a panel
    ax.set_xticks(range(n), names, **(slanted if too_long else {}))
    ax.tick_params(axis="x", length=0)
    layout.grid(ax, "y")


def _draw_matrix(ax: Axes, table: Floats, names: Sequence[str], limits: tuple[float, float]) -> Any:
    n, (low, high) = len(names), limits
    values = np.ma.masked_invalid(table)
    image = ax.imshow(values, cmap="Greys", vmin=low, vmax=high, aspect="auto")
    for empty in np.flatnonzero(np.isnan(table).any(1)):
        ax.text((n - 1) / 2, float(empty), "no voxels", **CENTRED, color=SOFT)
    ax.set_xticks(range(n), [str(k) for k in range(n)])
    ax.set_yticks(range(n), [layout.shortened(name, 22) for name in names])
    ax.tick_params(length=0)
    return image
