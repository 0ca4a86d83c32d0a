r"""Local temperature scaling (Ding et al. 2021): a temperature per pixel from logits and image.

The logits are log-probabilities less their mean over classes. A binary tree of 5×5 convolutions
with dilation 2: four temperature leaves of the logits, mixed in two pairs, and the pairs mixed, by
sigmoid gates of the logits; then a leaf of the image, mixed in by one more gate of the logits. The
eight convolutions of the logits are one with eight outputs.
With $x$ the root of the tree, $T = \min(\max(x + 1, T_\text{low}), T_\text{high})$: the paper's
$\mathrm{relu}(x + 1) + \varepsilon$, bounded on both sides. How the fit differs from the authors'
code is in docs/api/calibrators.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segcal.calibrators.fitting import HIGHEST, LOWEST, Batches, Fitted, cases, mean_of
from segcal.types import IGNORE, UserError, check_range

REACH = 4  # pixels that a 5×5 convolution with dilation 2 looks to each side
PART = 1 << 18  # pixels at a time: maps of a whole scan with gradients would take gigabytes
OFTEN = 0.1  # a larger share of voxels at a bound is reported

NO_GAIN = "no epoch had a lower NLL than uncalibrated logits, so this calibrator changes nothing"

Weights = dict[str, Tensor]
Slices = Callable[[], Iterator[tuple[Tensor, Tensor, Tensor]]]  # a pass over the chosen voxels


def lts(
    batches: Batches,
    *,
    voxels: str = "all",
    epochs: int = 20,
    least_steps: int = 500,
    lr: float = 0.01,
    seed: int = 0,
) -> Fitted:
    """Fit the temperature network by Adam on the NLL, a step per batch; keeps the best epoch.

    Few batches are repeated for more epochs, until `least_steps` are done. Never worse than
    uncalibrated logits on the data that it is fitted on, and it keeps the label map.

    >>> logits = torch.tensor([8.0, 0.0]).reshape(1, 2, 1, 1).repeat(4, 1, 6, 6)
    >>> labels = torch.zeros(4, 6, 6).long()
    >>> labels[0] = 1
    >>> fitted = lts(lambda: [(logits, labels, torch.zeros(4, 1, 6, 6))], epochs=80)
    >>> [round(fitted.facts()[name], 1) for name in ("nll_before", "nll_after")]
    [2.0, 0.6]
    """
    check_range("epochs", epochs, 1)
    check_range("least_steps", least_steps, 0)
    check_range("lr", lr, 1e-8, 10)
    of_voxels = partial(_slices, batches, voxels)
    start = _survey(of_voxels, voxels)
    n_epochs = max(epochs, math.ceil(least_steps / start.n_batches))
    weights = first_weights(start.n_classes, start.n_channels, start.size, seed)
    best_epoch, nll, spread = 0, start.nll, {"mean": 1.0, "at_lowest": 0.0, "at_highest": 0.0}
    best = {name: torch.zeros_like(value) for name, value in weights.items()}  # T = 1 everywhere
    for epoch in _epochs(of_voxels, weights, start, n_epochs, lr):
        now, now_spread = _evaluated(of_voxels, weights)
        if now < nll:
            best_epoch, nll, spread = epoch, now, now_spread
            best = {name: value.detach().clone() for name, value in weights.items()}
    settings = {"voxels": voxels, "epochs": epochs, "least_steps": least_steps, "lr": lr}
    record: dict[str, Any] = {"settings": settings | {"seed": seed}, "voxels": voxels}
    record |= {
        "n_classes": start.n_classes,
        "n_voxels": start.n_voxels,
        "nll_before": start.nll,
        "nll_after": nll,
    }
    record |= {"passes": 1 + 2 * n_epochs, "best_epoch": best_epoch, "temperature": spread}
    record["warnings"] = _warnings(best_epoch, spread)
    return Fitted("lts", scale_locally, best, record)


def _epochs(
    of_voxels: Slices, weights: Weights, start: Survey, epochs: int, lr: float
) -> Iterator[int]:
    """Train the weights in place; gives the number of each epoch at its end."""
    # Rates as if the logits had size 1: Adam's steps do not depend on the size of a gradient.
    rates = {"weight": lr / start.size}
    groups = [{"params": [w], "lr": rates.get(name, lr)} for name, w in weights.items()]
    optimiser = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * start.n_batches)
    for epoch in range(1, epochs + 1):
        for logits, labels, image in of_voxels():
            optimiser.zero_grad()
            for x, y, of in _parts(logits, labels, image):
                loss = _nll(x / temperatures(x, of, weights), y)
                loss = loss * (start.n_batches / start.n_voxels)  # every voxel counts the same
                loss.backward()
            optimiser.step()
            schedule.step()
        yield epoch


def scale_locally(log_probs: Tensor, image: Tensor | None, **weights: Tensor) -> Tensor:
    """Log-probabilities (N, K, H, W) over a temperature per pixel."""
    _check_image(log_probs, image)
    assert image is not None
    local = []
    for x, of in _parts(log_probs, image):
        local.append(temperatures(x.to(weights["bias"]), of.to(weights["bias"]), weights))
    return log_probs / torch.cat(local)


def temperatures(logits: Tensor, image: Tensor, weights: Weights) -> Tensor:
    """The temperature (N, 1, H, W) of each pixel."""
    logits = logits - logits.mean(1, keepdim=True)
    maps = F.conv2d(_padded(logits), weights["weight"], weights["bias"], dilation=2)  # (N, 8, H, W)
    leaves, gates = maps[:, :4], maps[:, 4:].sigmoid()
    # (N, 2, H, W): gate * even + (1 - gate) * odd
    pairs = torch.lerp(leaves[:, 1::2], leaves[:, ::2], gates[:, :2])
    tree = torch.lerp(pairs[:, 1:], pairs[:, :1], gates[:, 2:3])
    image_weight, image_bias = weights["image_weight"], weights["image_bias"]
    image_leaf = F.conv2d(_padded(image), image_weight, image_bias, dilation=2)
    return (torch.lerp(image_leaf, tree, gates[:, 3:]) + 1).clamp(LOWEST, HIGHEST)


def _padded(maps: Tensor) -> Tensor:
    """With a margin, so that a convolution keeps the size; reflected, unless a slice is tiny."""
    mode = "reflect" if min(maps.shape[2:]) > REACH else "replicate"
    return F.pad(maps, (REACH,) * 4, mode=mode)


def first_weights(n_classes: int, n_channels: int, size: float, seed: int) -> Weights:
    """Leaves of zero, so that T = 1; random gates, because equal gates keep the four leaves equal.

    `size` is the root mean square of the logits: it puts the gates where a sigmoid is not flat.
    """
    weight = torch.zeros(8, n_classes, 5, 5)
    spread = 1 / (size * (25 * n_classes) ** 0.5)
    weight[4:].normal_(0, spread, generator=torch.Generator().manual_seed(seed))
    weights = {"weight": weight, "bias": torch.zeros(8)}
    weights |= {"image_weight": torch.zeros(1, n_channels, 5, 5), "image_bias": torch.zeros(1)}
    return {name: value.requires_grad_() for name, value in weights.items()}


class Survey(NamedTuple):
    """What a first pass finds."""

    n_classes: int
    n_channels: int
    n_batches: int
    n_voxels: int
    nll: float
    size: float  # root mean square of the logits


def _survey(of_voxels: Slices, voxels: str) -> Survey:
    sums, shape, n_batches = torch.zeros(3, dtype=torch.float64), (0, 0), 0
    for logits, labels, image in of_voxels():
        shape = (logits.shape[1], image.shape[1])
        kept = (labels != IGNORE).unsqueeze(1)
        centred = logits - logits.mean(1, keepdim=True)
        square = (centred.square() * kept).sum(dtype=torch.float64) / logits.shape[1]
        sums += torch.stack([_nll(logits, labels), square, kept.sum()])
        n_batches += 1
    n_voxels, means = mean_of(sums, voxels)
    nll, square_mean = means.tolist()
    return Survey(*shape, n_batches, n_voxels, nll, square_mean**0.5 or 1.0)


@torch.no_grad()
def _evaluated(of_voxels: Slices, weights: Weights) -> tuple[float, dict[str, float]]:
    """The mean NLL; of the temperatures, the mean and the shares at the bounds."""
    sums = torch.zeros(5, dtype=torch.float64)
    for logits, labels, image in of_voxels():
        for x, y, of in _parts(logits, labels, image):
            local = temperatures(x, of, weights)
            inside = local.squeeze(1)[y != IGNORE]
            counts = [(inside <= LOWEST).sum(), (inside >= HIGHEST).sum(), (y != IGNORE).sum()]
            total = inside.sum(dtype=torch.float64)
            sums += torch.stack([_nll(x / local, y), total, *counts])
    nll, mean, at_lowest, at_highest = mean_of(sums)[1].tolist()
    return nll, {"mean": mean, "at_lowest": at_lowest, "at_highest": at_highest}


def _nll(logits: Tensor, labels: Tensor) -> Tensor:
    """The NLL of all voxels that count, summed."""
    nll = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
    return nll.sum(dtype=torch.float64)


def _warnings(best_epoch: int, spread: dict[str, float]) -> list[str]:
    warnings = [] if best_epoch else [NO_GAIN]
    bounds = {"at_lowest": f"lower bound {LOWEST:g}", "at_highest": f"upper bound {HIGHEST:g}"}
    for key, bound in bounds.items():
        if spread[key] >= OFTEN:
            share = f"{spread[key]:.0%} of the voxels"
            warnings.append(f"the temperature of {share} is at its {bound}")
    return warnings


def _slices(batches: Batches, voxels: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One pass over checked batches, in float32, on the CPU, where the weights are."""
    for case in cases(batches, voxels):
        _check_image(case.log_probs, case.image)
        yield case.log_probs.float().cpu(), case.labels.cpu(), case.image.detach().float().cpu()


def _parts(*of: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same slices of each, as many at a time as have `PART` pixels, one at least."""
    n = max(1, PART // max(1, of[0].shape[2] * of[0].shape[3]))
    return zip(*(tensor.split(n) for tensor in of), strict=True)


def _check_image(logits: Tensor, image: Tensor | None) -> None:
    shape = tuple(logits.shape)
    if logits.ndim != 4:
        raise UserError(f"lts works on 2D slices, logits (N, K, H, W); got shape {shape}")
    if image is None or (len(image), *image.shape[2:]) != (len(logits), *logits.shape[2:]):
        got = "none" if image is None else f"shape {tuple(image.shape)} beside logits {shape}"
        raise UserError(f"lts needs the image (N, C, H, W) that the logits are of; got {got}")
