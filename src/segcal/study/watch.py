"""The progress of a study, for display; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Step = Literal["waits", "trains", "trained", "scores", "finished", "failed"]


@dataclass(frozen=True)
class State:
    """The progress of a cell."""

    step: Step
    epoch: int = 0
    epochs: int = 0
    dice: float | None = None  # on validation, of the weights that are scored first
    seconds: float = 0.0  # of an epoch
    never_predicted: str = ""  # the classes that these weights lack on validation

    @property
    def left(self) -> float:
        """Seconds of training that are left."""
        return (self.epochs - self.epoch) * self.seconds


class Watch:
    """Is informed about a study's progress; this one ignores it."""

    def say(self, line: str) -> None:
        """A line for the user, such as that a cell ended."""

    def update(self, states: Mapping[str, State], slots: int) -> None:
        """The state of each cell, about twice a second; `slots` cells run at a time."""
