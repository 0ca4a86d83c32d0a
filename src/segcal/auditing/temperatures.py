"""Fitted temperatures: 1/T by place, and on the kept voxels of a stored prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from segcal.calibrators.regions import sharpness
from segcal.scoring.kept import Kept

Parameters = Mapping[str, float]


def sharpness_by_ring(values: Parameters) -> Tensor:
    """1/T of `ts` or `ts2` by the number of a ring."""
    if "temperature" in values:
        return torch.full((256,), 1 / values["temperature"])
    return sharpness(values["near"], values["far"], int(values["radius"]))


def calibrated(kept: Kept, values: Parameters) -> Callable[[slice], Tensor]:
    """From some of the voxels to their log-probabilities (K, m) after `ts` or `ts2`."""
    of_rings = sharpness_by_ring(values)

    def apply(part: slice) -> Tensor:
        scale = of_rings[kept.ring[part].long()]
        scale = torch.where(kept.certain[part], 1.0, scale)  # as in maps that are written
        return (kept.log_probs[:, part] * scale).log_softmax(0)

    return apply
