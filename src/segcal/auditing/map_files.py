"""The files of one case with calibrated maps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from segcal.auditing.dense import calibrated_maps, confidences
from segcal.auditing.temperatures import Parameters
from segcal.data.images import Grid, from_array
from segcal.folders import replacing, write_image
from segcal.predictors.reading import open_maps, read_case
from segcal.predictors.source import Source, SourceCase
from segcal.predictors.writing import type_to_write, write_like


def write_case(source: Source, case: SourceCase, fits: Sequence[Parameters], folder: Path) -> None:
    """Write the calibrated maps of a case as its files are; those that are there are kept."""
    targets = [folder / source.place(path) for path in case.files]
    if all(target.is_file() for target in targets):
        return
    stored = [open_maps(path) for path in case.files]
    type_ = min((type_to_write(path) for path in case.files), key=lambda dtype: dtype.itemsize)
    n_stored = sum(maps.shape[0] for maps in stored)
    rest = n_stored < source.n_maps
    maps = calibrated_maps(source, case, fits, dtype=type_, rest=rest)
    new = maps.classes()
    if rest:
        next(new)  # background has no file
    for path, target, each in zip(case.files, targets, stored, strict=True):
        target.parent.mkdir(exist_ok=True)
        with replacing(target) as partial:
            write_like(path, partial, each, islice(new, each.shape[0]))
    next(new, None)  # what is checked at the end


def write_confidence(
    source: Source, case: SourceCase, fits: Sequence[Parameters], folder: Path
) -> None:
    """Write the probability of what is predicted as `<case>_confidence`, of each region if any."""
    maps = calibrated_maps(source, case, fits)
    grid = read_case(source, case, resample=True).geometry or _unit_grid(maps.shape)
    for region, values in confidences(source, maps):
        word = re.sub(r"\W+", "-", f"_{region}") if region else ""
        path = folder / f"{case.id}{word}_confidence.nii.gz"
        write_image(path, from_array(np.ascontiguousarray(values), grid))


def _unit_grid(shape: tuple[int, ...]) -> Grid:
    directions = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    return Grid(shape[:0:-1], (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), directions)
