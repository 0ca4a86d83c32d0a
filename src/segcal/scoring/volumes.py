"""Volumes in `scores.csv`, and the intervals of `guarantees/`: fitted on validation patients alone.

The formula is in `segcal.conformal`. Rows of a class hold `true_ml`, `expected_ml` (the sum of its
probabilities) and `spread_ml` (the sum of p (1 - p)); `voxel_ml` is the volume of a voxel. Rows of
test cases also say whether the fitted interval `covered` the true volume, 1 or 0. `gap_ml` is the
sum over all voxels of confidence less accuracy: unlike the `confidence_gap` over all voxels, which
is per foreground voxel of its case, it adds over cases, and cases without foreground have it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from segcal.calibrators import CALIBRATORS
from segcal.conformal import (
    LEVEL,
    Coverage,
    Guarantee,
    by_patient,
    check_level,
    coverage,
    needed,
    scores,
    too_few,
)
from segcal.folders import read_guarantee, read_scores, write_guarantee, write_scores
from segcal.metrics import Reliability, nll, reliability
from segcal.predictors import Predictor
from segcal.types import UserError

TRUE, EXPECTED, SPREAD = FACTS = "true_ml", "expected_ml", "spread_ml"
VOXEL, GAP, COVERED, EVERY = "voxel_ml", "gap_ml", "covered", "all"
VOLUMES = (*FACTS, VOXEL, GAP, COVERED)
"""The names of volumes in the column `metric` of `scores.csv`; they are no metrics."""

Row = dict[str, Any]
Cases = Callable[[], Iterator[tuple[Any, ...]]]  # logits, label, image of each, and what follows
Apply = Callable[[Tensor, Tensor], Tensor]  # such as a fitted calibrator: of logits and image
OfPatient = Callable[[str], Apply]  # the calibrator for the cases of a patient


def volume_rows(
    id: str, everywhere: Reliability, spacing: Sequence[float], classes: Sequence[str]
) -> list[Row]:
    """The volumes of a case, from the statistics of all of its voxels."""
    voxel = math.prod(spacing) / 1000
    gap = everywhere.top.gap.sum().item()
    rows = [_row(id, EVERY, VOXEL, voxel), _row(id, EVERY, GAP, gap * voxel)]
    parts = everywhere.n_true, everywhere.n_expected, everywhere.spread
    for metric, values in zip(FACTS, parts, strict=True):
        for kind, value in zip(classes, values[1:].tolist(), strict=True):
            rows.append(_row(id, kind, metric, value * voxel))
    return rows


def _row(id: str, kind: str, metric: str, value: float) -> Row:
    return {"voxels": "", "case": id, "class": kind, "metric": metric, "value": value}


def _volumes_of(rows: Iterable[Row]) -> dict[tuple[str, str], list[float]]:
    """The volumes in the rows of one condition, by case and class, in the order of `scores`."""
    voxels: dict[str, float] = {}
    facts: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["metric"] == VOXEL:
            voxels[row["case"]] = row["value"]
        elif row["metric"] in FACTS:
            facts[row["case"], row["class"]][row["metric"]] = row["value"]
    volumes = {}
    for key, each in facts.items():
        volumes[key] = [*(each[name] for name in FACTS), voxels[key[0]]]
    return volumes


def load_guarantee(root: Path, calibrator: str, weights: str) -> Guarantee | None:
    """The interval that was fitted after a calibrator (empty: none) and still is true, if any."""
    values = read_guarantee(root, calibrator, weights)
    return None if values is None else Guarantee.of(values)


def with_covered(rows: Sequence[Row], guarantee: Guarantee | None) -> list[Row]:
    """The rows of one test condition, with `covered` by this guarantee and no other."""
    kept = [row for row in rows if row["metric"] != COVERED]
    if guarantee is None or not kept:
        return kept
    common = {key: kept[0][key] for key in kept[0] if key not in _row("", "", "", 0.0)}
    quantiles = {kind: guarantee.quantile(kind) for kind in guarantee.scores}
    for (case, kind), volumes in _volumes_of(kept).items():
        held = float(scores(*volumes)) <= quantiles[kind]
        kept.append(common | _row(case, kind, COVERED, float(held)))
    return kept


def update_covered(predictor: Predictor) -> None:
    """Say of all test cases that were scored whether today's intervals cover them."""
    rows, conditions = read_scores(predictor.root), defaultdict(list)
    for row in rows:
        conditions[row["weights"], row["split"], row["corruption"], row["calibrator"]].append(row)
    updated = []
    for (weights, split, _, calibrator), same in conditions.items():
        ours = split == "test" and weights == predictor.weights
        guarantee = load_guarantee(predictor.root, calibrator, weights) if ours else None
        updated += with_covered(same, guarantee) if ours else same
    if updated != rows:
        write_scores(predictor.root, updated)


def class_coverage(
    rows: Iterable[Row], guarantee: Guarantee, patients: Mapping[str, str]
) -> dict[str, Coverage]:
    """For how many patients the interval of each class held, from the rows of one condition.

    Without `covered` rows there is no coverage."""
    held: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for row in rows:
        if row["metric"] == COVERED:
            patient = patients.get(row["case"], row["case"])
            held[row["class"]].append((patient, bool(row["value"])))
    covered = {}
    for kind, each in held.items():
        covered[kind] = coverage(each, guarantee.level, len(guarantee.scores[kind]))
    return covered


def patients_of(predictor: Predictor) -> Mapping[str, str]:
    """The patients of a predictor's cases; a case that is not there is a patient of its own."""
    return predictor.info["data"].get("patients") or {}


def lacking(predictor: Predictor, level: float | None = None) -> str:
    """Why the validation patients are too few for an interval, or nothing."""
    patients, ids = patients_of(predictor), predictor.ids("val")
    n, level = len({patients.get(id, id) for id in ids}), level or _level(predictor)
    return too_few(n, level) if n < needed(level) else ""


def _level(predictor: Predictor) -> float:
    """The level of the intervals that are there, or the default."""
    known = load_guarantee(predictor.root, "", predictor.weights)
    return known.level if known else LEVEL


def missing_guarantees(
    predictor: Predictor, names: Sequence[str], level: float | None, refitted: Sequence[str]
) -> list[str]:
    """Which calibrators ("" for none) get intervals now: those without, or about to be refitted.

    None if the validation patients are too few; that is an error if a level was asked for."""
    if level is not None:
        check_level(level)
    missing = []
    for name in ("", *names):
        if name in refitted or load_guarantee(predictor.root, name, predictor.weights) is None:
            missing.append(name)
    lack = lacking(predictor, level) if missing or level is not None else ""
    if lack and level is not None:
        raise UserError(f"{predictor.root}: {lack}")
    return [] if lack else missing


class Validated(NamedTuple):
    """What the validation cases say of predictions before or after a calibrator."""

    nll: float  # mean over all voxels
    scores: dict[str, list[float]]  # of the volumes of each class, one per patient, sorted


def validated(
    predictor: Predictor, cases: Cases, applied: Mapping[str, OfPatient]
) -> dict[str, Validated]:
    """One pass over the validation cases with everything that is applied to a patient's logits.

    `cases` are in the order of the validation ids. Volumes are in voxels here: a score does not
    depend on the unit."""
    patients, n_classes = patients_of(predictor), len(predictor.classes) + 1
    total = dict.fromkeys(applied, Reliability.zero(n_classes, 1))
    each: dict[str, list[tuple[str, Any]]] = {name: [] for name in applied}
    for id, (logits, label, image, *_) in zip(predictor.ids("val"), cases(), strict=True):
        patient = patients.get(id, id)
        for name, of_patient in applied.items():
            calibrated = of_patient(patient)(logits, image)
            sums = reliability(calibrated, label, mask="all", n_bins=1)
            true, expected, spread = sums.n_true[1:], sums.n_expected[1:], sums.spread[1:]
            each[name].append((patient, scores(true, expected, spread, 1.0)))
            total[name] += sums
    found = {}
    for name, values in each.items():
        of_classes = {}
        for k, kind in enumerate(predictor.classes):
            of_classes[kind] = sorted(by_patient((p, float(v[k])) for p, v in values).values())
        found[name] = Validated(nll(total[name]).item(), of_classes)
    return found


def save_guarantees(
    predictor: Predictor, found: Mapping[str, Validated], level: float | None
) -> None:
    """Save the intervals that follow from validation, after the calibrators they are tied to."""
    level = level or _level(predictor)
    for name, each in found.items():
        guarantee = Guarantee(level, each.scores).values()
        write_guarantee(predictor.root, name, predictor.weights, guarantee)


def set_level(predictor: Predictor, level: float) -> None:
    """Give all intervals that are there another level; the scores they are made from stay."""
    for name in ("", *CALIBRATORS):
        known = load_guarantee(predictor.root, name, predictor.weights)
        if known is not None and known.level != level:
            values = Guarantee(level, known.scores).values()
            write_guarantee(predictor.root, name, predictor.weights, values)
