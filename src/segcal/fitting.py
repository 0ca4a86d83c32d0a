"""Post-hoc calibration of a predictor: fitted on validation alone, then scored on test."""

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
from segcal.folders import alone, calibrator_path
from segcal.predictors import Predictor
from segcal.scoring import forget, load_calibrator, score
from segcal.types import IGNORE, Progress, UserError, check_choice

Batches = Callable[[], Iterator[tuple[Tensor, Tensor, Tensor]]]


def calibrate(
    predictor: Predictor,
    names: Sequence[str] = ("ts", "lts"),
    *,
    again: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Fit calibrators on the validation cases, save them, and add their test scores.

    Returns the facts of each fit, with warnings if it is degenerate. Calibrators that are saved are
    not fitted again unless `again`."""
    for name in names:
        check_choice("calibrator", name, tuple(CALIBRATORS))
    with alone(predictor.root):
        missing = [name for name in names if again or not _saved(predictor, name)]
        if missing:
            _fit(predictor, missing, progress)
        score(predictor)  # the test scores to compare with
        for name in names:
            score(predictor, calibrator=name, progress=progress)
    return {name: load_calibrator(predictor, name).facts() for name in names}


def _path(predictor: Predictor, name: str) -> Path:
    return calibrator_path(predictor.root, name, predictor.weights)


def _saved(predictor: Predictor, name: str) -> bool:
    return calibrators.saved(_path(predictor, name))


def _fit(predictor: Predictor, names: Sequence[str], progress: Progress | None) -> None:
    """Fit and save; scores of an earlier fit are deleted first."""
    folder = predictor.root / ".logits"
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may have left it
    folder.mkdir()
    try:
        batches = cache_logits(predictor, folder, progress)
        for name in names:
            fitted = CALIBRATORS[name].fit(batches)
            forget(predictor, name)
            calibrators.save(fitted, _path(predictor, name), identity=predictor.identity)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cache_logits(predictor: Predictor, folder: Path, progress: Progress | None = None) -> Batches:
    """Write the validation logits to disk once; the result iterates over the cases when called."""
    ids = predictor.ids("val")
    if not ids:
        raise UserError(
            f"{predictor.root} has no validation case, and calibrators are fitted on those alone"
        )
    for i, id in enumerate(ids, start=1):
        case = predictor.case(id)
        label = case.reference
        if case.seen is not None:  # what was not predicted is not fitted
            label = label.masked_fill(~case.seen, IGNORE)
        arrays = (case.slices, label.to(torch.int16), case.image)
        for path, tensor in zip(_cached(folder, id), arrays, strict=True):
            np.save(path, np.empty(0) if tensor is None else tensor.numpy(), allow_pickle=False)
        if progress is not None:
            progress(i, len(ids))

    def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for id in ids:
            arrays = [np.load(path, allow_pickle=False) for path in _cached(folder, id)]
            logits, label, image = (torch.from_numpy(array) for array in arrays)
            yield logits, label.long(), image

    return batches


def _cached(folder: Path, id: str) -> list[Path]:
    return [folder / f"{id}.{kind}.npy" for kind in ("logits", "label", "image")]
