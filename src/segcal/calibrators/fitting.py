"""What calibrators share: their data, what a fitted one is, a division that keeps the label map.

Data are a function that starts a new pass over batches (logits, labels, image), or (logits,
labels, image, patient), one of which is in memory at a time. Logits of four axes (D, K, H, W) are
the slices of one volume, of five (N, K, D, H, W) are N volumes; images that have nothing to do with
each other are (N, K, 1, H, W). Where no patient is named, each volume is one.

A calibrator is a function of the log-probabilities: a constant added to all logits of a voxel
changes nothing, and logarithms of stored probabilities serve as well as logits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segcal.types import IGNORE, UserError, check_arrays, check_choice, check_labels
from segcal.voxels import NEAR, grown, predicted

Batches = Callable[[], Iterable[tuple[Any, ...]]]

VOXELS = ("near", "all")
"""What a fit counts: voxels within `NEAR` of predicted foreground, or all that have a label."""

# The temperatures that a fit may give. Networks need about 0.5 to 5; beyond a factor of 20 the NLL
# of ordinary logits is flat, and noise decides where a fit ends.
LOWEST, HIGHEST = 0.05, 20.0

# Lower log-probabilities count as this one. It is that of the smallest normal float32, so that a
# probability of 0 in a file and the logits that it was made from are the same here.
FLOOR = -87.3

CHUNK = 1 << 17  # logits at a time: bounds memory, and stays in the processor's cache

NO_VOXELS = "there are no voxels to fit on; got no batch, or only ignored labels"
NOT_FINITE = "logits must be finite, or -inf for probability 0, and images finite; got others"


class NoForegroundError(UserError):
    """No case has predicted foreground, so that no voxel is near it."""

    def __init__(self) -> None:
        where = "there are no voxels to fit on near predicted foreground"
        super().__init__(f"{where}; take all voxels (--voxels all)")


class OutdatedError(UserError):
    """An older segcal fitted a calibrator, on raw logits."""

    def __init__(self, stem: Path) -> None:
        reason = f"{stem} was fitted on raw logits, by an older segcal"
        super().__init__(f"{reason}; segcal calibrate fits it on log-probabilities")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted calibrator: from logits and image to logits of the same shape and type."""

    key: str
    apply: Callable[..., Tensor]  # of log-probabilities, image and parameters
    parameters: dict[str, Tensor]
    record: dict[str, Any]
    keeps_labels: bool = True

    @torch.no_grad()
    def __call__(self, logits: Tensor, image: Tensor | None = None) -> Tensor:
        """Calibrated logits, without gradient; axes as in a fit. Only `lts` needs the image."""
        n, shape = self.record["n_classes"], tuple(logits.shape)
        if shape[1:2] != (n,):
            raise UserError(f"this {self.key} was fitted on {n} classes; got shape {shape}")
        parameters = {}
        for name, value in self.parameters.items():
            # the type first: some devices have no float64
            parameters[name] = value.to(widest(logits)).to(logits.device)
        with torch.autocast(logits.device.type, enabled=False):  # it would narrow convolutions
            out = self.apply(log_probs(logits), image, **parameters).to(logits.dtype)
        return with_labels_of(logits, out) if self.keeps_labels else out

    def facts(self) -> dict[str, Any]:
        """The facts of the fit, ready for JSON: key, settings, NLL before and after, warnings."""
        return {"key": self.key, **deepcopy(self.record)}


def widest(logits: Tensor) -> torch.dtype:
    """The type to compute in: at least float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def log_probs(logits: Tensor) -> Tensor:
    """What calibrators are functions of: log-softmax of logits (N, K, *S), `FLOOR` at least.

    >>> log_probs(torch.tensor([[0.5, 0.5, 0.0]]).log() + 3)
    tensor([[ -0.6931,  -0.6931, -87.3000]])
    """
    return logits.detach().to(widest(logits)).log_softmax(1).clamp_min_(FLOOR)


def with_labels_of(logits: Tensor, out: Tensor) -> Tensor:
    """`out` with the label map of `logits`, for an `out` whose order differs by rounding alone.

    Rounding can make two classes equal, and then `argmax` takes the first. So a class that was
    below the winner and now ties with it is put one step lower. Earlier ties stay.

    >>> logits = torch.tensor([[1.501, 1.502]], dtype=torch.float16)
    >>> (logits / 1.5).argmax(1), with_labels_of(logits, logits / 1.5).argmax(1)
    (tensor([0]), tensor([1]))
    """
    limit, top = torch.finfo(out.dtype), out.amax(1, keepdim=True)
    lost = (out == top) & (logits < logits.amax(1, keepdim=True))
    if not lost.any():
        return out
    step = (top.abs() * limit.eps).clamp_min(limit.smallest_normal * limit.eps)
    return torch.where(lost, top - step, out)


class Case(NamedTuple):
    """A batch that was checked: one volume, or items without space."""

    log_probs: Tensor  # (N, K, *S)
    labels: Tensor  # (N, *S), `IGNORE` where a voxel does not count
    image: Tensor
    foreground: Tensor  # (N, *S): where it is predicted
    patient: Hashable


def cases(batches: Batches, voxels: str = "all") -> Iterator[Case]:
    """One pass over the volumes; raises unless they are logits with labels of the same classes."""
    n_classes = None
    check_choice("voxels", voxels, VOXELS)
    for i, (logits, labels, image, *patient) in enumerate(batches()):
        check_arrays(logits, labels)
        if n_classes not in (None, logits.shape[1]):
            got = f"{n_classes} and then {logits.shape[1]}"
            raise UserError(f"every batch must have the same number of classes; got {got}")
        n_classes = logits.shape[1]
        check_labels(labels, logits.shape[1], IGNORE)
        sums_to_one = (logits.sum(1, dtype=torch.float32) - 1).abs() < 1e-2
        if logits.min() >= 0 and sums_to_one.all():
            remedy = "take their logarithm: probs.log()"
            raise UserError(f"these are probabilities, not logits; {remedy}")
        volumes = [(logits, labels, image)]
        if logits.ndim == 5:
            volumes = [tuple(x[j : j + 1] for x in volumes[0]) for j in range(len(logits))]
        for j, (x, y, of) in enumerate(volumes):
            kept, foreground = y.long(), predicted(x)
            if voxels == "near":
                kept = kept.masked_fill(~within(foreground), IGNORE)
            yield Case(log_probs(x), kept, of, foreground, *(patient or [(i, j)]))


def within(foreground: Tensor, radius: int = NEAR) -> Tensor:
    """Voxels within `radius` of foreground (D, H, W), a volume, or (N, D, H, W), N volumes."""
    if foreground.ndim < 3:
        shapes = "only in logits (D, K, H, W) or (N, K, D, H, W) some voxels are near"
        remedy = "give such logits, or fit ts on all voxels"
        raise UserError(f"{shapes}; got {foreground.ndim + 1} axes; {remedy}")
    return grown(foreground[None], radius)[0] if foreground.ndim == 3 else grown(foreground, radius)


def counted(case: Case, chosen: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """The voxels that count in pieces: log-probabilities (K, v), labels (v)."""
    kept = case.labels != IGNORE
    places = (kept if chosen is None else kept & chosen).flatten().nonzero()[:, 0]
    n_classes = case.log_probs.shape[1]
    flat = case.log_probs.movedim(1, 0).reshape(n_classes, -1)
    truth = case.labels.flatten()
    for part in places.split(max(1, CHUNK // n_classes)):
        yield flat.index_select(1, part), truth.index_select(0, part)


def mean_of(sums: Tensor, voxels: str = "all") -> tuple[int, Tensor]:
    """The number of voxels, the last of some sums over them, and the means of the other sums."""
    n_voxels = int(sums[-1])
    if n_voxels == 0:
        raise UserError(NO_VOXELS) if voxels == "all" else NoForegroundError
    if not sums.isfinite().all():
        raise UserError(NOT_FINITE)
    return n_voxels, sums[:-1] / n_voxels
