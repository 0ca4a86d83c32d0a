"""Jobs: the pieces of work that engines give to processes. Values only, without torch."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class After:
    """What is done with the chosen runs: which weights are scored, and under which conditions."""

    calibrators: tuple[str, ...] = ()
    corruptions: tuple[str, ...] = ()
    weights: tuple[str, ...] = ("best",)

    def __or__(self, other: After) -> After:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return After(*(tuple(dict.fromkeys(mine + theirs)) for mine, theirs in pairs))

    @property
    def conditions(self) -> tuple[tuple[str, str, str], ...]:
        """Weights, corruption and calibrator of every group of test scores."""
        corrupted = [(corruption, "") for corruption in self.corruptions]
        calibrated = [("", name) for name in self.calibrators]
        pairs = [("", ""), *corrupted, *calibrated]
        return tuple((weights, *pair) for weights, pair in product(self.weights, pairs))


@dataclass(frozen=True)
class Job:
    """A piece of work on one cell: `train` it, `finish` it (all test scores), or `probe` it.

    Or another one: `call`, whose settings are a function without arguments."""

    kind: str
    name: str
    folder: Path  # of the run
    settings: Any  # RunSettings
    after: After
    cpus: int
    log: Path | None = None  # what the process prints; kept if it fails


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: one sentence if it failed, else its values."""

    error: str = ""
    value: dict[str, Any] = field(default_factory=dict)
