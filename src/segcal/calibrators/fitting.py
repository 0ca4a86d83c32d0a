"""What every calibrator shares: how the data come, what a fitted one is, and a division that keeps
the label map.

Data come as a function that starts a new pass over batches (logits (N, K, *S), labels (N, *S),
image (N, C, *S)), as read from a cache on disk: one batch is in memory at a time. Every voxel whose
label is not `IGNORE` counts in the NLL, the background too: the NLL judges whole probability maps,
and a calibrator acts on the whole map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from segcal.types import IGNORE, UserError, check_arrays, check_labels

Batches = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]

LOWEST, HIGHEST = 0.05, 20.0
"""The temperatures that a fit may give. Networks need about 0.5 to 5; past a factor of 20, either
way, confidence is all but 0/1 or uniform for any ordinary logits, the NLL is flat, and only noise
decides where a fit ends."""

CHUNK = 1 << 17  # logits worked on at a time: bounds memory, and stays in the processor's cache


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted calibrator: a function from logits and image to calibrated logits of the same shape
    and type.
    """

    key: str
    apply: Callable[..., Tensor]
    parameters: dict[str, Tensor]
    record: dict[str, Any]

    @torch.no_grad()
    def __call__(self, logits: Tensor, image: Tensor | None = None) -> Tensor:
        """Calibrated logits (N, K, *S), on the logits' device, without gradient; only `lts` looks
        at the image.
        """
        if not logits.is_floating_point():
            raise UserError(f"logits must be floating point; got {logits.dtype}")
        n_classes = self.record["n_classes"]
        if logits.ndim < 2 or logits.shape[1] != n_classes:
            shape = tuple(logits.shape)
            raise UserError(
                f"this {self.key} was fitted on {n_classes} classes, (N, {n_classes}, *S); got"
                f" shape {shape}"
            )
        wide = widest(logits)  # the type first: some devices have no float64
        parameters = {
            name: value.to(wide).to(logits.device) for name, value in self.parameters.items()
        }
        with torch.autocast(
            logits.device.type, enabled=False
        ):  # it would narrow the convolutions of lts
            return self.apply(logits, image, **parameters)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by name."""
        return dict(self.parameters)

    def facts(self) -> dict[str, Any]:
        """What is known of the fit, ready for JSON: key, settings, NLL before and after, passes,
        warnings.
        """
        return {"key": self.key, **deepcopy(self.record)}


def widest(logits: Tensor) -> torch.dtype:
    """The type to compute in: at least float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def divided(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits (N, K, *S) over positive temperatures that broadcast with them; the label map stays,
    bit for bit.

    A division keeps order but can round two logits to one value, and then `argmax` takes the first.
    So a class that was below the winner and now ties with it is put one step lower. Ties that were
    there before stay.

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
    below = top - (top.abs() * limit.eps).clamp_min(
        limit.smallest_normal * limit.eps
    )  # one or two steps down
    return torch.where(lost, below, out)


def pieces(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One pass: logits (n, K, v) in at least float32, labels (n, 1, v), weights (n, 1, v): 0.0
    where ignored, else 1.0.
    """
    n_classes = 0
    for logits, labels, _ in batches():
        check_arrays(logits, labels)
        n_classes = n_classes or logits.shape[1]
        if logits.shape[1] != n_classes:
            raise UserError(
                f"every batch must have the same classes; got {n_classes} and then"
                f" {logits.shape[1]}"
            )
        check_labels(labels, n_classes, IGNORE)
        refuse_probabilities(logits)
        flat = logits.detach().reshape(len(logits), n_classes, -1)  # (N, K, V)
        truth = labels.long().reshape(len(logits), 1, -1)  # (N, 1, V)
        n_voxels = max(1, CHUNK // n_classes)
        n_items = max(1, n_voxels // flat.shape[2])
        for x_items, y_items in zip(flat.split(n_items), truth.split(n_items), strict=True):
            for x, y in zip(x_items.split(n_voxels, 2), y_items.split(n_voxels, 2), strict=True):
                yield x.to(widest(x)), y.clamp_min(0), (y != IGNORE).to(widest(x))


def refuse_probabilities(logits: Tensor) -> None:
    """A temperature of probabilities means nothing, and nobody would see it."""
    if (
        logits.numel()
        and logits.min() >= 0
        and ((logits.sum(1, dtype=torch.float32) - 1).abs() < 1e-2).all()
    ):
        raise UserError(
            "these are probabilities, not logits; take their logarithm: probs.clamp_min(1e-7).log()"
        )


def mean_of(sums: Tensor, n_known: int = 0) -> tuple[int, Tensor]:
    """Sums over voxels whose last entry is how many there are -> that number, as known from a pass
    before; and the means.
    """
    n_voxels = int(sums[-1])
    if n_voxels == 0:
        raise UserError(
            "there are no voxels to fit on; got no batch, or labels that are all ignored"
        )
    if n_known not in (0, n_voxels):
        raise UserError(f"every pass must give the same voxels; got {n_known} and then {n_voxels}")
    if not sums.isfinite().all():
        raise UserError("logits and image must be finite, and logits below 1e18; got others")
    return n_voxels, sums[:-1] / n_voxels
