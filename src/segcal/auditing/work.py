"""The work on some cases of an audit, here or in another process."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from segcal.auditing.records import read_scored, record_path, write_scored
from segcal.auditing.scored import Fits, first_pass, second_pass
from segcal.predictors.source import Source
from segcal.study.engines import start_engine
from segcal.study.jobs import After, Job
from segcal.types import UserError

BEFORE = "before"
REPEAT = "repeat the command, with fewer --workers if memory ran out"
SHARES = 4  # jobs per worker: the last one does not keep all others waiting


@dataclass(frozen=True)
class Task:
    """Some cases of a source, by their numbers, and what is done with them."""

    folder: Path  # where records go
    source: Source
    numbers: tuple[int, ...]
    resample: bool = False
    sample: bool = False  # whether single voxels are kept in the first pass
    fits: Mapping[int, Fits] = field(default_factory=dict)  # of each case; empty: the first pass


def condition_of(fits: Fits | None) -> str:
    """The condition that a record is of: before calibrators, or after these."""
    if not fits:
        return BEFORE
    return f"after-{hashlib.sha256(json.dumps(fits, sort_keys=True).encode()).hexdigest()[:16]}"


def done(folder: Path, number: int, condition: str) -> bool:
    """Whether a case has a record that can be read."""
    path = record_path(folder, number, condition)
    return path.is_file() and read_scored(path) is not None


def carry_out(task: Task) -> Iterator[tuple[int, str]]:
    """Do the work case by case: the number of each, and why it failed, if it did."""
    for number in task.numbers:
        case, error = task.source.cases[number], ""
        try:
            if task.fits:
                scored = second_pass(task.source, case, task.fits[number], resample=task.resample)
                path = record_path(task.folder, number, condition_of(task.fits[number]))
                write_scored(path, scored)
            else:
                options = {"resample": task.resample, "sample": task.sample}
                first, facts = first_pass(task.source, case, **options)
                write_scored(record_path(task.folder, number, BEFORE), {"": first}, facts)
        except UserError as problem:
            error = str(problem)
        yield number, error


def all_of(task: Task) -> dict[str, Any]:
    """The same in a process of its own."""
    return {"failed": {number: error for number, error in carry_out(task) if error}}


def spread(task: Task, workers: int, ray: str, step: Callable[[int], None]) -> dict[int, str]:
    """Carry out a task, by processes here or on a Ray cluster; why cases failed, by number.

    `step` gets how many more cases are done."""
    failed: dict[int, str] = {}
    if workers == 1 and not ray:
        for number, error in carry_out(task):
            if error:
                failed[number] = error
            step(1)
        return failed
    if not task.numbers:
        return failed
    engine = start_engine(workers=None if ray else workers, ray=ray, gpus=0.0)
    size = 1 if ray else math.ceil(len(task.numbers) / (SHARES * engine.slots))
    try:
        jobs = {job.name: (job, numbers) for job, numbers in _jobs(task, size)}
        for job, outcome in engine.run([job for job, _ in jobs.values()], lambda running: None):
            numbers = jobs[job.name][1]
            failed |= outcome.value.get("failed", {})
            for number in numbers if outcome.error else ():
                if not done(task.folder, number, condition_of(task.fits.get(number))):
                    failed[number] = f"{outcome.error.partition(';')[0]}; {REPEAT}"
            step(len(numbers))
    finally:
        engine.close()
    return failed


def _jobs(task: Task, size: int) -> Iterator[tuple[Job, tuple[int, ...]]]:
    for start in range(0, len(task.numbers), size):
        numbers = task.numbers[start : start + size]
        fits = {number: task.fits[number] for number in numbers if number in task.fits}
        part = replace(task, numbers=numbers, fits=fits)
        name = task.source.cases[numbers[0]].id
        call = partial(all_of, part)
        yield Job("call", name, task.folder, call, After(), cpus=1), numbers
