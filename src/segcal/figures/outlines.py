"""A slice in grey with the outline of each class: how classes look in pictures.

Methods are coloured areas, lines and markers on white; classes are outlines on an image, in colours
that no method has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from segcal.figures.style import SMALL

GROUND = "#4D4D4D"
"""The grey that stands for an image in a legend."""

LINES: tuple[Any, ...] = ("-", (0, (2.5, 1)), (0, (0.8, 0.8)))
HALO = 2.0  # the width of the dark line around a bright one, over that one's own


def class_lines(colours: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The colour and line style of each class; a colour that comes again is dashed, then dotted.

    >>> [line for _, line in class_lines(["#ffff00", "#8080ff", "#ffff00"])]
    ['-', '-', (0, (2.5, 1))]
    """
    for i, colour in enumerate(colours):
        yield colour, LINES[list(colours[:i]).count(colour) % len(LINES)]


def show_image(ax: Axes, image: NDArray[Any], aspect: float = 1.0) -> None:
    """A slice (H, W) in grey, its few brightest voxels white; `aspect` is the height of a voxel
    over its width.
    """
    white = max(float(np.quantile(image, 0.995)), 1e-6)
    ax.imshow(image, cmap="gray", vmin=0.0, vmax=white, aspect=aspect, interpolation="nearest")


PLACES = {"top": (0.5, 0.98), "bottom": (0.5, 0.02), "left": (0.02, 0.5), "right": (0.98, 0.5)}


def add_letters(ax: Axes, edges: Mapping[str, Any]) -> None:
    """The letters (R, L, A, P, S, I) of the sides of a slice, where they are known."""
    for side, (x, y) in PLACES.items():
        if side in edges:
            sideways = {"left": "left", "right": "right"}.get(side, "center")
            upright = {"top": "top", "bottom": "bottom"}.get(side, "center")
            text = ax.text(
                x,
                y,
                edges[side],
                transform=ax.transAxes,
                ha=sideways,
                va=upright,
                color="white",
                fontsize=SMALL,
            )
            text.set_path_effects([withStroke(linewidth=1.5, foreground="black")])


def draw_outlines(
    ax: Axes, labels: NDArray[Any], colours: Sequence[str], *, width: float = 0.9
) -> None:
    """Around each class of a slice (H, W) a line in its colour, dark on both sides so that it shows
    on any tissue.
    """
    padded = np.pad(labels, 1)  # so that a class at the border is outlined there too
    rows, columns = (np.arange(-1, size + 1) for size in labels.shape)
    for k, (colour, line) in enumerate(class_lines(colours), start=1):
        if (labels == k).any():
            drawn = ax.contour(
                columns,
                rows,
                padded == k,
                levels=[0.5],
                colors=[colour],
                linewidths=width,
                linestyles=[line],
            )
            drawn.set_path_effects(
                [withStroke(linewidth=width + HALO * width, foreground="#00000099")]
            )
    height, breadth = labels.shape
    ax.set(xlim=(-0.5, breadth - 0.5), ylim=(height - 0.5, -0.5))


def class_handles(classes: Sequence[str], colours: Sequence[str]) -> list[Patch]:
    """What a legend shows for the classes: an outline on the grey of an image, unlike anything a
    method has.
    """
    return [
        Patch(facecolor=GROUND, edgecolor=colour, linestyle=line, linewidth=1.2, label=name)
        for name, (colour, line) in zip(classes, class_lines(colours), strict=True)
    ]
