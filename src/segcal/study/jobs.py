"""Jobs: the pieces of work that engines hand to processes. Plain values that travel to any machine,
without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class After:
    """What is done with the runs that validation chose, beside scoring them on the test split."""

    calibrators: tuple[str, ...] = ()
    corruptions: tuple[str, ...] = ()

    def __or__(self, other: After) -> After:
        both = zip(
            (self.calibrators, self.corruptions),
            (other.calibrators, other.corruptions),
            strict=True,
        )
        return After(*(tuple(dict.fromkeys([*mine, *theirs])) for mine, theirs in both))

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """Corruption and calibrator of every group of test rows that `scores.csv` will have."""
        return (
            ("", ""),
            *((text, "") for text in self.corruptions),
            *(("", name) for name in self.calibrators),
        )


@dataclass(frozen=True)
class Job:
    """A piece of work on one cell: `train` it, `finish` it (test scores, calibrators, corruptions),
    or `probe` its speed.
    """

    kind: str
    name: str
    folder: Path  # the run's
    settings: dict[str, Any]  # of the run, as in run.json
    after: After
    cpus: int
    log: Path | None = None  # what the process prints; kept if it fails


@dataclass(frozen=True)
class Outcome:
    """What came of a job: a sentence if it failed, and what it has to say."""

    error: str = ""
    value: dict[str, Any] = field(default_factory=dict)
    lost: bool = False  # its process ended before it could say
