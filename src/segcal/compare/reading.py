"""From the folders of runs to `Results`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from segcal import folders
from segcal.compare import checks
from segcal.compare.contenders import Contender, contenders_of, rule_of
from segcal.compare.metric_sets import OF_CONFIDENCE, metric_set
from segcal.compare.records import Results
from segcal.types import AnyPath, UserError, as_paths, check_choice


def read_results(
    paths: AnyPath | Sequence[AnyPath],
    *,
    scored: bool = True,
    weights: str | None = None,
    choose: str | None = None,
    metrics: str = "main",
) -> Results:
    """Read runs, or folders of runs such as a study's; refuse what cannot be compared.

    `scored` asks for test scores. `weights` reads one kind of weights alone. `choose` is the rule
    by which validation chooses settings, if not that of the study. `metrics` is the set that
    orders: `main`, or `paper` for the metrics of the paper."""
    lead, paths = metric_set(metrics), as_paths(paths)
    if weights is not None:
        check_choice("weights", weights, folders.WEIGHTS)
    failed = {}
    for folder in paths:
        for cell, why in folders.failed_cells(folder).items():
            failed[str(folders.cell_folder(folder, cell))] = why
    runs = _runs(paths, failed)
    checks.check_alike(runs)
    kinds = {info.get("audit", {}).get("kind") for info in runs.values()}
    if kinds == {"confidence"} and lead.key == "main":
        lead = OF_CONFIDENCE
    scores = pd.concat([_scores(name, info) for name, info in runs.items()], ignore_index=True)
    clean = scores[(scores[["corruption", "calibrator"]] == "").all(axis=1)]
    clean = clean[clean["split"] == "test"]
    weights_scored = {str(run): set(rows["weights"]) for run, rows in clean.groupby("run")}
    trained = {info["folder"] for info in runs.values()}
    left_out = {Path(folder).name: why for folder, why in failed.items() if folder not in trained}
    complete = not left_out
    rule = rule_of(runs, choose or _recorded_rule(paths))
    how: dict[str, Any] = {"weights": weights, "complete": complete, "rule": rule}
    contenders = contenders_of(runs, weights_scored, **how)
    if scored:
        unscored = {}  # chosen runs whose scoring failed; no other setting may be compared instead
        for c in contenders:
            for run in c.runs:
                folder = runs[run]["folder"]
                if folder in failed and c.weights not in weights_scored.get(run, ()):
                    unscored[run] = failed[folder]
        contenders = tuple(c for c in contenders if not unscored.keys() & set(c.runs))
        if not contenders:
            raise UserError(f"no run has test scores; scoring failed of {', '.join(unscored)}")
        left_out |= unscored
    checks.check_datasets(contenders)
    _assign(scores, contenders)
    results = Results(scores, contenders, runs, left_out, rule, lead)
    if scored:
        results.require(contenders, calibrator="")
        checks.check_cases(results.rows(), contenders)
        checks.check_values(results.rows(), lead)
    return results


def _recorded_rule(paths: Sequence[Path]) -> str | None:
    """The rule of the studies that runs are in; only studies of one rule are compared."""
    rules = {rule: folder for folder in paths if (rule := folders.study_choice(folder))}
    if len(rules) > 1:
        (a, one), (b, other) = rules.items()
        remedy = f"carry out one of them again with --set choose={b}"
        raise UserError(f"{one} chose settings by {a} and {other} by {b}; {remedy}")
    return next(iter(rules), None)


def _runs(paths: Sequence[Path], failed: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for path in paths:
        for folder in folders.run_folders(path) or [path]:  # read_run says that a folder is no run
            info = folders.read_run(folder)
            if str(folder) in failed and info["status"] != "finished":
                continue  # its training failed; if only its scoring failed, it can be chosen
            checks.check_finished(folder, info)
            name = folder.name if folder.name not in runs else str(folder)
            if any(info["id"] == other["id"] for other in runs.values()):
                twice = f"{folder} is given twice, or is a copy of another run"
                raise UserError(f"{twice}; name each run once")
            runs[name] = info | {"folder": str(folder)}
    if not runs:
        raise UserError("there is no run to read; name the folders of finished runs, or of a study")
    return runs


def _scores(name: str, info: Mapping[str, Any]) -> pd.DataFrame:
    rows, patients = folders.read_scores(Path(info["folder"])), info["data"].get("patients") or {}
    table = pd.DataFrame(rows, columns=list(folders.COLUMNS)).astype({"value": float})
    checks.check_table(info["folder"], info, table)
    table["patient"] = [patients.get(case, case) for case in table["case"]]
    return table.assign(run=name, seed=info["settings"]["seed"], fold=info["settings"]["fold"])


def _assign(scores: pd.DataFrame, contenders: Sequence[Contender]) -> None:
    """Add the columns `contender` and `chosen`; both follow from run and weights."""
    keys: dict[tuple[str, str], str] = {}
    chosen: set[tuple[str, str]] = set()
    for c in contenders:
        chosen |= {(run, c.weights) for run in c.runs}
        for runs in c.runs_tried.values():
            keys |= {(run, c.weights): c.key for run in runs}
    pairs = pd.Series(list(zip(scores["run"], scores["weights"], strict=True)), dtype=object)
    scores["contender"], scores["chosen"] = pairs.map(keys), pairs.isin(chosen)
