"""asd, assd and hd95 of three classes against medpy and MONAI, which compute each on its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import medpy.metric.binary as medpy
import monai.metrics
import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor

from benchmarks.measure import Row, time_row
from segcal import metrics

SPACING, N_CLASSES = (2.0, 1.0, 1.0), 4
ORGANS = (  # centres and radii, in voxels of the whole volume
    ((50, 80, 80), (35, 60, 50)),
    ((45, 170, 90), (20, 30, 30)),
    ((60, 150, 180), (12, 18, 25)),
)


def organs(seed: int, step: int) -> Tensor:
    """Every `step`-th voxel of a label map (100, 240, 240) with three rough ellipsoids."""
    rng = np.random.default_rng(seed)
    axes = tuple(np.arange(0, size, step) for size in (100, 240, 240))
    shape = tuple(len(axis) for axis in axes)
    rough = ndimage.gaussian_filter(rng.standard_normal(shape), 5 / step)
    # Two of these agree to a Dice of about 0.9, as a usual prediction and its reference.
    rough *= 0.05 / rough.std()
    grid = np.meshgrid(*axes, indexing="ij", sparse=True)
    labels = np.zeros(shape, dtype=np.int64)
    for k, (centre, radius) in enumerate(ORGANS, 1):
        away = sum(((g - c) / r) ** 2 for g, c, r in zip(grid, centre, radius, strict=True))
        labels[np.sqrt(away) + rough < 1] = k
    return torch.from_numpy(labels)


def ours(pred: Tensor, labels: Tensor) -> Tensor:
    distances = metrics.surfaces(pred, labels, n_classes=N_CLASSES, spacing=SPACING)
    return torch.stack([f(distances) for f in (metrics.asd, metrics.assd, metrics.hd95)])


def by_medpy(pred: Tensor, labels: Tensor) -> Tensor:
    masks = [((pred == k).numpy(), (labels == k).numpy()) for k in range(1, N_CLASSES)]
    return torch.tensor(
        [[f(p, r, SPACING) for p, r in masks] for f in (medpy.asd, medpy.assd, medpy.hd95)]
    )


def by_monai(pred: Tensor, labels: Tensor) -> Tensor:
    p, r = (F.one_hot(v, N_CLASSES).movedim(-1, 0)[None] for v in (pred, labels))
    return torch.cat(
        [
            monai.metrics.compute_average_surface_distance(p, r, spacing=SPACING),
            monai.metrics.compute_average_surface_distance(p, r, symmetric=True, spacing=SPACING),
            monai.metrics.compute_hausdorff_distance(p, r, percentile=95, spacing=SPACING),
        ]
    )


def rows(step: int = 1, repeats: tuple[int, int] = (3, 5)) -> Iterator[Row]:
    warnings.simplefilter("ignore", FutureWarning)
    pred, labels = organs(0, step), organs(1, step)
    value = ours(pred, labels)
    by_peer = by_medpy(pred, labels).double()
    torch.testing.assert_close(value[:2], by_peer[:2])  # its hd95 is another
    torch.testing.assert_close(value, by_monai(pred, labels).double(), rtol=1e-4, atol=1e-5)
    what = f"asd + assd + hd95, 3 classes {tuple(labels.shape)}"
    peers = (("medpy", by_medpy, 0.03, repeats[0]), ("MONAI", by_monai, 0.2, repeats[1]))
    for name, peer, reach, n in peers:
        theirs = partial(peer, pred, labels)
        yield time_row(what, name, lambda: ours(pred, labels), theirs, reach, n)
