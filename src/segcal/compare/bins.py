"""Reliability bins of runs, read and added up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from segcal.folders import read_bins
from segcal.types import UserError


def bins_of(run: str, root: Path, condition: Mapping[str, str]) -> dict[str, Any]:
    """A run's bins under a condition as arrays; mean logits times voxels, so that they add."""
    for entry in read_bins(root):
        if all(entry.get(key) == value for key, value in condition.items()):
            voxels = np.array(entry["voxels"], dtype=float)
            part = {"voxels": voxels, "mean_logits": entry["mean_logits"] * voxels[:, None]}
            for kind in ("top", "per_class", "fine"):
                for name, values in entry.get(kind, {}).items():
                    part.setdefault(kind, {})[name] = np.array(values, dtype=float)
            return part
    missing = ", ".join(f"{key} {value}" for key, value in condition.items() if value)
    raise UserError(f"{run} has no bins for {missing}; run segcal evaluate or calibrate first")


def added(a: Any, b: Any) -> Any:
    """The sum of two sets of bins, part by part."""
    return {key: added(a[key], b[key]) for key in a} if isinstance(a, dict) else a + b
