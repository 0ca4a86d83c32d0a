"""What runs found, small enough to publish: scores, bins, logs, settings and temperatures; no
weights, images or paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.compare.reading import read_results
from segcal.compare.records import Results
from segcal.folders import found, read_json, whole_or_not, write_json, write_packed
from segcal.types import UserError

MADE = "packed.json"  # marks a folder as ours to replace
OF_STUDY = ("plan.json", "selection.json", "cells.json")
OF_RUN = ("log.csv", "scores.csv", "bins.json")


def pack(folders: Sequence[Path], to: Path) -> dict[str, Any]:
    """Copy what runs or a study found into a folder that `read_results` reads like the runs
    themselves.

    Returns how many runs it holds and its size in bytes. Runs that cannot be compared, or have no
    scores, are refused."""
    to = to.resolve()
    _check_target(to)
    studies = [folder for folder in folders if any((folder / part).is_file() for part in OF_STUDY)]
    if len(studies) > 1:
        raise UserError(
            f"{studies[0]} and {studies[1]} are two studies; pack each into a folder of its own"
        )
    results = read_results(folders)
    names = {name: Path(name).name for name in results.runs}
    if len(set(names.values())) < len(names):
        raise UserError("two of the runs have folders of the same name; pack them one by one")
    numbers = _numbers(results)
    with whole_or_not(to, sorted(names.values())) as partial:
        for name, info in results.runs.items():
            _pack_run(info, partial / "runs" / names[name], numbers)
        for folder, part in ((folder, part) for folder in studies for part in OF_STUDY):
            if (value := read_json(folder / part)) is not None:
                write_json(partial / part, _without_paths(value))
        write_json(
            partial / MADE,
            {"runs": len(names), "chosen": [run for c in results.contenders for run in c.runs]},
        )
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    return {"out": str(to), "runs": len(names), "bytes": size}


def _check_target(to: Path) -> None:
    if to.exists() and not (to / MADE).is_file():
        raise UserError(f"{to} exists and is not a packed study; choose another --out")
    others = (
        sorted(p.name for p in to.iterdir() if p.name not in ("runs", MADE, *OF_STUDY))
        if to.exists()
        else []
    )
    if others:
        raise UserError(
            f"{to} also holds {others[0]}, which would be lost; move it away, or choose another"
            " --out"
        )


def _numbers(results: Results) -> dict[str, str]:
    """A number for each patient, in the order of their names: only who belongs together is
    published.
    """
    names = sorted({p for info in results.runs.values() for p in (info["patients"] or {}).values()})
    return {name: f"patient {i:0{len(str(len(names)))}}" for i, name in enumerate(names, start=1)}


def _pack_run(info: Mapping[str, Any], target: Path, numbers: Mapping[str, str]) -> None:
    source = Path(info["folder"])
    target.mkdir(parents=True, exist_ok=True)
    kept = _without_paths(read_json(source / "run.json")) | {"packed": True}
    kept["data"] |= {
        "patients": info["patients"] and {case: numbers[p] for case, p in info["patients"].items()}
    }
    write_json(target / "run.json", kept)
    for part in OF_RUN:
        if found(source / part) is not None:
            write_packed(target / part, source / part)
    for path in sorted(
        (source / "calibrators").glob("*.json")
    ):  # temperatures, and what they were fitted on
        (target / "calibrators").mkdir(exist_ok=True)
        write_json(target / "calibrators" / path.name, read_json(path))


def _without_paths(value: Any) -> Any:
    """The same with `data` as the name of its folder, and no words on what failed: where things lay
    is nobody's concern.
    """
    if isinstance(value, list):
        return [_without_paths(part) for part in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _without_paths(part) for key, part in value.items()}
    if isinstance(plain.get("data"), str):
        plain["data"] = Path(plain["data"]).name
    if "error" in plain:
        plain["error"] = "it failed"
    if isinstance(plain.get("left_out"), dict):
        plain["left_out"] = {name: why and "it failed" for name, why in plain["left_out"].items()}
    return plain
