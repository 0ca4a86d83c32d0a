"""The files of an audit: scores, bins, calibrators and `run.json`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal import calibrators
from segcal.auditing.records import FOLDER, read_scored, record_path
from segcal.auditing.scored import Facts, Fits, Scored
from segcal.auditing.work import condition_of
from segcal.calibrators import Fitted
from segcal.folders import calibrator_path, write_bins, write_run, write_scores
from segcal.folders.audits import KIND, write_out_of_fold
from segcal.predictors.source import Source
from segcal.provenance import identity, versions
from segcal.scoring import POOLED
from segcal.scoring.cases import Row, Statistics, bin_rows, bins_entry

SPLIT, WEIGHTS = "test", "best"  # as compare reads them: all cases are held out
SMALLEST = 1e-4  # a share of voxels whose stored label differs that is worth a word


@dataclass(frozen=True)
class Audited:
    """What the two passes gave."""

    source: Source
    numbers: tuple[int, ...]  # of the cases that were scored
    facts: Mapping[str, Facts]  # by case
    fits: Mapping[str, Mapping[str, Sequence[Fitted]]]  # by fold ("": all) and calibrator
    calibrators: tuple[str, ...]  # that cases were scored after
    out_of_fold: Mapping[str, Fits]  # by case
    method: str | None
    options: Mapping[str, str | None]  # the folders that the source was opened with
    orientation: str | None  # of the first case
    left_out: Mapping[str, str]
    notes: Sequence[str]


def write_all(folder: Path, run: str, audited: Audited, key: Mapping[str, Any]) -> None:
    """Write everything but verdict and report; the records of single cases go."""
    source = audited.source
    info = _info(audited, key)
    common = {
        "run": run,
        "dataset": info["data"]["name"],
        "network": info["settings"]["network"]["name"],
        "method": info["settings"]["loss"]["name"],
        "setting": "",
        "weights": WEIGHTS,
        "split": SPLIT,
        "corruption": "",
    }
    rows: list[Row] = []
    entries = []
    for name in ("", *audited.calibrators):
        condition = common | {"calibrator": name}
        total = None
        for number in audited.numbers:
            used = audited.out_of_fold.get(source.cases[number].id) if name else None
            scored = _scored(folder, number, used, name)
            rows += [condition | row for row in scored.rows]
            total = scored.statistics if total is None else total + scored.statistics
        assert isinstance(total, Statistics)
        rows += [condition | row for row in bin_rows(POOLED, total, source.classes)]
        keys = ("weights", "split", "corruption", "calibrator")
        entries.append({k: condition[k] for k in keys} | bins_entry(total))
    write_scores(folder, rows)
    write_bins(folder, ("background", *source.classes), entries)
    identity_of = {"run": info["id"], "weights": WEIGHTS, "data": info["data"]["checksum"]}
    for fold, of_fold in audited.fits.items():
        for name, fits in of_fold.items():
            for i, fit in enumerate(fits):
                path = fit_path(folder, name, fold, i if source.kind == "regions" else None)
                calibrators.save(fit, path, identity=identity_of)
    write_out_of_fold(folder, audited.out_of_fold)
    write_run(folder, info)
    shutil.rmtree(folder / FOLDER)


def fit_path(root: Path, name: str, fold: str = "", region: int | None = None) -> Path:
    """The files of a calibrator that was fitted on all cases, or on those of one fold."""
    folder = WEIGHTS if not fold else f"fold_{re.sub(r'[^0-9A-Za-z]+', '-', fold)}"
    return calibrator_path(root, name if region is None else f"{name}_{region}", folder)


def _scored(folder: Path, number: int, fits: Fits | None, calibrator: str) -> Scored:
    known = read_scored(record_path(folder, number, condition_of(fits)))
    assert known is not None  # it was checked, or written by this process
    return known[0][calibrator]


def _info(audited: Audited, key: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `run.json`."""
    source, cases = audited.source, [audited.source.cases[i] for i in audited.numbers]
    labels = {case.id: audited.facts[case.id].label_sha256 for case in cases}
    checksum = hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()
    data = {
        "name": source.name,
        "classes": list(source.classes),
        "regions": {},  # those of a region-based network are its classes
        "channels": ["image"] if all(case.image for case in cases) else [],
        "checksum": checksum,
        "patients": {case.id: case.patient for case in cases},
        "splits": {SPLIT: len(cases)},
        "recipe": {"axis": 0},
        "orientation": audited.orientation,
    }
    settings = {
        "data": str(source.root),
        "fold": 0,
        "seed": 0,
        "loss": {"name": audited.method or source.method},
        "network": {"name": source.network or "own network"},
    }
    facts = {
        "key": key,
        "options": dict(audited.options),
        "kind": source.kind,
        "format": source.format,
        "folds": sorted({case.fold for case in cases}),
        "region_order": list(source.region_order),
        "region_labels": {name: list(members) for name, members in source.regions.items()},
        "left_out": dict(audited.left_out),
        "warnings": [*source.notes, *audited.notes, *_warnings(audited)],
    }
    about = {"id": identity(), "kind": KIND, "status": "finished", "settings": settings}
    return about | {"data": data, "audit": facts, "versions": versions()}


def _warnings(audited: Audited) -> list[str]:
    """What a reader should know of the files."""
    warnings = []
    every = audited.facts
    differing = {id: each.differs for id, each in every.items() if each.differs > SMALLEST}
    if differing:
        worst = max(differing, key=lambda id: differing[id])
        warnings.append(
            f"the stored label map differs from the largest probability in {len(differing)} of"
            f" {len(every)} cases (most in {worst}: {100 * differing[worst]:.2g} % of its voxels);"
            " it was postprocessed, or its axes are others; scores are of the probabilities"
        )
    sampled = [each.sampled for each in every.values() if each.sampled > 1]
    if sampled:
        warnings.append(
            f"of {len(sampled)} large cases the sure background is sampled, at most 1 voxel in"
            f" {max(sampled):.0f}"
        )
    unseen = [each.unseen for each in every.values()]
    if max(unseen) > 0:
        share = 100 * sum(unseen) / len(unseen)
        warnings.append(
            f"the network did not look at {share:.2g} % of the voxels (background is exactly 1);"
            " they count in scores over all voxels and in no fit"
        )
    if audited.left_out:
        n_left_out = len(audited.left_out)
        verb = "cases or files are" if n_left_out > 1 else "case or file is"
        warnings.append(f"{n_left_out} {verb} left out")
    return warnings
