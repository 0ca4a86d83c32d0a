"""The numbers that the pages say of trainings: epochs, times and validation scores, each computed
from the runs' logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from wording import chance, spread, welch

from segcal.compare import Contender, Results, Settings
from segcal.folders import read_log


class Trainings:
    """The trainings of a packed study."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def runs(self, key: str) -> tuple[str, ...]:
        """The chosen runs of a contender, one per seed."""
        return self._contender(key).runs

    def _contender(self, key: str) -> Contender:
        return next(c for c in self.results.contenders if c.key == key)

    def curve(self, run: str, column: str) -> list[float]:
        """A column of a run's log."""
        return [float(row[column]) for row in read_log(Path(self.results.runs[run]["folder"]))]

    def n(self) -> int:
        """How many there are."""
        return len(self.results.runs)

    def tried_several(self) -> bool:
        """Whether a method was tried with several settings."""
        return any(len(c.runs_tried) > 1 for c in self.results.contenders)

    def epochs(self) -> int:
        """Epochs of every run."""
        return int(next(iter(self.results.runs.values()))["settings"]["training"]["epochs"])

    def seconds(self) -> float:
        """What an epoch took, the median over all runs: single ones had to wait for
        something else.
        """
        return float(
            np.median([value for run in self.results.runs for value in self.curve(run, "seconds")])
        )

    def minutes(self) -> str:
        """What a training takes."""
        return f"{self.epochs() * self.seconds() / 60:.0f} min"

    def hours(self) -> str:
        """What all trainings take together."""
        return f"{self.n() * self.epochs() * self.seconds() / 3600:.1f}"

    def kept(self, key: str) -> str:
        """The epochs whose weights were kept."""
        return ", ".join(str(epoch) for epoch in self.kept_epochs(key))

    def kept_epochs(self, key: str) -> list[int]:
        """The same as numbers, counted from 1."""
        return [kept["epoch"] for kept in self.facts(key, self.runs(key))]

    def facts(self, key: str, runs: Sequence[str]) -> list[dict[str, Any]]:
        """Epoch and validation scores of the weights of a contender that were scored."""
        weights = self._contender(key).weights
        return [self.results.runs[run][weights] for run in runs]

    def kept_between(self, keys: Sequence[str]) -> str:
        """The first and the last epoch that any of these methods kept."""
        found = [epoch for key in keys for epoch in self.kept_epochs(key)]
        return f"{min(found)} to {max(found)}"

    def at_kept(self, key: str, column: str) -> str:
        """A validation score at the kept epochs, mean over seeds."""
        return f"{np.mean([kept[column] for kept in self.facts(key, self.runs(key))]):.3f}"

    def mean_at(self, key: str, column: str, epoch: int) -> float:
        """A validation score at an epoch, counted from 1; mean over seeds."""
        return float(np.mean([self.curve(run, column)[epoch - 1] for run in self.runs(key)]))

    def at_last(self, key: str, column: str) -> str:
        """The same at the last epoch."""
        return f"{self.mean_at(key, column, self.epochs()):.3f}"

    def late(self, run: str, column: str) -> float:
        """A validation score of a run, mean over the second half of its epochs."""
        values = self.curve(run, column)
        return float(np.mean(values[len(values) // 2 :]))

    def amid(self, key: str, bounds: Sequence[int]) -> list[float]:
        """The validation ECE of a method with one seed at the epochs from one to another, counted
        from 1.
        """
        (run,) = self.runs(key)
        return self.curve(run, "val_ece")[min(bounds) - 1 : max(bounds)]

    def mean_amid(self, key: str, bounds: Sequence[int]) -> str:
        """Its mean."""
        return f"{np.mean(self.amid(key, bounds)):.3f}"

    def range_amid(self, key: str, bounds: Sequence[int]) -> str:
        """The lowest and the highest."""
        values = self.amid(key, bounds)
        return f"{min(values):.3f} to {max(values):.3f}"

    def _runs_of(self, key: str, setting: Settings) -> Sequence[str]:
        """The runs of a setting; of the chosen one if none is named."""
        c = self._contender(key)
        return c.runs_tried[setting] if setting else c.runs

    def kept_ece(self, key: str, setting: Settings = ()) -> str:
        """The validation ECE of a setting at the epochs that were kept, mean over seeds."""
        facts = self.facts(key, self._runs_of(key, setting))
        return f"{np.mean([kept['val_ece'] for kept in facts]):.3f}"

    def late_eces(self, key: str, setting: Settings = ()) -> list[float]:
        """This ECE of each run of a setting; of the chosen one if none is named."""
        return [self.late(run, "val_ece") for run in self._runs_of(key, setting)]

    def late_ece(self, key: str, setting: Settings = ()) -> str:
        """Their mean."""
        return f"{np.mean(self.late_eces(key, setting)):.3f}"

    def late_against(self, a: str, b: str, setting: Settings = ()) -> str:
        """The same of two, with the p of Welch's test between their seeds; `setting` is a's."""
        one, two = self.late_eces(a, setting), self.late_eces(b)
        return f"{spread(one)} against {spread(two)} ({chance(welch(one, two).pvalue)} over seeds)"

    def late_p(
        self, a: str, b: str, settings: Sequence[Settings], *, same: bool = True
    ) -> list[float]:
        """The p of this test between two contenders at each of a's settings; `same=False`: b has
        its chosen one.
        """
        return [
            float(welch(self.late_eces(a, s), self.late_eces(b, s if same else ())).pvalue)
            for s in settings
        ]

    def late_chances(
        self, a: str, b: str, settings: Sequence[Settings], *, same: bool = True
    ) -> str:
        """The same as text."""
        return ", ".join(f"{p:.2g}" for p in self.late_p(a, b, settings, same=same))

    def _tried(self, key: str, settings: Sequence[Settings]) -> list[Settings]:
        """Those of the settings that a contender was run with."""
        c = self._contender(key)
        return [setting for setting in settings if setting in c.runs_tried]

    def late_range(self, several: Sequence[str], b: str, settings: Sequence[Settings]) -> str:
        """The lowest and the highest p of several contenders against the chosen setting of
        another.
        """
        found = [
            p for a in several for p in self.late_p(a, b, self._tried(a, settings), same=False)
        ]
        return f"{min(found):.2g} to {max(found):.2g}"
