"""Calibration by distance to the outline of the *predicted* foreground, in bands of 1 mm.

Voxels are chosen by the prediction alone, so the gap of a band is unbiased."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.metrics.arrays import Array, tensor_of
from segcal.metrics.masks import chosen, places
from segcal.metrics.statistics import detached, largest
from segcal.types import IGNORE
from segcal.voxels import predicted, square_distance

WIDTH, N_BANDS = 1.0, 5  # mm, and bands to each side of the outline

BANDS = (
    *(f"inside {n}" for n in range(N_BANDS, 0, -1)),
    *(f"outside {n}" for n in range(1, N_BANDS + 1)),
)
"""`inside 1` and `outside 1` are at the outline: up to 1 mm from the nearest voxel across it."""


@dataclass(frozen=True, eq=False)
class Bands:
    """Sums per band (10,): voxels, confidence, how many were right, NLL; they add.

    `class_conf` and `class_hit` (K, 10) are each class's own probability and its voxels."""

    count: Tensor
    conf: Tensor
    hit: Tensor
    nll: Tensor
    class_conf: Tensor
    class_hit: Tensor

    @staticmethod
    def zero(n_classes: int) -> Bands:
        """The value of no voxels."""
        of_all = torch.zeros(4, len(BANDS), dtype=torch.float64)
        return Bands(*of_all, *torch.zeros(2, n_classes, len(BANDS), dtype=torch.float64))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The sums, in the order of the fields."""
        return tuple(vars(self).values())

    def __add__(self, other: Bands) -> Bands:
        return Bands(*(a + b for a, b in zip(self.parts, other.parts, strict=True)))


def bands(
    logits: Array,
    labels: Array,
    spacing: Sequence[float],
    foreground: Array | None = None,
    *,
    ignore_index: int = IGNORE,
) -> Bands:
    """Sums per band for one case: logits (K, *S), labels (*S), the size of a voxel per axis in mm.

    `foreground` (*S) is what was predicted, if not by these logits, such as before calibration.
    Voxels more than 5 mm from the outline are left out.

    >>> logits = torch.tensor([[9.0, 9.0, 0.0], [0.0, 0.0, 9.0]])  # two classes, three voxels
    >>> bands(logits, torch.tensor([0, 0, 1]), (1.0,)).count[4:7]
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    logits, labels = detached(tensor_of(logits)), detached(tensor_of(labels)).long()
    inside = predicted(logits[None])[0] if foreground is None else tensor_of(foreground)
    box = _box(inside, [math.ceil(WIDTH * N_BANDS / size) for size in spacing])
    labels, logits = labels[box], logits[(slice(None), *box)]
    band = band_map(inside[box], spacing)
    where = places((band < len(BANDS)) & (labels != ignore_index))
    if not len(where):
        return Bands.zero(len(logits))
    band = band.reshape(-1)[where].long()
    scores, truth = chosen(logits.flatten(1)[None], labels.reshape(1, -1), where)
    return sums_of_bands(scores, truth, band)


def band_map(inside: Tensor, spacing: Sequence[float]) -> Tensor:
    """The number of each voxel's band in `BANDS` (*S), uint8, for a region (*S); 10: in none.

    >>> band_map(torch.tensor([False, False, True]), (2.0,))
    tensor([8, 6, 3], dtype=torch.uint8)
    """
    furthest = WIDTH * N_BANDS
    out, into = (square_distance(region, spacing, furthest) for region in (inside, ~inside))
    away = torch.maximum(out, into)  # one of the two is 0
    there = away <= (furthest + 1e-6) ** 2
    # The band of a distance in (n - 1, n] is n; a voxel of 1 mm beside the outline is in band 1.
    step = away.sqrt_().div_(WIDTH).sub_(1e-4).ceil_().clamp_(1, N_BANDS)
    band = torch.where(inside, N_BANDS - step, N_BANDS - 1 + step)
    return band.masked_fill_(~there, len(BANDS)).to(torch.uint8)


def sums_of_bands(scores: Tensor, truth: Tensor, band: Tensor) -> Bands:
    """`Bands` of voxels: scores (K, M), labels and numbers of bands (M,)."""
    n_classes, n = len(scores), len(BANDS)
    log_probs = F.log_softmax(scores.float(), 0)
    probs = log_probs.exp().double()
    conf, pred = largest(probs)
    first = torch.arange(n_classes, device=scores.device)[:, None] * n
    values = (torch.ones_like(conf), conf, pred == truth, -log_probs.gather(0, truth[None])[0])
    of_all = [torch.bincount(band, value.double(), n) for value in values]
    class_conf = torch.bincount((first + band).flatten(), probs.flatten(), n_classes * n)
    class_hit = torch.bincount(truth * n + band, minlength=n_classes * n).double()
    parts = *of_all, class_conf.reshape(-1, n), class_hit.reshape(-1, n)
    return Bands(*(part.cpu() for part in parts))


def _box(region: Tensor, margin: Sequence[int]) -> tuple[slice, ...]:
    """The smallest box that holds a region and a margin around it; empty if there is no region."""
    box, marked = [], region.view(torch.uint8)  # the largest byte is found twenty times as fast
    for axis, extra in enumerate(margin):
        others = [other for other in range(region.ndim) if other != axis]
        where = places(marked.amax(others) if others else marked)
        low, high = (int(where[0]), int(where[-1]) + 1) if len(where) else (0, -extra)
        box.append(slice(max(0, low - extra), min(region.shape[axis], high + extra)))
    return tuple(box)
