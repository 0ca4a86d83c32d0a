"""Curves: noise that grows, settings that are tried, voxels that are left out, epochs that
go by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from segcal.figures.style import (
    DOUBLE,
    INK,
    MM,
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
)
from segcal.figures.values import BinSums, aurc, risk_curve
from segcal.metrics import METRICS

LARGEST, SMALLEST = 7.5, 2.0  # markers, in points


@styled
def robustness(table: pd.DataFrame, labels: Mapping[str, str]) -> Figure:
    """DSC against ECE under corruption: a panel per kind, a line per contender, markers smaller as
    it grows.

    A row of the table has `kind` (as printed), `severity`, `contender`, and the means `dice` and
    `ece`."""
    kinds = list(dict.fromkeys(table["kind"]))
    keys = list(dict.fromkeys(table["contender"]))
    columns = min(len(kinds), 2)
    rows = -(-len(kinds) // columns)
    width = SINGLE if columns == 1 else DOUBLE
    _, room = legend_size([labels[key] for key in keys], width)
    figure, axes = panels(rows, columns, width=width, height=66 * MM * rows + room)
    missing = []
    for ax, kind in zip(axes.flat, kinds, strict=False):
        part = table[table["kind"] == kind]
        levels = sorted(part["severity"].unique())
        sizes = dict(zip(levels, np.linspace(LARGEST, SMALLEST, len(levels)), strict=True))
        for key in keys:
            mine = part[part["contender"] == key].sort_values("severity")
            missing += [
                f"{labels[key]} ({kind} {s:g})"
                for s in mine["severity"][mine[["dice", "ece"]].isna().any(axis=1)]
            ]
            mine = mine.dropna(subset=["dice", "ece"])
            look = look_of(key).of_line()
            ax.plot(mine["dice"], mine["ece"], **look | {"marker": ""}, zorder=2)
            for severity, x, y in zip(mine["severity"], mine["dice"], mine["ece"], strict=True):
                ax.plot(
                    x, y, **look | {"linestyle": "none"}, markersize=sizes[severity], zorder=2.5
                )
        marks = [
            Line2D(
                [],
                [],
                linestyle="none",
                marker="o",
                color=SOFT,
                markersize=sizes[s],
                label=f"{s:g}",
            )
            for s in levels
        ]
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(levels)}
        ax.legend(
            handles=marks,
            title=kind,
            title_fontsize=SMALL,
            handletextpad=0.5,
            handlelength=1.2,
            **place,
        )
        ax.set(xlabel=_axis_label("dice"), ylabel=_axis_label("ece"))
        grid(ax)
    for ax in axes.flat[len(kinds) :]:
        ax.set_axis_off()
    say_missing(figure, missing)
    add_legend(figure, keys, labels)
    return figure


def _axis_label(metric: str) -> str:
    return f"{METRICS[metric].label} {METRICS[metric].arrow}"


@styled
def sensitivity(table: pd.DataFrame, labels: Mapping[str, str]) -> Figure:
    """A column per contender, a row for DSC and one for ECE, over the settings tried; a ring marks
    the one chosen.

    A row of the table is a run: `contender`, `setting` (as printed), its validation `dice` and
    `ece`, and `chosen`."""
    keys = list(dict.fromkeys(table["contender"]))
    columns = min(len(keys), 5)
    blocks = -(-len(keys) // columns)
    width = DOUBLE if columns > 2 else SINGLE
    figure, axes = panels(2 * blocks, columns, width=width, height=(8 + 74 * blocks) * MM)
    missing: list[str] = []
    for i, key in enumerate(keys):
        pair = axes[2 * (i // columns) : 2 * (i // columns) + 2, i % columns]
        missing += [
            f"{labels[key]} ({text})"
            for text in _draw_tried(pair, table[table["contender"] == key], key)
        ]
        pair[0].set_title(shortened(labels[key], 26))
    for ax in axes[-2:, len(keys) - (blocks - 1) * columns :].flat:  # places without a contender
        ax.set_axis_off()
    for row, metric in enumerate(("dice", "ece")):
        drawn = [ax for ax in axes[row::2].flat if ax.axison]
        limits = np.array([ax.get_ylim() for ax in drawn])
        low, high = limits[:, 0].min(), limits[:, 1].max()
        room = 0.06 * (high - low)  # for the ring
        for ax in drawn:
            first = ax in axes[:, 0]
            ax.set(
                ylim=(low - room, high + room),
                ylabel=f"validation {_axis_label(metric)}" if first else "",
            )
            ax.tick_params(labelleft=first, labelbottom=metric == "ece")
    say_missing(figure, missing)
    ring: dict[str, Any] = {
        "linestyle": "none",
        "marker": "o",
        "fillstyle": "none",
        "color": INK,
        "markersize": 6,
    }
    add_handles(
        figure, [Line2D([], [], label=f"chosen by validation {METRICS['dice'].label}", **ring)]
    )
    return figure


def _draw_tried(pair: Iterable[Axes], runs: pd.DataFrame, key: str) -> list[str]:
    """DSC above and ECE below over the settings of a contender; gives those without a value."""
    settings = list(dict.fromkeys(runs["setting"]))
    name = _setting_name(settings)
    places = runs["setting"].map({text: i for i, text in enumerate(settings)})
    chosen = [settings.index(text) for text in runs.loc[runs["chosen"], "setting"].unique()]
    missing: list[str] = []
    for ax, metric in zip(pair, ("dice", "ece"), strict=True):
        means = runs.groupby("setting", sort=False)[metric].mean().to_numpy(dtype=float)
        missing += [settings[i] for i in np.flatnonzero(np.isnan(means))]
        if len(runs) > len(settings):
            ax.plot(
                places,
                runs[metric],
                linestyle="none",
                marker=".",
                markersize=3,
                color=colour_of(key),
                alpha=0.5,
            )
        ax.plot(range(len(settings)), means, **look_of(key).of_line())
        ring: dict[str, Any] = {
            "marker": "o",
            "markersize": 9,
            "fillstyle": "none",
            "color": INK,
            "markeredgewidth": 0.7,
        }
        ax.plot(chosen, means[chosen], linestyle="none", **ring)
        ax.margins(y=0.15)
        grid(ax, "y")
        ax.set_xticks(
            range(len(settings)), [text.partition("=")[2] if name else text for text in settings]
        )
        ax.set(xlabel=name if metric == "ece" else "", xlim=(-0.5, len(settings) - 0.5))
    return list(dict.fromkeys(missing))


def _setting_name(settings: Sequence[str]) -> str:
    """The name that all settings share, if each is one number: `margin=5`, `margin=8` ->
    `margin`.
    """
    names = {text.partition("=")[0] for text in settings}
    single = all(text.count("=") == 1 for text in settings)
    return names.pop() if len(names) == 1 and single else ""


@styled
def risk_coverage(bins: Mapping[str, BinSums], labels: Mapping[str, str]) -> Figure:
    """The error rate among the most confident share of the voxels, a curve per contender with the
    area under it.
    """
    texts = {
        key: f"{labels[key]}: {aurc(sums):.4f}"
        for key, sums in bins.items()
        if np.sum(sums["count"]) > 0
    }
    _, room = legend_size([*texts.values(), ""], SINGLE)
    figure, axes = panels(1, 1, width=SINGLE, height=62 * MM + room)
    ax = axes[0, 0]
    for place, (key, sums) in enumerate(bins.items()):
        if key in texts:
            coverage, risk = risk_curve(sums)
            every = (0.06 + 0.02 * (place % 5), 0.2)  # markers apart, so that none hides another
            ax.plot(coverage, risk, **look_of(key).of_line(), markevery=every, markersize=3)
    if not texts:
        say(ax, "no voxels")
    ax.set(
        xlabel="coverage: share of the voxels kept, most confident first",
        ylabel="risk: error rate among them",
        xlim=(0, 1),
    )
    ax.set_ylim(bottom=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    grid(ax)
    say_missing(figure, [text for key, text in labels.items() if key not in texts])
    add_legend(figure, texts, texts, title="area under the curve ↓")
    return figure


@styled
def learning_curves(
    logs: Mapping[str, Sequence[pd.DataFrame]], labels: Mapping[str, str]
) -> Figure:
    """Validation DSC and ECE by epoch, a line per contender: the mean of its runs, a band from
    lowest to highest.

    A log has columns `epoch` (from 0), `val_dice`, `val_ece`; a marker stands at the epoch with the
    best mean DSC. The first tenth of the epochs does not decide how far the axes reach: a network
    that knows nothing yet would flatten all the rest."""
    _, room = legend_size([labels[key] for key in logs], DOUBLE)
    figure, axes = panels(1, 2, height=60 * MM + room)
    missing = [text for key, text in labels.items() if key not in logs]
    later: dict[str, list[float]] = {"dice": [], "ece": []}
    for key, runs in logs.items():
        curves = {what: _by_epoch(runs, f"val_{what}") for what in ("dice", "ece")}
        mean = curves["dice"].mean(axis=1)
        if mean.isna().all():
            missing.append(labels[key])
            continue
        for ax, (what, curve) in zip(axes[0], curves.items(), strict=True):
            _draw_curve(ax, curve, key, float(mean.idxmax()))  # type: ignore[arg-type]
            later[what] += [
                v for v in curve.iloc[len(curve) // 10 :].to_numpy().ravel() if not math.isnan(v)
            ]
    for ax, what in zip(axes[0], ("dice", "ece"), strict=True):
        ax.set(xlabel="epoch", ylabel=f"validation {_axis_label(what)}")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        low, high = ax.dataLim.intervalx if ax.has_data() else (0, 1)
        ax.set_xlim(low - max(0.5, 0.03 * (high - low)), high + max(0.5, 0.03 * (high - low)))
        if later[what]:
            low, high = min(later[what]), max(later[what])
            ax.set_ylim(low - max(1e-3, 0.08 * (high - low)), high + max(1e-3, 0.08 * (high - low)))
        grid(ax)
    say_missing(figure, missing)
    add_legend(figure, logs, labels)
    return figure


def _by_epoch(runs: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    found = pd.concat(
        [run.set_index("epoch")[column].rename(i) for i, run in enumerate(runs)], axis=1
    ).sort_index()
    return found.set_axis(found.index + 1)


def _draw_curve(ax: Axes, curve: pd.DataFrame, key: str, best: float) -> None:
    look, mean = look_of(key), curve.mean(axis=1)
    ax.plot(curve.index, mean, **look.of_line() | {"marker": "" if len(curve) > 1 else look.marker})
    if curve.shape[1] > 1:
        ax.fill_between(
            curve.index,
            curve.min(axis=1),
            curve.max(axis=1),
            color=colour_of(key),
            alpha=0.12,
            linewidth=0,
        )
    ax.plot(best, mean[best], **look.of_line() | {"linestyle": "none"}, zorder=3)
