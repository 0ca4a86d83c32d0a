"""The numbers that the page says of a packed study, each computed from its scores and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from published_rows import DATA
from wording import chance, percent, points, shown, spread

from segcal.ranking import Ranking, pairwise, rank_results
from segcal.results import Contender, Results, read_results
from segcal.store import read_json, read_rows
from segcal.tables import TABLES, to_markdown

HERE = Path(__file__).parent
SEVEN = ("ce", "ce_dice", "focal", "ecp", "ls", "svls", "mbls")


class Study:
    """A packed study, and what the page says of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.all = read_results([HERE / name])

    @cached_property
    def results(self) -> Results:
        """The paper's seven methods alone: ranks and tests are among them."""
        return replace(self.all, contenders=tuple(c for c in self.all.contenders if c.key in SEVEN))

    @property
    def keys(self) -> list[str]:
        """Those of the seven that the study has."""
        return [c.key for c in self.results.contenders]

    @cached_property
    def ranking(self) -> Ranking:
        """Ranks and tests among the seven."""
        return rank_results(self.results, DATA)

    @property
    def n_classes(self) -> int:
        """Classes with the background."""
        return len(self.all.data(DATA)["classes"]) + 1

    @property
    def seeds(self) -> str:
        """How many seeds every method has, in words."""
        n = min(len(c.runs) for c in self.all.contenders)
        return "one seed" if n == 1 else f"{n} seeds"

    def table(self, key: str, *, published: bool = False, variants: bool = False, notes: bool = False) -> str:
        """A table of `segcal compare`, without its title; its notes stand once at the top of the page."""
        table = TABLES[key](self.all if variants else self.results, DATA, published=published)
        if table is None:
            return ""
        _, rows, below = to_markdown(table).strip().split("\n\n")
        return f"{rows}\n\n{below}" if notes else rows

    def mean(self, key: str, metric: str, calibrator: str = "") -> float:
        """The mean over test cases, after the mean over seeds."""
        kind = self.all.overall_class(DATA, metric)
        return float(self.all.per_case(DATA, metric, kind, calibrator=calibrator)[key].mean())

    def value(self, key: str, metric: str, calibrator: str = "") -> str:
        """The same as text."""
        return shown(self.mean(key, metric, calibrator), metric)

    def against(self, a: str, b: str, metric: str) -> str:
        """Two means and the p of their difference: `0.098 against 0.142 (p = 0.003)`."""
        kind = self.all.overall_class(DATA, metric)
        values = self.all.per_case(DATA, metric, kind)[[a, b]]
        (p,) = pairwise(values, metric, self.all.patients(DATA))["p"]
        return f"{shown(values[a].mean(), metric)} against {shown(values[b].mean(), metric)} ({chance(p)})"

    def by_seed(self, key: str, metric: str) -> list[float]:
        """The mean over test cases of each seed."""
        rows = self.all.rows()
        wanted = (
            (rows["contender"] == key) & (rows["metric"] == metric) & (rows["class"] == self.all.overall_class(DATA, metric))
        )
        return rows[wanted].groupby("seed")["value"].mean().tolist()

    def each_seed(self, key: str, metric: str) -> str:
        """These as text: `0.120, 0.078, 0.119`."""
        return ", ".join(shown(value, metric) for value in self.by_seed(key, metric))

    def each_difference(self, a: str, b: str, metric: str) -> str:
        """The differences of two contenders with the same seed: `−0.016, −0.019, −0.018`."""
        return ", ".join(points(x - y) for x, y in zip(self.by_seed(a, metric), self.by_seed(b, metric), strict=True))

    def over_seeds(self, a: str, b: str, metric: str) -> str:
        """The p of Welch's test between the seeds of two contenders."""
        return chance(_welch(self.by_seed(a, metric), self.by_seed(b, metric)).pvalue)

    def interval(self, a: str, b: str, metric: str) -> str:
        """The 95 % interval of the difference of two means over seeds, by the same test: `−0.057 to +0.040`."""
        found = _welch(self.by_seed(a, metric), self.by_seed(b, metric)).confidence_interval(0.95)
        return f"{points(found.low)} to {points(found.high)}"

    def holm(self, a: str, b: str, metric: str) -> str:
        """The p of the table of tests: paired over cases, corrected over all pairs of the seven."""
        table = self.ranking.pairwise[metric]
        (p,) = table["p_holm"][table["a"].isin((a, b)) & table["b"].isin((a, b))]
        return chance(p)

    def corrupted(self, key: str, metric: str, level: float) -> str:
        """A mean over test cases with noise."""
        kind = self.all.overall_class(DATA, metric)
        return shown(
            float(self.all.per_case(DATA, metric, kind, corruption=f"gaussian_noise:{level:g}")[key].mean()), metric
        )

    def temperature(self, run: str) -> float:
        """What temperature scaling found for a run."""
        return float(read_json(HERE / self.name / "runs" / run / "calibrators" / "ts.json")["temperature"])

    def rank(self, key: str) -> str:
        """The place of a method by mean case rank, as a word."""
        order = self.ranking.case_rank["mean"].sort_values().index.tolist()
        return ("first", "second", "third", "fourth", "fifth", "sixth", "last")[order.index(key)]

    def change(self, key: str, metric: str, than: str = "ce") -> str:
        """How much a mean differs from another's, in percent of it: `-31 %`."""
        return percent(self.mean(key, metric) / self.mean(than, metric) - 1)

    def difference(self, key: str, metric: str, than: str = "ce") -> str:
        """How much a mean differs from another's: `−0.018`."""
        return points(self.mean(key, metric) - self.mean(than, metric))

    def lowest(self, metric: str, calibrator: str = "") -> str:
        """The lowest mean among the seven."""
        return shown(min(self.mean(key, metric, calibrator) for key in self.keys), metric)

    def highest(self, metric: str, calibrator: str = "") -> str:
        """The highest mean among the seven."""
        return shown(max(self.mean(key, metric, calibrator) for key in self.keys), metric)

    def has_grid(self) -> bool:
        """Whether a method was tried with several settings."""
        return any(len(c.runs_tried) > 1 for c in self.results.contenders)

    def n_runs(self) -> int:
        """How many runs the study has."""
        return len(self.all.runs)

    def sd_of_seeds(self, metric: str) -> str:
        """The standard deviation between seeds, pooled over the seven."""
        return f"{np.sqrt(np.mean([np.var(self.by_seed(key, metric), ddof=1) for key in self.keys])):.3f}"

    def kept(self, key: str) -> str:
        """The epochs whose weights were kept."""
        return ", ".join(str(self.all.runs[run]["best"]["epoch"] + 1) for run in self.contender(key).runs)

    def chosen(self, key: str) -> str:
        """The setting that validation chose."""
        return self.contender(key).setting

    def cell(self, key: str) -> str:
        """The name of the last of the chosen runs."""
        return self.contender(key).runs[-1]

    def epochs(self) -> int:
        """Epochs of every run."""
        return int(next(iter(self.all.runs.values()))["settings"]["training"]["epochs"])

    def seconds(self) -> str:
        """What an epoch took, the median over all runs."""
        return f"{np.median([value for run in self.all.runs for value in self.curve(run, 'seconds')]):.0f}"

    def hours(self) -> str:
        """The time that all trainings took together."""
        return f"{sum(info['seconds'] for info in self.all.runs.values()) / 3600:.1f}"

    def at_kept(self, key: str, column: str) -> str:
        """A validation score at the kept epochs, mean over seeds."""
        return f"{np.mean([self.all.runs[run]['best'][column] for run in self.contender(key).runs]):.3f}"

    def at_epoch(self, key: str, column: str, epoch: int) -> str:
        """The same at an epoch, counted from 1."""
        return f"{np.mean([self.curve(run, column)[epoch - 1] for run in self.contender(key).runs]):.3f}"

    def curve(self, run: str, column: str) -> list[float]:
        """A column of a run's log."""
        return [float(row[column]) for row in read_rows(HERE / self.name / "runs" / run / "log.csv")]

    def late(self, run: str, column: str) -> float:
        """A validation score of a run, mean over the second half of its epochs, which have the lower rate."""
        values = self.curve(run, column)
        return float(np.mean(values[len(values) // 2 :]))

    def late_eces(self, key: str, setting: str = "") -> list[float]:
        """This ECE of each run of a setting; of the chosen one if none is named."""
        c = self.contender(key)
        return [self.late(run, "val_ece") for run in c.runs_tried[setting or c.setting]]

    def late_ece(self, key: str, setting: str = "") -> str:
        """Their mean."""
        return f"{np.mean(self.late_eces(key, setting)):.3f}"

    def late_against(self, a: str, b: str, setting: str = "") -> str:
        """The same of two, with the p of Welch's test between their seeds; `setting` is a's."""
        one, two = self.late_eces(a, setting), self.late_eces(b)
        return f"{spread(one)} against {spread(two)} ({chance(_welch(one, two).pvalue)} over seeds)"

    def late_chances(self, a: str, b: str, settings: Sequence[str]) -> str:
        """The p of this test between two contenders at equal settings."""
        found = (_welch(self.late_eces(a, setting), self.late_eces(b, setting)).pvalue for setting in settings)
        return ", ".join(f"{p:.2g}" for p in found)

    def contender(self, key: str) -> Contender:
        """A contender by its key."""
        return next(c for c in self.all.contenders if c.key == key)


def _welch(one: Sequence[float], two: Sequence[float]) -> Any:
    return scipy.stats.ttest_ind(one, two, equal_var=False)
