"""Score a run on whole volumes, case by case: rows of `scores.csv`, and `bins.json` for reliability
figures.

Memory does not depend on the number of cases: what is kept of a case are its rows and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal import calibrators
from segcal.corruptions import CORRUPTIONS, case_seed, corrupt, parse
from segcal.data.slices import volume
from segcal.folders import CaseSet, alone, open_cases, read_json, read_rows, write_json, write_rows
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
from segcal.predictors.run import Run
from segcal.types import IGNORE, UserError, check_choice

Progress = Callable[[int, int], None]
# What is counted; ECE joins these bins, and the risk among the surest voxels needs to tell 0.95
# from 0.99.
FINE = 67 * N_BINS
POOLED, ALL, MEAN = "pooled", "all", "mean"
COLUMNS = ("split", "corruption", "calibrator", "case", "class", "metric", "value")
REGION = "{} (region)"


def evaluate(
    run: Run,
    *,
    split: str = "test",
    corruption: str = "",
    calibrator: str = "",
    seed: int = 0,
    again: bool = False,
    cases: CaseSet | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Score every case of a split, with a corruption such as `gaussian_noise:0.03` or a fitted
    calibrator if asked.

    Returns the rows and puts them into `scores.csv`; what is there already is not computed again
    unless `again`."""
    check_choice("split", split, ("train", "val", "test"))
    corruption = _canonical(corruption)
    named = corruption + (
        f"@{seed}" if corruption and seed else ""
    )  # scores with another seed are other scores
    what = {"split": split, "corruption": named, "calibrator": calibrator}
    with alone(run.root, nested=True):  # two at once would lose each other's rows
        known = [row for row in _rows(run) if _is(row, what)]
        if not again and _complete(run, known, what):
            return [dict(row) for row in known]
        return _evaluate(run, data_of(run, cases), what, corruption, seed, progress)


def _rows(run: Run) -> list[dict[str, str]]:
    return read_rows(run.root / "scores.csv", columns=COLUMNS)


def _complete(run: Run, rows: list[dict[str, str]], what: Mapping[str, str]) -> bool:
    """Whether every case of the split has its rows, and the bins are there too: a kill may have
    come in between.
    """
    n_cases = run.info["data"].get("splits", {}).get(what["split"])
    entries = (read_json(run.root / "bins.json") or {}).get("entries", [])
    found = {row["case"] for row in rows}
    whole = POOLED in found and (n_cases is None or len(found) == n_cases + 1)
    return whole and any(_is(entry, what) for entry in entries)


def _evaluate(
    run: Run,
    cases: CaseSet,
    what: dict[str, str],
    corruption: str,
    seed: int,
    progress: Progress | None,
) -> list[dict[str, Any]]:
    split, calibrator = what["split"], what["calibrator"]
    fitted = (
        calibrators.load(calibrator_path(run, calibrator), expect=run.identity)
        if calibrator
        else None
    )
    ids = cases.split(split, run.settings.fold)
    if not ids:
        raise UserError(f"split {split!r} of {cases.name} (fold {run.settings.fold}) has no cases")
    common = _common(run) | what
    rows: list[dict[str, Any]] = []
    n_classes = len(run.classes) + 1
    total, logit_sums = (
        Reliability.zero(n_classes, FINE),
        torch.zeros(n_classes, n_classes + 1).double(),
    )
    for i, id in enumerate(ids, start=1):
        image, label = volume(cases, id)
        if corruption:
            image = corrupt(image, corruption, seed=case_seed(seed, id))
        logits = run.logits(image)
        if fitted is not None:
            logits = fitted(logits, image)
        bins = reliability(logits, label, n_bins=FINE)
        total += bins
        logit_sums += _logit_sums(logits, label)
        spacing = cases.case(id)["spacing"]
        rows += [
            common | row for row in _case_rows(id, logits, label, bins.coarser(), run, spacing)
        ]
        if progress is not None:
            progress(i, len(ids))
    rows += [common | row for row in _bin_rows(POOLED, total.coarser(), run.classes)]
    path = run.root / "scores.csv"
    write_rows(path, [*(row for row in _rows(run) if not _is(row, what)), *rows])
    _write_bins(run.root / "bins.json", what, total, logit_sums, run.classes)
    return rows


def _is(row: Mapping[str, Any], what: Mapping[str, str]) -> bool:
    return all(row[key] == value for key, value in what.items())


def forget(run: Run, calibrator: str) -> None:
    """Drop every score and bin of a calibrator, whatever the split and corruption: it is about to
    be fitted anew.
    """
    what = {"calibrator": calibrator}
    scores, bins = run.root / "scores.csv", run.root / "bins.json"
    with alone(run.root, nested=True):
        rows = _rows(run)
        if any(_is(row, what) for row in rows):
            write_rows(scores, [row for row in rows if not _is(row, what)])
        values = read_json(bins)
        if values is not None:
            write_json(
                bins,
                values
                | {"entries": [entry for entry in values["entries"] if not _is(entry, what)]},
            )


def _canonical(corruption: str) -> str:
    """One spelling for each corruption: `blur:1.50` is `blur:1.5`, and a neutral one is none."""
    if not corruption:
        return ""
    key, severity = parse(corruption)
    return "" if severity == CORRUPTIONS[key].neutral else f"{key}:{severity:g}"


def data_of(run: Run, cases: CaseSet | None = None) -> CaseSet:
    """The run's data set, from where it was or as given; refused if it is no longer what it was."""
    cases = cases or open_cases(Path(run.settings.data))
    cases.check_content()
    if cases.info["checksum"] != run.info["data"]["checksum"]:
        raise UserError(
            f"{cases.root} has changed since {run.root} was trained; prepare it as it was, or train"
            " again"
        )
    return cases


def calibrator_path(run: Run, name: str) -> Path:
    """Where a fitted calibrator lies."""
    check_choice("calibrator", name, tuple(calibrators.CALIBRATORS))
    return run.root / "calibrators" / name


def _common(run: Run) -> dict[str, Any]:
    settings = run.settings
    text = " ".join(
        f"{key}={value}"
        for key, value in sorted(settings.loss.settings.items())
        if key != "ignore_index"
    )
    names = {
        "run": run.root.resolve().name,
        "dataset": run.info["data"]["name"],
        "network": settings.network.name,
    }
    return names | {"method": settings.loss.name, "setting": text}


def _case_rows(
    id: str, logits: Tensor, label: Tensor, bins: Reliability, run: Run, spacing: list[float]
) -> list[dict[str, Any]]:
    """Every metric of one case: per class, their mean, per region, and calibration."""
    pred, truth, ignore = _narrow(label_map(logits), label, len(run.classes) + 1)
    counts = confusion(pred, truth, n_classes=len(run.classes) + 1, ignore_index=ignore)
    found = _surfaces(pred, truth, len(run.classes) + 1, spacing, ignore)
    rows = _overlap_rows(id, counts, found, run.classes, MEAN)
    if run.info["data"]["regions"]:
        rows += _region_rows(
            id, pred, truth, counts, found, run.info["data"]["regions"], spacing, ignore
        )
    return rows + _bin_rows(id, bins, run.classes)


def _region_rows(
    id: str,
    pred: Tensor,
    truth: Tensor,
    counts: Tensor,
    found: list[Surface],
    regions: Mapping[str, list[int]],
    spacing: list[float],
    ignore: int,
) -> list[dict[str, Any]]:
    """The same of unions of classes, from what is known of the classes, and their mean."""
    kept = truth.numpy() != ignore
    maps = [x.numpy() * kept for x in (pred, truth)]
    each = []
    for name, parts in regions.items():
        member = torch.tensor(
            [[int((k in parts) == row) for k in range(len(counts))] for row in (False, True)]
        )
        inside, really = (
            torch.from_numpy(reduce(or_, [x == k for k in parts])).to(torch.uint8) for x in maps
        )
        whole = (
            [found[parts[0] - 1]]
            if len(parts) == 1
            else _surfaces(inside, really, 2, spacing, ignore)
        )
        each.append(
            _overlap_rows(id, member @ counts @ member.T, whole, (REGION.format(name),), "")
        )
    rows = [row for part in each for row in part]
    tables = {
        same[0]["metric"]: torch.tensor([row["value"] for row in same]).double()
        for same in zip(*each, strict=True)
    }
    for key, values in tables.items():
        mean = _over_classes(key, values, tables["missed"])
        rows.append({"case": id, "class": REGION.format(MEAN), "metric": key, "value": mean})
    return rows


def _narrow(pred: Tensor, label: Tensor, n_classes: int) -> tuple[Tensor, Tensor, int]:
    """Both as bytes, which are looked at eight times as fast, and what `IGNORE` has become
    by that.
    """
    if n_classes > IGNORE % 256:
        return pred, label, IGNORE
    return pred.to(torch.uint8), label.to(torch.uint8), IGNORE % 256


def _surfaces(
    pred: Tensor, label: Tensor, n_classes: int, spacing: list[float], ignore: int
) -> list[Surface]:
    flat = label.shape[0] == 1  # a single slice: distances in the plane
    maps, size = ((pred[0], label[0]), spacing[1:]) if flat else ((pred, label), spacing)
    return surfaces(*maps, n_classes=n_classes, spacing=size, ignore_index=ignore)


def _overlap_rows(
    id: str, counts: Tensor, found: list[Surface], names: tuple[str, ...], mean: str
) -> list[dict[str, Any]]:
    of = {"confusion": counts, "surfaces": found}
    rows = []
    for key, row in METRICS.items():
        if row.of in of:
            values = row.function(of[row.of]).double()
            named = dict(zip(names, values.tolist(), strict=True))
            if mean:
                named[mean] = _over_classes(key, values, missed(found))
            rows += [
                {"case": id, "class": name, "metric": key, "value": value}
                for name, value in named.items()
            ]
    return rows


def _over_classes(key: str, values: Tensor, gone: Tensor) -> float:
    """How many objects were missed; of any other metric the mean."""
    if key == "missed":
        return values.sum().item()
    return (
        mean_distance(values, gone) if METRICS[key].of == "surfaces" else values.nanmean()
    ).item()


def _bin_rows(id: str, bins: Reliability, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = [
        {"case": id, "class": ALL, "metric": key, "value": row.function(bins).item()}
        for key, row in METRICS.items()
        if row.of == "bins"
    ]
    per_class = cece(bins, class_reduction="none").tolist()
    named = zip(("background", *classes), per_class, strict=True)
    return rows + [
        {"case": id, "class": name, "metric": "cece", "value": value} for name, value in named
    ]


def _logit_sums(logits: Tensor, label: Tensor) -> Tensor:
    """Per true class (K rows): the summed logits, and in the last column the number of voxels.

    Only the foreground is sorted by class; the background, most of a volume, is what is left of the
    whole."""
    n_classes, flat, truth = logits.shape[1], logits.flatten(2), label.flatten(1)
    part, truth = chosen(flat, truth, truth != 0)  # (K, M), (M,): foreground, and ignored voxels
    part, member = part.double(), (truth == torch.arange(n_classes)[:, None]).double()  # (K, M)
    sums = torch.cat([member @ part.T, member.sum(1, keepdim=True)], 1)
    elsewhere = torch.cat([part.sum(1), torch.tensor([float(len(truth))], dtype=torch.float64)])
    whole = torch.cat(
        [flat.sum(2).double().sum(0), torch.tensor([float(label.numel())], dtype=torch.float64)]
    )
    sums[0] = whole - elsewhere
    return sums


def _write_bins(
    path: Path,
    what: dict[str, str],
    total: Reliability,
    logit_sums: Tensor,
    classes: tuple[str, ...],
) -> None:
    values = read_json(path) or {"classes": ["background", *classes], "entries": []}
    entry: dict[str, Any] = dict(what)
    joined = total.coarser()
    for name, bins in (("top", joined.top), ("per_class", joined.classes)):
        entry[name] = {
            "count": bins.count.tolist(),
            "conf": bins.conf.tolist(),
            "hit": bins.hit.tolist(),
        }
    entry["fine"] = {"count": total.top.count.long().tolist(), "hit": total.top.hit.long().tolist()}
    rows = logit_sums.tolist()
    entry["mean_logits"] = [[v / max(row[-1], 1.0) for v in row[:-1]] for row in rows]
    entry["voxels"] = [int(row[-1]) for row in rows]
    others = [old for old in values["entries"] if not _is(old, what)]
    write_json(path, values | {"entries": [*others, entry]})
