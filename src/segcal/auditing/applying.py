"""Calibrators of an audit, applied: to new predictions of the network, and to the audited ones."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal import calibrators
from segcal.auditing.crossfit import BY_SUMS
from segcal.auditing.map_files import write_case, write_confidence
from segcal.auditing.temperatures import Parameters
from segcal.auditing.written import fit_path
from segcal.folders import is_run, read_json, read_run, replacing, whole_or_not
from segcal.folders.audits import (
    CALIBRATED,
    read_audit,
    read_calibrated,
    read_out_of_fold,
    write_calibrated,
)
from segcal.folders.result_schemas import Ts2Parameters, TsParameters
from segcal.folders.schemas import fault_of
from segcal.predictors.files import open_source
from segcal.predictors.nnunet import described, model_folder
from segcal.predictors.source import Source
from segcal.predictors.writing import stored_type
from segcal.types import Progress, UserError, check_choice

WRITTEN = ("confidence", "probabilities")
"""What can be written of audited cases."""


@dataclass(frozen=True)
class Applied:
    """What `apply` wrote."""

    out: Path
    calibrator: str
    fits: tuple[Parameters, ...]  # one, or one for each of the regions
    regions: tuple[str, ...]
    cases: tuple[str, ...]
    notes: tuple[str, ...]  # sentences to print


def apply(
    audit: str | Path,
    predictions: str | Path,
    *,
    out: str | Path,
    calibrator: str | None = None,
    fold: str | None = None,
    again: bool = False,
    progress: Progress | None = None,
) -> Applied:
    """Write new predictions of an audited network, calibrated, in their own format and geometry.

    The calibrator is the one that helped out of fold, unless `calibrator` names one; it was fitted
    on all audited cases, or with `fold` on those that this fold held out, which is right for the
    network of that fold. Label maps and all other files are copied as they are. Maps are read as
    float32; what is predicted in a voxel stays."""
    root, folder, target = Path(audit), Path(predictions), Path(out)
    if not is_run(root):
        raise UserError(f"{root} is no audit; name a folder that segcal audit wrote")
    about, info = read_audit(root), read_run(root)
    _check_folders(root, folder, target, again=again)
    name = _chosen(root, about, calibrator)
    fits = _saved_fits(root, info, name, fold)
    source = _new_predictions(root, info, folder)
    what = {"audit": root.resolve().name, "id": info["id"], "calibrator": name}
    what |= {"fold": fold, "fits": [dict(values) for values in fits]}
    notes = _notes(info, source, fold)
    stats = [(str(source.place(path)), path.stat()) for path in _files(source)]
    files = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    with whole_or_not(target, [what, files]) as partial:
        for i, case in enumerate(source.cases, start=1):
            write_case(source, case, fits, partial)
            if progress is not None:
                progress(i, len(source.cases))
        _copy_others(source, partial)
        write_calibrated(partial, what | {"notes": notes})
    ids = tuple(case.id for case in source.cases)
    regions = source.classes if source.kind == "regions" else ()
    return Applied(target, name, fits, regions, ids, tuple(notes))


def write_audited(
    root: Path,
    source: Source,
    what: Collection[str],
    *,
    calibrator: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write calibrated maps of audited cases into `probabilities` and `confidence` of an audit.

    `source` is what was audited. Each case gets the calibrator that was fitted without its patient:
    the one that helps out of fold, or the one named."""
    for each in what:
        check_choice("map to write", each, WRITTEN)
    if not what:
        return
    name, id = _chosen(root, read_audit(root), calibrator), read_run(root)["id"]
    fits = read_out_of_fold(root)
    cases = [case for case in source.cases if name in fits.get(case.id, {})]
    if not cases:
        raise UserError(f"{root} has no {name} that was fitted without a case; audit more patients")
    about = {"audit": root.resolve().name, "id": id, "calibrator": name, "out_of_fold": True}
    for n, each in enumerate(what):
        write = write_case if each == "probabilities" else write_confidence
        if read_calibrated(root / each) == about:
            continue
        with whole_or_not(root / each, about) as partial:
            for i, case in enumerate(cases, start=1):
                write(source, case, fits[case.id][name], partial)
                if progress is not None:
                    progress(n * len(cases) + i, len(what) * len(cases))
            write_calibrated(partial, about)


def _check_folders(root: Path, folder: Path, target: Path, *, again: bool) -> None:
    """Raise unless predictions can be read and `target` can be written or replaced."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name the folder that holds the predictions")
    if read_calibrated(folder) is not None:
        problem = f"{folder} holds calibrated predictions ({CALIBRATED} says by what)"
        raise UserError(f"{problem}; name the folder of those that the network made")
    if model_folder(folder) is not None:
        problem = f"{folder} holds predictions for training cases, on which calibrators are fitted"
        raise UserError(f"{problem}; segcal audit --write probabilities calibrates them")
    for kept in (folder, root):
        if kept.resolve().is_relative_to(target.resolve()):
            raise UserError(f"--out {target} would replace {kept}; choose another folder")
    if not target.exists():
        return
    if not again:
        raise UserError(f"{target} exists; choose another --out, or --again to replace it")
    if read_calibrated(target) is None:
        problem = f"{target} holds no calibrated predictions, so --again does not replace it"
        raise UserError(f"{problem}; choose another --out")


def _chosen(root: Path, about: Mapping[str, Any], calibrator: str | None) -> str:
    """The name of the calibrator to apply."""
    if about["kind"] == "confidence":
        problem = f"{root} is an audit of confidence maps, which no calibrator is fitted on"
        raise UserError(f"{problem}; audit the probabilities of all classes")
    if calibrator is not None:
        check_choice("calibrator that keeps label maps", calibrator, BY_SUMS)
        return calibrator
    if about["calibrator"] is None:
        problem = f"in {root} no calibrator helps on cases that it was not fitted on"
        raise UserError(f"{problem}; name one with --calibrator ({' or '.join(BY_SUMS)})")
    return str(about["calibrator"])


def _saved_fits(
    root: Path, info: Mapping[str, Any], name: str, fold: str | None
) -> tuple[Parameters, ...]:
    """The fit for all audited cases or for a fold, of each region if there are such."""
    folds = [each for each in info["audit"]["folds"] if each]
    if fold is not None and fold not in folds:
        held = ", ".join(folds) or "none"
        raise UserError(f"{root} has no fold {fold!r}; its folds are: {held}")
    regions: Sequence[int | None] = [None]
    if info["audit"]["kind"] == "regions":
        regions = range(len(info["data"]["classes"]))
    fits = []
    for region in regions:
        path = fit_path(root, name, fold or "", region)
        if not calibrators.saved(path):
            raise UserError(f"{root} has no fitted {name}; audit more patients, or use another")
        fit = calibrators.load(path, expect={"run": info["id"]})
        values = {key: float(value.sum()) for key, value in sorted(fit.parameters.items())}
        if fault := fault_of(TsParameters if name == "ts" else Ts2Parameters, values):
            raise UserError(f"{path} is damaged; audit again with --again ({fault})")
        fits.append(values)
    return tuple(fits)


def _new_predictions(root: Path, info: Mapping[str, Any], folder: Path) -> Source:
    """The predictions in a folder, which must be of what was audited."""
    kind, classes = info["audit"]["kind"], info["data"]["classes"]
    described_file = folder / "dataset.json"
    if kind in ("softmax", "regions") and described_file.is_file():
        held = "regions" if described(described_file).regions else "softmax"
        if held != kind:
            _refuse_kind(root, kind, folder, held)
    try:  # what needs no kind to be said; whole numbers need it, as label maps hold them too
        source = open_source(folder, kind=None if kind == "softmax" else kind)
    except UserError:
        explicit = _of_kind(folder, kind)
        other = {"softmax": "logits", "logits": "softmax"}.get(kind)
        if explicit is None and other is not None and _of_kind(folder, other):
            _refuse_kind(root, kind, folder, other)
        if explicit is None:
            raise
        source = explicit
    if source.kind != kind:
        _refuse_kind(root, kind, folder, source.kind)
    if len(source.classes) != len(classes):
        held = ", ".join(source.classes)
        problem = f"{folder} has {len(source.classes)} classes ({held}) where the audit {root} has"
        raise UserError(f"{problem} {len(classes)} ({', '.join(classes)}); audit this network")
    return source


def _refuse_kind(root: Path, kind: str, folder: Path, held: str) -> None:
    problem = f"{folder} holds {held} where the audit {root} is of {kind}"
    raise UserError(f"{problem}; export {kind}, or audit {held}")


def _of_kind(folder: Path, kind: str) -> Source | None:
    """Predictions read as being of a kind; `None` if they are not."""
    try:
        return open_source(folder, kind=kind)
    except UserError:
        return None


def _notes(info: Mapping[str, Any], source: Source, fold: str | None) -> list[str]:
    """What a user should know of the outcome."""
    notes = _differences(info, source)
    if len(info["audit"]["folds"]) > 1 and fold is None:
        notes.append(
            "no out-of-fold predictions of the ensemble of folds exist, so how well it is"
            " calibrated was not measured; the calibrator is that of its members"
        )
    if Path(info["settings"]["data"]).resolve() == source.root.resolve():
        notes.append(
            "these are the audited predictions, on which the calibrator was fitted; do not score"
            " them (segcal audit --write probabilities leaves each patient out)"
        )
    if source.kind == "logits":
        notes.append("logits came in, so calibrated log-probabilities are written")
    types = {stored_type(path) for path in source.cases[0].files}
    if any(dtype.kind != "f" for dtype in types):
        names = ", ".join(sorted(str(dtype) for dtype in types))
        notes.append(f"maps of whole numbers ({names}) are written as float32")
    if source.format == "segcal":
        notes.append("confidence maps and summaries are of what came in and are left out")
    return notes


def _differences(info: Mapping[str, Any], source: Source) -> list[str]:
    """What says that another network made the predictions."""
    notes = []
    plans = read_json(source.root / "plans.json")
    model = Path(info["settings"]["data"])
    if isinstance(plans, dict) and info["audit"]["format"] == "nnunet":
        audited = {"dataset_name": model.resolve().parent.name, "plans_name": ""}
        if model.name.count("__") == 2:
            audited["plans_name"] = model.name.split("__")[1]
        for key, name in audited.items():
            new = str(plans.get(key, name))
            if name and new != name:
                notes.append(
                    f"plans.json says {key} {new!r} where {name!r} was audited; the calibrator is"
                    " right for the audited network only"
                )
    classes = tuple(info["data"]["classes"])
    unnamed = tuple(f"label {k}" for k in range(1, len(classes) + 1))
    if classes != source.classes and unnamed not in (classes, source.classes):
        ours, theirs = ", ".join(source.classes), ", ".join(classes)
        notes.append(f"classes are called {ours} where the audit has {theirs}; taken in this order")
    return notes


def _files(source: Source) -> list[Path]:
    """The files beside the maps, and the maps; none that is hidden."""
    folders = {source.root} | {path.parent for case in source.cases for path in case.files}
    files = sorted(path for folder in folders for path in folder.iterdir())
    return [path for path in files if path.is_file() and not path.name.startswith(".")]


def _copy_others(source: Source, target: Path) -> None:
    """Copy all files of the predictions but the maps; none is opened as anything but bytes."""
    maps = {path.name for case in source.cases for path in case.files}
    if source.format == "segcal":
        for case in source.cases:
            maps |= {f"{case.id}_confidence.nii.gz", f"{case.id}_summary.json"}
    for path in _files(source):
        if path.name not in maps:
            with replacing(target / source.place(path)) as partial:
                shutil.copyfile(path, partial)
