"""One slice as each contender predicts it: masks, confidence and reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from segcal.figures import layout
from segcal.figures.calibration import draw_diagram
from segcal.figures.layout import DOUBLE
from segcal.figures.looks import Looks
from segcal.figures.outlines import add_letters, class_handles, show_slice
from segcal.figures.values import BinSums

IN_A_ROW = 7


class Outcome(NamedTuple):
    """A contender's prediction: labels and confidence in a slice (H, W), bins of the case, and the
    ECE over them of a perfect network, if it is not 0."""

    labels: NDArray[Any]
    confidence: NDArray[Any]
    bins: BinSums
    perfect: float | None = None


@layout.styled
def qualitative(
    image: NDArray[Any],
    reference: NDArray[Any],
    outcomes: Mapping[str, Outcome],
    looks: Looks,
    classes: Sequence[str],
    *,
    aspect: float = 1.0,
    edges: Mapping[str, Any] | None = None,
    title: str = "",
) -> Figure:
    """Image and reference; per contender its masks, its confidence, its reliability on the case.

    `image` and `reference` are (H, W) and drawn as they are; `aspect` is the height of a voxel over
    its width, `edges` the letters of the slice's sides (`segcal.data.orientation`)."""
    n, keys, handles = len(classes), list(outcomes), class_handles(classes)
    blocks = [keys[i : i + IN_A_ROW] for i in range(0, len(keys), IN_A_ROW)]
    columns = 1 + len(blocks[0])
    each = min((DOUBLE - 22) / columns, 45)
    tall = each * float(np.clip(image.shape[0] * aspect / image.shape[1], 0.5, 1.6))
    height = len(blocks) * (2 * tall + each + 12) + 8
    # A narrow last column has the scale of confidence.
    ratios: Any = {"height_ratios": [tall, tall, each] * len(blocks)}
    ratios["width_ratios"] = [1] * columns + [0.05]
    n_rows = 3 * len(blocks)
    figure, axes = layout.panels(n_rows, columns + 1, DOUBLE, height, handles, **ratios)
    layout.switch_off(axes.flat)
    # The confidence of the predicted class is at least 1 / K.
    scale: Any = {"cmap": "cividis", "norm": Normalize(1 / (n + 1), 1.0)}
    for b, block in enumerate(blocks):
        masks, sure, right = axes[3 * b : 3 * b + 3]
        show_slice(masks[0], image, np.zeros_like(reference), n, aspect, "image")
        add_letters(masks[0], edges or {})
        show_slice(sure[0], image, reference, n, aspect, "reference")
        for column, key in enumerate(block, start=1):
            outcome, name = outcomes[key], layout.shortened(looks[key].label, int(each / 1.5))
            show_slice(masks[column], image, outcome.labels, n, aspect, name)
            sure[column].imshow(outcome.confidence, aspect=aspect, interpolation="nearest", **scale)
            right[column].set_axis_on()
            draw_diagram(right[column], outcome.bins, looks[key], outcome.perfect)
            right[column].set(aspect="equal", xlabel="confidence")
            right[column].tick_params(labelleft=column == 1)
        right[1].set_ylabel("accuracy")
        sure[-1].set_axis_on()
        layout.colour_bar(figure, ScalarMappable(**scale), "confidence", cax=sure[-1])
    if title:
        figure.suptitle(title)
    return layout.finished(figure, handles, title="class")
