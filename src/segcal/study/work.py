"""The work of a process on a cell: skip what is finished, resume what was interrupted."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from segcal.fitting import calibrate
from segcal.folders import WEIGHTS, BusyError, require_weights
from segcal.predictors import open_predictor
from segcal.scoring import evaluate
from segcal.study.estimate import probe
from segcal.study.jobs import Job, Outcome
from segcal.training import train
from segcal.types import UserError
from segcal.unlearned import warning

PATIENCE = 600.0  # seconds to wait for a process at the same run, perhaps on a lost node


def work(job: Job) -> Outcome:
    """Do a job; any failure becomes one sentence."""
    _print_to(job.log)
    torch.set_num_threads(job.cpus)
    deadline = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                value = KINDS[job.kind](job)
                break
            except BusyError:  # that process may finish the work, or die and leave it
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
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


def _print_to(path: Path | None) -> None:
    """Send everything that this process prints, also from C++, to a file, or nowhere."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(file, number)
    os.close(file)


def _train(job: Job) -> dict[str, Any]:
    info = train(job.settings, job.folder, progress=False)
    if info["status"] != "finished":
        raise UserError(f"{job.folder} was not finished; the same segcal study command resumes it")
    for weights in job.after.weights:
        require_weights(job.folder, info, weights)
    weights = job.after.weights[0]
    lacking = warning(info, weights)
    return {"val_dice": info[weights]["val_dice"], "warnings": [lacking] if lacking else []}


def _finish(job: Job) -> dict[str, Any]:
    """All test scores of a chosen run, with the data where the plan says that they are now."""
    warnings = []
    for weights in job.after.weights:
        predictor = open_predictor(job.folder, weights=weights, data=Path(job.settings.data))
        evaluate(predictor)
        if job.after.calibrators:
            for name, fit in calibrate(predictor, job.after.calibrators).items():
                which = "" if weights == WEIGHTS[0] else f" ({weights} weights)"
                warnings += [f"{name}{which}: {line}" for line in fit["warnings"]]
        for corruption in job.after.corruptions:
            evaluate(predictor, corruption=corruption)
    return {"warnings": warnings}


KINDS = {
    "train": _train,
    "finish": _finish,
    "probe": lambda job: probe(job.settings),
    "call": lambda job: job.settings(),
}
