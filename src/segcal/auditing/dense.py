"""Calibrated maps of a whole case, class by class, so that few maps are in memory at a time.

A calibrated probability needs something of all classes: the predicted one, and the sum to divide
by. So the stored maps are read three times: to know where foreground is predicted, to sum, and to
give each map. A region has a probability of its own and is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.auditing.temperatures import Parameters, sharpness_by_ring
from segcal.calibrators.fitting import FLOOR
from segcal.calibrators.regions import rings
from segcal.predictors.maps import Checks, Map, Maps, checked
from segcal.predictors.reading import case_maps
from segcal.predictors.source import Source, SourceCase

SLAB = 1 << 18  # voxels at a time: temporary arrays stay in the processor's cache
UNSEEN = 255  # the place of voxels that the network did not look at
MARGIN = 2.0**-20  # by which the rest to 1 keeps its order to each class, in spite of rounding


def calibrated_maps(
    source: Source,
    case: SourceCase,
    fits: Sequence[Parameters],
    *,
    dtype: np.dtype[Any] | None = None,
    rest: bool = False,
) -> Maps:
    """The maps of a case after `ts` or `ts2`; regions have a fit each.

    Probabilities give probabilities, logits give log-probabilities. The label map stays, also when
    values are rounded to `dtype`, and with `rest` also when background is what classes lack to 1.
    Voxels that the network did not look at keep their values. Each map is new in the memory of the
    stored one."""
    maps = case_maps(source, case)
    kind = np.dtype(np.float32) if dtype is None or dtype.itemsize > 4 else dtype
    tables = [_by_place(values) for values in fits]
    if source.kind == "regions":
        checks = Checks(case.id, source.kind, step=maps.step)

        def regions() -> Iterator[Map]:
            each = zip(checked(maps, checks), tables, fits, strict=True)
            for values, table, values_of_fit in each:
                yield _of_region(values, table, "near" in values_of_fit, kind)

        return Maps(maps.shape, regions, maps.grid)
    voxels = _looked_at(source, case, maps, tables[0], "near" in fits[0])
    voxels.sum_up(maps, rest=rest)

    def classes() -> Iterator[Map]:
        for values in maps.classes():
            yield voxels.calibrated(values, kind)

    return Maps(maps.shape, classes, maps.grid)


def confidences(source: Source, maps: Maps) -> list[tuple[str, Map]]:
    """The probability of what is predicted, by the name of the region; "" where there is none."""
    if source.kind == "regions":
        each = zip(source.classes, maps.classes(), strict=True)
        return [(name, np.maximum(values, 1 - values)) for name, values in each]
    largest = np.full(maps.shape[1:], -np.inf, np.float32)
    for values in maps.classes():
        np.maximum(largest, values, out=largest)
    return [("", np.exp(largest) if source.kind == "logits" else largest)]


def _by_place(values: Parameters) -> Tensor:
    """1/T by place; where the network did not look it is not used."""
    of_rings, table = sharpness_by_ring(values), torch.ones(UNSEEN + 1)
    table[: len(of_rings)] = of_rings
    return table


def _slabs(n_voxels: int) -> Iterator[slice]:
    for start in range(0, n_voxels, SLAB):
        yield slice(start, min(start + SLAB, n_voxels))


def _flat(values: Map) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).reshape(-1)


def _next(values: Tensor, towards: float, kind: np.dtype[Any]) -> Tensor:
    """The next values that a type can hold."""
    rounded = values.numpy().astype(kind)
    return torch.from_numpy(np.nextafter(rounded, kind.type(towards)).astype(np.float32))


def _of_region(values: Map, table: Tensor, by_place: bool, kind: np.dtype[Any]) -> Map:
    """The calibrated probability of a region, a problem of two classes."""
    flat = _flat(values)
    place = torch.zeros(len(flat), dtype=torch.uint8)
    if by_place:
        place = rings(torch.from_numpy(values) > 0.5).reshape(-1)
    above = _next(torch.tensor([0.5]), 1, kind)
    for part in _slabs(len(flat)):
        stored = flat[part]
        inside, outside = stored.clamp_min(0).log(), (1 - stored).clamp_min_(0).log_()
        odds = inside.clamp_min_(FLOOR) - outside.clamp_min_(FLOOR)
        new = (odds * table[place[part].long()]).sigmoid_()
        new = torch.where(stored > 0.5, torch.maximum(new, above), new.clamp_max(0.5))
        flat[part] = torch.where(stored > 0, new, stored)
    return flat.reshape(values.shape).numpy()


@dataclass(eq=False)
class _Voxels:
    """What the calibrated maps of a case share; all tensors are flat."""

    logs: bool  # maps are logits, no probabilities
    largest: Tensor  # the stored value of the predicted class
    foreground: Tensor  # where that is foreground
    total: Tensor  # the logarithm of the sum over classes
    place: Tensor  # the number of the ring, or UNSEEN
    table: Tensor  # 1/T by place
    norm: Tensor  # the sum of what calibrated probabilities are proportional to; 1 if predicted

    def sum_up(self, maps: Maps, *, rest: bool) -> None:
        """Get the sums to divide by.

        With `rest`, they are changed a little, so that rounding cannot move a voxel from
        background to foreground or back."""
        for values in maps.classes():
            flat = _flat(values)
            for part in _slabs(len(flat)):
                self.norm[part] += self.relative(flat[part], part).exp_()
        if rest:
            margin = MARGIN * maps.shape[0]
            for part in _slabs(len(self.norm)):
                predicted = self.foreground[part]
                self.norm[part] *= torch.where(predicted, 1 - margin, 1 + margin)
            self.norm.clamp_min_(1)

    def calibrated(self, values: Map, kind: np.dtype[Any]) -> Map:
        """The calibrated map of a class."""
        flat = _flat(values)
        for part in _slabs(len(flat)):
            stored, norm = flat[part], self.norm[part]
            new, best = self.relative(stored, part), 1 / norm
            if self.logs:
                best = -norm.log()
                new += best
            else:
                new = new.exp_() * best
            lower = torch.minimum(new, _next(best, -np.inf, kind))
            new = torch.where(stored < self.largest[part], lower, new)
            flat[part] = torch.where(self.place[part] == UNSEEN, stored, new)
        return flat.reshape(values.shape).numpy()

    def relative(self, stored: Tensor, part: slice) -> Tensor:
        """Calibrated log-probabilities, less that of the predicted class."""
        largest = self._log_probs(self.largest[part], part)
        difference = self._log_probs(stored, part).sub_(largest)
        return difference.mul_(self.table[self.place[part].long()])

    def _log_probs(self, stored: Tensor, part: slice) -> Tensor:
        logarithms = stored if self.logs else stored.clamp_min(0).log_()
        return (logarithms - self.total[part]).clamp_min_(FLOOR)


def _looked_at(
    source: Source, case: SourceCase, maps: Maps, table: Tensor, by_place: bool
) -> _Voxels:
    """A first pass: what is predicted where; raises if values are not what they should be."""
    checks = Checks(case.id, source.kind, step=maps.step, keep_total=True)
    logs = source.kind == "logits"
    background = foreground = total = torch.empty(0)
    for k, values in enumerate(checked(maps, checks)):
        flat = _flat(values)
        if k == 0:
            background = flat.clone()
            total = flat.clone() if logs else total
            continue
        foreground = flat.clone() if k == 1 else torch.maximum(foreground, flat, out=foreground)
        if logs:
            torch.logaddexp(total, flat, out=total)
    if not logs:
        assert checks.total is not None
        total = _flat(checks.total).log_()
    predicted = foreground > background
    place = torch.zeros(len(predicted), dtype=torch.uint8)
    if by_place:
        place = rings(predicted.reshape(maps.shape[1:])).reshape(-1)
    if not logs:
        place[foreground <= 0] = UNSEEN
    largest = torch.maximum(foreground, background, out=foreground)
    norm = background.zero_()
    return _Voxels(logs, largest, predicted, total, place, table, norm)
