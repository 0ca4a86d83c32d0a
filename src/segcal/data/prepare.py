"""A raw data set -> `cases/<name>/`, whole or not at all.

Cases are written into a hidden folder beside the target, each with its record. An interrupted run
continues from them; a run that fails removes them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import SimpleITK as sitk

from segcal import __version__
from segcal.data import splits
from segcal.data.bare import bare_source, check_beside
from segcal.data.case import prepare_case, source_marks
from segcal.data.layouts import write_layout
from segcal.data.leaks import DUPLICATES, later_ones, refuse_across
from segcal.data.phantom import Size
from segcal.data.raw import RawSet, checked_root, raw_set
from segcal.data.readers import RawCase
from segcal.data.unchanged import check_unchanged
from segcal.folders import (
    FORMAT,
    IGNORED,
    StoppedError,
    check_name,
    open_cases,
    path_of,
    whole_or_not,
)
from segcal.folders.cases import CaseSet, content_checksum, is_case_set, write_cases
from segcal.folders.files import changed, read_json, write_json
from segcal.processes import end_with_parent
from segcal.types import AnyPath, Progress, UserError, check_choice, check_range

BEGUN = ".begun"
"""Ends the names of files that say at which cases workers are."""


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did."""

    cases: CaseSet
    fresh: bool  # False: it was there already
    notes: tuple[str, ...] = ()  # what a person should know of the raw data


def prepare(
    name: str,
    root: AnyPath | None = None,
    to: AnyPath = "cases",
    *,
    split_file: AnyPath | None = None,
    patients_file: AnyPath | None = None,
    seed: int = 0,
    workers: int = 1,
    skip_broken: bool = False,
    duplicates: str = "refuse",
    again: bool = False,
    progress: Progress | None = None,
    folds: int | None = None,
    images: str | Sequence[str] = (),
    labels: str = "",
    classes: Sequence[str] | None = None,
    n_cases: int = 40,
    shape: Size = (16, 64, 64),
    **recipe: Any,
) -> Prepared:
    """Prepare a data set for training; does nothing if settings and sources are as before.

    `name` is a row of `DATASETS` or a name for your own data; `root` is its folder as downloaded.
    Keyword arguments named as fields of `Recipe` override the row. Files give the split, and which
    cases are of one patient; `folds` divides patients for cross-validation. Identical images across
    splits are an error unless `duplicates` is `allow`, or `drop`, which leaves the later ones out.
    Files in no known layout are named by patterns with a star for the case: `images` (one per
    channel), `labels`, and names of the `classes`. `n_cases` and `shape` are for the built-in
    `phantom`, which needs no `root`."""
    check_name("data set", name)
    check_range("workers", workers, 1)
    check_choice("duplicates", duplicates, DUPLICATES)
    root, to = None if root is None else Path(root), Path(to)
    split_file, patients_file = (
        None if path is None else Path(path) for path in (split_file, patients_file)
    )
    settings: dict[str, Any] = {"seed": seed, "skip_broken": skip_broken}
    if duplicates != DUPLICATES[0]:
        settings["duplicates"] = duplicates
    with tempfile.TemporaryDirectory() as scratch:
        if root is None and name == "phantom":
            root = Path(scratch)
            settings["phantom"] = {"n_cases": n_cases, "shape": list(shape)}
            write_layout("msd", root, n_cases=n_cases, seed=seed, size=shape)
        bare = None
        if images or labels or classes:
            patterns = [images] if isinstance(images, str) else images
            bare = bare_source(name, patterns, labels, classes)
            check_beside(bare, to / name)
        if folds is not None:
            settings["folds"] = folds
        root = checked_root(bare.root if bare else root, name, to / name, bool(bare))
        files = split_file, patients_file
        raw = raw_set(name, root, to / name, files, settings, recipe, bare)
        if is_case_set(raw.target) and not again:
            cases, ids = open_cases(raw.target), {case.id for case in raw.cases}
            check_unchanged(cases, raw.settings, raw.root, ids, asked=recipe)
            return Prepared(cases, fresh=False, notes=raw.notes)

        # An interrupted run is continued only if it had the same key.
        key = {"turn": raw.orientation, "segcal": __version__, "format": FORMAT}
        with whole_or_not(raw.target, raw.settings | key) as folder:
            records, left_out = _all_cases(raw, folder, workers, progress)
            if duplicates == "drop":
                left_out |= later_ones(records)
                records = {id: records[id] for id in records if id not in left_out}
            write_cases(folder, _info(raw, records, left_out))
            for path in folder.glob("*.npy"):  # left by an interrupted run, of a case now removed
                if path.name.rsplit(".", 2)[0] not in records:
                    path.unlink()
    return Prepared(open_cases(raw.target), fresh=True, notes=raw.notes)


def _all_cases(
    raw: RawSet, folder: Path, workers: int, progress: Progress | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The records of all cases, and why the broken ones are left out."""
    records: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for path in folder.glob(f"*{BEGUN}"):  # left by killed workers
        path.unlink()
    with closing(_each_case(raw, folder, workers)) as outcomes:  # ends processes after a failure
        for done, (case, outcome) in enumerate(zip(raw.cases, outcomes, strict=True), start=1):
            if not isinstance(outcome, UserError):
                records[case.id] = outcome
            elif raw.settings["skip_broken"]:
                left_out[case.id] = str(outcome)
            else:
                remedy = f"mend it, or leave case {case.id} out with --skip-broken"
                raise UserError(f"{outcome}; {remedy}")
            if progress is not None:
                progress(done, len(raw.cases))
    if not records:
        first = next(iter(left_out.values()))
        raise UserError(f"every case of {raw.root} is broken; the first: {first}")
    return dict(sorted(records.items())), dict(sorted(left_out.items()))


def _each_case(
    raw: RawSet, folder: Path, workers: int
) -> Generator[dict[str, Any] | UserError, None, None]:
    """Prepare every case, here or in processes; memory is bounded by one case per worker."""
    work = partial(_one_case, replace(raw, cases=[]), folder)
    if workers == 1:
        yield from map(work, raw.cases)
        return
    n_processes = min(workers, len(raw.cases))
    with ProcessPoolExecutor(n_processes, get_context("spawn"), _begin_worker) as pool:
        try:
            yield from pool.map(work, raw.cases)
        except BrokenExecutor:
            begun = sorted(path.name.removesuffix(BEGUN) for path in folder.glob(f"*{BEGUN}"))
            at_work = f" at {' or '.join(begun)}" if begun else ""
            reason = f"a worker was killed{at_work}, for lack of memory or by a damaged file"
            remedy = "run again with fewer --workers to continue, or mend the file"
            raise StoppedError(f"{reason}; {remedy}") from None


def _begin_worker() -> None:
    end_with_parent()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)


def _one_case(raw: RawSet, folder: Path, case: RawCase) -> dict[str, Any] | UserError:
    path = path_of(folder, case.id, ".record.json")
    record: dict[str, Any] | None = read_json(path)
    if record is not None:
        marks = record["sources"].items()
        if not any(changed(raw.root / source, mark) for source, mark in marks):
            return record
    begun = path_of(folder, case.id, BEGUN)
    begun.touch()
    try:
        record = prepare_case(case, raw.source, raw.recipe, raw.orientation, raw.root, folder)
    except UserError as error:
        return error
    finally:
        begun.unlink()
    write_json(path, record)
    return record


def _info(raw: RawSet, records: dict[str, Any], left_out: dict[str, str]) -> dict[str, Any]:
    """The content of `cases.json`."""
    source = raw.source
    patient_of = {id: record["patient"] for id, record in records.items()}
    if "splits" in raw.settings:
        folds = []
        for fold in raw.settings["splits"]:
            folds.append({name: [id for id in fold[name] if id in records] for name in fold})
    elif "folds" in raw.settings:
        sizes, seed = source.split, raw.settings["seed"]
        folds = splits.by_fold(patient_of, raw.settings["folds"], sizes, seed)
    elif source.leave_one_out:
        folds = splits.leave_one_out(patient_of)
    else:
        folds = [splits.by_patient(patient_of, source.split, raw.settings["seed"])]
    if raw.settings.get("duplicates") != "allow":
        refuse_across(records, folds)
    left_out_sources: dict[str, Any] = {}
    for case in [case for case in raw.cases if case.id in left_out]:
        with suppress(UserError):  # a file may be unreadable
            left_out_sources |= source_marks(case, raw.root)
    return {
        "format": FORMAT,
        "segcal": __version__,
        "name": raw.name,
        "classes": source.classes,
        "regions": source.regions,
        "channels": source.channels,
        "ignored_label": IGNORED,
        "keep_empty": raw.recipe.keep_empty,
        "checksum": content_checksum(records, source.classes, folds),
        "settings": raw.settings,
        "splits": folds,
        "patients_known": source.patients_named or "patients" in raw.settings,
        "orientation": raw.orientation,
        "left_out": left_out,
        "left_out_sources": left_out_sources,
        "cases": records,
    }
