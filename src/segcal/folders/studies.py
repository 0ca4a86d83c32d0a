"""A study's folder: `plan.json`, `selection.json`, `cells.json`, `runs/<cell>/`, `logs/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.folders.files import read_json, write_json
from segcal.folders.names import path_of
from segcal.folders.result_schemas import CellsFile, PlanRecord, SelectionFile
from segcal.folders.runs import is_run
from segcal.folders.schemas import Record, fault_of

PLAN, SELECTION, CELLS, PACKED = "plan.json", "selection.json", "cells.json", "packed.json"
RUNS = "runs"
SCHEMAS: dict[str, type[Record]] = {PLAN: PlanRecord, SELECTION: SelectionFile, CELLS: CellsFile}
FAILED = "failed"  # the status of a cell


def is_study(root: Path) -> bool:
    """Whether a folder is a study's."""
    return any((root / name).is_file() for name in (PLAN, SELECTION, CELLS))


def cell_folder(root: Path, cell: str) -> Path:
    """The folder of a cell's run."""
    return path_of(root / RUNS, cell)


def cell_log(root: Path, cell: str) -> Path:
    """What a cell's process printed; kept if it failed."""
    return path_of(root / "logs", cell, ".txt")


def read_plan_file(root: Path) -> dict[str, Any]:
    """What the study was asked for; empty if there is no such file."""
    return _table(root, PLAN)


def write_plan_file(root: Path, content: Mapping[str, Any]) -> None:
    """Write `plan.json`."""
    write_json(root / PLAN, content)


def study_choice(folder: Path) -> str | None:
    """The rule by which validation chooses in a study: that folder, or the one that holds it.

    Older studies know Dice alone. `None` if the folder is of no study."""
    root = folder.absolute()
    root = root.parent if is_run(root) else root
    root = root.parent if root.name == RUNS else root
    if not is_study(root):
        return None
    records = study_records(root).values()
    return next((record["choose"] for record in records if "choose" in record), "dice")


def write_selection(
    root: Path, choose: str, rule: str, contenders: Sequence[Mapping[str, Any]]
) -> None:
    """Write which settings were tried, and which were chosen by which rule."""
    write_json(root / SELECTION, {"choose": choose, "rule": rule, "contenders": contenders})


def write_cells(root: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the status of every cell."""
    write_json(root / CELLS, {"cells": cells})


def failed_cells(root: Path) -> dict[str, str]:
    """The cells that failed, each with the reason; a damaged file names none."""
    cells = _table(root, CELLS).get("cells", {})
    failed = {name: state for name, state in cells.items() if state["status"] == FAILED}
    return {name: state.get("error", "for an unknown reason") for name, state in failed.items()}


def is_packed(root: Path) -> bool:
    """Whether `segcal pack` made a folder."""
    return (root / PACKED).is_file()


def foreign_in_packed(root: Path) -> list[str]:
    """What a packed folder holds that `segcal pack` did not write."""
    ours = (RUNS, PACKED, PLAN, SELECTION, CELLS)
    return sorted(path.name for path in root.iterdir() if path.name not in ours)


def study_records(root: Path) -> dict[str, Any]:
    """The content of a study's own files, by their names."""
    contents = {name: _table(root, name) for name in SCHEMAS}
    return {name: content for name, content in contents.items() if content}


def write_packed_study(
    root: Path, records: Mapping[str, Any], n_runs: int, chosen: Sequence[str]
) -> None:
    """Write a study's own files into a packed folder, and the mark that `segcal pack` made it."""
    for name, content in records.items():
        write_json(root / name, content)
    write_json(root / PACKED, {"runs": n_runs, "chosen": list(chosen)})


def _table(root: Path, name: str) -> dict[str, Any]:
    """The content of a file; empty if there is none, or it is damaged."""
    content = read_json(root / name)
    return {} if fault_of(SCHEMAS[name], content) else content
