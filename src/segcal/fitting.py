"""Post-hoc calibration of a run: fitted on the validation split, and on nothing else, then scored
on test.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal import calibrators
from segcal.calibrators import CALIBRATORS
from segcal.data.slices import volume
from segcal.folders import CaseSet, alone
from segcal.predictors.run import Run
from segcal.scoring import calibrator_path, data_of, evaluate, forget
from segcal.types import UserError, check_choice

Progress = Callable[[int, int], None]


def calibrate(
    run: Run,
    names: Sequence[str] = ("ts", "lts"),
    *,
    again: bool = False,
    cases: CaseSet | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Fit calibrators on the validation cases, save them, and add their test rows to `scores.csv`.

    Returns what each says of its fit, with warnings if it is degenerate. What is there already is
    not fitted again."""
    for name in names:
        check_choice("calibrator", name, tuple(CALIBRATORS))
    cases = data_of(run, cases)
    with alone(run.root, nested=True):
        missing = [
            name for name in names if again or not calibrators.saved(calibrator_path(run, name))
        ]
        if missing:
            _fit(run, cases, missing, progress)
        evaluate(run, cases=cases)  # the test rows to compare with
        for name in names:
            evaluate(run, cases=cases, calibrator=name, progress=progress)
    return {
        name: calibrators.load(calibrator_path(run, name), expect=run.identity).facts()
        for name in names
    }


def _fit(run: Run, cases: CaseSet, names: Sequence[str], progress: Progress | None) -> None:
    """Fit and save; every score of an earlier fit goes first."""
    folder = run.root / ".logits"
    shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
    folder.mkdir()
    try:
        cached = cache_logits(run, cases, folder, progress)
        for name in names:
            fitted = CALIBRATORS[name].fit(cached)
            forget(run, name)
            calibrators.save(fitted, calibrator_path(run, name), identity=run.identity)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cache_logits(
    run: Run, cases: CaseSet, folder: Path, progress: Progress | None = None
) -> Callable[[], Iterator[tuple[Tensor, Tensor, Tensor]]]:
    """Write the validation logits to disk once; the result iterates over them case by case, as
    often as called.
    """
    ids = cases.split("val", run.settings.fold)
    if not ids:
        raise UserError(
            f"{cases.name} has no validation case in fold {run.settings.fold}; a calibrator is"
            " fitted on those alone"
        )
    for i, id in enumerate(ids, start=1):
        np.save(folder / f"{id}.npy", run.logits(volume(cases, id)[0]).numpy(), allow_pickle=False)
        if progress is not None:
            progress(i, len(ids))

    def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for id in ids:
            image, label = volume(cases, id)
            yield torch.from_numpy(np.load(folder / f"{id}.npy", allow_pickle=False)), label, image

    return batches
