"""Which voxels a calibration score looks at. Class 0 is the background."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.types import check_choice, check_range
from segcal.voxels import grown, near, predicted

MASKS = ("all", "near", "prediction", "reference", "union", "ring")


def voxel_mask(
    scores: Tensor, labels: Tensor, mask: str, *, ring: int, ignore_index: int
) -> Tensor:
    """The voxels (N, *S) that count: bool; never those labelled `ignore_index`.

    >>> import torch
    >>> labels = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    >>> voxel_mask(torch.zeros(1, 2, 8), labels, "ring", ring=1, ignore_index=-100).int()
    tensor([[0, 0, 1, 1, 0, 0, 0, 0]], dtype=torch.int32)
    """
    check_choice("mask", mask, MASKS)
    check_range("ring", ring, 1)
    kept = labels != ignore_index
    if mask == "all":
        return kept
    reference = (labels > 0) & kept
    if mask == "reference":
        return reference
    if mask == "ring":
        return grown(reference, ring) & grown(~reference & kept, ring) & kept
    if mask == "near":
        return near(scores) & kept
    foreground = predicted(scores) & kept
    return foreground if mask == "prediction" else foreground | reference


def places(mask: Tensor) -> Tensor:
    """Where a mask is true, as if it were flat; NumPy takes a tenth of the time of `nonzero`."""
    flat = mask.reshape(-1)
    if flat.device.type != "cpu":
        return flat.nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(flat.numpy()))


def chosen(scores: Tensor, labels: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (K, M) and labels (M,) at `places` (M,), from (N, K, V) and (N, V)."""
    n_classes, n_voxels = scores.shape[1:]
    first = where + where.div(n_voxels, rounding_mode="floor") * ((n_classes - 1) * n_voxels)
    flat = scores.reshape(-1)  # a view: to bring classes to the front would copy all scores
    part = torch.stack([flat[k * n_voxels :].index_select(0, first) for k in range(n_classes)])
    return part, labels.reshape(-1).index_select(0, where)
