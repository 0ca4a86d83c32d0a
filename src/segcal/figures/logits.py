"""What the margin does to logits: its penalty drawn as a function, and the mean logits that networks give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from segcal.figures.style import (
    DOUBLE,
    INK,
    MM,
    SINGLE,
    SMALL,
    SOFT,
    add_handles,
    distinct,
    grid,
    legend_size,
    panels,
    styled,
)
from segcal.figures.values import Floats


@styled
def penalty_shape(margin: float = 10.0) -> Figure:
    """The linear penalty on a logit distance beside the one with a margin, and under each its derivative."""
    figure, axes = panels(2, 2, width=SINGLE, height=70 * MM, sharex=True, sharey="row", height_ratios=[3, 2])
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
    axes[0, 1].annotate("m", (margin, 1.6 * margin), xytext=(-7, 0), textcoords="offset points", color=SOFT)
    axes[0, 0].set(ylabel="penalty", xlim=(0, reach))
    axes[1, 0].set(ylabel="derivative", ylim=(-0.15, 1.3), yticks=[0, 1])
    figure.supxlabel("logit distance, largest logit − logit of class k", fontsize=SMALL)
    return figure


@styled
def mean_logits(
    logits: Mapping[str, Floats], labels: Mapping[str, str], classes: Sequence[str], colours: Sequence[str]
) -> Figure:
    """A panel per contender: for the voxels of each true class a group of bars, one for the mean logit of each class.

    `logits[key]` is (K, K): a row per true class, a column per logit; `classes` and `colours` start with the background.
    """
    wide = len(classes) > 6  # then the panels stand one above the other
    columns = 1 if wide else min(len(logits), 2)
    rows = -(-len(logits) // columns)
    _, room = legend_size(classes, DOUBLE)
    figure, axes = panels(rows, columns, height=(10 + 42 * rows) * MM + room, sharey=True, sharex=True)
    step, seam = 0.8 / len(classes), 0.0 if wide else 0.3
    colours = distinct(colours)
    turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if wide else {}
    for ax, (key, table) in zip(axes.flat, logits.items(), strict=False):
        for k, colour in enumerate(colours):
            places = np.arange(len(classes)) + step * (k - (len(classes) - 1) / 2)
            ax.bar(places, np.nan_to_num(table[:, k]), width=step, color=colour, edgecolor="white", linewidth=seam)
        for true in np.flatnonzero(np.isnan(table).any(1)):
            ax.text(true, 0, "no voxels", ha="center", va="bottom", fontsize=SMALL, color=SOFT)
        ax.axhline(0, color=INK, linewidth=0.5)
        ax.set_title(labels[key])
        ax.set_xticks(range(len(classes)), classes, **turned)
        ax.tick_params(axis="x", length=0)
        grid(ax, "y")
    for ax in axes.flat[len(logits) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("mean logit")
    for ax in axes[-1]:
        ax.set_xlabel("true class")
    add_handles(figure, [Patch(color=c, label=name) for name, c in zip(classes, colours, strict=True)], "logit of")
    return figure
