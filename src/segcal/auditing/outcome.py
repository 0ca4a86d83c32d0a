"""The verdict on an audited predictor: `audit.json` and the report, from the scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from segcal.compare import Results, read_results
from segcal.folders import read_fits, read_run
from segcal.folders.audits import REPORT, write_audit
from segcal.metrics import METRICS, SETS
from segcal.report import build_report, save_report
from segcal.report.audits import Judged, judged
from segcal.report.findings import find


def conclude(root: Path, *, report: bool = True) -> None:
    """Write `report.html` if asked, then `audit.json`, which marks the audit as finished."""
    results = read_results([root])
    found = judged(find(results, results.datasets[0]))
    if report:
        save_report(root / REPORT, build_report(results))
    write_audit(root, _content(root, results, found))


def _content(root: Path, results: Results, found: Judged) -> dict[str, Any]:
    info = read_run(root)
    facts = info["audit"]
    fits = read_fits(root)
    regions = info["data"]["classes"] if facts["kind"] == "regions" else []
    return {
        "verdict": found.verdict,
        "sentences": list(found.sentences),
        "n_cases": info["data"]["splits"]["test"],
        "n_patients": len(set(info["data"]["patients"].values())),
        "n_folds": len(facts["folds"]),
        "kind": facts["kind"],
        "format": facts["format"],
        "classes": info["data"]["classes"],
        "confidence": found.numbers,
        "temperature": _temperature(fits),
        "temperatures": {name: _temperature(fits, f"ts_{i}") for i, name in enumerate(regions)},
        "calibrator": found.calibrator,
        "scores": _scores(results),
        "volume_ratio": found.volume_ratio,
        "worst": list(found.worst),
        "warnings": facts["warnings"],
        "left_out": facts["left_out"],
    }


def _temperature(fits: dict[str, dict[str, Any]], name: str = "ts") -> dict[str, float | None]:
    fit = fits.get(name)
    if fit is None:
        return {"value": None, "low": None, "high": None}
    low, high = fit.get("interval") or (None, None)
    return {"value": fit["temperature"], "low": low, "high": high}


def _scores(results: Results) -> dict[str, Any]:
    """Means over cases, before and after each calibrator, by set of voxels and metric."""
    rows = results.scores[(results.scores["case"] != "pooled") & (results.scores["class"] == "all")]
    scores: dict[str, Any] = {}
    for key, part in rows.groupby(["calibrator", "voxels", "metric"]):
        calibrator, voxels, metric = map(str, key)
        if voxels in SETS and metric in METRICS:
            mean = float(part["value"].mean())
            of_set = scores.setdefault(calibrator or "before", {}).setdefault(voxels, {})
            of_set[metric] = None if math.isnan(mean) else mean
    overlap = results.scores[results.scores["class"] == "mean"]
    for key, part in overlap.groupby(["calibrator", "metric"]):
        calibrator, name = map(str, key)
        mean = float(part["value"].mean())
        of_set = scores[calibrator or "before"].setdefault("overlap", {})
        of_set[name] = None if math.isnan(mean) else mean
    return scores
