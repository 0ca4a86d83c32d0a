"""One slice with what a network predicts there, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from segcal.figures import layout
from segcal.figures.layout import DOUBLE, SINGLE
from segcal.figures.outlines import add_letters, class_handles, show_slice
from segcal.metrics.arrays import tensor_of
from segcal.types import UserError

STRONGEST = 0.75  # how opaque the colour is where the network only guesses


@layout.styled
def confidence_overlay(
    image: NDArray[Any] | Tensor,
    probs: NDArray[Any] | Tensor,
    reference: NDArray[Any] | Tensor | None = None,
    *,
    classes: Sequence[str] | None = None,
    aspect: float = 1.0,
    edges: Mapping[str, Any] | None = None,
    title: str = "",
) -> Figure:
    """A slice (H, W) with outlines of the classes that probs (K, H, W) predict, coloured where the
    network is not sure; beside it the outlines of the reference, if there is one.

    `aspect` is the height of a voxel over its width, `edges` the letters of the slice's sides
    (`segcal.data.orientation`)."""
    picture, p = (tensor_of(values).detach().cpu().numpy() for values in (image, probs))
    if p.ndim != 3 or picture.shape != p.shape[1:]:
        got = f"{tuple(picture.shape)} and {tuple(p.shape)}"
        raise UserError(f"image must be a slice (H, W) and probs (K, H, W) of the same; got {got}")
    if p.min() < 0 or np.abs(p.sum(0) - 1).max() > 1e-2:
        raise UserError("probs must be probabilities; take logits.softmax of the classes' axis")
    names = list(classes or (f"class {k}" for k in range(1, len(p))))
    height = 12 + 80 * float(np.clip(picture.shape[0] * aspect / picture.shape[1], 0.5, 1.6))
    n = 1 if reference is None else 2
    handles = class_handles(names)
    figure, axes = layout.panels(1, n, SINGLE if n == 1 else DOUBLE, height, handles)
    layout.switch_off(axes.flat)
    colours = _draw_sure(axes[0, 0], picture, p, len(names), aspect)
    add_letters(axes[0, 0], edges or {})
    layout.colour_bar(figure, colours, "confidence of the predicted class", ax=axes[0, 0])
    if reference is not None:
        truth = tensor_of(reference).cpu().numpy()
        show_slice(axes[0, 1], picture, truth, len(names), aspect, "reference")
    if title:
        figure.suptitle(title)
    return layout.finished(figure, handles, title="class")


def _draw_sure(
    ax: Axes, image: NDArray[Any], probs: NDArray[Any], n_classes: int, aspect: float
) -> ScalarMappable:
    """Outlines of the prediction, and colour where it is not sure; gives the scale of colours."""
    confidence, lowest = probs.max(0), 1 / len(probs)  # the predicted class has at least 1 / K
    colours = ScalarMappable(Normalize(lowest, 1.0), "autumn")
    shown = colours.to_rgba(confidence)
    shown[..., 3] = STRONGEST * np.clip((1 - confidence) / (1 - lowest), 0, 1)
    show_slice(ax, image, probs.argmax(0), n_classes, aspect, "prediction")
    ax.imshow(shown, aspect=aspect, interpolation="nearest", zorder=1)
    return colours
