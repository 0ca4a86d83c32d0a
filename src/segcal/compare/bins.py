"""Reliability bins of runs, read and added up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from segcal.folders import read_bins
from segcal.types import UserError

KINDS = ("top", "per_class", "fine")


def bins_of(run: str, root: Path, condition: Mapping[str, str]) -> dict[str, Any]:
    """A run's bins under a condition as arrays; mean logits times voxels, so that they add."""
    for entry in read_bins(root):
        if all(entry.get(key) == value for key, value in condition.items()):
            try:
                return _arrays(entry)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError):
                raise UserError(
                    f"the bins of {root} are damaged; run segcal evaluate --again on {run}"
                ) from None
    missing = ", ".join(f"{key} {value}" for key, value in condition.items() if value)
    raise UserError(f"{run} has no bins for {missing}; run segcal evaluate or calibrate first")


def _arrays(entry: Mapping[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = {"voxels": np.array(entry["voxels"], dtype=float)}
    for kind in KINDS:
        if kind in entry:
            part[kind] = {k: np.array(v, dtype=float) for k, v in entry[kind].items()}
    part["mean_logits"] = np.array(entry["mean_logits"]) * part["voxels"][:, None]
    return part


def added(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of what both have; fine bins of different number, from two versions, are left out."""
    total: dict[str, Any] = {}
    for key, value in a.items():
        if key not in KINDS:
            total[key] = value + b[key]
        elif key in b and all(value[part].shape == b[key][part].shape for part in value):
            total[key] = {part: value[part] + b[key][part] for part in value}
    return total
