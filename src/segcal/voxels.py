"""The labels of a target, and voxels near foreground: those that a number of steps to face
neighbours reach from it.

What is near *predicted* foreground is known without the reference, so a score over these voxels is
unbiased and a calibrator can use them on new cases. Class 0 is the background.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from segcal.types import UserError, check_tensors

NEAR = 5
"""How many steps from predicted foreground a voxel counts as near it."""


def labels_of_target(scores: Tensor, target: Tensor) -> Tensor:
    """The labels (N, *S) of a target as trainers have it: (N, *S) or (N, 1, *S), whole numbers of
    any type, for logits or probabilities (N, K, *S).

    >>> labels_of_target(torch.zeros(1, 2, 3), torch.tensor([[[0.0, 1.0, -100.0]]]))
    tensor([[   0,    1, -100]])
    """
    check_tensors(logits=scores, target=target)
    if target.ndim == scores.ndim > 1 and target.shape[1] == 1:
        target = target.squeeze(1)  # (N, 1, *S) -> (N, *S)
    if not target.is_floating_point():
        return target
    labels = target.long()
    if not torch.compiler.is_compiling() and not torch.equal(labels.to(target.dtype), target):
        raise UserError("target must hold whole numbers (class labels); got fractions")
    return labels


def predicted(scores: Tensor) -> Tensor:
    """Where foreground is predicted (N, *S), from logits or probabilities (N, K, *S).

    A tie goes to the first class, as in `argmax`; comparing maxima is far cheaper."""
    return scores[:, 1:].amax(1) > scores[:, 0]


def near(scores: Tensor, radius: int = NEAR) -> Tensor:
    """Where a voxel (N, *S) is within `radius` of foreground predicted by scores (N, K, *S).

    >>> near(torch.tensor([[[9.0, 9, 9, 9, 0], [0.0, 0, 0, 0, 9]]]), 2).int()
    tensor([[0, 0, 1, 1, 1]], dtype=torch.int32)
    """
    return grown(predicted(scores), radius)


def grown(region: Tensor, radius: int) -> Tensor:
    """A region (N, *S), bool, with all voxels that `radius` steps to face neighbours reach.

    >>> grown(torch.tensor([[[False] * 4, [True] + [False] * 3]]), 2).int()
    tensor([[[1, 1, 0, 0],
             [1, 1, 1, 0]]], dtype=torch.int32)
    """
    for _ in range(radius):
        out = region.clone()
        for axis in range(1, region.ndim):
            n = region.shape[axis] - 1
            out.narrow(axis, 1, n).logical_or_(region.narrow(axis, 0, n))
            out.narrow(axis, 0, n).logical_or_(region.narrow(axis, 1, n))
        region = out
    return region


def square_distance(region: Tensor, spacing: Sequence[float], furthest: float) -> Tensor:
    """The squared distance (*S) of each voxel to a region (*S), exact up to `furthest`.

    Between voxel centres, in the unit of `spacing`. Beyond `furthest` it is a larger number, or
    inf. One axis after the other, over the steps that reach `furthest`: for the few voxels around
    an outline far cheaper than a distance transform without a limit.

    >>> square_distance(torch.tensor([False, False, False, True]), (1.5,), 4.0)
    tensor([   inf, 9.0000, 2.2500, 0.0000])
    """
    square = torch.where(region, 0.0, float("inf"))
    for axis, size in enumerate(spacing):
        before, n = square, region.shape[axis]
        square = before.clone()
        for step in range(1, min(int(furthest / size + 1e-6), n - 1) + 1):
            beside = before + (step * size) ** 2
            ahead, behind = square.narrow(axis, step, n - step), square.narrow(axis, 0, n - step)
            torch.minimum(ahead, beside.narrow(axis, 0, n - step), out=ahead)
            torch.minimum(behind, beside.narrow(axis, step, n - step), out=behind)
    return square
