"""A raw data set -> `cases/<name>/`, whole or not at all.

Cases are written into a hidden folder beside the target, each with its record; when all are there
the folder takes its name. An interrupted run finds them there and goes on; a run that fails removes
them."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import SimpleITK as sitk

from segcal import __version__
from segcal.data import splits
from segcal.data.case import prepare_case
from segcal.data.catalog import Recipe, Source, changed_recipe, source_of
from segcal.data.images import orientation
from segcal.data.layouts import write_layout
from segcal.data.readers import RawCase
from segcal.folders import (
    FORMAT,
    IGNORED,
    CaseSet,
    StoppedError,
    array_path,
    changed,
    content_checksum,
    fingerprint,
    open_cases,
    read_json,
    whole_or_not,
    write_json,
)
from segcal.types import UserError, check_range

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did."""

    cases: CaseSet
    left_out: dict[str, str]  # broken cases and why
    fresh: bool  # False: it was there already


@dataclass(frozen=True)
class _Job:
    name: str
    root: Path
    target: Path
    source: Source
    recipe: Recipe
    raw: list[RawCase]
    settings: dict[str, Any]  # as they stand in cases.json
    turn: str | None  # the orientation that all cases get

    @property
    def key(self) -> dict[str, Any]:
        """What cases of an interrupted try must share with this one to be taken over."""
        return self.settings | {"turn": self.turn, "segcal": __version__, "format": FORMAT}


def prepare(
    name: str,
    root: Path | None = None,
    to: Path = Path("cases"),
    *,
    split_file: Path | None = None,
    patients_file: Path | None = None,
    seed: int = 0,
    workers: int = 1,
    skip_broken: bool = False,
    again: bool = False,
    progress: Progress | None = None,
    n_cases: int = 40,
    shape: tuple[int, int, int] = (16, 64, 64),
    **recipe: Any,
) -> Prepared:
    """Prepare a data set for training; doing it again with the same settings and sources is a
    no-op.

    `name` is a row of `DATASETS` or a name for your own data; `root` is its folder as downloaded.
    Keyword arguments named as fields of `Recipe` override the row; files give the split, and which
    cases are of one patient. `n_cases` and `shape` are for the built-in `phantom`, which needs no
    `root`."""
    if not name or Path(name).name != name or name.startswith("."):
        raise UserError(f"a data set's name must be a plain folder name; got {name!r}")
    check_range("workers", workers, 1)
    settings: dict[str, Any] = {"seed": seed, "skip_broken": skip_broken}
    with tempfile.TemporaryDirectory() as scratch:
        if root is None and name == "phantom":
            root = Path(scratch)
            settings["phantom"] = {"n_cases": n_cases, "shape": list(shape)}
            _write_phantoms(root, n_cases, seed, shape)
        job = _job(name, root, to, (split_file, patients_file), settings, recipe)
        if (job.target / "cases.json").is_file() and not again:
            return _existing(job)
        with whole_or_not(job.target, job.key) as folder:
            records, left_out = _all_cases(job, folder, workers, progress)
            write_json(folder / "cases.json", _info(job, records, left_out, split_file))
            _tidy(folder, set(records))
    return Prepared(open_cases(job.target), left_out, fresh=True)


def _write_phantoms(folder: Path, n_cases: int, seed: int, shape: tuple[int, int, int]) -> None:
    try:
        write_layout("msd", folder, n_cases=n_cases, seed=seed, size=shape)
    except (OSError, RuntimeError):
        raise UserError(
            f"cannot write phantoms to {folder}; make room there or set TMPDIR"
        ) from None


def _tidy(folder: Path, ids: set[str]) -> None:
    """Remove what an interrupted earlier try left of cases that are no longer there."""
    for path in folder.glob("*.npy"):
        if path.name.rsplit(".", 2)[0] not in ids:
            path.unlink()


Files = tuple[Path | None, Path | None]  # split, patients


def _job(
    name: str,
    root: Path | None,
    to: Path,
    files: Files,
    settings: dict[str, Any],
    recipe: dict[str, Any],
) -> _Job:
    split_file, patients_file = files
    if root is None:
        raise UserError(f"say where the raw data of {name} is, with --from")
    if not root.is_dir():
        raise UserError(
            f"there is no folder {root}; --from takes the data set's folder as downloaded and"
            " unpacked"
        )
    root = Path(os.path.normpath(root))  # as the paths that readers find in it
    source = source_of(name, root)
    used = changed_recipe(source.recipe, recipe)
    raw = source.reader(root)
    if not raw:
        raise UserError(
            f"found no case in {root}; expected"
            f" {source.layout or 'imagesTr and labelsTr beside dataset.json'}"
        )
    twice = [id for id, n in Counter(case.id for case in raw).items() if n > 1]
    if twice:
        raise UserError(
            f"{root} has two cases named {twice[0]!r}; every case needs a name of its own"
        )
    _check_apart(root, to / name)
    if patients_file is not None:
        settings = settings | {
            "patients": splits.patients_from_file(patients_file, {case.id for case in raw})
        }
        raw = [replace(case, patient=settings["patients"].get(case.id, case.id)) for case in raw]
    about: dict[str, Any] = {
        "classes": source.classes,
        "codes": list((source.codes or {}).items()),
        "ignore": source.ignore,
    }
    about |= {"regions": source.regions, "channels": source.channels}
    settings = settings | {"recipe": asdict(used), "source": about}
    if split_file is not None:
        settings["splits"] = splits.from_file(split_file, {c.id: c.patient for c in raw}, set())
    settings = json.loads(json.dumps(settings))  # as it will be read back
    return _Job(name, root, to / name, source, used, raw, settings, _orientation(raw))


def _check_apart(root: Path, target: Path) -> None:
    """Raise rather than let preparation replace a folder of the user's."""
    here, there = root.resolve(), target.resolve()
    if here == there or here.is_relative_to(there) or there.is_relative_to(here):
        raise UserError(f"{target} and the raw data in {root} overlap; choose another --to")
    if target.exists() and not (target / "cases.json").is_file():
        raise UserError(
            f"{target} exists and is not a prepared data set; choose another name or --to"
        )


def _orientation(raw: list[RawCase]) -> str | None:
    """The orientation that most cases have; the others are turned to it."""
    codes = Counter(code for case in raw if case.images and (code := orientation(case.images[0])))
    return codes.most_common(1)[0][0] if codes else None


def _existing(job: _Job) -> Prepared:
    """The data set as it stands, if settings, sources and arrays are still the same."""
    cases = open_cases(job.target)
    old, new = cases.info["settings"], job.settings
    differ = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if differ:
        raise UserError(
            f"{job.target} was prepared with another {', '.join(differ)}; --again replaces it,"
            " another --to keeps both"
        )
    moved = [] if "phantom" in job.settings else _moved(job, cases)
    if moved:
        listed = ", ".join(moved[:5]) + (f" and {len(moved) - 5} more" if len(moved) > 5 else "")
        raise UserError(
            f"sources of {job.target} have changed since it was prepared ({listed}); --again"
            " prepares it anew"
        )
    for id in cases.ids:
        for kind, size in cases.case(id)["bytes"].items():
            path = array_path(cases.root, id, kind)
            if not path.is_file() or path.stat().st_size != size:
                raise UserError(f"{path} is missing or damaged; --again prepares the data set anew")
    return Prepared(cases, cases.info["left_out"], fresh=False)


def _moved(job: _Job, cases: CaseSet) -> list[str]:
    """Cases that came or went, and files that are no longer what they were."""
    named = {case.id for case in job.raw}
    known = {path: mark for id in cases.ids for path, mark in cases.case(id)["sources"].items()}
    known |= cases.info["left_out_sources"]
    found = sorted(named ^ {*cases.ids, *cases.info["left_out"]})
    return found + [path for path, mark in known.items() if changed(job.root / path, mark)]


def _all_cases(
    job: _Job, folder: Path, workers: int, progress: Progress | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The records of all cases, and why the broken ones are left out."""
    records: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for done, (id, result) in enumerate(_each_case(job, folder, workers), start=1):
        if isinstance(result, UserError):
            if not job.settings["skip_broken"]:
                raise UserError(f"{result}; mend it, or leave case {id} out with --skip-broken")
            left_out[id] = str(result)
        else:
            records[id] = result
        if progress is not None:
            progress(done, len(job.raw))
    if not records:
        raise UserError(
            f"every case of {job.root} is broken; the first: {next(iter(left_out.values()))}"
        )
    return dict(sorted(records.items())), dict(sorted(left_out.items()))


def _each_case(
    job: _Job, folder: Path, workers: int
) -> Iterator[tuple[str, dict[str, Any] | UserError]]:
    """Prepare case after case, here or in processes; memory is bounded by one case per worker."""
    tasks = [(case, job.source, job.recipe, job.turn, job.root, folder) for case in job.raw]
    if workers == 1:
        yield from ((task[0].id, _one_case(*task)) for task in tasks)
        return
    pool = ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), _one_thread)
    try:
        futures = {pool.submit(_one_case, *task): task[0].id for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise StoppedError(
            "a worker was killed, probably for lack of memory; run again with fewer --workers to"
            " go on"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)


def _one_case(
    case: RawCase, source: Source, recipe: Recipe, turn: str | None, root: Path, folder: Path
) -> dict[str, Any] | UserError:
    path = folder / f"{case.id}.record.json"
    known = read_json(path)
    if known is not None and not any(
        changed(root / source_path, mark) for source_path, mark in known["sources"].items()
    ):
        return dict(known)
    try:
        record = prepare_case(case, source, recipe, turn, root, folder)
    except UserError as error:
        return error
    write_json(path, record)
    return record


def _info(
    job: _Job, records: dict[str, Any], left_out: dict[str, str], split_file: Path | None
) -> dict[str, Any]:
    """What `cases.json` says."""
    patient_of = {id: record["patient"] for id, record in records.items()}
    broken = [case for case in job.raw if case.id in left_out]
    if split_file is not None:
        folds = splits.from_file(
            split_file, patient_of, {name for case in broken for name in (case.id, case.patient)}
        )
    elif job.source.leave_one_out:
        folds = splits.leave_one_out(patient_of)
    else:
        folds = [splits.by_patient(patient_of, job.source.split, job.settings["seed"])]
    return {
        "format": FORMAT,
        "segcal": __version__,
        "name": job.name,
        "classes": job.source.classes,
        "regions": job.source.regions,
        "channels": job.source.channels,
        "ignored_label": IGNORED,
        "keep_empty": job.recipe.keep_empty,
        "checksum": content_checksum(records, job.source.classes, folds),
        "settings": job.settings,
        "splits": folds,
        "patients_known": job.source.patients_named or "patients" in job.settings,
        "orientation": job.turn,
        "left_out": left_out,
        "left_out_sources": {
            path: mark for case in broken for path, mark in _marks(case, job.root).items()
        },
        "cases": records,
    }


def _marks(case: RawCase, root: Path) -> dict[str, Any]:
    """The fingerprints of a broken case's files, `None` for those that are not there."""
    marks: dict[str, Any] = {}
    for path in (*case.images, *case.labels):
        try:
            marks[str(path.relative_to(root))] = fingerprint(path)
        except UserError:
            marks[str(path.relative_to(root))] = None
    return marks
