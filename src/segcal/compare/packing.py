"""Copies of runs that are small enough to publish: no weights, images or paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segcal.compare.reading import read_results
from segcal.folders import (
    cell_folder,
    copy_packed,
    foreign_in_packed,
    is_packed,
    is_study,
    read_run,
    study_records,
    whole_or_not,
    write_packed_study,
)
from segcal.types import UserError


def pack(folders: Sequence[Path], to: Path) -> dict[str, Any]:
    """Copy runs or a study into a folder that `read_results` reads like the runs themselves.

    Returns how many runs it holds and its size in bytes. Runs that cannot be compared, or have no
    scores, are refused."""
    to = to.resolve()
    _check_target(to)
    studies = [folder for folder in folders if is_study(folder)]
    if len(studies) > 1:
        raise UserError(
            f"{studies[0]} and {studies[1]} are two studies; pack each into a folder of its own"
        )
    results = read_results(folders)
    names = {name: Path(name).name for name in results.runs}
    if len(set(names.values())) < len(names):
        raise UserError("two of the runs have folders of the same name; pack them one by one")
    patients = {p for info in results.runs.values() for p in (info["patients"] or {}).values()}
    # Only which cases are of one patient is published, not the patients' names.
    width = len(str(len(patients)))
    numbers = {p: f"patient {i:0{width}}" for i, p in enumerate(sorted(patients), start=1)}
    with whole_or_not(to, sorted(names.values())) as partial:
        for name, info in results.runs.items():
            source, known = Path(info["folder"]), info["patients"]
            record = _without_paths(read_run(source))
            record["data"]["patients"] = known and {case: numbers[p] for case, p in known.items()}
            copy_packed(source, cell_folder(partial, names[name]), record)
        records = _without_paths(study_records(studies[0])) if studies else {}
        chosen = list(dict.fromkeys(run for c in results.contenders for run in c.runs))
        write_packed_study(partial, records, len(names), chosen)
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    return {"out": str(to), "runs": len(names), "bytes": size}


def _check_target(to: Path) -> None:
    if not to.exists():
        return
    if not is_packed(to):
        raise UserError(f"{to} exists and is not a packed study; choose another --out")
    if others := foreign_in_packed(to):
        raise UserError(
            f"{to} also holds {others[0]}, which would be lost; move it away, or choose another"
            " --out"
        )


def _without_paths(value: Any) -> Any:
    """The same with the names of folders instead of paths, and without reasons of failures."""
    if isinstance(value, list):
        return [_without_paths(part) for part in value]
    if not isinstance(value, dict):
        return value
    clean = {key: _without_paths(part) for key, part in value.items()}
    for key in ("data", "folder"):
        if isinstance(clean.get(key), str):
            clean[key] = Path(clean[key]).name
    if "error" in clean:
        clean["error"] = "it failed"
    if isinstance(clean.get("left_out"), dict):
        clean["left_out"] = {name: why and "it failed" for name, why in clean["left_out"].items()}
    return clean
