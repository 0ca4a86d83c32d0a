"""Predictors: anything that gives predictions for cases.

Scoring, fitting of calibrators, prediction, figures and the viewer take a predictor and do not know
where its predictions come from. A new source is one file here and one row of `PREDICTORS`.
Predictions that other tools stored are opened by `open_source` of `files.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from segcal.folders import read_run
from segcal.folders.audits import KIND as AUDIT
from segcal.predictors.ensemble import KIND, Ensemble, make_ensemble, open_ensemble
from segcal.predictors.protocol import ImagePredictor, Prediction, Predictor
from segcal.predictors.run import Run, open_run
from segcal.predictors.stored import Stored, open_stored
from segcal.types import AnyPath, check_choice

__all__ = ["PREDICTORS", "Ensemble", "ImagePredictor", "Prediction", "Predictor", "Run"]
__all__ += ["Stored", "make_ensemble", "open_ensemble", "open_predictor", "open_run"]
__all__ += ["open_stored"]

PREDICTORS: dict[str, Callable[..., ImagePredictor]] = {
    "run": open_run,
    KIND: open_ensemble,
    AUDIT: open_stored,
}
"""How each kind of predictor is opened; `kind` in `run.json` names it, a trained run by default."""


def open_predictor(
    root: AnyPath,
    *,
    weights: str | None = None,
    device: str | None = None,
    data: AnyPath | None = None,
) -> ImagePredictor:
    """Open what `root` holds: a trained run or an ensemble.

    A run's weights are its `best` unless `weights` says otherwise; those of an ensemble are fixed.
    """
    kind = read_run(Path(root)).get("kind", "run")
    check_choice("kind of predictor", kind, tuple(PREDICTORS))
    options = {} if weights is None else {"weights": weights}
    return PREDICTORS[kind](root, device=device, data=data, **options)
