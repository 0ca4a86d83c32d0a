"""All steps once on built-in data: prepare, train and choose, calibrate, compare, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.calibrators import CALIBRATORS
from segcal.compare import Contender, Results, read_results
from segcal.compare.ranking import confidences, rank_results, ratios_of_sums
from segcal.data.prepare import prepare
from segcal.figures import save_figures
from segcal.folders import read_fits, write_json
from segcal.report import build_report, save_report, summaries
from segcal.study.plan import read_plan
from segcal.study.runner import run_study
from segcal.study.watch import Watch
from segcal.types import AnyPath, UserError

SPLIT = {"train": 6, "val": 6, "test": 16}
"""Few cases to train on, so that overfitting shows; more to test on, to tell methods apart."""

SHAPE = (8, 40, 40)


@dataclass(frozen=True)
class Demo:
    """The outcome of the demonstration."""

    rows: tuple[dict[str, Any], ...]  # one per method
    summary: str
    report: Path
    picture: Path  # reliability before and after calibration


def run_demo(
    out: AnyPath,
    *,
    workers: int = 2,
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
    plan: str = "demo",
) -> Demo:
    """Carry out what is left of the demonstration in a folder; `say` prints the steps.

    The plan `demo` has seven methods, `demo-quick` two."""
    out = Path(out)
    if out.is_file():
        raise UserError(f"{out} is a file; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    n_cases = sum(SPLIT.values())
    say(f"1/4 drawing {n_cases} phantoms into {out / 'cases'}")
    split = _split(out)
    options: dict[str, Any] = {"n_cases": n_cases, "shape": SHAPE, "split_file": split}
    cases = prepare("phantom", to=out / "cases", workers=1, **options).cases
    wanted = read_plan(plan, data=str(cases.root))
    networks = f"{len(wanted.cells)} networks, {workers} at a time"
    scored = "calibrators and noise" if wanted.cells[0].after.corruptions else "calibrators"
    say(f"2/4 {networks}; validation chooses; then {scored} on test")
    failed = run_study(wanted, out / "study", workers=workers, watch=watch)["failed"]
    if failed:
        name, error = next(iter(failed.items()))
        raise UserError(f"{len(failed)} of the networks failed; the first, {name}: {error}")
    say("3/4 ranks and tests")
    results = read_results([out / "study"])
    rows = tuple(_rows(results))
    say("4/4 the report")
    path = out / "report.html"
    save_report(path, build_report(results))
    (drawn,) = save_figures(results, out, format="png", keys=["calibrated"])
    return Demo(rows, next(iter(summaries(results).values())).text, path, Path(drawn["file"]))


def _split(out: Path) -> Path:
    path, first = out / "split.json", 0
    split = {}
    for name, size in SPLIT.items():
        split[name] = [f"phantom_{i:03d}" for i in range(first, first + size)]
        first += size
    write_json(path, split)
    return path


def _rows(results: Results) -> list[dict[str, Any]]:
    """Means over the test cases per method, NLL after calibrators too, T, the mean case rank."""
    (dataset,) = results.datasets
    ranking = rank_results(results, dataset)
    columns = {metric: means["mean"] for metric, means in ranking.means.items()}
    columns["volume_ratio"] = ratios_of_sums(results, dataset, "volume_ratio")["mean"]
    for name in CALIBRATORS:
        if not results.lacking(ranking.contenders, calibrator=name):
            after = results.per_case(dataset, "nll", "all", calibrator=name).mean()
            columns[f"nll_{name}"] = after
    known = confidences(results, dataset, list(ranking.case_rank.index))
    rows = []
    for c in ranking.contenders:
        row: dict[str, Any] = {"method": c.label, "chosen": c.setting}
        row |= {head: float(column[c.key]) for head, column in columns.items()}
        row |= {"temperature": _temperature(results, c)}
        row |= {"rank": float(ranking.case_rank["mean"][c.key])}
        rows.append(row | {"verdict": known[c.key].verdict if c.key in known else ""})
    return sorted(rows, key=lambda row: row["rank"])


def _temperature(results: Results, contender: Contender) -> float:
    """The temperature that validation gives the runs of a contender; above 1: too sure."""
    runs = [Path(results.runs[run]["folder"]) for run in contender.runs]
    fits = [read_fits(folder, contender.weights)["ts"]["temperature"] for folder in runs]
    return sum(fits) / len(fits)
