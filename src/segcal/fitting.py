"""Post-hoc calibration of a predictor: fitted on validation alone, then scored on test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal import calibrators
from segcal.calibrators import CALIBRATORS
from segcal.calibrators.fitting import log_probs
from segcal.data.leaks import check_apart
from segcal.folders import alone, calibrator_path, logits_folder, path_of, sweep_run
from segcal.predictors import Predictor
from segcal.scoring import forget, load_calibrator, score
from segcal.scoring.volumes import (
    OfPatient,
    missing_guarantees,
    patients_of,
    save_guarantees,
    set_level,
    update_covered,
    validated,
)
from segcal.types import IGNORE, Progress, UserError, check_choice

Halves = tuple[set[str], set[str]]
_NO_ROOM = "not everything could be written"
Batches = Callable[..., Iterator[tuple[Tensor, Tensor, Tensor, str]]]
"""The validation cases, of some patients alone if these are named."""


def calibrate(
    predictor: Predictor,
    names: Sequence[str] = ("ts", "ts2", "lts"),
    *,
    voxels: str | None = None,
    level: float | None = None,
    again: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Fit calibrators on the validation cases, save them, and add their test scores.

    `voxels` are those that a fit counts, near predicted foreground or all; by default each
    calibrator takes its own. Returns the facts of each fit, with warnings if it is degenerate;
    `val_nll` of them is of the halves of the patients that a second and a third fit left out.
    Calibrators that are saved are not fitted again unless `again`, or an older version fitted them
    on raw logits. Volume intervals are fitted on the same cases, before and after each calibrator:
    of 0.9, or the level they have, if there are patients enough; with `level` it is an error if
    there are not."""
    if voxels is not None:
        check_choice("voxels", voxels, calibrators.VOXELS)
    for name in names:
        check_choice("calibrator", name, tuple(CALIBRATORS))
    with alone(predictor.root):
        sweep_run(predictor.root)
        kept, notes = {}, {}
        for name in names:
            kept[name], notes[name] = (False, []) if again else _kept(predictor, name, voxels)
        missing = [name for name in kept if not kept[name]]
        unsure = missing_guarantees(predictor, names, level, missing)
        if missing or unsure:
            _fit(predictor, missing, voxels, unsure, level, progress)
        if level is not None:
            set_level(predictor, level)
        score(predictor)  # the test scores to compare with
        for name in names:
            score(predictor, calibrator=name, progress=progress)
        update_covered(predictor)
    facts = {name: load_calibrator(predictor, name).facts() for name in names}
    for name in names:
        facts[name]["warnings"] += notes[name]
    return facts


def _path(predictor: Predictor, name: str) -> Path:
    return calibrator_path(predictor.root, name, predictor.weights)


def _kept(predictor: Predictor, name: str, voxels: str | None) -> tuple[bool, list[str]]:
    """Whether there is a fit that stays, and warnings; raises if other voxels are asked for."""
    if not calibrators.saved(_path(predictor, name)):
        return False, []
    try:
        known = _voxels_of(predictor, name) or "all"
    except calibrators.OutdatedError:
        return False, ["an older version had fitted it on raw logits, so it was fitted again"]
    own = _own_voxels(name)
    if own is None or known == (voxels or own):
        return True, []
    if voxels is not None:
        fitted = f"{name} of {predictor.root} was fitted on the voxels {known!r}, not {voxels!r}"
        raise UserError(f"{fitted}; take --voxels {known}, or --again to fit it anew")
    kept = f"it was fitted on the voxels {known!r} and is kept"
    return True, [f"{kept}; segcal calibrate --again fits it on {own!r}"]


def _voxels_of(predictor: Predictor, name: str) -> str | None:
    """Which voxels a saved fit counted, if it says so."""
    voxels: str | None = load_calibrator(predictor, name).record["settings"].get("voxels")
    return voxels


def _own_voxels(name: str) -> str | None:
    """Which voxels a fit counts unless asked otherwise; `ts2` takes all in any case: `None`."""
    voxels: str | None = CALIBRATORS[name].settings.get("voxels")
    return voxels


def _fit(
    predictor: Predictor,
    names: Sequence[str],
    voxels: str | None,
    unsure: Sequence[str],
    level: float | None,
    progress: Progress | None,
) -> None:
    """Fit and save; scores of an earlier fit are deleted first. Then the intervals of `unsure`."""
    _check_apart(predictor)
    folder = logits_folder(predictor.root)
    try:
        folder.mkdir()
        batches = cache_logits(predictor, folder, progress)
        fitted = {name: _fitted(name, batches, voxels) for name in names}
        others = [name for name in unsure if name and name not in fitted]
        applied: dict[str, OfPatient] = {"": lambda patient: _uncalibrated}
        for name in (*fitted, *others):
            asked = voxels if name in fitted else _voxels_of(predictor, name)
            applied[name] = _held_out(name, batches, _halves(predictor), asked)
        found = validated(predictor, batches, applied)
        for name, fit in fitted.items():
            fit.record["val_nll"] = {"before": found[""].nll, "after": found[name].nll}
            forget(predictor, name)
            calibrators.save(fit, _path(predictor, name), identity=predictor.identity)
        save_guarantees(predictor, {name: found[name] for name in unsure}, level)
    except OSError as error:  # NumPy's may have no reason
        problem = f"cannot write to the disk of {predictor.root}: {error.strerror or _NO_ROOM}"
        remedy = "the logits of the validation cases need room there while calibrators are fitted"
        raise UserError(f"{problem}; make room ({remedy}), then run the same command") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _uncalibrated(logits: Tensor, image: Tensor) -> Tensor:
    return log_probs(logits)


def _held_out(name: str, batches: Batches, halves: Halves, voxels: str | None) -> OfPatient:
    """For each patient the calibrator as it is fitted on the half that the patient is not in.

    On the cases that it was fitted on, a calibrator with many parameters looks too good."""
    of_first, of_second = (_fitted(name, partial(batches, half), voxels) for half in halves[::-1])
    return lambda patient: of_first if patient in halves[0] else of_second


def _halves(predictor: Predictor) -> Halves:
    """The validation patients in two halves; one patient alone is in both."""
    known = patients_of(predictor)
    patients = sorted({known.get(id, id) for id in predictor.ids("val")})
    return set(patients[::2]), set(patients[1::2] or patients)


def _check_apart(predictor: Predictor) -> None:
    """Refuse to fit on validation cases that are reported among the test cases."""
    val, test = predictor.ids("val"), predictor.ids("test")
    patients = predictor.info["data"].get("patients") or {}
    check_apart(val, test, {id: patients.get(id, id) for id in (*val, *test)}, "patient")
    check_apart(val, test, {id: predictor.image_id(id) for id in (*val, *test)}, "image")


def _fitted(name: str, batches: Batches, voxels: str | None) -> calibrators.Fitted:
    """A fit; of a network that predicts no foreground at all, over all voxels, with a warning."""
    own = _own_voxels(name)
    if own is None:
        return calibrators.fit(name, batches)
    try:
        return calibrators.fit(name, batches, voxels=voxels or own)
    except calibrators.NoForegroundError:
        fitted = calibrators.fit(name, batches, voxels="all")
    # as asked, so that the fit is known again
    fitted.record["settings"]["voxels"] = voxels or own
    reason = "no validation case has predicted foreground, so it was fitted on all voxels"
    fitted.record["warnings"].append(reason)
    return fitted


def cache_logits(predictor: Predictor, folder: Path, progress: Progress | None = None) -> Batches:
    """Write the validation logits to disk once; the result iterates over the cases when called.

    A case is one batch: its slices, and its patient."""
    ids, patients = predictor.ids("val"), patients_of(predictor)
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

    def batches(
        wanted: Collection[str] | None = None,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, str]]:
        for id in ids:
            if wanted is not None and patients.get(id, id) not in wanted:
                continue
            arrays = [np.load(path, allow_pickle=False) for path in _cached(folder, id)]
            logits, label, image = (torch.from_numpy(array) for array in arrays)
            yield logits, label.long(), image, patients.get(id, id)

    return batches


def _cached(folder: Path, id: str) -> list[Path]:
    return [path_of(folder, id, f".{kind}.npy") for kind in ("logits", "label", "image")]
