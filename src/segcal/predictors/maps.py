"""The maps of one case, class by class, and what their values give away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from segcal.data.images import Grid
from segcal.types import UserError

Map = NDArray[np.float32]

TOLERANCE = 0.02
"""How far probabilities may be from [0, 1], and their sum from 1."""


@dataclass(frozen=True)
class Maps:
    """The maps of one case, read class by class so that one is in memory at a time.

    Each array (D, H, W) of a pass may be overwritten by the next one: copy what is to be kept. Who
    takes it may write to it."""

    shape: tuple[int, int, int, int]  # (K, D, H, W) as stored
    classes: Callable[[], Iterator[Map]]  # a new pass over the K maps
    grid: Grid | None = None  # where the voxels are, if the file says so
    step: float = 0.0  # between neighbouring values of integer maps, after scaling

    def stacked(self) -> Map:
        """All maps (K, D, H, W) in memory."""
        out = np.empty(self.shape, np.float32)
        for k, values in enumerate(self.classes()):
            out[k] = values
        return out


def together(parts: Sequence[Maps], name: str, *, rest: bool) -> Maps:
    """Maps of several files as one; with `rest`, background comes first, what is missing to 1."""
    shape = parts[0].shape
    for part in parts:
        if part.shape[1:] != shape[1:]:
            sizes = f"{shape[1:]} and {part.shape[1:]}"
            raise UserError(f"{name}: its maps have the shapes {sizes}; export them on one grid")

    def foreground() -> Iterator[Map]:
        return chain.from_iterable(part.classes() for part in parts)

    def classes() -> Iterator[Map]:
        if rest:
            yield _missing_to_one(foreground(), name)
        yield from foreground()

    n_maps = sum(part.shape[0] for part in parts) + rest
    step = max(part.step for part in parts)
    return Maps((n_maps, *shape[1:]), classes, parts[0].grid, step)


def _missing_to_one(foreground: Iterator[Map], name: str) -> Map:
    total = next(foreground).copy()
    for values in foreground:
        total += values
    highest = float(total.max())
    if highest > 1 + TOLERANCE:
        problem = f"the maps of its foreground classes add up to {highest:.3g}"
        raise UserError(f"{name}: {problem}, which leaves nothing for the background; {_KINDS}")
    return np.subtract(1, total, out=total).clip(0, None, out=total)


_KINDS = "say what they are with --kind regions or --kind logits"


class Checks:
    """What the values of a case give away, seen map by map in the pass that is made anyway."""

    def __init__(
        self, name: str, kind: str, *, step: float = 0.0, keep_total: bool = False
    ) -> None:
        self.name, self.kind, self.step, self.keep_total = name, kind, step, keep_total
        self.low, self.high = np.inf, -np.inf
        self.lowest_positive = np.inf  # known only while sigmoid may have been applied twice
        self.soft = kind == "logits" or step > 0  # whether any value lies between 0 and 1
        self.n_maps = 0
        self.total: Map | None = None

    def add(self, k: int, values: Map) -> None:
        """Look at map `k`; NaN and infinite values are refused at once."""
        low, high = float(values.min()), float(values.max())
        if not np.isfinite((low, high)).all():
            self._refuse(f"map {k} holds NaN or infinite values", "export the maps again")
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.kind == "regions" and self.high <= _TWICE[1]:
            positive = values.min(where=values > 0, initial=np.inf)
            self.lowest_positive = min(self.lowest_positive, float(positive))
        if not self.soft:
            self.soft = any(bool(((part > 0) & (part < 1)).any()) for part in values)
        if self.kind != "confidence":
            self.total = values.copy() if self.total is None else self._added(values)
        self.n_maps += 1

    def _added(self, values: Map) -> Map:
        assert self.total is not None
        return np.add(self.total, values, out=self.total)

    def finish(self) -> None:
        """Raise unless the values are what `kind` says."""
        sums = (1.0, 1.0)
        if self.total is not None:
            sums = float(self.total.min()), float(self.total.max())
        if not self.keep_total:
            self.total = None  # as large as a map
        if self.kind == "logits":
            self._check_logits(sums)
            return
        self._check_range(sums)
        if not self.soft:
            remedy = "export the probabilities from which the labels were made"
            self._refuse("all values are 0 or 1, so these are label maps", remedy)
        if self.kind == "regions":
            self._check_regions(sums)
        if self.kind == "softmax":
            self._check_sums(sums)

    def _check_logits(self, sums: tuple[float, float]) -> None:
        if self._unit and max(abs(total - 1) for total in sums) <= TOLERANCE:
            problem = "values lie in [0, 1] and add up to 1, so these are probabilities, no logits"
            self._refuse(problem, "leave --kind out")
        self._check_percent(sums)

    def _check_percent(self, sums: tuple[float, float]) -> None:
        if self.low >= 0 and max(abs(total - 100) for total in sums) <= 100 * TOLERANCE:
            problem = f"values go from {self.low:.4g} to {self.high:.4g} and look like percent"
            self._refuse(problem, "divide them by 100")

    @property
    def _unit(self) -> bool:
        return self.low >= -TOLERANCE and self.high <= 1 + TOLERANCE

    def _check_range(self, sums: tuple[float, float]) -> None:
        if self._unit:
            return
        found = f"values go from {self.low:.4g} to {self.high:.4g}"
        if self.kind == "softmax":
            self._check_percent(sums)
        elif self.low >= 0 and 2 < self.high <= 100.5:
            self._refuse(f"{found} and look like percent", "divide them by 100")
        look = f"{found}, which no probability can have"
        if self.kind == "confidence":
            self._refuse(look, "export the probability of the predicted class")
        if self.low >= 0:  # logits of some class are negative
            self._refuse(look, "divide them so that they lie between 0 and 1")
        look += "; they look like logits (as an early nnU-Net v2 stored)"
        self._refuse(look, "if they are, say --kind logits")

    def _check_regions(self, sums: tuple[float, float]) -> None:
        if self.n_maps > 1 and max(abs(total - 1) for total in sums) <= TOLERANCE:
            problem = "the maps add up to 1 in every voxel, so they are a softmax and no regions"
            self._refuse(problem, "say --kind softmax")
        low, high = _TWICE
        if self.lowest_positive >= low and self.high <= high and self.high > 0:
            found = f"values go from {self.lowest_positive:.4g} to {self.high:.4g} only"
            problem = f"{found}: the sigmoid was applied twice (nnU-Net 2.6.4 did so)"
            self._refuse(problem, "predict again with a newer version")

    def _check_sums(self, sums: tuple[float, float]) -> None:
        allowed = max(TOLERANCE, self.n_maps * self.step / 2)  # each map is rounded to a step
        furthest = max(sums, key=lambda total: abs(total - 1))
        if abs(furthest - 1) <= allowed:
            return
        problem = f"the probabilities of a voxel add up to {furthest:.3g} where 1 is due"
        if self.n_maps == 1:
            problem = "there is one map where each class needs one"
        remedy = "export the softmax, or say --kind regions if each map is a region of its own"
        self._refuse(problem, remedy)

    def _refuse(self, problem: str, remedy: str) -> None:
        raise UserError(f"{self.name}: {problem}; {remedy}")


def checked(maps: Maps, checks: Checks) -> Iterator[Map]:
    """One pass over maps in which their values are checked; what is wrong is raised."""
    for k, values in enumerate(maps.classes()):
        checks.add(k, values)
        yield values
    checks.finish()


_TWICE = (0.4995, 0.7316)  # sigmoid(0) and sigmoid(1), with the rounding of float16
