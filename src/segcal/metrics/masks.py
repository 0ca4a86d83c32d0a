"""Which voxels a calibration score looks at. Class 0 is the background."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from segcal.types import check_choice, check_range

MASKS = ("reference", "all", "prediction", "union", "ring")


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
        return _dilated(reference, ring) & _dilated(~reference & kept, ring) & kept
    # A tie goes to the first class, as in argmax; comparing maxima is far cheaper.
    predicted = (scores[:, 1:].amax(1) > scores[:, 0]) & kept
    return predicted if mask == "prediction" else predicted | reference


def chosen(scores: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (K, M) and labels (M,) of the voxels in a mask (N, V), from (N, K, V) and (N, V).

    Two steps, because indexing with two lists of places at once takes twice as long.
    """
    where = mask.reshape(-1).nonzero()[:, 0]
    rows = scores.transpose(0, 1).reshape(scores.shape[1], -1)
    return rows.index_select(1, where), labels.reshape(-1).index_select(0, where)


def _dilated(region: Tensor, radius: int) -> Tensor:
    """Grow a region (N, *S) by a cube of the given radius, one axis at a time."""
    grown = region
    for axis in range(1, region.ndim):
        last = grown.movedim(axis, -1)
        lines = last.reshape(-1, 1, last.shape[-1]).float()
        pooled = F.max_pool1d(lines, 2 * radius + 1, stride=1, padding=radius)
        grown = pooled.reshape(last.shape).movedim(-1, axis) > 0
    return grown
