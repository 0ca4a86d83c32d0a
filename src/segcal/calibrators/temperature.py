"""Temperature scaling: one temperature for all voxels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.curves import Curves, Solution, curves, half_width, solve
from segcal.calibrators.fitting import VOXELS, Batches, Fitted, NoForegroundError
from segcal.types import check_choice
from segcal.voxels import NEAR

CLEAR = math.log(1.1)  # temperatures that differ by less hardly differ in NLL


def ts(batches: Batches, *, voxels: str = "near") -> Fitted:
    """Fit the temperature of least mean NLL over the voxels; keeps the label map.

    The facts have its interval over patients, and the temperature over all voxels beside it.

    >>> logits, labels = torch.tensor([[8.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
    >>> fitted = ts(lambda: [(logits, labels, logits)], voxels="all")
    >>> fitted(logits).softmax(1)[0]
    tensor([0.7500, 0.2500])
    >>> round(fitted.facts()["temperature"], 3)
    7.282
    """
    table, n_near = _table(batches, voxels)
    return ts_of(table, n_near)


def ts_of(table: Curves, n_near: int = 0) -> Fitted:
    """The fit from sums over rings, of which the first `n_near` count; 0: all."""
    chosen, everywhere = _solved(table, n_near)
    temperature, voxels = float(chosen.temperatures[0]), "near" if n_near else "all"
    record: dict[str, Any] = {"settings": {"voxels": voxels}, "voxels": voxels}
    record |= {"n_classes": table.n_classes, "n_voxels": chosen.n_voxels}
    record |= {"n_patients": len(chosen.influence)}
    record |= {"nll_before": chosen.nll_before, "nll_after": chosen.nll}
    record |= {"temperature": temperature, "interval": chosen.interval()}
    of_all = {"temperature": float(everywhere.temperatures[0]), "interval": everywhere.interval()}
    record |= {"over_all": of_all, "warnings": [text for text in chosen.problems if text]}
    if apart(chosen, everywhere):
        one = f"one temperature cannot serve both: it is {temperature:.2f} near predicted"
        text = f"{one} foreground and {of_all['temperature']:.2f} over all voxels; use ts2"
        record["warnings"].append(text)
    parameters = {"temperature": torch.tensor(temperature, dtype=torch.float64)}
    return Fitted("ts", scale, parameters, record)


def scale(log_probs: Tensor, image: Tensor | None, *, temperature: Tensor) -> Tensor:
    """Log-probabilities over one temperature."""
    return log_probs / temperature


def both(batches: Batches, voxels: str) -> tuple[int, Solution, Solution]:
    """The number of classes; the temperature of some voxels, and of all."""
    table, n_near = _table(batches, voxels)
    return table.n_classes, *_solved(table, n_near)


def _table(batches: Batches, voxels: str) -> tuple[Curves, int]:
    """One pass over the data; how many of the first rings are near, 0 if all voxels count."""
    check_choice("voxels", voxels, VOXELS)
    near = voxels == "near"
    return curves(batches, (NEAR,) if near else ()), int(near)


def _solved(table: Curves, n_near: int) -> tuple[Solution, Solution]:
    """The temperature of the first rings, and of all."""
    n_rings = table.n_voxels.shape[1]
    everywhere = solve(table, np.ones((n_rings, 1)))
    if not n_near:
        return everywhere, everywhere
    if not table.n_voxels[:, :n_near].any():
        raise NoForegroundError
    return solve(table, (np.arange(n_rings) < n_near).astype(float)[:, None]), everywhere


def apart(one: Solution, other: Solution) -> bool:
    """Whether two temperatures of the same patients differ clearly, by more than a tenth.

    The interval of their ratio must exclude 1. It takes each patient's influence on both together,
    so that it is narrower than two intervals that may not overlap."""
    ratio = abs(math.log(one.temperatures[0] / other.temperatures[0]))
    width = half_width((one.influence - other.influence)[:, 0])
    return ratio > CLEAR and ratio > width  # never with NaN: one patient is no evidence
