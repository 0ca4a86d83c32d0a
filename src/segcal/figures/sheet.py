"""Figures: values in, a matplotlib Figure out; no function here touches a file or global state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from segcal.figures.outlines import class_handles, draw_outlines, show_image


def contact_sheet(
    slices: Sequence[tuple[str, NDArray[Any], NDArray[Any]]], classes: Sequence[str], colours: Sequence[str], title: str
) -> Figure:
    """A sheet of slices in grey with the outline of each class in its colour."""
    columns = min(6, len(slices))
    rows = math.ceil(len(slices) / columns)
    figure = Figure(figsize=(1.6 * columns, 1.8 * rows + 0.7), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, (name, image, label) in zip(axes, slices, strict=False):
        show_image(ax, image)
        ax.set_title(name if len(name) <= 22 else f"{name[:21]}…", fontsize=6)
        draw_outlines(ax, label, colours)
    handles = class_handles(classes, colours)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(classes)), fontsize=7, frameon=False)
    return figure
