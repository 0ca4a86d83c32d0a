"""Contenders side by side: radar, ranks, Dice against ECE, backbones, objectives with and without
Dice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Patch
from numpy.typing import NDArray

from segcal.figures.style import (
    DOUBLE,
    MM,
    PALE,
    SINGLE,
    SMALL,
    SOFT,
    add_handles,
    add_legend,
    colour_of,
    grid,
    legend_size,
    look_of,
    panels,
    say,
    say_missing,
    shortened,
    styled,
    text_on,
)
from segcal.figures.values import Oval, mean_oval, outward, shares, spread_oval
from segcal.metrics import METRICS

Labels = Mapping[str, str]
"""The printed label of each contender, by its key; the key decides the look."""


def axis_label(metric: str) -> str:
    """A metric as printed beside an axis: label, unit and which way is better."""
    row = METRICS[metric]
    return f"{row.label} {row.arrow}" + (f" ({row.unit})" if row.unit else "")


# Radar
# ------------------------------------------------------------------------------


class Web(NamedTuple):
    """One radar: a row per contender, a column per axis, and which way is better on each ("higher"
    or "lower").
    """

    title: str
    values: pd.DataFrame
    better: Sequence[str]


@styled
def radar(webs: Sequence[Web], labels: Labels) -> Figure:
    """A radar per web; each axis goes from the worst value at the inner ring to the best at the
    outer, both printed.
    """
    keys = list(dict.fromkeys(key for web in webs for key in web.values.index))
    _, room = legend_size([labels[key] for key in keys], DOUBLE)
    width = DOUBLE if len(webs) > 1 else SINGLE
    lowest = min(_spokes(max(web.values.shape[1], 1))[:, 1].min() for web in webs)
    figure, axes = panels(
        1, len(webs), width=width, height=(1.6 - lowest) * width / len(webs) / 3.2 + 8 * MM + room
    )
    missing = []
    for ax, web in zip(axes[0], webs, strict=True):
        _draw_web(ax, web)
        gaps = web.values.isna()
        missing += [
            f"{labels[key]} ({name})" for name in gaps.columns for key in gaps.index[gaps[name]]
        ]
    say_missing(figure, missing)
    add_legend(figure, keys, labels)
    return figure


def _draw_web(ax: Axes, web: Web) -> None:
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.set_title(web.title)
    names = list(web.values.columns)
    if not names or web.values.dropna(how="all").empty:
        say(ax, "no values")
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
        span = " → ".join(_short(value) for value in ends[name].dropna())
        ax.text(
            1.07 * x, 1.07 * y, f"{shortened(name, 18)}\n{span}", ha=side, va=up, fontsize=SMALL
        )
    for key in scaled.index:
        points = _closed(scaled.loc[key].to_numpy(dtype=float)[:, None] * spokes)
        ax.plot(*points.T, markersize=3, clip_on=False, **look_of(key).of_line())


def _spokes(n: int) -> NDArray[Any]:
    """The ends of n axes (n, x and y), the first upwards, then clockwise."""
    turn = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(turn), np.sin(turn)], 1)


def _closed(points: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([points, points[:1]])


def _short(value: float) -> str:
    """A number as printed in a figure: three digits, no leading nought before a fraction's point is
    lost.
    """
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


# Ranks
# ------------------------------------------------------------------------------


DARKEST = 0.6
"""How far into its colours the heat map goes; black numbers read well on all of these."""


@styled
def rank_heatmap(
    ranks: Mapping[str, pd.DataFrame], labels: Labels, columns: Mapping[str, str] | None = None
) -> Figure:
    """A heat map per kind of rank: a row per contender, a column per metric and the overall rank
    last; 1 is best.

    One bar at the side says which colour is which rank, for all panels.
    """
    n_rows = max((len(table) for table in ranks.values()), default=1)
    n_columns = sum(table.shape[1] for table in ranks.values())
    width = DOUBLE if n_columns > 6 else SINGLE
    widths = [max(table.shape[1], 1) for table in ranks.values()]
    figure, axes = panels(
        1, len(ranks), width=width, height=(14 + 6.5 * n_rows) * MM, width_ratios=widths
    )
    rows = next(iter(ranks.values())).index
    colours = ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0, DARKEST, 256)))
    scale = Normalize(1, max(n_rows, 2))
    for ax, (title, table) in zip(axes[0], ranks.items(), strict=True):
        cells = table.to_numpy(dtype=float)
        ax.imshow(np.ma.masked_invalid(cells), cmap=colours, norm=scale, aspect="auto")
        digits = (
            "g" if np.all(np.isnan(cells) | (2 * cells % 1 == 0)) else ".2f"
        )  # a tie is half a rank
        ax.set_title(title)
        ax.set_xticks(
            range(table.shape[1]), [(columns or {}).get(str(c), str(c)) for c in table.columns]
        )
        ax.set_yticks(range(len(table)), [labels[key] for key in table.index])
        named = ax is axes[0, 0] or list(table.index) != list(rows)
        ax.tick_params(length=0, labelleft=named)
        ax.spines[:].set_visible(False)
        for (i, j), value in np.ndenumerate(cells):
            text = "–" if np.isnan(value) else f"{value:{digits}}"
            ink = SOFT if np.isnan(value) else text_on(colours(scale(value)))
            bold = "bold" if value == np.nanmin(cells[:, j]) else "normal"
            ax.text(
                j, i, text, ha="center", va="center", color=ink, fontsize=SMALL, fontweight=bold
            )
        if table.shape[1] > 1:
            ax.axvline(
                table.shape[1] - 1.5, color="white", linewidth=2
            )  # the overall rank stands apart
    if n_rows > 1:
        _rank_key(figure, axes, ScalarMappable(scale, colours), n_rows)
    return figure


def _rank_key(figure: Figure, axes: NDArray[Any], colours: ScalarMappable, n_rows: int) -> None:
    """The bar at the side, the best rank at its top."""
    bar = figure.colorbar(colours, ax=axes, pad=0.01, fraction=0.03, aspect=max(6, 2 * n_rows))
    bar.set_ticks([1, n_rows], labels=["1, best", f"{n_rows}"])
    bar.set_label("rank", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=0)
    bar.ax.invert_yaxis()
    bar.outline.set_visible(False)


# Dice against ECE
# ------------------------------------------------------------------------------


@styled
def dice_vs_ece(
    dice: pd.DataFrame, ece: pd.DataFrame, labels: Labels, *, unit: str = "case"
) -> Figure:
    """Left a point per case and contender with an ellipse around half of them, right the means and
    where they may lie.

    Both tables have a row per case (or another `unit`) and a column per contender.
    """
    keys = [key for key in dice.columns if key in ece.columns]
    _, room = legend_size([labels[key] for key in keys], DOUBLE)
    figure, axes = panels(1, 2, height=68 * MM + room)
    missing = [text for key, text in labels.items() if key not in keys]
    for key in keys:
        both = pd.concat([dice[key], ece[key]], axis=1).dropna().to_numpy(dtype=float)
        look = look_of(key)
        if not len(both):
            missing.append(labels[key])
            continue
        axes[0, 0].plot(
            *both.T,
            linestyle="none",
            marker=".",
            markersize=2.5,
            color=look.colour,
            alpha=0.45,
            markeredgewidth=0,
        )
        for ax, oval in zip(axes[0], (spread_oval(both), mean_oval(both)), strict=True):
            if oval is not None:
                _draw_oval(ax, oval, look.colour, look.line)
            ax.plot(*both.mean(0), **look.of_line() | {"linestyle": "none"}, zorder=3)
    n_known = len(dice.dropna(how="all"))
    many = n_known > 2
    axes[0, 0].set_title(
        f"{n_known} {unit}{'s' if n_known != 1 else ''}{'; ellipse: half of them' if many else ''}"
    )
    axes[0, 1].set_title(
        "mean; ellipse: 95 % confidence" if many else f"mean; too few {unit}s for an ellipse"
    )
    for ax in axes[0]:
        ax.set(xlabel=axis_label("dice"), ylabel=axis_label("ece"))
        ax.autoscale_view()
        grid(ax)
    say_missing(figure, missing)
    add_legend(figure, keys, labels, lines=False)
    return figure


def _draw_oval(ax: Axes, oval: Oval, colour: str, line: Any) -> None:
    shape = Ellipse(
        oval.centre, oval.width, oval.height, angle=oval.angle, facecolor=(*_rgb(colour), 0.08)
    )
    shape.set(edgecolor=colour, linewidth=0.8, linestyle=line)
    ax.add_patch(shape)


def _rgb(colour: str) -> tuple[float, float, float]:
    return matplotlib.colors.to_rgb(colour)


# Backbones and objectives
# ------------------------------------------------------------------------------


@styled
def backbones(values: Mapping[str, pd.DataFrame], labels: Labels) -> Figure:
    """A panel per metric: networks along the axis, a point per method with the interval of its
    mean.

    Rows of `values[metric]` are (network as printed, method), columns `mean`, `low` and `high`;
    `labels` name the methods."""
    cells = list(dict.fromkeys(pair for table in values.values() for pair in table.index))
    networks = list(dict.fromkeys(network for network, _ in cells))
    methods = list(dict.fromkeys(method for _, method in cells))
    _, room = legend_size([labels[m] for m in methods], DOUBLE)
    figure, axes = panels(1, len(values), height=58 * MM + room)
    missing = set()
    for ax, (metric, table) in zip(axes[0], values.items(), strict=True):
        for (network, method), (mean, low, high) in zip(
            table.index, table.to_numpy(dtype=float), strict=True
        ):
            if np.isnan(mean):
                missing.add(f"{labels[method]}, {network}")
                continue
            x = networks.index(network) + 0.5 * ((methods.index(method) + 0.5) / len(methods) - 0.5)
            ax.plot([x, x], [low, high], color=colour_of(method), linewidth=1)
            ax.plot(x, mean, **look_of(method).of_line() | {"linestyle": "none"})
        ax.set_xticks(range(len(networks)), [name.replace(" ", "\n") for name in networks])
        ax.set(ylabel=axis_label(metric), xlim=(-0.5, len(networks) - 0.5))
        grid(ax, "y")
    say_missing(figure, sorted(missing))
    add_legend(figure, methods, labels, lines=False)
    return figure


@styled
def objectives(values: Mapping[str, pd.DataFrame], labels: Labels) -> Figure:
    """A panel per metric: a bar per row (a class or a data set), in it each contender's share of
    the sum of all.

    The width of a part is the share, the number in it the value itself.
    """
    keys = list(dict.fromkeys(key for table in values.values() for key in table.columns))
    _, room = legend_size([labels[key] for key in keys], DOUBLE)
    n_bars = max(len(table) for table in values.values())
    figure, axes = panels(1, len(values), height=(20 + 8 * n_bars) * MM + room)
    missing = set()
    for ax, (metric, table) in zip(axes[0], values.items(), strict=True):
        parts = shares(table)
        for i, row in enumerate(table.index):
            left = 0.0
            for key in table.columns:
                width = float(parts.loc[row, key])
                if np.isnan(width):
                    missing.add(f"{labels[key]} ({row})")
                    continue
                ax.barh(
                    i,
                    width,
                    left=left,
                    height=0.7,
                    color=colour_of(key),
                    edgecolor="white",
                    linewidth=0.6,
                )
                if width > 0.1:
                    text = _short(float(table.loc[row, key]))
                    ink = text_on(colour_of(key))
                    ax.text(
                        left + width / 2,
                        i,
                        text,
                        ha="center",
                        va="center",
                        color=ink,
                        fontsize=SMALL,
                    )
                left += width
        ax.set_yticks(range(len(table)), [shortened(str(row), 16) for row in table.index])
        ax.set(
            xlim=(0, 1),
            ylim=(len(table) - 0.5, -0.5),
            title=axis_label(metric),
            xlabel="share of the sum",
        )
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    say_missing(figure, sorted(missing))
    add_handles(figure, [Patch(color=colour_of(key), label=labels[key]) for key in keys])
    return figure
