"""What calibrators share: their data, what a fitted one is, a division that keeps the label map.

Data are a function that starts a new pass over batches (logits (N, K, *S), labels (N, *S), image
(N, C, *S)), one of which is in memory at a time. Every voxel whose label is not `IGNORE` counts in
the NLL, the background too, because a calibrator acts on the whole map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from segcal.types import IGNORE, UserError, check_arrays, check_labels

Batches = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]

# The temperatures that a fit may give. Networks need about 0.5 to 5; beyond a factor of 20 the NLL
# of ordinary logits is flat, and noise decides where a fit ends.
LOWEST, HIGHEST = 0.05, 20.0

CHUNK = 1 << 17  # logits at a time: bounds memory, and stays in the processor's cache


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted calibrator: from logits and image to logits of the same shape and type."""

    key: str
    apply: Callable[..., Tensor]
    parameters: dict[str, Tensor]
    record: dict[str, Any]

    @torch.no_grad()
    def __call__(self, logits: Tensor, image: Tensor | None = None) -> Tensor:
        """Calibrated logits (N, K, *S), without gradient; only `lts` needs the image."""
        n, shape = self.record["n_classes"], tuple(logits.shape)
        if shape[1:2] != (n,):
            raise UserError(f"this {self.key} was fitted on {n} classes; got shape {shape}")
        parameters = {}
        for name, value in self.parameters.items():
            # the type first: some devices have no float64
            parameters[name] = value.to(widest(logits)).to(logits.device)
        with torch.autocast(logits.device.type, enabled=False):  # it would narrow convolutions
            return self.apply(logits, image, **parameters)

    def facts(self) -> dict[str, Any]:
        """The facts of the fit, ready for JSON: key, settings, NLL before and after, warnings."""
        return {"key": self.key, **deepcopy(self.record)}


def widest(logits: Tensor) -> torch.dtype:
    """The type to compute in: at least float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def divided(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits (N, K, *S) over positive temperatures that broadcast with them; keeps the label map.

    A division can round two logits to one value, and then `argmax` takes the first. So a class that
    was below the winner and now ties with it is put one step lower. Earlier ties stay.

    >>> logits = torch.tensor([[1.501, 1.502]], dtype=torch.float16)
    >>> (logits / 1.5).argmax(1), divided(logits, torch.tensor(1.5)).argmax(1)
    (tensor([0]), tensor([1]))
    """
    limit = torch.finfo(logits.dtype)
    floor = limit.min * (1 - 4 * limit.eps)  # with room for that step
    out = (logits.to(widest(logits)) / temperature).clamp_(floor, limit.max).to(logits.dtype)
    top = out.amax(1, keepdim=True)
    lost = (out == top) & (logits < logits.amax(1, keepdim=True))
    if not lost.any():
        return out
    step = (top.abs() * limit.eps).clamp_min(limit.smallest_normal * limit.eps)
    return torch.where(lost, top - step, out)


def pieces(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One pass: logits (n, K, v), labels and weights (n, 1, v); ignored voxels have weight 0."""
    for logits, labels, _ in checked(batches):
        n_classes = logits.shape[1]
        flat = logits.detach().reshape(len(logits), n_classes, -1)  # (N, K, V)
        truth = labels.long().reshape(len(logits), 1, -1)  # (N, 1, V)
        n_voxels = max(1, CHUNK // n_classes)
        n_items = max(1, n_voxels // flat.shape[2])
        for x_items, y_items in zip(flat.split(n_items), truth.split(n_items), strict=True):
            for x, y in zip(x_items.split(n_voxels, 2), y_items.split(n_voxels, 2), strict=True):
                yield x.to(widest(x)), y.clamp_min(0), (y != IGNORE).to(widest(x))


def checked(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One pass over the batches; raises unless they are logits with labels of the same classes."""
    n_classes = None
    for logits, labels, image in batches():
        check_arrays(logits, labels)
        if n_classes not in (None, logits.shape[1]):
            got = f"{n_classes} and then {logits.shape[1]}"
            raise UserError(f"every batch must have the same number of classes; got {got}")
        n_classes = logits.shape[1]
        check_labels(labels, logits.shape[1], IGNORE)
        sums_to_one = (logits.sum(1, dtype=torch.float32) - 1).abs() < 1e-2
        if logits.min() >= 0 and sums_to_one.all():
            remedy = "take their logarithm: probs.clamp_min(1e-7).log()"
            raise UserError(f"these are probabilities, not logits; {remedy}")
        yield logits, labels, image


def mean_of(sums: Tensor) -> tuple[int, Tensor]:
    """The number of voxels, the last of some sums over them, and the means of the other sums."""
    n_voxels = int(sums[-1])
    if n_voxels == 0:
        raise UserError("there are no voxels to fit on; got no batch, or only ignored labels")
    if not sums.isfinite().all():
        raise UserError("logits and image must be finite, and logits below 1e18; got others")
    return n_voxels, sums[:-1] / n_voxels
