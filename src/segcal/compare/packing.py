"""Copies of runs that are small enough to publish: no weights, images or paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segcal import folders
from segcal.compare.reading import read_results
from segcal.types import AnyPath, UserError, as_paths


def pack(paths: AnyPath | Sequence[AnyPath], to: AnyPath) -> dict[str, Any]:
    """Copy runs or a study into a folder that `read_results` reads like the runs themselves.

    Returns how many runs it holds and its size in bytes. Runs that cannot be compared, or have no
    scores, are refused."""
    paths, to = as_paths(paths), Path(to).resolve()
    if to.exists() and not folders.is_packed(to):
        raise UserError(f"{to} exists and is not a packed study; choose another --out")
    if to.exists() and (others := folders.foreign_in_packed(to)):
        remedy = "move it away, or choose another --out"
        raise UserError(f"{to} also holds {others[0]}, which would be lost; {remedy}")
    studies = [folder for folder in paths if folders.is_study(folder)]
    if len(studies) > 1:
        both = f"{studies[0]} and {studies[1]}"
        raise UserError(f"{both} are two studies; pack each into a folder of its own")
    results = read_results(paths, metrics="paper")
    names = {name: Path(name).name for name in results.runs}
    if len(set(names.values())) < len(names):
        raise UserError("two of the runs have folders of the same name; pack them one by one")
    # Only which cases are of one patient is published, not the patients' names.
    patients: set[str] = set()
    for info in results.runs.values():
        patients.update((info["data"].get("patients") or {}).values())
    width = len(str(len(patients)))
    numbers = {p: f"patient {i:0{width}}" for i, p in enumerate(sorted(patients), start=1)}
    with folders.whole_or_not(to, sorted(names.values())) as partial:
        for name, info in results.runs.items():
            source, known = Path(info["folder"]), info["data"].get("patients")
            record = _without_paths(folders.read_run(source))
            # A case with the name of its patient is not in the map.
            of_run = results.scores["dataset"] == info["data"]["name"]
            same = set((known or {}).values()).intersection(results.scores.loc[of_run, "case"])
            known = known and dict.fromkeys(sorted(same)) | known
            record["data"]["patients"] = known and {c: numbers[p or c] for c, p in known.items()}
            folders.copy_packed(source, folders.cell_folder(partial, names[name]), record)
        records = _without_paths(folders.study_records(studies[0])) if studies else {}
        chosen = list(dict.fromkeys(run for c in results.contenders for run in c.runs))
        folders.write_packed_study(partial, records, len(names), chosen)
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    return {"out": str(to), "runs": len(names), "bytes": size}


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
