"""asd, assd and hd95 of three classes against medpy and MONAI, which compute each on its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import medpy.metric.binary as medpy
import monai.metrics
import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor

from benchmarks.measure import Row, time_row
from segcal import metrics

SHAPE, SPACING, N_CLASSES = (100, 240, 240), (2.0, 1.0, 1.0), 4


def organs(seed: int) -> Tensor:
    """A label map with three rough ellipsoids of different sizes."""
    rng = np.random.default_rng(seed)
    rough = ndimage.gaussian_filter(rng.standard_normal(SHAPE), 5)
    rough *= (
        0.05 / rough.std()
    )  # two of these agree to a Dice of about 0.9, as a usual prediction and its reference
    grid = np.meshgrid(*(np.arange(s) for s in SHAPE), indexing="ij", sparse=True)
    labels = np.zeros(SHAPE, dtype=np.int64)
    for k, (centre, radius) in enumerate(
        [
            ((50, 80, 80), (35, 60, 50)),
            ((45, 170, 90), (20, 30, 30)),
            ((60, 150, 180), (12, 18, 25)),
        ]
    ):
        away = sum(((g - c) / r) ** 2 for g, c, r in zip(grid, centre, radius, strict=True))
        labels[np.sqrt(away) + rough < 1] = k + 1
    return torch.from_numpy(labels)


def ours(pred: Tensor, labels: Tensor) -> Tensor:
    found = metrics.surfaces(pred, labels, n_classes=N_CLASSES, spacing=SPACING)
    return torch.stack([metrics.asd(found), metrics.assd(found), metrics.hd95(found)])


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


def rows() -> Iterator[Row]:
    warnings.simplefilter("ignore", FutureWarning)
    pred, labels = organs(0), organs(1)
    value = ours(pred, labels)
    torch.testing.assert_close(
        value[:2], by_medpy(pred, labels)[:2].double()
    )  # its hd95 is another
    torch.testing.assert_close(value, by_monai(pred, labels).double(), rtol=1e-4, atol=1e-5)
    what = f"asd + assd + hd95, 3 classes {SHAPE}"
    yield time_row(
        what, "medpy", lambda: ours(pred, labels), lambda: by_medpy(pred, labels), 0.03, 3
    )
    yield time_row(
        what, "MONAI", lambda: ours(pred, labels), lambda: by_monai(pred, labels), 0.2, 5
    )
