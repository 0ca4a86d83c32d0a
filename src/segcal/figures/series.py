"""Curves: over the strength of a corruption, settings, coverage and epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from segcal.compare.metric_sets import PERFECT
from segcal.compare.names import Settings, setting_text, value_text
from segcal.figures import layout
from segcal.figures.given import Given, looks_or_own, sums_of
from segcal.figures.layout import DOUBLE, INK, SINGLE, SMALL, SOFT
from segcal.figures.looks import Look, Looks, axis_label
from segcal.figures.values import BinSums, aurc, risk_curve
from segcal.metrics import METRICS

LARGEST, SMALLEST = 7.5, 2.0  # markers, in points
RING: Any = {"linestyle": "none", "marker": "o", "fillstyle": "none", "color": INK}


def scores_in(columns: Iterable[Any]) -> list[str]:
    """Dice and the metric that is drawn with it, from the columns of a table.

    >>> scores_in(["kind", "dice", "nll"]), scores_in(["epoch", "val_dice", "val_ece"])
    (['dice', 'nll'], ['dice', 'ece'])
    """
    names = [str(name).removeprefix("val_") for name in columns]
    return ["dice", next(name for name in names if name in METRICS and name != "dice")]


def _perfect(metric: str) -> str:
    """The column of what a perfect network would have of a metric; empty if that is 0."""
    return PERFECT.get(metric, "")


def _dashes(look: Look) -> dict[str, Any]:
    """Arguments to plot the values of a perfect network."""
    return look.of_line(marker="", linestyle=(0, (2, 2)), linewidth=0.9, zorder=1.9)


@layout.styled
def robustness(table: pd.DataFrame, looks: Looks) -> Figure:
    """DSC against another metric: a panel per corruption, a line per contender; markers shrink.

    A row of the table has `kind` (as printed), `severity`, `contender`, and the means `dice`, of a
    metric of calibration and, if known, of what a perfect network would have of it."""
    scores, kinds = scores_in(table), table["kind"].unique()
    handles = layout.line_handles(looks[key] for key in table["contender"].unique())
    rows, columns = layout.wrapped(len(kinds), 2)
    width = SINGLE if columns == 1 else DOUBLE
    figure, axes = layout.panels(rows, columns, width, 66 * rows, handles)
    missing = []
    for kind, (ax,) in zip(kinds, layout.stacked(axes, len(kinds)), strict=True):
        part = table[table["kind"] == kind].sort_values("severity", kind="stable")
        levels = part["severity"].unique()
        sizes = dict(zip(levels, np.linspace(LARGEST, SMALLEST, len(levels)), strict=True))
        for key, rows_of_key in part.groupby("contender", sort=False):
            look, unknown = looks[str(key)], rows_of_key[scores].isna().any(axis=1)
            missing += [f"{look.label} ({kind} {s:g})" for s in rows_of_key["severity"][unknown]]
            known = rows_of_key[~unknown]
            ax.plot(known[scores[0]], known[scores[1]], **look.of_line(marker=""), zorder=2)
            if _perfect(scores[1]) in known:
                ax.plot(known[scores[0]], known[_perfect(scores[1])], **_dashes(look))
            for severity, x, y in known[["severity", *scores]].itertuples(index=False):
                marker = look.of_line(linestyle="none", markersize=sizes[severity])
                ax.plot(x, y, **marker, zorder=2.5)
        _name_levels(ax, kind, sizes)
        ax.set(xlabel=axis_label(scores[0]), ylabel=axis_label(scores[1]))
        layout.grid(ax)
    return layout.finished(figure, handles, missing=missing)


def _name_levels(ax: Axes, kind: str, sizes: Mapping[float, float]) -> None:
    """A legend above the panel: the marker of each severity."""
    handles = []
    for severity, size in sizes.items():
        marker: Any = {"linestyle": "none", "marker": "o", "color": SOFT, "markersize": size}
        handles.append(Line2D([], [], **marker, label=f"{severity:g}"))
    place: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(sizes)}
    spaces: Any = {"handletextpad": 0.5, "handlelength": 1.2}
    ax.legend(handles=handles, title=kind, title_fontsize=SMALL, **spaces, **place)


@layout.styled
def sensitivity(table: pd.DataFrame, looks: Looks, label: str = "") -> Figure:
    """A column per contender: DSC and a metric of calibration over the settings tried, with a ring
    at the chosen one.

    A row of the table is a run: `contender`, `setting` (pairs of name and value), its validation
    `dice` and the other metric, which `label` names, its value of a perfect network, if known, and
    `chosen`."""
    scores, keys = scores_in(table), table["contender"].unique()
    blocks, columns = layout.wrapped(len(keys), 5)
    width = DOUBLE if columns > 2 else SINGLE
    figure, axes = layout.panels(2 * blocks, columns, width, 8 + 74 * blocks)
    missing: list[str] = []
    for key, pair in zip(keys, layout.stacked(axes, len(keys), 2), strict=True):
        unknown = _draw_tried(pair, table[table["contender"] == key], looks[key], scores)
        missing += [f"{looks[key].label} ({text})" for text in unknown]
        pair[0].set_title(layout.shortened(looks[key].label, 26))
    for row, metric in enumerate(scores):
        drawn = [ax for ax in axes[row::2].flat if ax.axison]
        limits = np.array([ax.get_ylim() for ax in drawn])
        low, high = limits[:, 0].min(), limits[:, 1].max()
        room = 0.06 * (high - low)  # for the ring
        for ax in drawn:
            first = ax in axes[:, 0]
            ax.set(ylim=(low - room, high + room))
            ax.set(ylabel=_validation(metric, label) if first else "")
            ax.tick_params(labelleft=first, labelbottom=row == 1)
    handles = [Line2D([], [], label="chosen on validation", markersize=6, **RING)]
    return layout.finished(figure, handles, missing=missing)


def _draw_tried(
    pair: Iterable[Axes], runs: pd.DataFrame, look: Look, scores: Sequence[str]
) -> list[str]:
    """One metric above and one below over the settings of a contender; gives those without a
    value."""
    settings: list[Settings] = list(dict.fromkeys(runs["setting"]))
    places = np.array([settings.index(setting) for setting in runs["setting"]])
    chosen = np.unique(places[runs["chosen"]])
    name, ticks = _ticks(settings)
    missing: list[str] = []
    for ax, metric in zip(pair, scores, strict=True):
        means = runs.groupby(places)[metric].mean().to_numpy(dtype=float)
        missing += [setting_text(settings[i]) for i in np.flatnonzero(np.isnan(means))]
        if len(runs) > len(settings):
            dots: Any = {"linestyle": "none", "marker": ".", "markersize": 3, "alpha": 0.5}
            ax.plot(places, runs[metric], color=look.colour, **dots)
        ax.plot(range(len(settings)), means, **look.of_line())
        if _perfect(metric) in runs:
            perfect = runs.groupby(places)[_perfect(metric)].mean()
            ax.plot(range(len(settings)), perfect, **_dashes(look))
        ax.plot(chosen, means[chosen], markersize=9, markeredgewidth=0.7, **RING)
        ax.margins(y=0.15)
        layout.grid(ax, "y")
        ax.set_xticks(range(len(settings)), ticks)
        ax.set(xlabel=name if metric == scores[1] else "", xlim=(-0.5, len(settings) - 0.5))
    return list(dict.fromkeys(missing))


def _ticks(settings: Sequence[Settings]) -> tuple[str, list[str]]:
    """The label of an axis over settings, and its ticks: values, if all set the same one name."""
    names = {tuple(name for name, _ in setting) for setting in settings}
    if len(names) > 1 or len(settings[0]) != 1:
        return "", [setting_text(setting) for setting in settings]
    return settings[0][0][0], [value_text(setting[0][1]) for setting in settings]


@layout.styled
def risk_coverage(bins: Mapping[str, Given] | Given, looks: Looks | None = None) -> Figure:
    """Per contender the error rate among the most confident voxels, and the area under it."""
    bins = sums_of(bins)
    looks = looks_or_own(looks, bins)
    shown = {}
    for key, sums in bins.items():
        if np.sum(sums["count"]) > 0:
            shown[key] = replace(looks[key], label=f"{looks[key].label}: {aurc(sums):.4f}")
    handles = layout.line_handles(shown.values())
    entries = [*handles, Line2D([], [])]  # one more line, for the title
    figure, axes = layout.panels(1, 1, SINGLE, 62, entries)
    ax = axes[0, 0]
    for place, (key, look) in enumerate(shown.items()):
        every = (0.06 + 0.02 * (place % 5), 0.2)  # so that no marker hides another
        ax.plot(*risk_curve(bins[key]), **look.of_line(markevery=every, markersize=3))
    if not shown:
        layout.say(ax, "no voxels")
    ax.set(xlabel="coverage: share of the voxels kept, most confident first", xlim=(0, 1))
    ax.set(ylabel="risk: error rate among them", ylim=(0, None))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    layout.grid(ax)
    missing = layout.labels_without(looks, shown)
    return layout.finished(figure, handles, title="area under the curve ↓", missing=missing)


@layout.styled
def distance(
    bands: Mapping[str, Given] | Given,
    looks: Looks | None = None,
    classes: Sequence[str] = (),
) -> Figure:
    """Confidence less accuracy by distance to the outline, and below it the accuracy.

    Bands are sums (B,), half of them inside, and `class_conf` and `class_hit` (K, B); `classes`
    are the foreground's. A panel for the predicted class, then one for each class's probability."""
    bands = sums_of(bands)
    looks = looks_or_own(looks, bands)
    panels: list[tuple[str, str, dict[str, BinSums]]] = [("predicted class", "accuracy", {})]
    panels += [(name, "frequency", {}) for name in classes]
    for key, sums in bands.items():
        panels[0][2][key] = sums
        for k, (_, _, of_class) in enumerate(panels[1:], start=1):
            conf, hit = sums["class_conf"][k], sums["class_hit"][k]
            of_class[key] = {"count": sums["count"], "conf": conf, "hit": hit}
    handles = layout.line_handles(looks[key] for key in bands)
    rows, columns = layout.wrapped(len(panels), 3)
    width = SINGLE if columns < 3 else DOUBLE
    size: Any = {"height": 62 * rows, "height_ratios": [3, 2] * rows}
    figure, axes = layout.panels(2 * rows, columns, width, legend=handles, **size)
    for pair, (title, share, values) in zip(
        layout.stacked(axes, len(panels), 2), panels, strict=True
    ):
        for key, sums in values.items():
            _draw_bands(list(pair), sums, looks[key])
        pair[0].set_title(layout.shortened(title, 26))
        pair[0].axhline(0, color=SOFT, linewidth=0.7)
        pair[0].tick_params(labelbottom=False)
        pair[0].set_ylabel(f"{'confidence' if share == 'accuracy' else 'probability'} − {share}")
        pair[1].set(ylabel=share, ylim=(0, 1), xlabel="distance in mm")
        for ax in pair:
            ax.axvline(0, color=SOFT, linewidth=0.7, linestyle="--")
            ax.set_xticks([-4, -2, 0, 2, 4])
            layout.grid(ax)
    return layout.finished(figure, handles, missing=layout.labels_without(looks, bands))


def _draw_bands(pair: Sequence[Axes], sums: BinSums, look: Look) -> None:
    count = np.asarray(sums["count"])
    known = count > 0
    x = (np.arange(len(count)) - (len(count) - 1) / 2)[known]
    conf, hit = (np.asarray(sums[name])[known] / count[known] for name in ("conf", "hit"))
    pair[0].plot(x, conf - hit, **look.of_line(markersize=3))
    pair[1].plot(x, hit, **look.of_line(markersize=3), clip_on=False)


@layout.styled
def learning_curves(
    logs: Mapping[str, Sequence[pd.DataFrame]], looks: Looks, label: str = ""
) -> Figure:
    """Validation scores by epoch, a line per contender: the mean of its runs, and their range.

    A log has columns `epoch` (from 1), `val_dice`, and of another metric, such as `val_nll`, the
    same in all logs, which `label` names; beside `val_ece` it may have `val_ece_perfect`. The
    limits of the axes do not depend on the first tenth of the epochs: an untrained network would
    flatten the rest."""
    handles = layout.line_handles(looks[key] for key in logs)
    figure, axes = layout.panels(1, 2, DOUBLE, 60, handles)
    missing = layout.labels_without(looks, logs)
    scores = scores_in(next(iter(logs.values()))[0])
    later: dict[str, list[float]] = {metric: [] for metric in scores}
    for key, runs in logs.items():
        curves = {metric: _by_epoch(runs, f"val_{metric}") for metric in scores}
        mean = curves["dice"].mean(axis=1)
        if mean.isna().all():
            missing.append(looks[key].label)
            continue
        for ax, (metric, curve) in zip(axes[0], curves.items(), strict=True):
            _draw_curve(ax, curve, looks[key], float(mean.idxmax()))  # type: ignore[arg-type]
            shown = [curve]
            if all(f"val_{_perfect(metric)}" in run for run in runs):
                shown.append(_by_epoch(runs, f"val_{_perfect(metric)}"))
                ax.plot(shown[1].index, shown[1].mean(axis=1), **_dashes(looks[key]))
            for each in shown:
                values = each.iloc[len(each) // 10 :].to_numpy().ravel()
                later[metric] += values[~np.isnan(values)].tolist()
    for ax, metric in zip(axes[0], scores, strict=True):
        ax.set(xlabel="epoch", ylabel=_validation(metric, label))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        epochs = ax.dataLim.intervalx  # infinite if all values are missing
        ax.set_xlim(_widened(epochs if np.isfinite(epochs).all() else (0, 1), 0.03, 0.5))
        if later[metric]:
            ax.set_ylim(_widened((min(later[metric]), max(later[metric])), 0.08, 1e-3))
        else:
            layout.say(ax, "no values")
        layout.grid(ax)
    return layout.finished(figure, handles, missing=missing)


def _validation(metric: str, label: str) -> str:
    return label if label and metric != "dice" else f"validation {axis_label(metric)}"


def _widened(limits: Sequence[float], share: float, least: float) -> tuple[float, float]:
    low, high = limits
    room = max(least, share * (high - low))
    return low - room, high + room


def _by_epoch(runs: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    """A row per epoch, counted from 1, and a column per run."""
    curves = [run.set_index("epoch")[column].rename(i) for i, run in enumerate(runs)]
    return pd.concat(curves, axis=1).sort_index()


def _draw_curve(ax: Axes, curve: pd.DataFrame, look: Look, best: float) -> None:
    mean = curve.mean(axis=1)
    ax.plot(curve.index, mean, **look.of_line(marker="" if len(curve) > 1 else look.marker))
    if curve.shape[1] > 1:
        low, high = curve.min(axis=1), curve.max(axis=1)
        ax.fill_between(curve.index, low, high, color=look.colour, alpha=0.12, linewidth=0)
    ax.plot(best, mean[best], **look.of_line(linestyle="none"), zorder=3)
