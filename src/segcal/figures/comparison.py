"""Contenders side by side: radar, ranks, Dice against ECE, networks, with and without Dice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
from segcal.figures.looks import Looks, axis_label
from segcal.figures.style import CENTRED, DOUBLE, PALE, SINGLE, SMALL, SOFT, text_on
from segcal.figures.values import mean_ellipse, outward, spread_ellipse


def _distinct(names: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(names))


class Web(NamedTuple):
    """One radar: a row per contender, a column per axis, and which direction is better on each
    ("higher" or "lower").
    """

    title: str
    values: pd.DataFrame
    better: Sequence[str]


@layout.styled
def radar(webs: Sequence[Web], looks: Looks) -> Figure:
    """A radar per web; an axis goes from the worst value (inner ring) to the best (outer ring)."""
    keys = _distinct(key for web in webs for key in web.values.index)
    handles = layout.line_handles(looks[key] for key in keys)
    width = DOUBLE if len(webs) > 1 else SINGLE
    lowest = min(_spokes(max(web.values.shape[1], 1))[:, 1].min() for web in webs)
    height = (1.6 - lowest) * width / len(webs) / 3.2 + 8
    figure, axes = layout.panels(1, len(webs), width=width, height=height, legend=handles)
    missing = []
    for ax, web in zip(axes[0], webs, strict=True):
        _draw_web(ax, web, looks)
        for name, column in web.values.items():
            missing += [f"{looks[key].label} ({name})" for key in column.index[column.isna()]]
    return layout.finished(figure, handles, missing=missing)


def _draw_web(ax: Axes, web: Web, looks: Looks) -> None:
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.set_title(web.title)
    names = list(web.values.columns)
    if not names or web.values.dropna(how="all").empty:
        layout.say(ax, "no values")
        return
    inner, spokes = 0.25, _spokes(len(names))
    ax.set(xlim=(-1.6, 1.6), ylim=(spokes[:, 1].min() - 0.3, 1.3))
    for radius in np.linspace(inner, 1, 4):
        ax.plot(*_closed(radius * spokes).T, color=PALE, linewidth=0.5, zorder=0)
    scaled, ends = outward(web.values, dict(zip(names, web.better, strict=True)), inner)
    for (x, y), name in zip(spokes, names, strict=True):
        ax.plot([0, x], [0, y], color=PALE, linewidth=0.5, zorder=0)
        side = "center" if abs(x) < 0.2 else ("left" if x > 0 else "right")
        up = "bottom" if y > 0.2 else ("top" if y < -0.2 else "center")
        text = f"{layout.shortened(name, 18)}\n{' → '.join(map(_short, ends[name].dropna()))}"
        ax.text(1.07 * x, 1.07 * y, text, ha=side, va=up, fontsize=SMALL)
    for key in scaled.index:
        points = _closed(scaled.loc[key].to_numpy(dtype=float)[:, None] * spokes)
        ax.plot(*points.T, markersize=3, clip_on=False, **looks[key].of_line())


def _spokes(n: int) -> NDArray[Any]:
    """The ends of n axes (n, x and y), the first upwards, then clockwise."""
    turn = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(turn), np.sin(turn)], 1)


def _closed(points: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([points, points[:1]])


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


DARKEST = 0.6
"""The part of its colours that the heat map uses; black numbers are easy to read on all of them."""


@layout.styled
def rank_heatmap(
    ranks: Mapping[str, pd.DataFrame], looks: Looks, columns: Mapping[str, str] | None = None
) -> Figure:
    """A heat map per kind of rank: a row per contender, a column per metric, the overall rank last.

    Rank 1 is best. One bar at the side says which colour is which rank, for all panels."""
    n_rows = max(len(table) for table in ranks.values())
    ratios = [table.shape[1] for table in ranks.values()]
    size: Any = {"width": DOUBLE if sum(ratios) > 6 else SINGLE, "height": 14 + 6.5 * n_rows}
    figure, axes = layout.panels(1, len(ranks), width_ratios=ratios, **size)
    rows = list(next(iter(ranks.values())).index)
    cmap = ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0, DARKEST, 256)))
    colours: Any = ScalarMappable(Normalize(1, max(n_rows, 2)), cmap)
    for ax, (title, table) in zip(axes[0], ranks.items(), strict=True):
        names = [(columns or {}).get(str(name), str(name)) for name in table.columns]
        ax.set_title(title)
        ax.set_xticks(range(len(names)), names)
        ax.set_yticks(range(len(table)), [looks[key].label for key in table.index])
        ax.tick_params(length=0, labelleft=ax is axes[0, 0] or list(table.index) != rows)
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
            text, ink = f"{rank:g}" if halves else f"{rank:.2f}", text_on(colours.to_rgba(rank))
        bold = "bold" if rank == np.nanmin(ranks[:, j]) else "normal"
        ax.text(j, i, text, color=ink, fontweight=bold, **CENTRED)
    if ranks.shape[1] > 1:  # the overall rank is set apart
        ax.axvline(ranks.shape[1] - 1.5, color="white", linewidth=2)


@layout.styled
def dice_vs_ece(
    dice: pd.DataFrame, ece: pd.DataFrame, looks: Looks, *, unit: str = "case"
) -> Figure:
    """Left a point per case and contender, with an ellipse around half of them; right the means.

    Both tables have a row per case (or another `unit`) and a column per contender."""
    keys = [key for key in dice.columns if key in ece.columns]
    handles = layout.line_handles((looks[key] for key in keys), linestyle="none")
    figure, axes = layout.panels(1, 2, height=68, legend=handles)
    missing = layout.labels_without(looks, keys)
    for key in keys:
        points = pd.concat([dice[key], ece[key]], axis=1).dropna().to_numpy(dtype=float)
        look = looks[key]
        if not len(points):
            missing.append(look.label)
            continue
        dots: Any = {"marker": ".", "markersize": 2.5, "alpha": 0.45, "markeredgewidth": 0}
        axes[0, 0].plot(*points.T, linestyle="none", color=look.colour, **dots)
        for ax, shape in zip(axes[0], (spread_ellipse(points), mean_ellipse(points)), strict=True):
            if shape is not None:
                shape.set(facecolor=(*to_rgb(look.colour), 0.08), edgecolor=look.colour)
                shape.set(linewidth=0.8, linestyle=look.line)
                ax.add_patch(shape)
            ax.plot(*points.mean(0), **look.of_line(linestyle="none"), zorder=3)
    n = len(dice.dropna(how="all"))
    left, right = f"{n} {unit}{'s' * (n != 1)}", f"mean; too few {unit}s for an ellipse"
    if n > 2:
        left, right = f"{left}; ellipse: half of them", "mean; ellipse: 95 % confidence"
    for ax, title in zip(axes[0], (left, right), strict=True):
        ax.set(title=title, xlabel=axis_label("dice"), ylabel=axis_label("ece"))
        ax.autoscale_view()
        layout.grid(ax)
    return layout.finished(figure, handles, missing=missing)


@layout.styled
def backbones(values: Mapping[str, pd.DataFrame], looks: Looks) -> Figure:
    """A panel per metric: networks along the axis, a point per method with an interval.

    Rows of `values[metric]` are (network as printed, method), columns `mean`, `low` and `high`;
    `looks` are those of the methods."""
    rows = [row for table in values.values() for row in table.index]
    networks, methods = (_distinct(names) for names in zip(*rows, strict=True))
    handles = layout.line_handles((looks[method] for method in methods), linestyle="none")
    figure, axes = layout.panels(1, len(values), height=58, legend=handles)
    missing = set()
    for ax, (metric, table) in zip(axes[0], values.items(), strict=True):
        for (network, method), row in zip(table.index, table.to_numpy(dtype=float), strict=True):
            mean, low, high = row
            if np.isnan(mean):
                missing.add(f"{looks[method].label}, {network}")
                continue
            x = networks.index(network) + 0.5 * ((methods.index(method) + 0.5) / len(methods) - 0.5)
            ax.plot([x, x], [low, high], color=looks[method].colour, linewidth=1)
            ax.plot(x, mean, **looks[method].of_line(linestyle="none"))
        ax.set_xticks(range(len(networks)), [name.replace(" ", "\n") for name in networks])
        ax.set(ylabel=axis_label(metric), xlim=(-0.5, len(networks) - 0.5))
        layout.grid(ax, "y")
    return layout.finished(figure, handles, missing=sorted(missing))


@layout.styled
def objectives(values: Mapping[str, pd.DataFrame], looks: Looks) -> Figure:
    """A panel per metric, a bar per row (a class or a data set): each contender's share of the sum.

    The width of a part is the share, the number in it the value."""
    keys = _distinct(key for table in values.values() for key in table)
    handles = [Patch(color=looks[key].colour, label=looks[key].label) for key in keys]
    n_bars = max(len(table) for table in values.values())
    figure, axes = layout.panels(1, len(values), height=20 + 8 * n_bars, legend=handles)
    missing: set[str] = set()
    for ax, (metric, table) in zip(axes[0], values.items(), strict=True):
        for i, row in enumerate(table.index):
            unknown = _draw_shares(ax, i, table.loc[row], looks)
            missing.update(f"{label} ({row})" for label in unknown)
        ax.set_yticks(range(len(table)), [layout.shortened(str(row), 16) for row in table.index])
        ax.set(xlim=(0, 1), ylim=(len(table) - 0.5, -0.5))
        ax.set(title=axis_label(metric), xlabel="share of the sum")
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    return layout.finished(figure, handles, missing=sorted(missing))


def _draw_shares(ax: Axes, y: int, values: pd.Series[float], looks: Looks) -> list[str]:
    """One bar; gives the labels of the contenders without a value."""
    left, missing = 0.0, []
    for key, value in values.items():
        look, width = looks[str(key)], value / values.sum()
        if np.isnan(width):
            missing.append(look.label)
            continue
        border: Any = {"edgecolor": "white", "linewidth": 0.6}
        ax.barh(y, width, left=left, height=0.7, color=look.colour, **border)
        if width > 0.1:
            text, ink = _short(value), text_on(look.colour)
            ax.text(left + width / 2, y, text, color=ink, **CENTRED)
        left += width
    return missing
