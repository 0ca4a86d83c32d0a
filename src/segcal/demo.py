"""The main job from end to end on built-in data: prepare, train and choose, calibrate, compare,
report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.compare import Results, read_results
from segcal.compare.ranking import MAIN, rank_results
from segcal.data.prepare import prepare
from segcal.folders import write_json
from segcal.report import build_report, save_report, summaries
from segcal.study.plan import read_plan
from segcal.study.runner import run_study
from segcal.study.watch import Watch
from segcal.types import UserError

SPLIT = {"train": 12, "val": 4, "test": 16}
"""Few cases to learn from, so that learning them by heart shows; more to tell methods apart."""

SHAPE = (8, 32, 32)


@dataclass(frozen=True)
class Demo:
    """What came out."""

    rows: tuple[dict[str, Any], ...]  # a method each
    summary: str
    report: Path


def run_demo(
    out: Path,
    *,
    workers: int = 2,
    says: Callable[[str], None] = print,
    watch: Watch | None = None,
    plan: str = "demo",
) -> Demo:
    """Run what is left of the demonstration in a folder; `says` is told of each step."""
    if out.is_file():
        raise UserError(f"{out} is a file; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    says(f"1/4 drawing {sum(SPLIT.values())} phantoms into {out / 'cases'}")
    cases = prepare(
        "phantom",
        to=out / "cases",
        n_cases=sum(SPLIT.values()),
        shape=SHAPE,
        split_file=_split(out),
        workers=1,
    ).cases
    wanted = read_plan(plan, data=str(cases.root))
    says(
        f"2/4 {len(wanted.cells)} networks, {workers} at a time; validation chooses; then TS, LTS"
        " and noise on test"
    )
    said = run_study(wanted, out / "study", workers=workers, watch=watch)
    if said["failed"]:
        name, error = next(iter(said["failed"].items()))
        raise UserError(f"{len(said['failed'])} of the networks failed; the first, {name}: {error}")
    says("3/4 ranks and tests")
    results = read_results([out / "study"])
    rows = tuple(_rows(results))
    says("4/4 the report")
    path = out / "report.html"
    save_report(path, build_report(results))
    return Demo(rows, next(iter(summaries(results).values())).text, path)


def _split(out: Path) -> Path:
    path, first = out / "split.json", 0
    found = {}
    for name, size in SPLIT.items():
        found[name] = [f"phantom_{i:03d}" for i in range(first, first + size)]
        first += size
    write_json(path, found)
    return path


def _rows(results: Results) -> list[dict[str, Any]]:
    """Means over the test cases per method, after TS and LTS too, and the mean case rank."""
    (dataset,) = results.datasets
    ranking = rank_results(results, dataset)
    means = {metric: ranking.means[metric]["mean"] for metric in MAIN}
    for name in ("ts", "lts"):
        means[f"ece_{name}"] = results.per_case(dataset, "ece", "all", calibrator=name).mean()
    found = []
    for contender in ranking.contenders:
        about = {"method": contender.label, "chosen": contender.setting}
        values = {key: float(column[contender.key]) for key, column in means.items()}
        found.append(about | values | {"rank": float(ranking.case_rank["mean"][contender.key])})
    return sorted(found, key=lambda row: row["rank"])
