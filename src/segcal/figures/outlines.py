"""Slices in grey with the outline of each class, and a sheet of many cases.

Methods are coloured areas, lines and markers on white; classes are outlines on an image, in colours
that no method has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from segcal.data.catalog import class_colours
from segcal.data.inspect import SliceView
from segcal.figures import layout
from segcal.figures.layout import DOUBLE, SMALL

GROUND = "#4D4D4D"  # the grey that means an image in a legend
LINES: tuple[Any, ...] = ("-", (0, (2.5, 1)), (0, (0.8, 0.8)))
WIDTH = 0.9
IN_A_ROW = 6


@layout.styled
def contact_sheet(slices: Sequence[SliceView], classes: Sequence[str], title: str) -> Figure:
    """Slices in grey and in true proportion, with the outlines of the classes."""
    rows, columns = layout.wrapped(len(slices), IN_A_ROW)
    each = DOUBLE / IN_A_ROW
    tallest = max(view.aspect * view.image.shape[0] / view.image.shape[1] for view in slices)
    height = rows * (each * float(np.clip(tallest, 0.4, 2)) + 4) + 6
    width = max(columns, 2) * each  # room for the title
    handles = class_handles(classes)
    figure, axes = layout.panels(rows, columns, width, height, handles)
    figure.suptitle(title)
    layout.switch_off(axes.flat)
    for ax, view in zip(axes.flat, slices, strict=False):
        name = layout.shortened(view.id, 22)
        show_slice(ax, view.image, view.label, len(classes), view.aspect, name)
        add_letters(ax, view.edges)
    return layout.finished(figure, handles)


def show_slice(
    ax: Axes, image: NDArray[Any], labels: NDArray[Any], n_classes: int, aspect: float, title: str
) -> None:
    """A slice (H, W) in grey with the outlines of its classes.

    The few brightest voxels are white; `aspect` is the height of a voxel over its width. A dark
    line on both sides of an outline makes it visible on any tissue."""
    white = max(float(np.quantile(image, 0.995)), 1e-6)
    ax.imshow(image, cmap="gray", vmin=0.0, vmax=white, aspect=aspect, interpolation="nearest")
    padded = np.pad(labels, 1)  # so that a class at the border has an outline there too
    height, width = labels.shape
    rows, columns = np.arange(-1, height + 1), np.arange(-1, width + 1)
    for k, (colour, line) in enumerate(class_lines(n_classes), start=1):
        if (labels == k).any():
            look: Any = {"colors": [colour], "linewidths": WIDTH, "linestyles": [line]}
            drawn = ax.contour(columns, rows, padded == k, levels=[0.5], **look)
            drawn.set_path_effects([withStroke(linewidth=3 * WIDTH, foreground="#00000099")])
    ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), title=title)


def class_lines(n_classes: int) -> list[tuple[str, Any]]:
    """The colour and line style of each class; a repeated colour is dashed, then dotted.

    >>> [line for _, line in class_lines(9)][-2:]
    ['-', (0, (2.5, 1))]
    """
    colours = class_colours(n_classes)
    lines = []
    for i, colour in enumerate(colours):
        lines.append((colour, LINES[colours[:i].count(colour) % len(LINES)]))
    return lines


def class_handles(classes: Sequence[str]) -> list[Patch]:
    """Entries of a legend: the outline of each class on the grey of an image."""
    handles = []
    for name, (colour, line) in zip(classes, class_lines(len(classes)), strict=True):
        look: Any = {"facecolor": GROUND, "edgecolor": colour, "linestyle": line}
        handles.append(Patch(**look, linewidth=1.2, label=name))
    return handles


SIDES = {"top": (0.5, 0.98), "bottom": (0.5, 0.02), "left": (0.02, 0.5), "right": (0.98, 0.5)}


def add_letters(ax: Axes, edges: Mapping[str, Any]) -> None:
    """The letters (R, L, A, P, S, I) of the sides of a slice, where they are known."""
    for side, (x, y) in SIDES.items():
        if side in edges:
            place: Any = {"ha": "center", "va": "center"}
            place["ha" if side in ("left", "right") else "va"] = side
            look: Any = {"color": "white", "fontsize": SMALL, "transform": ax.transAxes}
            text = ax.text(x, y, edges[side], **place, **look)
            text.set_path_effects([withStroke(linewidth=1.5, foreground="black")])
