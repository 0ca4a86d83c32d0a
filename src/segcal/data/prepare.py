"""A raw data set -> `cases/<name>/`, whole or not at all.

Cases are written into a hidden folder beside the target, each with its record; when all are there the folder takes its name.
An interrupted run finds them there and goes on; a run that fails removes them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import SimpleITK as sitk

from segcal import __version__
from segcal.data import splits
from segcal.data.case import prepare_case
from segcal.data.catalog import COLOURS, Recipe, Source, source_of
from segcal.data.images import orientation
from segcal.data.layouts import write_layout
from segcal.data.readers import RawCase
from segcal.store import FORMAT, IGNORED, CaseSet, changed, open_cases, write_json
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


def prepare(
    name: str,
    root: Path | None = None,
    to: Path = Path("cases"),
    *,
    split_file: Path | None = None,
    seed: int = 0,
    workers: int = 1,
    skip_broken: bool = False,
    again: bool = False,
    progress: Progress | None = None,
    n_cases: int = 40,
    shape: tuple[int, int, int] = (16, 64, 64),
    **recipe: Any,
) -> Prepared:
    """Prepare a data set for training; doing it again with the same settings and sources is a no-op.

    `name` is a row of `DATASETS` or a name for your own data; `root` is its folder as downloaded. Keyword arguments named
    as fields of `Recipe` override the row. `n_cases` and `shape` are for the built-in `phantom`, which needs no `root`.
    """
    if Path(name).name != name or name.startswith("."):
        raise UserError(f"a data set's name must be a plain folder name; got {name!r}")
    check_range("workers", workers, 1)
    settings: dict[str, Any] = {"seed": seed, "skip_broken": skip_broken}
    with tempfile.TemporaryDirectory() as scratch:
        if root is None and name == "phantom":
            root = Path(scratch)
            write_layout("msd", root, n_cases=n_cases, seed=seed, size=shape)
            settings["phantom"] = {"n_cases": n_cases, "shape": list(shape)}
        job = _job(name, root, to, split_file, settings, recipe)
        if (job.target / "cases.json").is_file() and not again:
            return _existing(job)
        with _whole_or_not(job) as folder:
            records, left_out = _all_cases(job, folder, workers, progress)
            write_json(folder / "cases.json", _info(job, records, left_out, split_file))
    return Prepared(open_cases(job.target), left_out, fresh=True)


def _job(
    name: str, root: Path | None, to: Path, split_file: Path | None, settings: dict[str, Any], recipe: dict[str, Any]
) -> _Job:
    if root is None:
        raise UserError(f"say where the raw data of {name} is, with --from")
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; --from takes the data set's folder as downloaded and unpacked")
    source = source_of(name, root)
    used = _recipe(source.recipe, recipe)
    raw = source.reader(root)
    if not raw:
        raise UserError(f"found no case in {root}; expected {source.layout or 'imagesTr and labelsTr beside dataset.json'}")
    twice = [id for id, n in Counter(case.id for case in raw).items() if n > 1]
    if twice:
        raise UserError(f"{root} has two cases named {twice[0]!r}; every case needs a name of its own")
    settings = settings | {"recipe": json.loads(json.dumps(asdict(used)))}
    if split_file is not None:
        settings["splits"] = splits.from_file(split_file, {c.id: c.patient for c in raw}, set())
    return _Job(name, root, to / name, source, used, raw, settings)


def _recipe(recipe: Recipe, overrides: dict[str, Any]) -> Recipe:
    try:
        recipe = replace(recipe, **{key: value for key, value in overrides.items() if value is not None})
    except TypeError:
        raise UserError(f"unknown setting in {sorted(overrides)}; choose from {', '.join(asdict(recipe))}") from None
    for key in ("spacing", "size", "crop"):
        values = getattr(recipe, key)
        if values is not None and (len(values) != (2 if key == "size" else 3) or not all(v > 0 for v in values)):
            raise UserError(f"{key} must be {2 if key == 'size' else 3} positive numbers; got {values}")
    if recipe.window is not None and not recipe.window[0] < recipe.window[1]:
        raise UserError(f"window must be two rising numbers; got {recipe.window}")
    check_range("axis", recipe.axis, 0, 2)
    return recipe


def _existing(job: _Job) -> Prepared:
    """The data set as it stands, if settings and sources are still the same."""
    cases = open_cases(job.target)
    old, new = cases.info["settings"], json.loads(json.dumps(job.settings))
    differ = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if differ:
        raise UserError(
            f"{job.target} was prepared with another {', '.join(differ)}; --again replaces it, another --to keeps both"
        )
    if "phantom" not in job.settings:
        named = {case.id for case in job.raw}
        known = {path: mark for id in cases.ids for path, mark in cases.case(id)["sources"].items()}
        moved = sorted(named ^ {*cases.ids, *cases.info["left_out"]})
        moved += [path for path, mark in known.items() if changed(job.root / path, mark)]
        if moved:
            listed = ", ".join(moved[:5]) + (f" and {len(moved) - 5} more" if len(moved) > 5 else "")
            raise UserError(
                f"sources of {job.target} have changed since it was prepared ({listed}); --again prepares it anew"
            )
    return Prepared(cases, cases.info["left_out"], fresh=False)


@contextmanager
def _whole_or_not(job: _Job) -> Iterator[Path]:
    """A hidden folder: takes the target's name on success, stays for the next try on interruption, goes on failure."""
    target, partial = job.target, job.target.with_name(f".{job.name}.partial")
    made = [p for p in (target.parent, *target.parent.parents) if not p.exists()]  # to be taken away again on failure
    try:
        partial.mkdir(parents=True, exist_ok=True)
        if _read(partial / "settings.json") != job.settings:  # left there by another job
            shutil.rmtree(partial)
            partial.mkdir()
            write_json(partial / "settings.json", job.settings)
        yield partial
        for left in (partial / "settings.json", *partial.glob("*.record.json")):
            left.unlink()
        if target.exists():
            old = target.with_name(f".{job.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old)
        else:
            partial.rename(target)
    except Exception as error:  # not KeyboardInterrupt: what is done then is kept
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"cannot write to {target.parent}: {error.strerror}; make room or choose another --to") from None
        raise


def _read(path: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _all_cases(job: _Job, folder: Path, workers: int, progress: Progress | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The records of all cases, and why the broken ones are left out."""
    codes = {case.id: orientation(case.images[0]) for case in job.raw if case.images}
    common = Counter(code for code in codes.values() if code).most_common()
    turn = common[0][0] if len(common) > 1 else None  # mixed: the rare ones are turned to the most common
    records: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for done, (id, result) in enumerate(_each_case(job, folder, turn, workers), start=1):
        if isinstance(result, UserError):
            if not job.settings["skip_broken"]:
                raise UserError(f"{result}; mend it, or leave case {id} out with --skip-broken")
            left_out[id] = str(result)
        else:
            records[id] = result
        if progress is not None:
            progress(done, len(job.raw))
    if not records:
        raise UserError(f"every case of {job.root} is broken; the first: {next(iter(left_out.values()))}")
    return dict(sorted(records.items())), dict(sorted(left_out.items()))


def _each_case(job: _Job, folder: Path, turn: str | None, workers: int) -> Iterator[tuple[str, dict[str, Any] | UserError]]:
    """Prepare case after case, here or in processes; memory is bounded by one case per worker."""
    tasks = [(case, job.source, job.recipe, turn, job.root, folder) for case in job.raw]
    if workers == 1:
        yield from ((task[0].id, _one_case(*task)) for task in tasks)
        return
    pool = ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), _one_thread)
    try:
        futures = {pool.submit(_one_case, *task): task[0].id for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)


def _one_case(
    case: RawCase, source: Source, recipe: Recipe, turn: str | None, root: Path, folder: Path
) -> dict[str, Any] | UserError:
    path = folder / f"{case.id}.record.json"
    known = _read(path)
    if known is not None and not any(changed(root / source_path, mark) for source_path, mark in known["sources"].items()):
        return dict(known)
    try:
        record = prepare_case(case, source, recipe, turn, root, folder)
    except UserError as error:
        return error
    write_json(path, record)
    return record


def _info(job: _Job, records: dict[str, Any], left_out: dict[str, str], split_file: Path | None) -> dict[str, Any]:
    """What `cases.json` says."""
    patient_of = {id: record["patient"] for id, record in records.items()}
    if split_file is not None:
        folds = splits.from_file(split_file, patient_of, set(left_out))
    elif job.source.leave_one_out:
        folds = splits.leave_one_out(patient_of)
    else:
        folds = [splits.by_patient(patient_of, job.source.split, job.settings["seed"])]
    content = [(id, record["sha256"]) for id, record in records.items()]
    return {
        "format": FORMAT,
        "segcal": __version__,
        "name": job.name,
        "classes": job.source.classes,
        "colours": [COLOURS[i % len(COLOURS)] for i in range(len(job.source.classes))],
        "regions": job.source.regions,
        "channels": job.source.channels,
        "ignored_label": IGNORED,
        "keep_empty": job.recipe.keep_empty,
        "checksum": hashlib.sha256(json.dumps([content, job.source.classes, folds]).encode()).hexdigest(),
        "settings": job.settings,
        "splits": folds,
        "left_out": left_out,
        "cases": records,
    }
