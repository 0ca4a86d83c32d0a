"""Score a predictor on whole volumes, case by case: rows of `scores.csv`, entries of `bins.json`.

Memory does not depend on the number of cases: only rows and sums of a case are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segcal import calibrators
from segcal.corruptions import CORRUPTIONS, parse
from segcal.folders import (
    alone,
    calibrator_path,
    read_bins,
    read_scores,
    sweep_run,
    write_bins,
    write_scores,
)
from segcal.metrics import METRICS
from segcal.predictors import Predictor
from segcal.scoring.cases import Row, Statistics, bin_rows, bins_entry, case_rows, statistics
from segcal.scoring.volumes import FACTS, load_guarantee, with_covered
from segcal.types import Progress, UserError, check_choice

__all__ = ["Row", "Statistics", "evaluate", "forget", "load_calibrator", "score", "statistics"]

POOLED = "pooled"
TODAY = {(key, voxels) for key, row in METRICS.items() for voxels in row.voxels or ("",)}
TODAY |= {(name, "") for name in FACTS}  # every metric, its voxels, and volumes


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
        sweep_run(predictor.root)
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
    """Whether every case of the split has rows of today's metrics, and the bins are there.

    An older version wrote fewer metrics; a kill may come between scores and bins."""
    n_cases = predictor.info["data"].get("splits", {}).get(condition["split"])
    scored = {row["case"] for row in rows}
    if POOLED not in scored or n_cases not in (None, len(scored) - 1):
        return False
    if TODAY - {(row["metric"], row["voxels"]) for row in rows}:
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
    total = Statistics.zero(n_classes)
    rows: list[Row] = []
    for i, id in enumerate(ids, start=1):
        case = predictor.case(id, corruption=corruption, seed=seed)
        logits = case.slices if fitted is None else fitted(case.slices, case.image)
        of_case = statistics(case, logits)
        total += of_case
        rows += case_rows(id, logits, case, of_case, predictor)
        if progress is not None:
            progress(i, len(ids))
    rows += bin_rows(POOLED, total, predictor.classes)
    common = _common(predictor) | condition
    rows = [common | row for row in rows]
    if condition["split"] == "test":
        guarantee = load_guarantee(predictor.root, condition["calibrator"], predictor.weights)
        rows = with_covered(rows, guarantee)
    write_scores(predictor.root, [*_others(read_scores(predictor.root), condition), *rows])
    entries = _others(read_bins(predictor.root), condition)
    entry = condition | bins_entry(total)
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
