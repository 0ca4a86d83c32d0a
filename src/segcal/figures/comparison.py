"""Contenders side by side: ranks, Dice against calibration, mean logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from segcal.figures import layout
from segcal.figures.layout import CENTRED, DOUBLE, INK, SINGLE, SOFT
from segcal.figures.looks import Looks, axis_label
from segcal.figures.values import Floats, mean_ellipse, spread_ellipse

DARKEST = 0.6  # the part of the colours that the heat map uses; black is easy to read on all
# Bars have no colour, because every colour, black and grey too, means a method.
TRUE: Any = {"facecolor": "white", "edgecolor": INK, "hatch": "//////", "linewidth": 0.6}
OTHER: Any = {"facecolor": "white", "edgecolor": SOFT, "linewidth": 0.6}
MOST_BARS = 6  # the mean logits of more classes are drawn as a matrix


@layout.styled
def rank_heatmap(ranks: Mapping[str, pd.DataFrame], looks: Looks) -> Figure:
    """A heat map per kind of rank: a row per contender, a column per metric, the overall rank last.

    The tables have the same rows; rank 1 is best."""
    n_rows = max(len(table) for table in ranks.values())
    ratios = [table.shape[1] for table in ranks.values()]
    width = DOUBLE if sum(ratios) > 6 else SINGLE
    figure, axes = layout.panels(1, len(ranks), width, 14 + 6.5 * n_rows, width_ratios=ratios)
    cmap = ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0, DARKEST, 256)))
    colours: Any = ScalarMappable(Normalize(1, max(n_rows, 2)), cmap)
    for ax, (title, table) in zip(axes[0], ranks.items(), strict=True):
        ax.set_title(title)
        ax.set_xticks(range(table.shape[1]), table.columns)
        ax.set_yticks(range(len(table)), [looks[key].label for key in table.index])
        ax.tick_params(length=0, labelleft=ax is axes[0, 0])
        ax.spines[:].set_visible(False)
        _draw_ranks(ax, table.to_numpy(dtype=float), colours)
    if n_rows > 1:
        where: Any = {"ax": axes, "pad": 0.01, "fraction": 0.03, "aspect": max(6, 2 * n_rows)}
        bar = layout.colour_bar(figure, colours, "rank", length=0, **where)
        bar.set_ticks([1, n_rows], labels=["1, best", f"{n_rows}"])
        bar.ax.invert_yaxis()
    return figure


def _draw_ranks(ax: Axes, ranks: NDArray[Any], colours: Any) -> None:
    ax.imshow(np.ma.masked_invalid(ranks), cmap=colours.cmap, norm=colours.norm, aspect="auto")
    halves = np.all(np.isnan(ranks) | (2 * ranks % 1 == 0))  # a tie is half a rank
    for (i, j), rank in np.ndenumerate(ranks):
        text, ink = "–", SOFT
        if not np.isnan(rank):
            text, ink = f"{rank:g}" if halves else f"{rank:.2f}", INK
        bold = "bold" if rank == np.nanmin(ranks[:, j]) else "normal"
        ax.text(j, i, text, color=ink, fontweight=bold, **CENTRED)
    if ranks.shape[1] > 1:  # the overall rank is set apart
        ax.axvline(ranks.shape[1] - 1.5, color="white", linewidth=2)


@layout.styled
def dice_vs_calibration(
    dice: pd.DataFrame,
    error: pd.DataFrame,
    looks: Looks,
    *,
    metric: str = "misplaced",
    unit: str = "case",
    perfect: Mapping[str, float] | None = None,
) -> Figure:
    """Left a point per case and contender, with an ellipse around half of them; right the means.

    Both tables have a row per case (or another `unit`) and a column per contender; `metric` is the
    one of `error`. `perfect` is the mean that each would have with the same probabilities, all
    right."""
    keys = [key for key in dice.columns if key in error.columns]
    handles = layout.line_handles((looks[key] for key in keys), linestyle="none")
    figure, axes = layout.panels(1, 2, DOUBLE, 68, handles)
    missing = layout.labels_without(looks, keys)
    for key in keys:
        points = pd.concat([dice[key], error[key]], axis=1).dropna().to_numpy(dtype=float)
        look = looks[key]
        if not len(points):
            missing.append(look.label)
            continue
        dots: Any = {"marker": ".", "markersize": 2.5, "alpha": 0.45, "markeredgewidth": 0}
        axes[0, 0].plot(*points.T, linestyle="none", color=look.colour, **dots)
        for ax, ellipse in zip(axes[0], (spread_ellipse, mean_ellipse), strict=True):
            if len(points) > 2:
                shape = ellipse(points)
                shape.set(facecolor=(*to_rgb(look.colour), 0.08), edgecolor=look.colour)
                shape.set(linewidth=0.8, linestyle=look.line)
                ax.add_patch(shape)
            ax.plot(*points.mean(0), **look.of_line(linestyle="none"), zorder=3)
        if perfect and key in perfect:
            dash: Any = {"marker": "_", "markersize": 9, "markeredgewidth": 1.5}
            axes[0, 1].plot(points[:, 0].mean(), perfect[key], color=look.colour, **dash, zorder=3)
    n = len(dice.dropna(how="all"))
    left, right = f"{n} {unit}{'s' * (n != 1)}", f"mean; too few {unit}s for an ellipse"
    if n > 2:
        left, right = f"{left}; ellipse: half of them", "mean; ellipse: 95 % confidence"
    right += "; dash: if perfect" if perfect else ""
    for ax, title in zip(axes[0], (left, right), strict=True):
        ax.set(title=title, xlabel=axis_label("dice"), ylabel=axis_label(metric))
        ax.autoscale_view()
        layout.grid(ax)
    return layout.finished(figure, handles, missing=missing)


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
    height = 6 + each * rows
    figure, axes = layout.panels(rows, columns, DOUBLE, height, sharex=True, sharey=True)
    known = np.concatenate([table[np.isfinite(table)] for table in logits.values()])
    limits = float(known.min(initial=0)), float(known.max(initial=1))
    for (ax,), (key, table) in zip(layout.stacked(axes, len(logits)), logits.items(), strict=True):
        ax.set_title(looks[key].label)
        if matrix:
            image = _draw_matrix(ax, table, names, limits)
        else:
            _draw_groups(ax, table, names)
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
