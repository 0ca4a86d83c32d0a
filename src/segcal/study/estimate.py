"""A dry run: the cells of a plan, their progress, and an estimate of the time that is left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from segcal.config import RunSettings
from segcal.data.slices import Slices
from segcal.folders import open_cases
from segcal.hardware import keep_pages
from segcal.study.cells import Cell
from segcal.study.engines import start_engine
from segcal.study.folder import adopted, cell_state, is_scored
from segcal.study.jobs import Job
from segcal.study.plan import Plan
from segcal.study.watch import Watch
from segcal.training import Segmentation
from segcal.types import AnyPath, UserError

STEPS = 4  # timed, after one to warm up
START = 1.5  # seconds to start a process and open the data
INFERENCE = 0.5  # prediction and scores of a slice, as a share of its training step
FIT = 4  # a fit of a calibrator, in predictions of the validation cases: about that of `lts`


def estimate(
    plan: Plan,
    out: AnyPath,
    *,
    workers: int | None = None,
    ray: str = "",
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Seconds of training left in every cell, and of all with so many workers; writes nothing.

    A few training steps are timed for each network and data set. `finish` is the time of scoring
    and calibrating the chosen runs."""
    root = Path(out).absolute()
    cells = adopted(root, plan.cells)
    jobs = {}
    for cell in reversed(cells):
        jobs[cell.protocol] = Job("probe", cell.name, root, cell.settings, cell.after, plan.cpus)
    timed: dict[str, dict[str, float]] = {}
    with closing(start_engine(workers=workers, ray=ray, **plan.needs)) as engine:
        for job, outcome in engine.run(list(jobs.values()), lambda names: None):
            if outcome.error:
                raise UserError(f"the probe of {job.name} failed: {outcome.error}")
            timed[job.name] = outcome.value
            (watch or Watch()).say(f"timed {len(timed)} of {len(jobs)}: {job.name}")
        slots = engine.slots

    seconds = {protocol: timed[job.name] for protocol, job in jobs.items()}
    rows = []
    for cell in cells:
        state = cell_state(root, cell)
        row: dict[str, Any] = {"cell": cell.name, "sections": cell.sections, "status": state.step}
        row |= {"waits": bool(cell.choices), "epochs": state.epochs, "epoch": state.epoch}
        left = 1 - state.epoch / state.epochs
        rows.append(row | {"seconds": seconds[cell.protocol]["train"] * left})
    finish = _finishing(root, cells, seconds)
    ready = [row["seconds"] for row in rows if not row["waits"]]
    waiting = [row["seconds"] for row in rows if row["waits"]]
    total = _duration([ready, waiting, finish], slots)
    return {"cells": rows, "finish": sum(finish), "workers": slots, "total": total}


def _finishing(root: Path, cells: Sequence[Cell], seconds: dict[Any, Any]) -> list[float]:
    """Seconds of scoring and calibrating: one run of each contender for every seed and fold."""
    groups, scored = {}, set()
    for cell in cells:
        key = cell.contender, cell.settings.seed, cell.settings.fold
        groups[key] = cell
        if is_scored(root, cell.name, cell.after):
            scored.add(key)
    left = []
    for cell in [cell for key, cell in groups.items() if key not in scored]:
        after, once = cell.after, seconds[cell.protocol]
        n_fits = len(after.calibrators) * len(after.weights)
        left.append(once["test"] * len(after.conditions) + FIT * once["val"] * n_fits)
    return left


def _duration(stages: Iterable[Sequence[float]], slots: int) -> float:
    """Seconds of all stages: each takes its share of the slots, and at least its longest job.

    >>> _duration([[3.0, 1.0, 1.0, 1.0], [2.0]], slots=2)
    5.0
    """
    return sum(max(sum(jobs) / slots, max(jobs, default=0.0)) for jobs in stages)


def probe(settings: RunSettings) -> dict[str, float]:
    """Estimated seconds of a training, and of predicting `val` and `test`."""
    keep_pages()
    cases, training = open_cases(Path(settings.data)), settings.training
    slices = Slices(cases, "train", fold=settings.fold, keep_empty=training.keep_empty)
    step = _step_seconds(settings, Segmentation(settings, cases, slices), slices)
    seconds = {}
    for split in ("val", "test"):
        n_slices = sum(len(cases.label(id)) for id in cases.split(split, settings.fold))
        seconds[split] = n_slices * INFERENCE * step / training.batch
    epoch = -(-len(slices) // training.batch) * step + seconds["val"]
    return {"train": START + training.epochs * epoch, **seconds}


def _step_seconds(settings: RunSettings, model: Segmentation, slices: Slices) -> float:
    """The median of a few training steps."""
    use_gpu = torch.cuda.is_available() and settings.machine.accelerator != "cpu"
    device = torch.device("cuda" if use_gpu else "cpu")
    optimizer = model.to(device).configure_optimizers()["optimizer"]
    batch = settings.training.batch
    places = [i * len(slices) // batch for i in range(batch)]
    seconds = []
    for i in range(STEPS + 1):
        start = time.perf_counter()
        image, label = slices.batch(places)
        optimizer.zero_grad()
        loss = model.training_step((image.to(device), label.to(device)), i)
        loss.backward()
        optimizer.step()
        loss.item()  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
