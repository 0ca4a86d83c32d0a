"""How far can the probabilities be believed that a network has already made?

`audit` reads them from files, scores them, fits calibrators without a leak, and says in a few
sentences what it found. Its folder is read like a run's by `compare`, `figures` and `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from segcal.auditing.applying import WRITTEN, write_audited
from segcal.auditing.crossfit import BY_SUMS, CALIBRATORS
from segcal.auditing.making import Making
from segcal.auditing.outcome import conclude
from segcal.auditing.scored import with_classes
from segcal.auditing.written import fit_path, write_all
from segcal.calibrators import Fitted, load
from segcal.compare import Results, read_results
from segcal.figures import FIGURES
from segcal.folders import calibrator_path, is_run, read_run, sweep, whole_or_not
from segcal.folders.audits import KIND, REPORT, is_audit, read_audit
from segcal.predictors.files import open_source
from segcal.predictors.source import Source
from segcal.report import build_report, save_report
from segcal.types import Progress, UserError, check_choice, check_range

__all__ = ["CALIBRATORS", "Audit", "audit", "open_audit"]


FOLDERS = ("labels", "images")
"""The folders that a source can have beside its maps."""


@dataclass(frozen=True)
class Audit:
    """A finished audit: its folder, and the content of its `audit.json`."""

    root: Path
    about: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """`overconfident`, `underconfident`, `calibrated`, `mixed` or `too few`."""
        return str(self.about["verdict"])

    @property
    def text(self) -> str:
        """The verdict in sentences, one a line."""
        return "\n".join(self.about["sentences"])

    @property
    def temperature(self) -> Mapping[str, float | None]:
        """The temperature near predicted foreground: `value`, `low` and `high`."""
        found: Mapping[str, float | None] = self.about["temperature"]
        return found

    @cached_property
    def results(self) -> Results:
        """The scores as `compare` reads them."""
        return read_results([self.root])

    @property
    def scores(self) -> pd.DataFrame:
        """The rows of `scores.csv`."""
        return self.results.scores

    @property
    def calibrator(self) -> Fitted | None:
        """The calibrator that helps on cases it was not fitted on, fitted on all; else None.

        Regions have one each: `calibrators`."""
        fits = list(self.calibrators.values())
        return fits[0] if fits and self.about["kind"] != "regions" else None

    @property
    def calibrators(self) -> dict[str, Fitted]:
        """The same by region; of other networks one, for all classes."""
        name = self.about["calibrator"]
        if name is None:
            return {}
        if self.about["kind"] != "regions":
            return {"all": load(calibrator_path(self.root, name))}
        fits = {}
        for i, region in enumerate(self.about["classes"]):
            fits[region] = load(fit_path(self.root, name, region=i))
        return fits

    def figure(self) -> Figure:
        """Reliability near predicted foreground, before and after calibrators if any are fitted."""
        for name in ("calibrated", "reliability"):
            if figure := FIGURES[name].draw(self.results, self.results.datasets[0]):
                break
        assert figure is not None
        return figure

    def report(self, path: str | Path) -> None:
        """Write the report: one HTML file."""
        save_report(Path(path), build_report(self.results))


def open_audit(root: str | Path) -> Audit:
    """Open the folder of a finished audit."""
    return Audit(Path(root), read_audit(Path(root)))


def audit(
    path: str | Path,
    labels: str | Path | None = None,
    *,
    out: str | Path | None = None,
    images: str | Path | None = None,
    patients: str | Path | None = None,
    kind: str | None = None,
    name: str | None = None,
    calibrators: Sequence[str] = BY_SUMS,
    resample: bool = False,
    keep_going: bool = False,
    workers: int = 1,
    ray: str = "",
    report: bool = True,
    write: Sequence[str] = (),
    again: bool = False,
    progress: Progress | None = None,
) -> Audit:
    """Audit the predictions in a folder, by default into `audits/<name of the data set>`.

    `name` is what the predictor is called in comparisons. A finished audit of the same files is
    opened; an interrupted one goes on. `progress` counts cases of both passes. Without `report`
    there is no `report.html`. `write` adds calibrated `confidence` or `probabilities` of the cases,
    each by the calibrator that was fitted without its patient. `calibrators` may also have `vs`."""
    check_range("workers", workers, 1)
    for each in calibrators:
        check_choice("calibrator of an audit", each, CALIBRATORS)
    for each in write:
        check_choice("map to write", each, WRITTEN)
    folders = [None if value is None else Path(value) for value in (labels, images, patients)]
    options: dict[str, Any] = {"kind": kind, "keep_going": keep_going}
    options |= dict(zip((*FOLDERS, "patients"), folders, strict=True))
    places = {name: options[name] and str(options[name].resolve()) for name in FOLDERS}
    source = open_source(Path(path), **options)
    if source.kind == "logits" and source.regions:
        problem = f"{path} holds logits of regions, each of which has a sigmoid of its own"
        raise UserError(f"{problem}; export probabilities")
    target = Path(out) if out is not None else Path("audits") / source.name
    how = {"resample": resample, "calibrators": list(calibrators), "name": name}
    key = {"files": _fingerprint(source), "places": places, **how}
    _check_target(target, [Path(path), *(each for each in folders if each is not None)])
    if target.exists() and not again:
        sweep(target)
        found = _known(target, key, report)
    else:
        with whole_or_not(target, key) as folder:
            made = Making(
                with_classes(source, resample=resample),
                folder,
                resample,
                keep_going,
                workers,
                ray,
                progress,
                places,
            )
            write_all(folder, target.name, made.carry_out(tuple(calibrators), name), key)
        found = _concluded(target, report)
    if found.about["calibrator"] is not None:
        write_audited(target, source, write)
    return found


def _check_target(target: Path, read: Sequence[Path]) -> None:
    """Refuse to write where something else is, also with --again."""
    there = target.resolve()
    for folder in read:
        if folder.resolve() == there or there in folder.resolve().parents:
            raise UserError(f"{target} holds what is audited ({folder}); choose another --out")
    if target.exists() and (not is_run(target) or read_run(target).get("kind") != KIND):
        raise UserError(f"{target} exists and is no audit; choose another --out")


def _known(target: Path, key: Mapping[str, Any], report: bool) -> Audit:
    """The audit that is there, if it is of the same files."""
    if read_run(target)["audit"]["key"] != key:
        problem = f"{target} is an audit of other files or settings"
        raise UserError(f"{problem}; choose another --out, or --again to replace it")
    complete = is_audit(target) and (not report or (target / REPORT).is_file())
    return open_audit(target) if complete else _concluded(target, report)


def _concluded(target: Path, report: bool) -> Audit:
    """Write verdict and report, which need the folder's final name."""
    conclude(target, report=report)
    return open_audit(target)


def _fingerprint(source: Source) -> list[Any]:
    """What tells that files changed: their names, sizes and times."""
    found = []
    for case in source.cases:
        paths = [*case.files, case.label, case.segmentation]
        stats = [(str(p.resolve()), p.stat()) for p in paths if p is not None and p.is_file()]
        files = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        found.append([case.id, case.patient, case.fold, files])
    meaning = [list(source.region_order), source.ignore_label]
    regions = {name: list(labels) for name, labels in source.regions.items()}
    return [source.kind, list(source.classes), regions, meaning, found]
