"""What the margin does to logits: its penalty drawn as a function, and the mean logits that
networks give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from segcal.figures.style import (
    INK,
    MM,
    SINGLE,
    SMALL,
    SOFT,
    add_handles,
    grid,
    panels,
    shortened,
    styled,
)
from segcal.figures.values import Floats

TRUE: dict[str, Any] = {"facecolor": "white", "edgecolor": INK, "hatch": "//////", "linewidth": 0.6}
OTHER: dict[str, Any] = {"facecolor": "white", "edgecolor": SOFT, "linewidth": 0.6}
"""Bars without a colour, for every colour, black and grey among them, is some method's."""


@styled
def penalty_shape(margin: float = 10.0) -> Figure:
    """The linear penalty on a logit distance beside the one with a margin, and under each its
    derivative.
    """
    figure, axes = panels(
        2, 2, width=SINGLE, height=70 * MM, sharex=True, sharey="row", height_ratios=[3, 2]
    )
    reach = max(2 * margin, 1.0)
    for column, (title, start) in enumerate((("linear", 0.0), (f"margin {margin:g}", margin))):
        corners = np.array([0.0, start, reach])
        top, bottom = axes[:, column]
        top.plot(corners, np.maximum(0, corners - start), color=INK)
        # The slope jumps where the penalty begins, and is drawn as the two levels that it has.
        if start > 0:
            bottom.plot([0, start], [0, 0], color=INK)
        bottom.plot([start, reach], [1, 1], color=INK)
        top.set_title(title)
        for ax in (top, bottom):
            if start > 0:
                ax.axvline(start, color=SOFT, linewidth=0.6, linestyle=":")
            grid(ax)
    axes[0, 1].annotate(
        "m", (margin, 1.6 * margin), xytext=(-7, 0), textcoords="offset points", color=SOFT
    )
    axes[0, 0].set(ylabel="penalty", xlim=(0, reach))
    axes[1, 0].set(ylabel="derivative", ylim=(-0.15, 1.3), yticks=[0, 1])
    figure.supxlabel("logit distance, largest logit − logit of class k", fontsize=SMALL)
    return figure


MOST_BARS = 6
"""Classes of which the mean logits are drawn as bars; those of more are drawn as a matrix."""


@styled
def mean_logits(
    logits: Mapping[str, Floats], labels: Mapping[str, str], classes: Sequence[str]
) -> Figure:
    """A panel per contender: for the voxels of each true class a group of bars, one for the mean
    logit of each class.

    `logits[key]` is (K, K): a row per true class, a column per logit; `classes` start with the
    background. Bars carry the number of their class, and the true one's is hatched: colours stand
    for methods. With many classes a panel is a matrix of the same values."""
    matrix = len(classes) > MOST_BARS
    columns = min(len(logits), 2)
    rows = -(-len(logits) // columns)
    names = [f"{k} {name}" for k, name in enumerate(classes)]
    each = 12 + 4.2 * len(classes) if matrix else 46
    figure, axes = panels(rows, columns, height=(6 + each * rows) * MM, sharey=True, sharex=True)
    low, high = _range(logits.values())
    for ax, (key, table) in zip(axes.flat, logits.items(), strict=False):
        ax.set_title(labels[key])
        if matrix:
            drawn = _draw_matrix(ax, table, names, low, high)
        else:
            _draw_groups(ax, table, names)
    for ax in axes.flat[len(logits) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("true class" if matrix else "mean logit")
    for ax in axes[-1]:
        ax.set_xlabel("logit of class" if matrix else "true class")
    if matrix:
        bar = figure.colorbar(drawn, ax=axes, pad=0.01, aspect=30)
        bar.set_label("mean logit", fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
        bar.outline.set_visible(False)
    else:
        room = 0.1 * (high - low)  # for the numbers beyond the bars
        axes[0, 0].set_ylim(low - room, high + room)
        add_handles(
            figure,
            [Patch(**TRUE, label="logit of the true class"), Patch(**OTHER, label="of another")],
        )
    return figure


def _range(tables: Iterable[Floats]) -> tuple[float, float]:
    """The least and the greatest of all values and 0."""
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
                _number(ax, k, places[true], heights[true], INK if true == k else SOFT)
    for empty in np.flatnonzero(np.isnan(table).any(1)):
        ax.text(float(empty), 0, "no voxels", ha="center", va="bottom", fontsize=SMALL, color=SOFT)
    ax.axhline(0, color=INK, linewidth=0.5)
    long = n * max(map(len, names)) > 54  # letters in a line under a panel
    turned: dict[str, Any] = (
        {"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if long else {}
    )
    ax.set_xticks(range(n), names, **turned)
    ax.tick_params(axis="x", length=0)
    grid(ax, "y")


def _number(ax: Axes, k: int, x: float, y: float, ink: str) -> None:
    """The number of a class beyond the end of its bar."""
    way, side = (1.5, "bottom") if y >= 0 else (-1.5, "top")
    ax.annotate(
        str(k),
        (x, y),
        xytext=(0, way),
        textcoords="offset points",
        ha="center",
        va=side,
        fontsize=SMALL,
        color=ink,
    )


def _draw_matrix(
    ax: Axes, table: Floats, names: Sequence[str], low: float, high: float
) -> AxesImage:
    n = len(names)
    drawn = ax.imshow(np.ma.masked_invalid(table), cmap="Greys", vmin=low, vmax=high, aspect="auto")
    for empty in np.flatnonzero(np.isnan(table).any(1)):
        ax.text(
            (n - 1) / 2,
            float(empty),
            "no voxels",
            ha="center",
            va="center",
            fontsize=SMALL,
            color=SOFT,
        )
    ax.set_xticks(range(n), [str(k) for k in range(n)])
    ax.set_yticks(range(n), [shortened(name, 22) for name in names])
    ax.tick_params(length=0)
    return drawn
