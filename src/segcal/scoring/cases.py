"""From the prediction for one case to its statistics and its rows of `scores.csv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from segcal.metrics import (
    METRICS,
    N_FINE,
    SETS,
    Bands,
    Reliability,
    Surface,
    bands,
    confusion,
    label_map,
    mean_distance,
    missed,
    reliability_of_sets,
    surfaces,
)
from segcal.metrics.masks import chosen, places
from segcal.predictors import Prediction, Predictor
from segcal.scoring.volumes import volume_rows
from segcal.types import IGNORE
from segcal.voxels import NEAR, grown, predicted

ALL, MEAN = "all", "mean"
EMPTY = "empty"  # the voxels of a case without foreground; its scores are per 1,000 voxels
REGION = "{} (region)"

Row = dict[str, Any]


@dataclass(frozen=True)
class Statistics:
    """What the scores of one case, or of several together, are functions of; they add."""

    sets: dict[str, Reliability]  # by the voxels that count
    bands: Bands  # by distance to the predicted outline
    logits: Tensor  # (K, K+1): `logit_sums`

    @staticmethod
    def zero(n_classes: int) -> Statistics:
        """The value of no case."""
        sets = {name: Reliability.zero(n_classes, n_bins) for name, n_bins in SETS.items()}
        logits = torch.zeros(n_classes, n_classes + 1, dtype=torch.float64)
        return Statistics(sets, Bands.zero(n_classes), logits)

    def __add__(self, other: Statistics) -> Statistics:
        sets = {name: bins + other.sets[name] for name, bins in self.sets.items()}
        return Statistics(sets, self.bands + other.bands, self.logits + other.logits)


def statistics(case: Prediction, logits: Tensor) -> Statistics:
    """The statistics of a case whose logits (D, K, H, W) are calibrated, or those of the case.

    Which voxels are near foreground follows from the prediction before calibration, so that scores
    before and after are over the same voxels."""
    foreground = predicted(case.logits[None])  # (1, D, H, W)
    sets = reliability_of_sets(logits, case.reference, grown(foreground, NEAR)[0])
    volume, plane = logits.movedim(1, 0), case.logits.shape[1] == 1  # a single slice
    arrays = volume, case.reference, foreground[0]
    if plane:  # distances in the plane
        arrays = volume[:, 0], case.reference[0], foreground[0, 0]
    by_distance = bands(arrays[0], arrays[1], case.spacing[plane:], arrays[2])
    return Statistics(sets, by_distance, logit_sums(logits, case.reference))


def _row(id: str, kind: str, metric: str, value: float, voxels: str = "") -> Row:
    return {"voxels": voxels, "case": id, "class": kind, "metric": metric, "value": value}


def case_rows(
    id: str, logits: Tensor, case: Prediction, of_case: Statistics, predictor: Predictor
) -> list[Row]:
    """Every metric of one case: per class, their mean, per region, volumes, and calibration."""
    classes, regions = predictor.classes, predictor.info["data"]["regions"]
    maps = label_map(logits), case.reference
    rows = overlap_rows(id, *maps, classes, case.spacing, regions)
    rows += volume_rows(id, of_case.sets["all"], case.spacing, classes)
    return rows + bin_rows(id, of_case, classes)


def overlap_rows(
    id: str,
    pred: Tensor,
    reference: Tensor,
    classes: tuple[str, ...],
    spacing: tuple[float, ...],
    regions: Mapping[str, list[int]],
) -> list[Row]:
    """Overlap and distances of two label maps (D, H, W): per class, their mean, per region."""
    n_classes = len(classes) + 1
    pred, truth, ignore = _narrow(pred, reference, n_classes)
    counts = confusion(pred, truth, n_classes=n_classes, ignore_index=ignore)
    outlines = _surfaces(pred, truth, n_classes, spacing, ignore)
    rows = _overlap_rows(id, counts, outlines, classes, MEAN)
    if regions:
        rows += _region_rows(id, pred, truth, counts, outlines, regions, spacing, ignore)
    return rows


def overlap_rows_of_masks(
    id: str, masks: Mapping[str, tuple[Tensor, Tensor]], spacing: tuple[float, ...]
) -> list[Row]:
    """The same for regions that overlap, each with its prediction and its reference."""
    per_region = []
    for name, (pred, reference) in masks.items():
        both = overlap_rows(id, pred, reference, (name,), spacing, {})
        per_region.append([row for row in both if row["class"] != MEAN])
    rows = [row for of_region in per_region for row in of_region]
    return rows + _means(id, per_region, MEAN)


def _region_rows(
    id: str,
    pred: Tensor,
    truth: Tensor,
    counts: Tensor,
    outlines: list[Surface],
    regions: Mapping[str, list[int]],
    spacing: tuple[float, ...],
    ignore: int,
) -> list[Row]:
    """The same for unions of classes, and their mean."""
    kept = truth.numpy() != ignore
    maps = [x.numpy() * kept for x in (pred, truth)]
    per_region = []
    for name, parts in regions.items():
        inside = torch.tensor([int(k in parts) for k in range(len(counts))])
        member = torch.stack([1 - inside, inside])  # (2, K)
        union = outlines[parts[0] - 1 : parts[0]]
        if len(parts) > 1:
            masks = [torch.from_numpy(reduce(or_, [x == k for k in parts])) for x in maps]
            union = _surfaces(masks[0].byte(), masks[1].byte(), 2, spacing, ignore)
        names = (REGION.format(name),)
        per_region.append(_overlap_rows(id, member @ counts @ member.T, union, names, ""))
    rows = [row for region_rows in per_region for row in region_rows]
    return rows + _means(id, per_region, REGION.format(MEAN))


def _means(id: str, per_region: list[list[Row]], kind: str) -> list[Row]:
    """The mean over regions of each metric, from the rows of each region in one order."""
    values = {}
    for same in zip(*per_region, strict=True):  # the rows of one metric
        values[same[0]["metric"]] = torch.tensor([row["value"] for row in same]).double()
    rows = []
    for key, each in values.items():
        rows.append(_row(id, kind, key, _over_classes(key, each, values["missed"])))
    return rows


def _narrow(pred: Tensor, label: Tensor, n_classes: int) -> tuple[Tensor, Tensor, int]:
    """Both as bytes, which are eight times as fast, and the byte that `IGNORE` becomes."""
    if n_classes > IGNORE % 256:
        return pred, label, IGNORE
    return pred.to(torch.uint8), label.to(torch.uint8), IGNORE % 256


def _surfaces(
    pred: Tensor, label: Tensor, n_classes: int, spacing: tuple[float, ...], ignore: int
) -> list[Surface]:
    if label.shape[0] == 1:  # a single slice: distances in the plane
        pred, label, spacing = pred[0], label[0], spacing[1:]
    return surfaces(pred, label, n_classes=n_classes, spacing=spacing, ignore_index=ignore)


def _overlap_rows(
    id: str, counts: Tensor, outlines: list[Surface], names: tuple[str, ...], mean: str
) -> list[Row]:
    statistics = {"confusion": counts, "surfaces": outlines}
    rows = []
    for key, metric in METRICS.items():
        if metric.of in statistics:
            values = metric.function(statistics[metric.of]).double()
            for name, value in zip(names, values.tolist(), strict=True):
                rows.append(_row(id, name, key, value))
            if mean:
                rows.append(_row(id, mean, key, _over_classes(key, values, missed(outlines))))
    return rows


def _over_classes(key: str, values: Tensor, gone: Tensor) -> float:
    """How many objects were missed; of any other metric the mean."""
    if key == "missed":
        return values.sum().item()
    if METRICS[key].of == "surfaces":
        return mean_distance(values, gone).item()
    return values.nanmean().item()


def bin_rows(id: str, of_case: Statistics, classes: tuple[str, ...]) -> list[Row]:
    """Every calibration score over each set of voxels, and by class."""
    rows = []
    for voxels, fine in of_case.sets.items():
        joined = fine.coarser()
        for key, metric in METRICS.items():
            if voxels not in metric.voxels:
                continue
            bins = fine if metric.fine else joined
            rows.append(_row(id, ALL, key, metric.over(voxels, bins).item(), voxels))
            if metric.per_class is not None:
                values = metric.per_class(bins).tolist()
                names = ("background", *classes)[-len(values) :]
                for name, value in zip(names, values, strict=True):
                    rows.append(_row(id, name, key, value, voxels))
    everything = of_case.sets["all"].coarser()
    if everything.n_foreground == 0:
        for key, metric in METRICS.items():
            if metric.per_foreground:
                value = 1000 * metric.function(everything).item()
                rows.append(_row(id, ALL, key, value, EMPTY))
    return rows


def logit_sums(logits: Tensor, label: Tensor) -> Tensor:
    """Per true class (K rows): the summed logits, and in the last column the number of voxels.

    Only the foreground is sorted by class; the background, most of a volume, is the rest."""
    n_classes, flat, truth = logits.shape[1], logits.flatten(2), label.flatten(1)
    part, truth = chosen(flat, truth, places(truth.bool()))  # foreground, and ignored voxels
    part, member = part.double(), (truth == torch.arange(n_classes)[:, None]).double()  # (K, M)
    sums = torch.cat([member @ part.T, member.sum(1, keepdim=True)], 1)
    elsewhere = torch.cat([part.sum(1), torch.tensor([len(truth)]).double()])
    whole = torch.cat([flat.sum(2).double().sum(0), torch.tensor([label.numel()]).double()])
    sums[0] = whole - elsewhere
    return sums


def bins_entry(total: Statistics) -> dict[str, Any]:
    """The sums of a split that `bins.json` keeps: per set of voxels, per band, per true class."""
    entry: dict[str, Any] = {"sets": {}}
    for name, fine in total.sets.items():
        joined, of_set = fine.coarser(), {}
        for part, bins in (("top", joined.top), ("per_class", joined.classes)):
            sums = {"count": bins.count, "conf": bins.conf, "hit": bins.hit}
            of_set[part] = {key: values.tolist() for key, values in sums.items()}
        if SETS[name] == N_FINE:
            counts = {"count": fine.top.count, "hit": fine.top.hit}
            of_set["fine"] = {key: values.long().tolist() for key, values in counts.items()}
        entry["sets"][name] = of_set
    entry["bands"] = {key: values.tolist() for key, values in vars(total.bands).items()}
    n_voxels = total.logits[:, -1]
    entry["mean_logits"] = (total.logits[:, :-1] / n_voxels.clamp_min(1)[:, None]).tolist()
    entry["voxels"] = n_voxels.long().tolist()
    return entry
