"""A dry run: the cells of a plan, how far each is, and how long the rest will take; nothing is
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from segcal.study.cells import Cell
from segcal.study.engines import start_engine
from segcal.study.folder import Folder
from segcal.study.jobs import After, Job
from segcal.study.last import trained_elsewhere
from segcal.study.plan import Plan
from segcal.study.probe import duration
from segcal.study.watch import TRAINED, WAITS, State, Watch
from segcal.types import UserError


def estimate(
    plan: Plan,
    out: Path,
    *,
    workers: int | None = None,
    ray: str = "",
    last_of: Sequence[Path] = (),
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Seconds for every cell of a plan, and for all of it with so many workers, from a short probe
    of each kind of cell.

    A cell's seconds are those of its training that is left; `finish` is what scoring and
    calibrating the chosen ones takes."""
    folder = Folder(out.absolute())
    cells = folder.adopted(plan.cells)
    elsewhere = trained_elsewhere(cells, last_of)
    kinds = {cell.contender: cell for cell in reversed(cells)}
    jobs = _probes(list(kinds.values()), plan)
    probed: dict[str, dict[str, float]] = {}
    with closing(start_engine(workers=workers, ray=ray, **plan.needs)) as engine:
        for job, outcome in engine.run(jobs, lambda names: None):
            if outcome.error:
                raise UserError(f"the probe of {job.name} failed: {outcome.error}")
            probed[job.name] = outcome.value
            (watch or Watch()).says(f"timed {len(probed)} of {len(jobs)}: {job.name}")
        slots = engine.slots
    fits = {job.settings["data"]: probed[job.name] for job in jobs if job.after.calibrators}
    of = {
        contender: fits.get(cell.settings.data, {}) | probed[cell.name]
        for contender, cell in kinds.items()
    }
    rows = [
        _row(cell, folder.state(cell), of[cell.contender], cell.name in elsewhere) for cell in cells
    ]
    finish = _finishing(cells, folder, of)
    stages = [
        [row["seconds"] for row in rows if not row["waits"]],
        [row["seconds"] for row in rows if row["waits"]],
        finish,
    ]
    work = sum(map(sum, stages))
    return {
        "cells": rows,
        "finish": sum(finish),
        "work": work,
        "workers": slots,
        "total": duration(stages, slots),
    }


def _probes(cells: Sequence[Cell], plan: Plan) -> list[Job]:
    """A probe per kind of cell; calibrators, which cost the same for all, with the first of each
    data set.
    """
    wanted = tuple(dict.fromkeys(name for cell in cells for name in cell.after.calibrators))
    first = {cell.settings.data: cell.name for cell in reversed(cells)}
    jobs = []
    for cell in cells:
        settings, after = (
            cell.settings.model_dump(mode="json"),
            After(wanted if cell.name in first.values() else ()),
        )
        jobs.append(Job("probe", cell.name, Path(), settings, after, plan.cpus))
    return jobs


def _row(cell: Cell, state: State, probed: dict[str, float], elsewhere: bool) -> dict[str, Any]:
    if elsewhere and state.step == WAITS:
        state = State(TRAINED, state.epochs, state.epochs)
    left = probed["train"] * (1 - state.epoch / state.epochs)
    about = {
        "cell": cell.name,
        "sections": cell.sections,
        "status": state.step,
        "waits": bool(cell.choices),
    }
    return about | {"epochs": state.epochs, "epoch": state.epoch, "seconds": left}


def _finishing(
    cells: Sequence[Cell], folder: Folder, of: dict[str, dict[str, float]]
) -> list[float]:
    """Seconds of scoring and calibrating: one run of each contender for every seed and fold."""
    found = []
    for contender, probed in of.items():
        repeats: dict[tuple[int, int], list[Cell]] = {}
        for cell in cells:
            if cell.contender == contender:
                repeats.setdefault((cell.settings.seed, cell.settings.fold), []).append(cell)
        after = next(iter(repeats.values()))[0].after
        left = [
            own
            for own in repeats.values()
            if not any(folder.scored(cell.name, cell.after) for cell in own)
        ]
        fits = sum(probed[name] for name in after.calibrators)
        found += [probed["test"] * len(after.conditions) + fits] * len(left)  # whichever was chosen
    return found
