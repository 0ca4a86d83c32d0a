"""Fitted calibrators: their numbers, 1/T by place, and on the kept voxels of a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from segcal.calibrators import Fitted
from segcal.calibrators.regions import sharpness
from segcal.scoring.kept import Kept

Parameters = Mapping[str, float]


def parameters_of(fit: Fitted) -> dict[str, float]:
    """The numbers of a fit by name; those of classes are counted."""
    numbers: dict[str, float] = {}
    for name, value in sorted(fit.parameters.items()):
        if value.ndim:
            numbers |= {f"{name}_{k}": x for k, x in enumerate(value.tolist())}
        else:
            numbers[name] = float(value)
    return numbers


def sharpness_by_ring(values: Parameters) -> Tensor:
    """1/T of `ts` or `ts2` by the number of a ring."""
    if "temperature" in values:
        return torch.full((256,), 1 / values["temperature"])
    return sharpness(values["near"], values["far"], int(values["radius"]))


def calibrated(kept: Kept, values: Parameters) -> Callable[[slice], Tensor]:
    """From some of the voxels to their log-probabilities (K, m) after a calibrator."""
    if "scale_0" in values:
        return _scaled_by_class(kept, values)
    of_rings = sharpness_by_ring(values)

    def apply(part: slice) -> Tensor:
        scale = of_rings[kept.ring[part].long()]
        scale = torch.where(kept.certain[part], 1.0, scale)  # as in maps that are written
        return (kept.log_probs[:, part] * scale).log_softmax(0)

    return apply


def _scaled_by_class(kept: Kept, values: Parameters) -> Callable[[slice], Tensor]:
    """The same after `vs`."""
    parts = [[values[f"{name}_{k}"] for k in range(kept.n_classes)] for name in ("scale", "bias")]
    scale, bias = torch.tensor(parts)[..., None]  # (K, 1) each

    def apply(part: slice) -> Tensor:
        stored = kept.log_probs[:, part]
        new = (stored * scale + bias).log_softmax(0)
        return torch.where(kept.certain[part], stored, new)

    return apply
