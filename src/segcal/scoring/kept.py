"""The voxels of a stored prediction that scores and fits need, gathered class by class.

A scan with many classes is too large to unpack, but nearly all of it is background that the network
is sure of. Once the map of the background is read, it is known which voxels can matter: those near
possible foreground, those labelled foreground, and those that are not sure. Of the other classes
only these are kept. Of the sure background all is kept if there is room, else a regular sample, and
each voxel of the sample counts for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.calibrators.curves import GRID, Curves, along_grid
from segcal.calibrators.fitting import CHUNK, FLOOR
from segcal.calibrators.regions import RINGS, rings
from segcal.metrics import BANDS, N_FINE, SETS, Bands, Reliability
from segcal.metrics.by_distance import WIDTH, band_map, sums_of_bands
from segcal.metrics.sets import SURE
from segcal.metrics.statistics import grouped_sums
from segcal.scoring.cases import Statistics
from segcal.types import IGNORE
from segcal.voxels import NEAR, grown

ROOM = 1 << 24  # log-probabilities (64 MB) up to which sure background is kept
FITTED = 1 << 19  # voxels of a case that temperatures are fitted on, a regular sample of more
SAMPLED = 1 << 16  # voxels of a case that other calibrators are fitted on
LEAST = 1 << 20  # voxels of sure background that are kept in any case
FOREGROUND = 0.52  # foreground can be predicted where background is less than this
SLAB = 1 << 22  # voxels at a time
N_NEAR = RINGS.index(NEAR) + 1
"""How many of the first rings are near predicted foreground."""

Map = NDArray[np.float32]
Labels = NDArray[np.integer]
Apply = Callable[[Tensor, Tensor], Tensor]  # of log-probabilities (K, M) and rings (M,)


@dataclass(frozen=True, eq=False)
class Kept:
    """The kept voxels of one case; those from `n_whole` on count `weight` times."""

    log_probs: Tensor  # (K, M)
    labels: Tensor  # (M,), none of them ignored
    ring: Tensor  # (M,): the first of `RINGS` that reaches the voxel, or one more
    band: Tensor  # (M,): its number in `BANDS`, or one more
    certain: Tensor  # (M,): where foreground is exactly 0; calibrators leave it so
    cropped: bool  # whether that means that the network did not look there
    n_whole: int
    weight: float
    prediction: Tensor  # (D, H, W), uint8: the label map of the largest probabilities
    place: Tensor  # (M,): where the voxels are in it, as one row

    @property
    def unseen(self) -> Tensor:
        """Where the network did not look (M,)."""
        return self.certain if self.cropped else torch.zeros_like(self.certain)

    @property
    def unseen_share(self) -> float:
        """The share of all voxels where the network did not look."""
        n_whole, n_other = self.n_whole, self.weight * (len(self.labels) - self.n_whole)
        parts = self.unseen[:n_whole].sum(), self.weight * self.unseen[n_whole:].sum()
        return float(sum(parts) / max(n_whole + n_other, 1))

    @property
    def n_classes(self) -> int:
        """The number of classes, with background."""
        return len(self.log_probs)

    def stored(self, part: slice) -> Tensor:
        """The log-probabilities (K, m) of some of the voxels, as they are."""
        return self.log_probs[:, part]

    def parts(self, every: int = 1) -> Iterator[tuple[slice, float]]:
        """Some voxels at a time, and how often each counts; or one in so many of them."""
        size = max(1, CHUNK // self.n_classes) * every
        n = len(self.labels)
        for first, end, weight in ((0, self.n_whole, 1.0), (self.n_whole, n, self.weight)):
            n_used = -(-(end - first) // every)
            for start in range(first, end, size):
                part = slice(start, min(start + size, end), every)
                yield part, weight * (end - first) / n_used


def gather(
    maps: Iterable[Map],
    label: Labels,
    spacing: Sequence[float],
    n_classes: int,
    *,
    logs: bool,
    cropped: bool = False,
    floor: float = FLOOR,
) -> Kept:
    """The kept voxels of maps (D, H, W), background first, and a label map (D, H, W).

    The maps are probabilities, or with `logs` their logarithms. `cropped`: where foreground is
    exactly 0, the network did not look. Lower logarithms than `floor` count as it."""
    table, places, n_whole, weight = torch.empty(0), torch.empty(0), 0, 1.0
    for k, values in enumerate(maps):
        flat = torch.from_numpy(values).reshape(-1)
        if k == 0:
            places, n_whole, weight = _places(flat.reshape(label.shape), label, n_classes, logs)
            table = torch.empty(n_classes, len(places))
        torch.index_select(flat, 0, places, out=table[k])
    del flat, values  # a map, which is as large as all that is kept
    prediction = torch.zeros(label.size, dtype=torch.uint8)
    prediction[places] = table.argmax(0).to(torch.uint8)
    prediction = prediction.reshape(label.shape)
    truth = torch.from_numpy(np.ascontiguousarray(label)).reshape(-1)[places].long()
    counted = truth != IGNORE
    if not counted.all():
        n_whole -= int((~counted).sum())  # they are among the first
        table, places, truth = table[:, counted], places[counted], truth[counted]
    certain = (table[1:] <= (-np.inf if logs else 0.0)).all(0)
    step = SLAB // n_classes
    for start in range(0, len(places), step):
        part = table[:, start : start + step]
        logarithms = part if logs else part.clamp_min(0).log_()  # rounding can give less than 0
        part.copy_(logarithms.log_softmax(0).clamp_min_(floor))
    ring = rings(prediction > 0).reshape(-1)[places]
    band = _bands(prediction > 0, spacing, places)
    return Kept(table, truth, ring, band, certain, cropped, n_whole, weight, prediction, places)


def of_region(probs: Map, inside: Labels, spacing: Sequence[float], **options: Any) -> Kept:
    """The same for a region with a probability of its own: a problem of two classes."""
    maps = (part for part in (1 - probs, probs))
    return gather(maps, inside, spacing, 2, logs=False, **options)


def _places(
    background: Tensor, label: Labels, n_classes: int, logs: bool
) -> tuple[Tensor, int, float]:
    """Which voxels are kept, how many of these count once, and how often the others count.

    Ignored voxels are kept where foreground may be predicted: others can be near them."""
    lowest = np.log(FOREGROUND) if logs else FOREGROUND
    sure = np.log(1 - SURE) if logs else 1 - SURE
    around = grown((background <= lowest)[None], NEAR)[0].numpy()
    whole, other = list[NDArray[np.int64]](), list[tuple[int, NDArray[np.bool_]]]()
    flat, near, truth = background.numpy().reshape(-1), around.reshape(-1), label.reshape(-1)
    n_other = 0
    for start in range(0, len(flat), SLAB):
        part = slice(start, start + SLAB)
        counted = truth[part] != IGNORE
        wanted = near[part] | (truth[part] > 0) | ~(flat[part] >= sure)
        wanted &= counted | (flat[part] <= lowest)
        whole.append(np.flatnonzero(wanted) + start)
        rest = counted & ~wanted
        n_other += int(np.count_nonzero(rest))
        other.append((start, rest))
    n_whole = sum(map(len, whole))
    room = max(LEAST, ROOM // n_classes - n_whole)
    step, passed = max(1, -(-n_other // room)), 0
    for start, rest in other:
        there = np.flatnonzero(rest)
        whole.append(there[-passed % step :: step] + start)
        passed += len(there)
    places = torch.from_numpy(np.concatenate(whole))
    n_sampled = len(places) - n_whole
    return places, n_whole, n_other / n_sampled if n_sampled else 1.0


def _bands(foreground: Tensor, spacing: Sequence[float], places: Tensor) -> Tensor:
    """The band of each place; distances of some slices at a time, and in the plane for one."""
    depth, *plane = foreground.shape
    size = int(np.prod(plane))
    furthest = WIDTH * len(BANDS) / 2
    margin, step = int(np.ceil(furthest / spacing[0])), max(1, SLAB // size)
    band = torch.full((len(places),), len(BANDS), dtype=torch.uint8)
    for first in range(0, depth, step):
        start, last = max(0, first - margin), min(depth, first + step)
        region = foreground[start : min(depth, last + margin)]
        if not region.any():
            continue
        if depth == 1:
            of_slab = band_map(region[0], spacing[1:])[None]
        else:
            of_slab = band_map(region, spacing)
        here = (places >= first * size) & (places < last * size)
        band[here] = of_slab.reshape(-1)[places[here] - start * size]
    return band


def statistics_of(kept: Kept, log_probs: Callable[[slice], Tensor]) -> Statistics:
    """The statistics of a case from log-probabilities (K, m) of some of its voxels at a time."""
    n = kept.n_classes
    groups = [Reliability.zero(n, N_FINE)] * 4  # far and near, of background and of foreground
    bands, logits = Bands.zero(n), torch.zeros(n, n + 1, dtype=torch.float64)
    for part, weight in kept.parts():
        x, truth = log_probs(part), kept.labels[part]
        near = kept.ring[part] < N_NEAR
        log_true = x.gather(0, truth[None])[0]
        group = near.long() + 2 * (truth > 0)
        sums = grouped_sums(x.exp(), log_true, truth, group, n_groups=4, n_bins=N_FINE)
        groups = [a + scaled(b, weight) for a, b in zip(groups, sums, strict=True)]
        there = (kept.band[part] < len(BANDS)).nonzero()[:, 0]
        if len(there):
            of_bands = sums_of_bands(x[:, there], truth[there], kept.band[part][there].long())
            bands += Bands(*(weight * values for values in of_bands.parts))
        member = (truth == torch.arange(n)[:, None]).double()  # (K, m)
        of_classes = torch.cat([member @ x.double().T, member.sum(1, keepdim=True)], 1)
        logits += weight * of_classes
    far, close, far_true, close_true = groups
    everything = (far + close + far_true + close_true).coarser(SETS["all"])
    sets = {"all": everything, "near": close + close_true, "reference": far_true + close_true}
    return Statistics(sets, bands, logits)


def prediction_of(kept: Kept, log_probs: Callable[[slice], Tensor]) -> Tensor:
    """The label map (D, H, W) of other log-probabilities; background that is not kept stays."""
    prediction = kept.prediction.flatten()
    for part, _ in kept.parts():
        prediction[kept.place[part]] = log_probs(part).argmax(0).to(torch.uint8)
    return prediction.reshape(kept.prediction.shape)


def near_sample(kept: Kept, most: int = SAMPLED) -> tuple[Tensor, Tensor]:
    """Log-probabilities (K, m) and labels (m,) of voxels near predicted foreground that the network
    looked at, a regular sample if there are more than `most`."""
    near = ((kept.ring < N_NEAR) & ~kept.unseen).nonzero()[:, 0]
    near = near[:: max(1, -(-len(near) // most))]
    return kept.log_probs[:, near], kept.labels[near]


def scaled(bins: Reliability, weight: float) -> Reliability:
    """Statistics of voxels that count several times."""
    return bins if weight == 1 else Reliability(*(weight * part for part in bins.parts))


def curves_of(kept: Kept) -> Curves:
    """The NLL as a function of the temperature over `RINGS`, of the voxels that were looked at.

    Of a large case a regular sample of voxels is enough: patients differ by far more."""
    n_rings = len(RINGS) + 1
    sums = torch.zeros(n_rings, 3, len(GRID), dtype=torch.float64)
    n_voxels = torch.zeros(n_rings, dtype=torch.float64)
    step = max(1, -(-len(kept.labels) // FITTED))
    for part, weight in kept.parts(step):
        ring, seen = kept.ring[part], ~kept.unseen[part]
        for i in range(n_rings):
            where = ((ring == i) & seen).nonzero()[:, 0]
            if len(where):
                x, y = kept.log_probs[:, part][:, where], kept.labels[part][where]
                sums[i] += weight * along_grid(x, y)
                n_voxels[i] += weight * len(where)
    return Curves(kept.n_classes, n_voxels.numpy()[None], sums.numpy()[None])
