"""From the folders of runs to `Results`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from segcal.compare import checks
from segcal.compare.contenders import Contender, contenders_of
from segcal.compare.records import DEFAULT_VOXELS, Results
from segcal.data.catalog import DATASETS
from segcal.folders import (
    COLUMNS,
    WEIGHTS,
    cell_folder,
    failed_cells,
    open_cases,
    read_run,
    read_scores,
    run_folders,
)
from segcal.types import UserError, check_choice


def read_results(
    folders: Sequence[Path], *, scored: bool = True, weights: str | None = None
) -> Results:
    """Read runs, or folders of runs such as a study's; refuse what cannot be compared.

    `scored` asks for test scores. `weights` reads one kind of weights alone."""
    if weights is not None:
        check_choice("weights", weights, WEIGHTS)
    failed = {}
    for folder in folders:
        for cell, why in failed_cells(folder).items():
            failed[str(cell_folder(folder, cell))] = why
    runs = _runs(folders, failed)
    checks.check_alike(runs)
    scores = pd.concat([_scores(name, info) for name, info in runs.items()], ignore_index=True)
    clean = _clean(scores)
    weights_scored = {str(run): set(rows["weights"]) for run, rows in clean.groupby("run")}
    trained = {info["folder"] for info in runs.values()}
    unfinished = {folder: why for folder, why in failed.items() if folder not in trained}
    complete = not unfinished
    contenders = contenders_of(runs, weights_scored, weights=weights, complete=complete)
    left_out = {Path(folder).name: why for folder, why in unfinished.items()}
    if scored:
        unscored = _unscored(contenders, runs, weights_scored, failed)
        contenders = tuple(c for c in contenders if not unscored.keys() & set(c.runs))
        if not contenders:
            raise UserError(f"no run has test scores; scoring failed of {', '.join(unscored)}")
        left_out |= unscored
    checks.check_datasets(contenders)
    _assign(scores, contenders)
    if scored:
        rows = _clean(scores[scores["chosen"]])
        checks.check_cases(rows, contenders)
        checks.check_values(rows)
    return Results(scores, contenders, runs, left_out)


def _runs(folders: Sequence[Path], failed: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for given in folders:
        for folder in run_folders(given) or [given]:  # read_run says that a folder is no run
            info = read_run(folder)
            if str(folder) in failed and info.get("status") != "finished":
                continue  # its training failed; if only its scoring failed, it can be chosen
            checks.check_run(folder, info)
            name = folder.name if folder.name not in runs else str(folder)
            if name in runs or any(info["id"] == other["id"] for other in runs.values()):
                raise UserError(
                    f"{folder} is given twice, or is a copy of another run; name each run once"
                )
            runs[name] = info | {"folder": str(folder), "patients": _patients(info)}
    if not runs:
        raise UserError("there is no run to read; name the folders of finished runs, or of a study")
    return runs


def _patients(info: Mapping[str, Any]) -> dict[str, str] | None:
    """The patient of each case, if that is not the case itself; `None` if it is not known.

    The run may have a record of it. If not, its data set has, as long as it is unchanged."""
    known = info["data"].get("patients", {})
    row = DATASETS.get(info["data"]["name"])
    unnamed = not known and row is not None and not row.patients_named  # an older run wrote {}
    if known is None or unnamed:
        return None
    if "patients" in info["data"]:
        return dict(known)
    try:
        cases = open_cases(Path(info["settings"]["data"])).info
    except UserError:
        return None
    same = cases["checksum"] == info["data"]["checksum"]
    return {id: record["patient"] for id, record in cases["cases"].items()} if same else None


def _scores(name: str, info: Mapping[str, Any]) -> pd.DataFrame:
    rows = read_scores(Path(info["folder"]))
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"value": float}).assign(run=name)
    checks.check_table(info["folder"], info, table)
    patients = info["patients"] or {}
    table["patient"] = table["case"].map(lambda case: patients.get(case, case))
    return table.assign(seed=info["settings"]["seed"], fold=info["settings"]["fold"])


def _clean(scores: pd.DataFrame) -> pd.DataFrame:
    """The test scores of cases as they are: no corruption, no calibrator."""
    clean = (scores["split"] == "test") & (scores["case"] != "pooled")
    clean &= (scores["corruption"] == "") & (scores["calibrator"] == "")
    return scores[clean & scores["voxels"].isin(DEFAULT_VOXELS)]


def _unscored(
    contenders: Sequence[Contender],
    runs: Mapping[str, Mapping[str, Any]],
    weights_scored: Mapping[str, set[str]],
    failed: Mapping[str, str],
) -> dict[str, str]:
    """The chosen runs whose scoring failed; no other setting may be compared instead."""
    unscored = {}
    for c in contenders:
        for run in c.runs:
            folder = runs[run]["folder"]
            if folder in failed and c.weights not in weights_scored.get(run, ()):
                unscored[run] = failed[folder]
    return unscored


def _assign(scores: pd.DataFrame, contenders: Sequence[Contender]) -> None:
    """Add the columns `contender` and `chosen`; both follow from run and weights."""
    keys, chosen = {}, set()
    for c in contenders:
        chosen |= {(run, c.weights) for run in c.runs}
        for runs in c.runs_tried.values():
            keys |= {(run, c.weights): c.key for run in runs}
    pairs = list(zip(scores["run"], scores["weights"], strict=True))
    scores["contender"] = [keys.get(pair) for pair in pairs]
    scores["chosen"] = np.array([pair in chosen for pair in pairs], dtype=bool)
