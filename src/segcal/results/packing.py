"""What runs found, small enough to publish: scores, bins, logs and settings, without weights, images and paths."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segcal.results.reading import read_results
from segcal.store import read_json, whole_or_not, write_json, write_packed
from segcal.types import UserError

MADE = "packed.json"  # marks a folder as ours to replace


def pack(folders: Sequence[Path], to: Path) -> dict[str, Any]:
    """Copy what runs or studies found into a folder that `read_results` reads like the runs themselves.

    Returns how many runs it holds and its size in bytes. Runs that cannot be compared, or have no scores, are refused.
    """
    if to.exists() and not (to / MADE).is_file():
        raise UserError(f"{to} exists and is not a packed study; choose another --out")
    results = read_results(folders)
    names = {name: Path(name).name for name in results.runs}
    if len(set(names.values())) < len(names):
        raise UserError("two of the runs have folders of the same name; pack them one by one")
    with whole_or_not(to, sorted(names.values())) as partial:
        for name, info in results.runs.items():
            source, target = Path(info["folder"]), partial / "runs" / names[name]
            target.mkdir(parents=True, exist_ok=True)
            write_json(target / "run.json", _without_paths(read_json(source / "run.json")))
            for part in ("log.csv", "scores.csv", "bins.json"):
                _copy(source / part, target / part)
        for folder in folders:
            for part in ("plan.json", "selection.json", "cells.json"):
                if (value := read_json(folder / part)) is not None:
                    write_json(partial / part, _without_paths(value))
        write_json(partial / MADE, {"runs": len(names), "chosen": [run for c in results.contenders for run in c.runs]})
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    return {"out": str(to), "runs": len(names), "bytes": size}


def _copy(source: Path, target: Path) -> None:
    already = source.with_name(f"{source.name}.gz")
    if source.is_file():
        write_packed(target, source)
    elif already.is_file():  # packed once more
        shutil.copyfile(already, target.with_name(already.name))


def _without_paths(value: Any) -> Any:
    """The same with `data` as the name of its folder: where it lay is nobody's concern."""
    if isinstance(value, dict):
        plain = {key: _without_paths(part) for key, part in value.items()}
        return plain | {"data": Path(plain["data"]).name} if isinstance(plain.get("data"), str) else plain
    return [_without_paths(part) for part in value] if isinstance(value, list) else value
