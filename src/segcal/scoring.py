"""Score a predictor on whole volumes, case by case: rows of `scores.csv`, entries of `bins.json`.

Memory does not depend on the number of cases: only rows and sums of a case are kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from segcal import calibrators
from segcal.corruptions import CORRUPTIONS, parse
from segcal.folders import (
    alone,
    calibrator_path,
    read_bins,
    read_scores,
    write_bins,
    write_scores,
)
from segcal.metrics import (
    METRICS,
    N_BINS,
    Reliability,
    Surface,
    cece,
    confusion,
    label_map,
    mean_distance,
    missed,
    reliability,
    surfaces,
)
from segcal.metrics.masks import chosen
from segcal.predictors import Prediction, Predictor
from segcal.types import IGNORE, Progress, UserError, check_choice

FINE = 67 * N_BINS  # ECE joins these bins; risk and coverage need to tell 0.95 from 0.99
POOLED, ALL, MEAN = "pooled", "all", "mean"
REGION = "{} (region)"

Row = dict[str, Any]


def evaluate(
    predictor: Predictor,
    *,
    split: str = "test",
    corruption: str = "",
    calibrator: str = "",
    seed: int = 0,
    again: bool = False,
    progress: Progress | None = None,
) -> list[Row]:
    """Score every case of a split, with a corruption such as `gaussian_noise:0.03` or a calibrator.

    Returns the rows and puts them into `scores.csv`. Rows that are there are not computed again
    unless `again`."""
    with alone(predictor.root):  # two processes would lose each other's rows
        return score(
            predictor,
            split=split,
            corruption=corruption,
            calibrator=calibrator,
            seed=seed,
            again=again,
            progress=progress,
        )


def score(
    predictor: Predictor,
    *,
    split: str = "test",
    corruption: str = "",
    calibrator: str = "",
    seed: int = 0,
    again: bool = False,
    progress: Progress | None = None,
) -> list[Row]:
    """`evaluate` for a caller that holds the lock of the folder."""
    check_choice("split", split, ("train", "val", "test"))
    corruption = _canonical(corruption)
    # Scores with another seed are other scores.
    named = f"{corruption}@{seed}" if corruption and seed else corruption
    condition = {"weights": predictor.weights, "split": split}
    condition |= {"corruption": named, "calibrator": calibrator}
    known = [row for row in read_scores(predictor.root) if _is(row, condition)]
    if not again and _complete(predictor, known, condition):
        return known
    return _score(predictor, condition, corruption, seed, progress)


def forget(predictor: Predictor, calibrator: str) -> None:
    """Delete all scores and bins of a calibrator, which is about to be fitted again."""
    condition = {"weights": predictor.weights, "calibrator": calibrator}
    rows, entries = read_scores(predictor.root), read_bins(predictor.root)
    if any(_is(row, condition) for row in rows):
        write_scores(predictor.root, _others(rows, condition))
    if entries:
        write_bins(predictor.root, _class_names(predictor), _others(entries, condition))


def _is(row: Mapping[str, Any], condition: Mapping[str, str]) -> bool:
    return all(row[key] == value for key, value in condition.items())


def _others(rows: list[Row], condition: Mapping[str, str]) -> list[Row]:
    return [row for row in rows if not _is(row, condition)]


def _class_names(predictor: Predictor) -> tuple[str, ...]:
    return ("background", *predictor.classes)


def _canonical(corruption: str) -> str:
    """One spelling for each corruption: `blur:1.50` is `blur:1.5`, and a neutral one is none."""
    if not corruption:
        return ""
    key, severity = parse(corruption)
    return "" if severity == CORRUPTIONS[key].neutral else f"{key}:{severity:g}"


def _complete(predictor: Predictor, rows: list[Row], condition: Mapping[str, str]) -> bool:
    """Whether every case of the split has rows, and the bins are there: a kill may come between."""
    n_cases = predictor.info["data"].get("splits", {}).get(condition["split"])
    scored = {row["case"] for row in rows}
    if POOLED not in scored or n_cases not in (None, len(scored) - 1):
        return False
    return any(_is(entry, condition) for entry in read_bins(predictor.root))


def _score(
    predictor: Predictor,
    condition: dict[str, str],
    corruption: str,
    seed: int,
    progress: Progress | None,
) -> list[Row]:
    fitted = None
    if condition["calibrator"]:
        fitted = load_calibrator(predictor, condition["calibrator"])
    ids = predictor.ids(condition["split"])
    if not ids:
        raise UserError(f"the split {condition['split']!r} of {predictor.root} has no cases")
    n_classes = len(predictor.classes) + 1
    total = Reliability.zero(n_classes, FINE)
    logit_sums = torch.zeros(n_classes, n_classes + 1).double()
    rows: list[Row] = []
    for i, id in enumerate(ids, start=1):
        case = predictor.case(id, corruption=corruption, seed=seed)
        logits = case.slices if fitted is None else fitted(case.slices, case.image)
        bins = reliability(logits, case.reference, n_bins=FINE)
        total += bins
        logit_sums += _logit_sums(logits, case.reference)
        rows += _case_rows(id, logits, case, bins.coarser(), predictor)
        if progress is not None:
            progress(i, len(ids))
    rows += _bin_rows(POOLED, total.coarser(), predictor.classes)
    common = _common(predictor) | condition
    rows = [common | row for row in rows]
    write_scores(predictor.root, [*_others(read_scores(predictor.root), condition), *rows])
    entries = _others(read_bins(predictor.root), condition)
    entry = condition | _bins_entry(total, logit_sums)
    write_bins(predictor.root, _class_names(predictor), [*entries, entry])
    return rows


def load_calibrator(predictor: Predictor, name: str) -> calibrators.Fitted:
    """A calibrator that was fitted for this predictor."""
    check_choice("calibrator", name, tuple(calibrators.CALIBRATORS))
    path = calibrator_path(predictor.root, name, predictor.weights)
    return calibrators.load(path, expect=predictor.identity)


def _common(predictor: Predictor) -> dict[str, str]:
    loss = dict(predictor.info["settings"]["loss"])
    method = loss.pop("name")
    loss.pop("ignore_index", None)
    return {
        "run": predictor.root.resolve().name,
        "dataset": predictor.info["data"]["name"],
        "network": predictor.info["settings"]["network"]["name"],
        "method": method,
        "setting": " ".join(f"{key}={value}" for key, value in sorted(loss.items())),
    }


def _row(id: str, kind: str, metric: str, value: float) -> Row:
    voxels = "reference" if METRICS[metric].of == "bins" else ""
    return {"voxels": voxels, "case": id, "class": kind, "metric": metric, "value": value}


def _case_rows(
    id: str, logits: Tensor, case: Prediction, bins: Reliability, predictor: Predictor
) -> list[Row]:
    """Every metric of one case: per class, their mean, per region, and calibration."""
    n_classes, regions = len(predictor.classes) + 1, predictor.info["data"]["regions"]
    pred, truth, ignore = _narrow(label_map(logits), case.reference, n_classes)
    counts = confusion(pred, truth, n_classes=n_classes, ignore_index=ignore)
    outlines = _surfaces(pred, truth, n_classes, case.spacing, ignore)
    rows = _overlap_rows(id, counts, outlines, predictor.classes, MEAN)
    if regions:
        rows += _region_rows(id, pred, truth, counts, outlines, regions, case.spacing, ignore)
    return rows + _bin_rows(id, bins, predictor.classes)


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
    values = {}
    for same in zip(*per_region, strict=True):  # the rows of one metric
        values[same[0]["metric"]] = torch.tensor([row["value"] for row in same]).double()
    for key, each in values.items():
        mean = _over_classes(key, each, values["missed"])
        rows.append(_row(id, REGION.format(MEAN), key, mean))
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


def _bin_rows(id: str, bins: Reliability, classes: tuple[str, ...]) -> list[Row]:
    rows = []
    for key, metric in METRICS.items():
        if metric.of == "bins":
            rows.append(_row(id, ALL, key, metric.function(bins).item()))
    per_class = cece(bins, class_reduction="none").tolist()
    for name, value in zip(("background", *classes), per_class, strict=True):
        rows.append(_row(id, name, "cece", value))
    return rows


def _logit_sums(logits: Tensor, label: Tensor) -> Tensor:
    """Per true class (K rows): the summed logits, and in the last column the number of voxels.

    Only the foreground is sorted by class; the background, most of a volume, is the rest."""
    n_classes, flat, truth = logits.shape[1], logits.flatten(2), label.flatten(1)
    part, truth = chosen(flat, truth, truth != 0)  # (K, M), (M,): foreground, and ignored voxels
    part, member = part.double(), (truth == torch.arange(n_classes)[:, None]).double()  # (K, M)
    sums = torch.cat([member @ part.T, member.sum(1, keepdim=True)], 1)
    elsewhere = torch.cat([part.sum(1), torch.tensor([len(truth)]).double()])
    whole = torch.cat([flat.sum(2).double().sum(0), torch.tensor([label.numel()]).double()])
    sums[0] = whole - elsewhere
    return sums


def _bins_entry(total: Reliability, logit_sums: Tensor) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    joined = total.coarser()
    for name, bins in (("top", joined.top), ("per_class", joined.classes)):
        sums = {"count": bins.count, "conf": bins.conf, "hit": bins.hit}
        entry[name] = {key: values.tolist() for key, values in sums.items()}
    entry["fine"] = {"count": total.top.count.long().tolist(), "hit": total.top.hit.long().tolist()}
    n_voxels = logit_sums[:, -1]
    entry["mean_logits"] = (logit_sums[:, :-1] / n_voxels.clamp_min(1)[:, None]).tolist()
    entry["voxels"] = n_voxels.long().tolist()
    return entry
