r"""Two temperatures: one near predicted foreground, one for the rest.

Near the outline of an organ networks are often too sure, and far away as sure as they should be:
one temperature cannot serve both. With the distance $d$ to predicted foreground, in steps to face
neighbours, $1/T = w / T_\text{near} + (1 - w) / T_\text{far}$, where $w$ is 1 up to a radius $r$,
2/3 at $r + 1$, 1/3 at $r + 2$ and 0 beyond. It follows from prediction and position alone, so it
applies to any new case and to stored probabilities.

Both temperatures of a radius minimise the NLL over all voxels together, the voxels of the join
included: it is convex in both $1/T$. So one pass over the data serves all radii.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.calibrators.curves import Curves, Solution, curves, solve
from segcal.calibrators.fitting import Batches, Fitted, within
from segcal.voxels import grown, predicted

RADII = (1, 2, 3, 5)
JOIN = 3  # steps from the weight 1 to 0
RINGS = range(1, RADII[-1] + JOIN)  # the distances at which a weight can change
PLACES = ("near predicted foreground", "far from predicted foreground")


def ts2(batches: Batches) -> Fitted:
    """Fit two temperatures and the radius of least mean NLL over all voxels; keeps the label map.

    A temperature that the data do not determine stays 1: where no voxel far away is wrong, any
    certainty looks good, and a new case would pay for it.

    >>> logits = torch.tensor([1.0, 0.0, -4.0, -4.0, -4.0, -4.0]).repeat(4, 1)[None]
    >>> logits = torch.stack([-logits, logits], 1)
    >>> labels = (torch.arange(24) % 4 == 0).long().reshape(1, 4, 6)
    >>> sorted(ts2(lambda: [(logits, labels, logits)]).parameters)
    ['far', 'near', 'radius']
    """
    return ts2_of(curves(batches, RINGS))


def ts2_of(table: Curves) -> Fitted:
    """The fit from the sums over `RINGS`, which needs no data any more."""
    tried = {radius: _solved(table, radius) for radius in RADII}
    radius = min(tried, key=lambda r: tried[r][0].nll)
    best, problems = tried[radius]
    near, far = best.temperatures.tolist()
    record: dict[str, Any] = {"settings": {}, "voxels": "all", "n_classes": table.n_classes}
    record |= {"n_voxels": best.n_voxels, "n_patients": len(best.influence)}
    record |= {"nll_before": best.nll_before, "nll_after": best.nll}
    record |= {"near": near, "near_interval": best.interval(0)}
    record |= {"far": far, "far_interval": best.interval(1), "radius": radius}
    record["nll_of_radius"] = {str(r): solution.nll for r, (solution, _) in tried.items()}
    record["warnings"] = problems
    values = {"near": near, "far": far, "radius": float(radius)}
    parameters = {name: torch.tensor(x, dtype=torch.float64) for name, x in values.items()}
    return Fitted("ts2", scale_regions, parameters, record)


def _solved(table: Curves, radius: int) -> tuple[Solution, list[str]]:
    """The temperatures with a radius, and warnings about those that are not determined."""
    w = _shares(radius)
    weights: NDArray[np.float64] = np.stack([w, 1 - w], 1)
    solution, warnings = solve(table, weights), []
    for place, problem in zip(PLACES, solution.problems, strict=True):
        if problem is not None:
            warnings.append(f"{place}, {problem}; so it stays 1 there")
    if warnings:
        solution = solve(table, weights, [problem is None for problem in solution.problems])
    return solution, warnings


def share(distance: int, radius: int) -> float:
    """The weight of the temperature near predicted foreground.

    >>> [round(share(d, 2), 2) for d in range(7)]
    [1.0, 1.0, 1.0, 0.67, 0.33, 0.0, 0.0]
    """
    return min(max((radius + JOIN - distance) / JOIN, 0.0), 1.0)


def _shares(radius: int) -> NDArray[np.float64]:
    """The same for each of `RINGS`, and beyond."""
    return np.array([share(distance, radius) for distance in (*RINGS, RINGS[-1] + 1)])


def sharpness(near: float, far: float, radius: int) -> Tensor:
    """1/T for each of `RINGS`, and beyond."""
    w = torch.from_numpy(_shares(radius)).float()
    return w / near + (1 - w) / far


def rings(foreground: Tensor) -> Tensor:
    """Which of `RINGS` is the first that reaches a voxel (D, H, W), by its number, or one more.

    >>> rings(torch.tensor([[[True, False, False, False]]]))
    tensor([[[0, 0, 1, 2]]], dtype=torch.uint8)
    """
    ring, region = torch.zeros(foreground.shape, dtype=torch.uint8), foreground[None]
    for _ in RINGS:
        region = grown(region, 1)
        ring += ~region[0]
    return ring


def scale_regions(
    log_probs: Tensor, image: Tensor | None, *, near: Tensor, far: Tensor, radius: Tensor
) -> Tensor:
    """Log-probabilities over the temperature of their place."""
    foreground, weight = predicted(log_probs), torch.zeros_like(log_probs[:, 0])
    for extra in range(JOIN):
        weight += within(foreground, int(radius) + extra).to(weight) / JOIN
    return log_probs * (weight / near + (1 - weight) / far).unsqueeze(1)
