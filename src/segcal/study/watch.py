"""How a study goes, for whoever looks on; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WAITS, TRAINS, TRAINED, SCORES, FINISHED, FAILED = (
    "waits",
    "trains",
    "trained",
    "scores",
    "finished",
    "failed",
)


@dataclass(frozen=True)
class State:
    """How far a cell is."""

    step: str  # waits, trains, trained, scores, finished, failed
    epoch: int = 0
    epochs: int = 0
    dice: float | None = None  # on validation, of the epoch whose weights would be kept
    seconds: float = 0.0  # of an epoch

    @property
    def left(self) -> float:
        """Seconds of training that are left."""
        return (self.epochs - self.epoch) * self.seconds


class Watch:
    """Hears how a study goes; this one keeps silent."""

    def says(self, line: str) -> None:
        """A line for the user: a cell ended, something is odd."""

    def sees(self, states: Mapping[str, State], slots: int) -> None:
        """How far each cell is; called about twice a second."""
