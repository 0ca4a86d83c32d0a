"""One slice through the eyes of each contender: what it sees, how sure it is, and how right it is to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from segcal.figures.calibration import draw_diagram
from segcal.figures.style import DOUBLE, MM, SMALL, add_handles, distinct, legend_size, panels, shortened, styled
from segcal.figures.values import BinSums

IN_A_ROW = 7


class Outcome(NamedTuple):
    """What a contender made of a case: the predicted labels and their confidence in a slice (H, W), bins of the case."""

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
    title: str = "",
) -> Figure:
    """Image and reference, and per contender its masks, its confidence and its reliability on the whole case.

    `image` and `reference` are (H, W); `aspect` is the height of a voxel over its width.
    """
    keys = list(outcomes)
    blocks = [keys[i : i + IN_A_ROW] for i in range(0, len(keys), IN_A_ROW)]
    columns = 1 + max(len(block) for block in blocks)
    each = min((DOUBLE - 22 * MM) / columns, 45 * MM)
    tall = float(np.clip(each * image.shape[0] * aspect / image.shape[1], 0.5 * each, 1.6 * each))
    _, room = legend_size(classes, DOUBLE)
    height = len(blocks) * (2 * tall + each + 12 * MM) + room + 8 * MM
    ratios = [tall, tall, each] * len(blocks)
    widths = [1.0] * columns + [0.05]  # the last column is for the scale of confidence
    figure, axes = panels(3 * len(blocks), columns + 1, height=height, height_ratios=ratios, width_ratios=widths)
    colours = distinct(colours)
    for ax in axes.flat:
        ax.set_axis_off()
    low, high = 1 / (len(classes) + 1), 1.0  # the predicted class has at least its share
    for b, block in enumerate(blocks):
        masks, sure, right = axes[3 * b : 3 * b + 3]
        _show_slice(masks[0], image, aspect, "image")
        _show_slice(sure[0], _painted(image, reference, colours), aspect, "reference")
        for column, key in enumerate(block, start=1):
            found = outcomes[key]
            _show_slice(
                masks[column], _painted(image, found.labels, colours), aspect, shortened(labels[key], int(each / MM / 1.5))
            )
            sure[column].imshow(
                found.confidence, cmap="cividis", vmin=low, vmax=high, aspect=aspect, interpolation="nearest"
            )
            right[column].set_axis_on()
            draw_diagram(right[column], found.bins, key)
            right[column].set(aspect="equal", xlabel="confidence")
            right[column].tick_params(labelleft=column == 1)
        right[1].set_ylabel("accuracy")
        sure[-1].set_axis_on()
        bar = figure.colorbar(ScalarMappable(Normalize(low, high), "cividis"), cax=sure[-1])
        bar.set_label("confidence", fontsize=SMALL)
        sure[-1].tick_params(labelsize=SMALL, width=0.5, length=2)
        bar.outline.set_visible(False)
    if title:
        figure.suptitle(title)
    add_handles(figure, [Patch(color=c, label=name) for name, c in zip(classes, colours, strict=True)])
    return figure


def _show_slice(ax: Axes, picture: NDArray[Any], aspect: float, title: str) -> None:
    limits = {} if picture.ndim == 3 else {"cmap": "gray", "vmin": 0.0, "vmax": _white(picture)}
    ax.imshow(picture, aspect=aspect, interpolation="nearest", **limits)  # type: ignore[arg-type]
    ax.set_title(title)


def _white(image: NDArray[Any]) -> float:
    return max(float(np.quantile(image, 0.995)), 1e-6)


def _painted(
    image: NDArray[Any], labels: NDArray[Any], colours: Sequence[str], strength: float = 0.6
) -> NDArray[np.float64]:
    """The image in grey with each class in its colour: (H, W, 3)."""
    grey = np.clip(np.asarray(image, dtype=float) / _white(image), 0, 1)
    picture = np.repeat(grey[..., None], 3, axis=-1)
    for k, colour in enumerate(colours, start=1):
        inside = labels == k
        picture[inside] = (1 - strength) * picture[inside] + strength * np.array(to_rgb(colour))
    return picture
