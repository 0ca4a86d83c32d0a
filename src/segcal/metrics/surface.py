"""Distances between the surfaces of a predicted and a reference object.

A surface voxel has a face neighbour outside the object or the image, as in medpy and MONAI. A
distance is from its centre to that of the nearest surface voxel of the other object. A KD-tree
finds it: time and memory grow with the surface, not with the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree
from torch import Tensor

from segcal.metrics.arrays import Array, tensor_of
from segcal.metrics.overlap import check_label_maps
from segcal.types import IGNORE, UserError


@dataclass(frozen=True)
class Surface:
    """The distances of one class in one case; both are empty when either object is."""

    to_reference: NDArray[np.float64]  # from each surface voxel of the prediction
    to_prediction: NDArray[np.float64]  # from each surface voxel of the reference
    missed: bool  # present in one of the two only


def surfaces(
    pred: Array,
    labels: Array,
    *,
    n_classes: int,
    spacing: Sequence[float] | None,
    ignore_index: int = IGNORE,
) -> list[Surface]:
    """Surface distances of every foreground class, from label maps (*S) of one case in 2D or 3D.

    `spacing` is the size of a voxel per axis in millimetres; `None` asks for distances in voxels.

    >>> pred, labels = torch.zeros(5, 5).long(), torch.zeros(5, 5).long()
    >>> pred[1, 1] = labels[1, 3] = 1
    >>> distances = surfaces(pred, labels, n_classes=3, spacing=(1.0, 0.5))
    >>> asd(distances), missed(distances)
    (tensor([1., nan], dtype=torch.float64), tensor([0, 0]))
    """
    pred, labels = tensor_of(pred), tensor_of(labels)
    may_ignore = check_label_maps(pred, labels, n_classes, ignore_index)
    shape = tuple(pred.shape)
    if pred.ndim not in (2, 3):
        raise UserError(f"surfaces takes label maps of one case in 2D or 3D; got shape {shape}")
    size = np.ones(pred.ndim) if spacing is None else np.asarray(spacing, dtype=float)
    if size.shape != (pred.ndim,) or not (np.isfinite(size) & (size > 0)).all():
        allowed = f"{pred.ndim} positive numbers, one per axis"
        raise UserError(f"spacing must be {allowed}; got {spacing}")
    narrow = torch.uint8 if n_classes <= 256 else torch.int32
    p, r = (values.to(narrow).cpu().numpy() for values in (pred, labels))
    if may_ignore:
        kept = labels.cpu().numpy() != ignore_index  # NumPy compares bytes twenty times as fast
        p, r = p * kept, r * kept
    box = _box(p | r)  # a quick pass that saves the slower ones most of a volume
    p, r = p[box], r[box]
    p_boxes, r_boxes = (ndimage.find_objects(v, max_label=n_classes - 1) for v in (p, r))
    return [_surface(p, r, k, p_boxes[k - 1], r_boxes[k - 1], size) for k in range(1, n_classes)]


Map = NDArray[np.integer]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Box = tuple[slice, ...]


def _box(labels: Map) -> Box:
    """The smallest box that holds all objects; a single voxel if there is none."""
    box = []
    for axis in range(labels.ndim):
        others = tuple(other for other in range(labels.ndim) if other != axis)
        along = np.flatnonzero(labels.any(axis=others))
        box.append(slice(along[0], along[-1] + 1) if len(along) else slice(0, 1))
    return tuple(box)


def _surface(
    pred: Map, labels: Map, k: int, pred_box: Box | None, label_box: Box | None, size: Floats
) -> Surface:
    if pred_box is None or label_box is None:
        none = np.empty(0)
        return Surface(none, none, missed=(pred_box is None) != (label_box is None))
    pairs = zip(pred_box, label_box, strict=True)
    box = tuple(slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in pairs)
    p, r = _outline(pred[box] == k), _outline(labels[box] == k)
    both = p & r  # often most; they need no search
    return Surface(_distances(p, r, both, size), _distances(r, p, both, size), missed=False)


def _distances(points: Mask, others: Mask, both: Mask, size: Floats) -> Floats:
    """From each point to the nearest of the others, in no particular order."""
    apart = _places(points & ~both)
    if not len(apart):
        return np.zeros(np.count_nonzero(points))
    # Unbalanced trees with large leaves are built several times faster, and search as fast here.
    tree = cKDTree(_places(others) * size, leafsize=32, balanced_tree=False, compact_nodes=False)
    return np.concatenate([np.zeros(np.count_nonzero(both)), tree.query(apart * size)[0]])


def _places(mask: Mask) -> NDArray[np.int64]:
    """The indices (n, d) of a sparse mask; `argwhere` takes three times as long."""
    return np.stack(np.unravel_index(np.flatnonzero(mask), mask.shape), axis=1)


def _outline(region: Mask) -> Mask:
    inside = region.copy()
    for axis in range(region.ndim):
        inner, whole = np.moveaxis(inside, axis, 0), np.moveaxis(region, axis, 0)  # views
        inner[1:] &= whole[:-1]
        inner[:-1] &= whole[1:]
        inner[0] = inner[-1] = False
    return region & ~inside


def asd(distances: Sequence[Surface]) -> Tensor:
    """Average surface distance per class (K-1,), from prediction to reference as in the paper.

    Does not see what the prediction leaves out: read it beside `assd`. NaN if an object is absent.
    """
    return _per_class(distances, lambda s: s.to_reference.mean())


def assd(distances: Sequence[Surface]) -> Tensor:
    """Average symmetric surface distance per class (K-1,): the mean over both directions pooled."""
    return _per_class(distances, lambda s: np.append(s.to_reference, s.to_prediction).mean())


def hd95(distances: Sequence[Surface]) -> Tensor:
    """95th percentile Hausdorff distance per class (K-1,): the larger of the two directions'.

    As in MONAI and Metrics Reloaded. medpy takes the percentile of both directions pooled, where a
    long surface that fits well can hide a short one that is far away.
    """

    def larger(s: Surface) -> float:
        return max(np.percentile(s.to_reference, 95), np.percentile(s.to_prediction, 95))

    return _per_class(distances, larger)


def missed(distances: Sequence[Surface]) -> Tensor:
    """1 per class (K-1,) that is present in one of prediction and reference only, else 0."""
    return torch.tensor([int(s.missed) for s in distances])


def mean_distance(distances: Tensor, gone: Tensor) -> Tensor:
    """The mean over the classes (last axis) that have a distance; NaN if any of them is `missed`.

    A mean over the others alone would reward leaving out the class that is hardest to find.

    >>> mean_distance(torch.tensor([0.5, torch.nan]), torch.tensor([0, 0]))  # in neither
    tensor(0.5000)
    >>> mean_distance(torch.tensor([0.5, torch.nan]), torch.tensor([0, 1]))  # in one only
    tensor(nan)
    """
    return distances.nanmean(-1).masked_fill((gone > 0).any(-1), torch.nan)


def _per_class(distances: Sequence[Surface], value: Callable[[Surface], float]) -> Tensor:
    values = [value(s) if len(s.to_reference) else torch.nan for s in distances]
    return torch.tensor(values, dtype=torch.float64)
