"""A study's folder: `plan.json`, `selection.json`, `cells.json`, `runs/<cell>/`, and what the runs
say of their progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from segcal.config import checked
from segcal.folders import (
    BusyError,
    CaseSet,
    alone,
    open_cases,
    read_json,
    read_rows,
    read_run,
    refuse_packed,
    write_json,
)
from segcal.study.cells import Cell
from segcal.study.jobs import After
from segcal.study.plan import Plan
from segcal.study.watch import FAILED, TRAINED, TRAINS, WAITS, State
from segcal.training import resolved
from segcal.types import UserError


@dataclass(frozen=True)
class Folder:
    """Where a study lies."""

    root: Path

    def run(self, name: str) -> Path:
        """The folder of a cell's run."""
        return self.root / "runs" / name

    def log(self, name: str) -> Path:
        """What a cell's process printed, if it failed."""
        return self.root / "logs" / f"{name}.txt"

    def write_plan(self, plan: Plan) -> None:
        """Write down what is to be done; refused if less than what was: choices and failures of the
        rest would be lost.
        """
        values = read_json(self.root / "plan.json")
        known = values.get("cells") if isinstance(values, dict) else None
        dropped = sorted(set(known or ()) - {cell.name for cell in plan.cells})
        if dropped:
            others = f" and {len(dropped) - 1} more" if len(dropped) > 1 else ""
            raise UserError(
                f"{self.root} is a study with other cells too ({dropped[0]}{others}); choose"
                " another --out"
            )
        cells = {cell.name: _plain(cell) for cell in plan.cells}
        write_json(
            self.root / "plan.json",
            {"name": plan.name, "cpus": plan.cpus, "gpus": plan.gpus, "cells": cells},
        )

    def write_selection(self, rule: str, contenders: Sequence[Mapping[str, Any]]) -> None:
        """Write down which settings were tried and chosen."""
        write_json(self.root / "selection.json", {"rule": rule, "contenders": contenders})

    def failures(self) -> dict[str, str]:
        """The cells that failed, with their sentences."""
        values = read_json(self.root / "cells.json")
        known = values.get("cells") if isinstance(values, dict) else None
        cells = (
            known.items() if isinstance(known, dict) else ()
        )  # a damaged file: every cell is looked at anew
        failed = {
            name: about
            for name, about in cells
            if isinstance(about, dict) and about.get("status") == FAILED
        }
        return {
            name: str(about.get("error", "for an unknown reason")) for name, about in failed.items()
        }

    def write_cells(self, states: Mapping[str, State], failed: Mapping[str, str]) -> None:
        """Write down how far every cell is."""
        cells = {
            name: {"status": state.step, "val_dice": state.dice} for name, state in states.items()
        }
        cells |= {name: {"status": FAILED, "error": error} for name, error in failed.items()}
        write_json(self.root / "cells.json", {"cells": cells})

    def trained(self, name: str) -> bool:
        """Whether a cell's training is finished."""
        try:
            return bool(read_run(self.run(name))["status"] == "finished")
        except UserError:  # none yet, or a damaged one, of which train says what to do
            return False

    def scored(self, name: str, after: After) -> bool:
        """Whether all test scores that are wanted of a cell are there."""
        rows = read_rows(self.run(name) / "scores.csv")
        known = {(row["corruption"], row["calibrator"]) for row in rows if row["split"] == "test"}
        return known.issuperset(after.conditions)

    def state(self, cell: Cell, *, step: str = "") -> State:
        """How far a cell is, from its run's folder alone, so that it does not matter on which
        machine it runs.
        """
        rows = read_rows(self.run(cell.name) / "log.csv")
        epochs = cell.settings.training.epochs
        if not rows:
            return State(step or WAITS, 0, epochs)
        dices = [float(row["val_dice"]) for row in rows]
        dice = dices[-1] if cell.settings.training.keep == "last" else max(dices)
        seconds = median(
            float(row["seconds"]) for row in rows
        )  # not the mean: a machine may have slept through one
        done = self.trained(cell.name)
        return State(step or (TRAINED if done else TRAINS), len(rows), epochs, dice, seconds)

    def adopted(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        """The cells, called as the runs that are there already; refused if a run there is another
        than planned.
        """
        data = {root: open_cases(Path(root)) for root in {cell.settings.data for cell in cells}}
        by_checksum = {cases.info["checksum"]: cases for cases in data.values()}
        known, others = {}, {}
        for path in sorted(self.root.glob("runs/*/run.json")):
            info = read_json(path)
            if info is not None:  # train says what to do with a damaged one
                refuse_packed(path.parent, info)
                others[path.parent.name] = old = deciding_of(info, by_checksum)
                if old is not None:
                    known[identity_of(info["data"]["checksum"], old)] = path.parent.name
        names: dict[str, str] = {}
        for cell in cells:
            checksum, new = data[cell.settings.data].info["checksum"], cell.settings.deciding
            found = None if cell.choices else known.get(identity_of(checksum, new))
            if found is not None:
                names[cell.name] = found
            elif cell.name in others:
                what = _difference(others[cell.name], new)
                raise UserError(
                    f"{self.run(cell.name)} was started with {what}; choose another --out for this"
                    " plan"
                )
        return tuple(cell.renamed(names) for cell in cells)

    def follow_data(self, cell: Cell) -> None:
        """If the data have moved since a cell was trained, let its run say where they are, for all
        who open it later.
        """
        path, where = self.run(cell.name) / "run.json", cell.settings.data
        if self.trained(cell.name) and read_run(path.parent)["settings"]["data"] != where:
            with (
                suppress(BusyError),
                alone(path.parent, nested=True),
            ):  # whoever is at work on it knows where they are
                info = read_run(path.parent)
                write_json(path, info | {"settings": info["settings"] | {"data": where}})


def _plain(cell: Cell) -> dict[str, Any]:
    settings = cell.settings.model_dump(mode="json")
    return {
        "sections": cell.sections,
        "settings": settings,
        "after": asdict(cell.after),
        "chosen_from": cell.choices,
    }


def deciding_of(
    info: Mapping[str, Any], by_checksum: Mapping[str, CaseSet]
) -> dict[str, Any] | None:
    """What decides a run, with defaults that are newer than it; `None` if its data are none of
    these, wherever they lie.
    """
    cases = by_checksum.get(info["data"]["checksum"])
    if cases is None:
        return None
    try:
        return resolved(checked(info["settings"]), cases).deciding
    except (UserError, KeyError, ValueError):  # of another version: like nothing that is planned
        return {}


def identity_of(checksum: str, deciding: Mapping[str, Any]) -> str:
    """The same text for runs that would come out the same."""
    return json.dumps([checksum, deciding], sort_keys=True)


def _difference(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    if old is None:
        return "another preparation of the data"
    return f"another {', '.join(key for key, value in new.items() if old.get(key) != value)}"
