"""One slice through the eyes of each contender: what it sees, how sure it is, and how right it is
to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from segcal.figures.calibration import draw_diagram
from segcal.figures.outlines import add_letters, class_handles, draw_outlines, show_image
from segcal.figures.style import (
    DOUBLE,
    MM,
    SMALL,
    add_handles,
    legend_size,
    panels,
    shortened,
    styled,
)
from segcal.figures.values import BinSums

IN_A_ROW = 7


class Outcome(NamedTuple):
    """What a contender made of a case: the predicted labels and their confidence in a slice (H, W),
    bins of the case.
    """

    labels: NDArray[Any]
    confidence: NDArray[Any]
    bins: BinSums


@styled
def qualitative(
    image: NDArray[Any],
    reference: NDArray[Any],
    outcomes: Mapping[str, Outcome],
    labels: Mapping[str, str],
    classes: Sequence[str],
    colours: Sequence[str],
    *,
    aspect: float = 1.0,
    edges: Mapping[str, Any] | None = None,
    title: str = "",
) -> Figure:
    """Image and reference, and per contender its masks, its confidence and its reliability on the
    whole case.

    `image` and `reference` are (H, W); `aspect` is the height of a voxel over its width, `edges`
    the letters of the slice's sides if they are known (`segcal.data.orientation`); slices are drawn
    as they are given."""
    keys = list(outcomes)
    blocks = [keys[i : i + IN_A_ROW] for i in range(0, len(keys), IN_A_ROW)]
    figure, axes, each = _canvas(
        len(blocks), 1 + max(map(len, blocks)), image.shape[0] * aspect / image.shape[1], classes
    )
    low, high = 1 / (len(classes) + 1), 1.0  # the predicted class has at least its share
    for b, block in enumerate(blocks):
        masks, sure, right = axes[3 * b : 3 * b + 3]
        _show_slice(masks[0], image, None, colours, aspect, "image")
        add_letters(masks[0], edges or {})
        _show_slice(sure[0], image, reference, colours, aspect, "reference")
        for column, key in enumerate(block, start=1):
            found = outcomes[key]
            name = shortened(labels[key], int(each / MM / 1.5))
            _show_slice(masks[column], image, found.labels, colours, aspect, name)
            sure[column].imshow(
                found.confidence,
                cmap="cividis",
                vmin=low,
                vmax=high,
                aspect=aspect,
                interpolation="nearest",
            )
            right[column].set_axis_on()
            draw_diagram(right[column], found.bins, key)
            right[column].set(aspect="equal", xlabel="confidence")
            right[column].tick_params(labelleft=column == 1)
        right[1].set_ylabel("accuracy")
        _add_scale(figure, sure[-1], low, high)
    if title:
        figure.suptitle(title)
    add_handles(figure, class_handles(classes, colours), "class")
    return figure


def _canvas(
    n_blocks: int, columns: int, tallness: float, classes: Sequence[str]
) -> tuple[Figure, NDArray[Any], float]:
    """Three rows per block, slices of this height over width, a narrow last column; and how wide a
    panel is.
    """
    each = min((DOUBLE - 22 * MM) / columns, 45 * MM)
    tall = float(np.clip(each * tallness, 0.5 * each, 1.6 * each))
    _, room = legend_size(classes, DOUBLE)
    height = n_blocks * (2 * tall + each + 12 * MM) + room + 8 * MM
    widths = [1.0] * columns + [0.05]  # the last column is for the scale of confidence
    ratios = [tall, tall, each] * n_blocks
    figure, axes = panels(
        3 * n_blocks, columns + 1, height=height, height_ratios=ratios, width_ratios=widths
    )
    for ax in axes.flat:
        ax.set_axis_off()
    return figure, axes, each


def _add_scale(figure: Figure, ax: Axes, low: float, high: float) -> None:
    ax.set_axis_on()
    bar = figure.colorbar(ScalarMappable(Normalize(low, high), "cividis"), cax=ax)
    bar.set_label("confidence", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    bar.outline.set_visible(False)


def _show_slice(
    ax: Axes,
    image: NDArray[Any],
    labels: NDArray[Any] | None,
    colours: Sequence[str],
    aspect: float,
    title: str,
) -> None:
    show_image(ax, image, aspect)
    if labels is not None:
        draw_outlines(ax, labels, colours)
    ax.set_title(title)
