"""Many cases at a glance: a slice of each with the outlines of its classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from segcal.data.inspect import SliceView
from segcal.figures.outlines import add_letters, class_handles, draw_outlines, show_image
from segcal.figures.style import DOUBLE, MM, add_handles, legend_size, panels, shortened, styled

IN_A_ROW = 6


@styled
def contact_sheet(
    slices: Sequence[SliceView], classes: Sequence[str], colours: Sequence[str], title: str
) -> Figure:
    """Slices in grey, in true proportion, with the outline of each class in its colour and letters
    at the sides.
    """
    columns = min(IN_A_ROW, len(slices))
    rows = math.ceil(len(slices) / columns)
    each = DOUBLE / IN_A_ROW
    tallest = max(view.aspect * view.image.shape[0] / view.image.shape[1] for view in slices)
    tall = each * float(np.clip(tallest, 0.4, 2))
    width = max(columns, 2) * each  # room for the title
    _, room = legend_size(classes, width)
    figure, axes = panels(rows, columns, width=width, height=rows * (tall + 4 * MM) + 6 * MM + room)
    figure.suptitle(title)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, view in zip(axes.flat, slices, strict=False):
        show_image(ax, view.image, view.aspect)
        draw_outlines(ax, view.label, colours)
        add_letters(ax, view.edges)
        ax.set_title(shortened(view.id, 22))
    add_handles(figure, class_handles(classes, colours))
    return figure
