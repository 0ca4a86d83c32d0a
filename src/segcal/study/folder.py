"""The progress of a study's cells, read from the folders of their runs alone.

It does not matter on which machine a cell runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from segcal import folders
from segcal.config import checked
from segcal.differences import differences
from segcal.study.cells import Cell
from segcal.study.jobs import After
from segcal.study.plan import Plan
from segcal.study.watch import State, Step
from segcal.training import resolved
from segcal.types import UserError


def record_plan(root: Path, plan: Plan) -> None:
    """Write the plan; refused if cells of an earlier one are missing, whose choices would be lost.

    More cells may be added at any time."""
    cells = {}
    for cell in plan.cells:
        settings, after = cell.settings.model_dump(mode="json"), asdict(cell.after)
        record = {"sections": cell.sections, "settings": settings, "after": after}
        cells[cell.name] = record | {"chosen_from": cell.choices}
    dropped = sorted(set(folders.read_plan_file(root).get("cells") or ()) - set(cells))
    if dropped:
        others = f" and {len(dropped) - 1} more" if len(dropped) > 1 else ""
        reason = f"is a study with other cells too ({dropped[0]}{others})"
        raise UserError(f"{root} {reason}; choose another --out")
    content = {"name": plan.name, "choose": plan.choose, "cpus": plan.cpus, "gpus": plan.gpus}
    folders.write_plan_file(root, content | {"cells": cells})


def is_trained(root: Path, name: str) -> bool:
    """Whether a cell's training is finished."""
    try:
        return bool(folders.read_run(folders.cell_folder(root, name))["status"] == "finished")
    except UserError:  # not begun, or damaged: `train` names the remedy
        return False


def is_scored(root: Path, name: str, after: After) -> bool:
    """Whether a cell has all its test scores."""
    known = set()
    for row in folders.read_scores(folders.cell_folder(root, name)):
        if row["split"] == "test":
            known.add((row["weights"], row["corruption"], row["calibrator"]))
    return known.issuperset(after.conditions)


def cell_state(root: Path, cell: Cell) -> State:
    """The progress of a cell's training."""
    epochs = cell.settings.training.epochs
    rows = folders.read_log(folders.cell_folder(root, cell.name))
    if not rows:
        return State("waits", 0, epochs)
    last = cell.after.weights[0] == "last"
    shown = rows[-1] if last else max(rows, key=lambda row: float(row["val_dice"]))
    dice, lacking = float(shown["val_dice"]), shown.get(folders.NEVER_PREDICTED, "")
    seconds = median(float(row["seconds"]) for row in rows)  # not the mean: a machine may sleep
    step: Step = "trained" if is_trained(root, cell.name) else "trains"
    return State(step, len(rows), epochs, dice, seconds, lacking)


def adopted(root: Path, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells under the names of the runs that exist; refused if a run differs from its cell."""
    data = {cell.settings.data: folders.open_cases(Path(cell.settings.data)) for cell in cells}
    by_checksum = {cases.info["checksum"]: cases for cases in data.values()}
    known = {}
    for folder in folders.run_folders(root):
        try:
            info = folders.read_run(folder)
        except UserError:  # a damaged run: `train` names the remedy
            continue
        folders.refuse_packed(folder, info)
        if info.get("kind", "run") != "run":  # an ensemble of cells
            continue
        known[folder.name] = _deciding(info, by_checksum)
    names = {}
    for cell in cells:
        wanted = data[cell.settings.data].info["checksum"], cell.settings.deciding
        same = [name for name, run in known.items() if run == wanted and not cell.choices]
        if same:
            names[cell.name] = same[-1]
        elif cell.name in known:
            folder = folders.cell_folder(root, cell.name)
            reason = _difference(known[cell.name], wanted, str(folder))
            raise UserError(f"{reason}; choose another --out for this plan")
    renamed = []
    for cell in cells:
        choices = tuple(names.get(name, name) for name in cell.choices)
        renamed.append(replace(cell, name=names.get(cell.name, cell.name), choices=choices))
    return tuple(renamed)


Deciding = tuple[str, dict[str, Any]]  # the checksum of the data, and the settings that decide


def _deciding(info: Mapping[str, Any], by_checksum: Mapping[str, folders.CaseSet]) -> Deciding:
    """What decides a run, with today's defaults for settings that it does not have."""
    checksum = info["data"]["checksum"]
    try:
        return checksum, resolved(checked(info["settings"]), by_checksum[checksum]).deciding
    except (UserError, KeyError, ValueError):  # other data, or of another version
        return checksum, {}


def _difference(old: Deciding, new: Deciding, where: str) -> str:
    if old[0] != new[0]:
        return f"{where} was trained on data that were prepared differently"
    return differences(old[1], new[1], where)


def follow_data(root: Path, cell: Cell) -> None:
    """If the data have moved since a cell was trained, record their new place in its run."""
    folder, data = folders.cell_folder(root, cell.name), cell.settings.data
    if is_trained(root, cell.name) and folders.read_run(folder)["settings"]["data"] != data:
        # A process that holds the run already has the new place.
        with suppress(folders.BusyError), folders.alone(folder):
            info = folders.read_run(folder)
            folders.write_run(folder, info | {"settings": info["settings"] | {"data": data}})
