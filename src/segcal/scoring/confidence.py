"""Statistics of a confidence map beside a label map: of the predicted class alone.

What needs the probability of every class (NLL, Brier, volumes) is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.metrics import BANDS, N_FINE, SETS, Bands, Reliability
from segcal.metrics.by_distance import band_map
from segcal.metrics.edges import bin_of
from segcal.scoring.cases import Statistics
from segcal.types import IGNORE
from segcal.voxels import NEAR, grown

NAN = float("nan")


def statistics_of_confidence(
    conf: NDArray[np.float32],
    prediction: NDArray[np.integer],
    label: NDArray[np.integer],
    spacing: Sequence[float],
    n_classes: int,
) -> Statistics:
    """The statistics of a case from its confidence, predicted and true label maps (D, H, W)."""
    confident = torch.from_numpy(np.ascontiguousarray(conf))
    pred, truth = (torch.from_numpy(x.astype(np.int64)) for x in (prediction, label))
    counted, plane = truth != IGNORE, len(truth) == 1
    near = grown((pred > 0)[None], NEAR)[0]
    groups = {"all": counted, "near": counted & near, "reference": counted & (truth > 0)}
    hit, sets = pred == truth, {}
    for name, chosen in groups.items():
        parts = confident[chosen], hit[chosen], truth[chosen]
        fine = _reliability(*parts, n_classes)
        sets[name] = fine.coarser() if SETS[name] != N_FINE else fine
    region = pred > 0
    band = band_map(region[0], spacing[1:])[None] if plane else band_map(region, spacing)
    where = (band < len(BANDS)) & counted
    of_bands = _bands(band[where].long(), confident[where], hit[where], n_classes)
    return Statistics(sets, of_bands, torch.zeros(n_classes, n_classes + 1, dtype=torch.float64))


def _reliability(conf: Tensor, hit: Tensor, truth: Tensor, n_classes: int) -> Reliability:
    """Fine bins of the predicted class; of the classes only how many voxels they have."""
    empty = Reliability.zero(n_classes, N_FINE)
    place = bin_of(conf.float(), N_FINE).long()
    sums = torch.full_like(empty.sums, NAN)
    for row, values in enumerate((torch.ones_like(conf), conf, hit)):
        sums[row, 0] = torch.bincount(place, values.double(), N_FINE)
    sums[2, 1:] = 0
    sums[2, 1:, 0] = torch.bincount(truth, minlength=n_classes).double()
    unknown = torch.tensor(NAN, dtype=torch.float64)
    parts = {"nll": unknown, "brier": unknown, "spread": empty.spread * NAN}
    return replace(empty, sums=sums, selection=empty.selection * NAN, **parts)


def _bands(band: Tensor, conf: Tensor, hit: Tensor, n_classes: int) -> Bands:
    values = (torch.ones_like(conf), conf, hit)
    count, confident, right = (torch.bincount(band, v.double(), len(BANDS)) for v in values)
    empty = Bands.zero(n_classes)
    unknown = {"nll": empty.nll * NAN, "class_conf": empty.class_conf * NAN}
    return replace(empty, count=count, conf=confident, hit=right, **unknown)
