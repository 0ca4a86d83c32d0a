"""What a process does for a cell, whichever engine started it: skip what is done, go on with what
is begun.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from segcal.config import checked
from segcal.fitting import calibrate
from segcal.folders import BusyError, open_cases
from segcal.predictors.run import open_run
from segcal.scoring import data_of, evaluate
from segcal.study.jobs import Job, Outcome
from segcal.study.probe import probe
from segcal.training import train
from segcal.types import UserError

PATIENCE = 600.0
"""Seconds to wait for another process at the same run: one on a node that was given up may take a
while to end.
"""


def work(job: Job) -> Outcome:
    """Do a job; whatever goes wrong with it becomes a sentence."""
    _print_to(job.log)
    torch.set_num_threads(job.cpus)
    try:
        value = _patiently(KINDS[job.kind], job)
    except UserError as error:
        return Outcome(str(error))
    except Exception as error:
        traceback.print_exc()
        reason = (str(error).splitlines() or [""])[0]
        where = f"; {job.log} says more" if job.log else ""
        return Outcome(f"{type(error).__name__}: {reason}{where}")
    if job.log is not None:
        job.log.unlink(missing_ok=True)
    return Outcome(value=value)


def _patiently(step: Callable[[Job], dict[str, Any]], job: Job) -> dict[str, Any]:
    """Wait while another process holds the run: it may finish the work itself, or die and leave it
    to this one.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return step(job)
        except BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _print_to(path: Path | None) -> None:
    """Send everything that this process prints, also from C++, to a file, or nowhere."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _train(job: Job) -> dict[str, Any]:
    info = train(checked(job.settings), job.folder, progress=False)
    if info["status"] != "finished":
        raise UserError(
            f"{job.folder} was not finished; the same segcal study command goes on with it"
        )
    return {"val_dice": info["best"]["val_dice"], "seconds": info["seconds"]}


def _finish(job: Job) -> dict[str, Any]:
    run = open_run(job.folder)
    cases = data_of(
        run, open_cases(Path(job.settings["data"]))
    )  # where the plan says that they are now
    evaluate(run, cases=cases)
    fits = calibrate(run, job.after.calibrators, cases=cases) if job.after.calibrators else {}
    for corruption in job.after.corruptions:
        evaluate(run, corruption=corruption, cases=cases)
    return {
        "warnings": [f"{name}: {line}" for name, said in fits.items() for line in said["warnings"]]
    }


def _probe(job: Job) -> dict[str, Any]:
    return probe(checked(job.settings), job.after.calibrators)


KINDS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "train": _train,
    "finish": _finish,
    "probe": _probe,
}
