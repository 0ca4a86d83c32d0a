"""The margin term of region-based training: regions may overlap, and each has a sigmoid of its own.

A region with logit z is a problem of two classes with the logits 0 and z, whose softmax is the
sigmoid of z.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.types import UserError, check_range


def region_margin_penalty(
    logits: Tensor, *, margin: float = 10.0, ignored: Tensor | None = None
) -> Tensor:
    r"""`margin_penalty` of each region's logits 0 and z, mean over voxels and regions.

    $$ \max(0, |z_r| - m) $$

    Logits are (N, R, *S), one per region. Voxels where the mask `ignored` (N, 1, *S) is true do not
    count.

    >>> region_margin_penalty(torch.tensor([[12.0, -3.0]]), margin=10.0)
    tensor(1.)
    """
    check_range("margin", margin, 0)
    if not logits.is_floating_point() or logits.ndim < 2 or logits.numel() == 0:
        got = f"got {logits.dtype} of shape {tuple(logits.shape)}"
        raise UserError(f"logits must be floating point (N, R, *S) with R >= 1 regions; {got}")
    z = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    excess = F.relu(z.abs() - margin)
    if ignored is None:
        return excess.mean()
    if ignored.shape != (logits.shape[0], 1, *logits.shape[2:]):
        shapes = f"{tuple(ignored.shape)} for logits of shape {tuple(logits.shape)}"
        raise UserError(f"ignored must have the logits' shape with one channel; got {shapes}")
    counted = ~ignored.bool()
    n_counted = counted.sum().clamp_min(1) * logits.shape[1]
    return (excess * counted).sum() / n_counted


def check_one_label(logits: Tensor, target: Tensor) -> None:
    """Raise if a target has a channel per class or region, where a softmax needs one label."""
    if logits.ndim != target.ndim or target.ndim < 2:
        return
    if target.shape[1] > 1 or target.shape[1] == logits.shape[1] == 1:
        raise UserError(
            f"target of shape {tuple(target.shape)} is for region-based training, with a channel"
            " per region; Criterion is for one softmax: add 0.1 * region_margin_penalty(logits) to"
            " your own loss, or for one-hot classes take target.argmax(1)"
        )
