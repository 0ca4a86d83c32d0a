"""One case of a source, scored: its rows of `scores.csv`, and the sums that follow from it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.auditing.temperatures import Parameters, calibrated
from segcal.calibrators import CALIBRATORS
from segcal.calibrators.curves import Curves
from segcal.metrics import Bands, Reliability
from segcal.predictors.maps import Checks, Map, checked
from segcal.predictors.reading import CaseData, read_case
from segcal.predictors.source import Source, SourceCase
from segcal.scoring.cases import Row, Statistics, bin_rows, overlap_rows, overlap_rows_of_masks
from segcal.scoring.confidence import statistics_of_confidence
from segcal.scoring.kept import (
    Kept,
    curves_of,
    gather,
    near_sample,
    of_region,
    prediction_of,
    statistics_of,
)
from segcal.scoring.volumes import volume_rows
from segcal.types import IGNORE, UserError

CROPPED = ("nnunet", "segcal")
"""Formats whose maps are exactly 0 and 1 where the network did not look."""

Fits = Mapping[str, Sequence[Parameters]]  # by calibrator: one fit for each problem
Labels = NDArray[np.int16]


@dataclass(frozen=True)
class Scored:
    """What is kept of a case under one condition."""

    rows: list[Row]
    statistics: Statistics


@dataclass(frozen=True)
class Facts:
    """What is kept of a case besides its scores."""

    curves: tuple[Curves, ...]  # of each problem: one, or one for each region
    label_sha256: str
    differs: float  # the share of voxels where the stored segmentation is not the argmax; NaN: none
    unseen: float  # the share of voxels that the network did not look at
    sampled: float  # how many voxels of sure background stand for each other; 1: all are counted
    voxels: tuple[tuple[Tensor, Tensor], ...] = ()  # `near_sample` of each problem, if asked for


def first_pass(
    source: Source, case: SourceCase, *, resample: bool = False, sample: bool = False
) -> tuple[Scored, Facts]:
    """The scores of a case as it is, and what calibrators are fitted on; with `sample`, also single
    voxels."""
    data = read_case(source, case, resample=resample)
    label = _reference(data, case)
    if source.kind == "confidence":
        return _of_confidence(source, case, data, label)
    if not (label != IGNORE).any():
        raise UserError(f"{case.id}: its reference holds no voxel that counts; leave it out")
    kept = list(problems(source, case, data, label))
    parts = [statistics_of(each, each.stored) for each in kept]
    total = joined(parts) if source.kind == "regions" else parts[0]
    rows = _overlap(source, case, kept, label, data.spacing)
    rows += _calibration(source, case, total, data.spacing)
    facts = Facts(
        tuple(curves_of(each) for each in kept),
        _digest(label, data),
        _differing(source, data, kept),
        min(each.unseen_share for each in kept),
        max(each.weight for each in kept),
        tuple(near_sample(each) for each in kept) if sample else (),
    )
    return Scored(rows, total), facts


def with_classes(source: Source, *, resample: bool = False) -> Source:
    """A source whose classes are known; those of confidence maps may stand in label maps alone."""
    if source.classes:
        return source
    largest = 1
    for case in source.cases:
        with suppress(UserError):  # the first pass says it
            data = read_case(source, case, resample=resample)
            for labels in (data.label, data.segmentation):
                if labels is not None:
                    largest = max(largest, int(labels.max()))
    return replace(source, classes=tuple(f"label {k}" for k in range(1, largest + 1)))


def _of_confidence(
    source: Source, case: SourceCase, data: CaseData, label: Labels
) -> tuple[Scored, Facts]:
    """The scores of the predicted class alone; no calibrator can be fitted on these."""
    if data.segmentation is None:
        raise UserError(f"{case.id} has a confidence map, but no label map beside it")
    checks = Checks(case.id, source.kind, step=data.maps.step)
    (conf,) = (values.copy() for values in checked(data.maps, checks))
    n_classes = len(source.classes) + 1
    total = statistics_of_confidence(conf, data.segmentation, label, data.spacing, n_classes)
    predicted = torch.from_numpy(data.segmentation.astype(np.int16))
    rows = overlap_rows(
        case.id, predicted, torch.from_numpy(label), source.classes, data.spacing, {}
    )
    rows += _calibration(source, case, total, data.spacing)
    return Scored(rows, total), Facts((), _digest(label, data), math.nan, 0.0, 1.0)


def _digest(label: Labels, data: CaseData) -> str:
    """What tells that references are the same."""
    shape = repr((label.shape, data.spacing)).encode()
    return hashlib.sha256(shape + label.tobytes()).hexdigest()


def second_pass(
    source: Source, case: SourceCase, fits: Fits, *, resample: bool = False
) -> dict[str, Scored]:
    """The scores of a case after calibrators that were fitted without its patient."""
    data = read_case(source, case, resample=resample)
    label = _reference(data, case)
    parts: dict[str, list[Statistics]] = {name: [] for name in fits}
    kept = list(problems(source, case, data, label))
    for i, voxels in enumerate(kept):
        for name, of_problems in fits.items():
            parts[name].append(statistics_of(voxels, calibrated(voxels, of_problems[i])))
    scored = {}
    for name, each in parts.items():
        maps = kept
        if not CALIBRATORS[name].keeps_labels:
            new = zip(kept, fits[name], strict=True)
            maps = [replace(k, prediction=prediction_of(k, calibrated(k, fit))) for k, fit in new]
        overlap = _overlap(source, case, maps, label, data.spacing)
        total = joined(each) if source.kind == "regions" else each[0]
        scored[name] = Scored(overlap + _calibration(source, case, total, data.spacing), total)
    return scored


def _reference(data: CaseData, case: SourceCase) -> Labels:
    if data.label is None:
        raise UserError(f"{case.id} has no reference; name their folder with --labels")
    return data.label


def problems(source: Source, case: SourceCase, data: CaseData, label: Labels) -> Iterator[Kept]:
    """The kept voxels of a case; of regions, those of each region, a problem of two classes."""
    checks = Checks(case.id, source.kind, step=data.maps.step)
    maps, step = checked(data.maps, checks), data.maps.step
    options: dict[str, Any] = {"cropped": source.format in CROPPED and not step}
    if step:  # a stored 0 is anything below half a step
        options["floor"] = math.log(step / 2)
    if source.kind == "regions":
        for probs, members in zip(maps, source.regions.values(), strict=True):
            inside = np.isin(label, members).astype(np.int16)
            inside[label == IGNORE] = IGNORE
            yield of_region(probs, inside, data.spacing, **options)
    elif source.kind == "logits":
        total = _log_sum(data.maps.classes())
        parts = (values - total for values in maps)
        yield gather(parts, label, data.spacing, source.n_maps, logs=True)
    else:
        yield gather(maps, label, data.spacing, source.n_maps, logs=False, **options)


def _log_sum(maps: Iterator[Map]) -> Map:
    """The logarithm of the sum of the exponentials of all maps."""
    total = next(maps).copy()
    for values in maps:
        np.logaddexp(total, values, out=total)
    return total


def _overlap(
    source: Source,
    case: SourceCase,
    kept: Sequence[Kept],
    label: Labels,
    spacing: tuple[float, float, float],
) -> list[Row]:
    """Overlap and distances of the label map of the largest probabilities."""
    reference = torch.from_numpy(label)
    if source.kind != "regions":
        return overlap_rows(case.id, kept[0].prediction, reference, source.classes, spacing, {})
    masks = {}
    for (name, members), each in zip(source.regions.items(), kept, strict=True):
        inside = torch.from_numpy(np.isin(label, members).astype(np.int16))
        masks[name] = each.prediction, inside.masked_fill(reference == IGNORE, IGNORE)
    return overlap_rows_of_masks(case.id, masks, spacing)


def _calibration(
    source: Source, case: SourceCase, total: Statistics, spacing: Sequence[float]
) -> list[Row]:
    rows = volume_rows(case.id, total.sets["all"], spacing, source.classes)
    return rows + bin_rows(case.id, total, source.classes)


def _differing(source: Source, data: CaseData, kept: Sequence[Kept]) -> float:
    """The share of voxels where the stored label map is not that of the largest probabilities."""
    if data.segmentation is None:
        return float("nan")
    prediction = kept[0].prediction.numpy()
    if source.kind == "regions":
        prediction = np.zeros(prediction.shape, np.int16)
        for value, each in zip(source.region_order, kept, strict=True):
            prediction[each.prediction.numpy() > 0] = value
    return float(np.mean(prediction != data.segmentation))


def joined(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of several regions as one problem, whose classes are the regions.

    A voxel counts once for each region. The first class is what is outside, of all regions."""
    sets = {}
    for name in parts[0].sets:
        sets[name] = _joined([part.sets[name] for part in parts])
    of_all = [_summed([getattr(part.bands, field) for part in parts]) for field in _OF_ALL]
    of_classes = [_stacked([getattr(part.bands, field) for part in parts]) for field in _OF_CLASSES]
    n = len(parts) + 1
    logits = torch.zeros(n, n + 1, dtype=torch.float64)  # regions have no logits side by side
    return Statistics(sets, Bands(*of_all, *of_classes), logits)


_OF_ALL = ("count", "conf", "hit", "nll")
_OF_CLASSES = ("class_conf", "class_hit")


def _summed(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Values of two classes (2, *), of several problems: the sum of the first, then each second."""
    outside = _summed([part[0] for part in parts])
    return torch.stack([outside, *(part[1] for part in parts)])


def _joined(parts: Sequence[Reliability]) -> Reliability:
    top = _summed([part.sums[:, 0] for part in parts])  # (3, B)
    classes = _stacked([part.sums[:, 1:].movedim(1, 0) for part in parts])  # (1+R, 3, B)
    sums = torch.cat([top[:, None], classes.movedim(0, 1)], 1)
    nll, brier = _summed([part.nll for part in parts]), _summed([part.brier for part in parts])
    spread = _stacked([part.spread for part in parts])
    return Reliability(sums, nll, brier, spread, _summed([part.selection for part in parts]))
