"""The numbers that the pages say of a packed study's test scores, each computed from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

import pandas as pd
from published_rows import DATA
from trainings import Trainings
from wording import chance, percent, points, shown, welch

from segcal.compare import Contender, Results, Settings, read_results
from segcal.compare.names import choice_text
from segcal.compare.ranking import Ranking, pairwise, rank_results
from segcal.compare.tables import TABLES, to_markdown
from segcal.compare.tables.notes import choice_note
from segcal.compare.tables.seeds import means_by_seed, spreads
from segcal.folders import calibrator_path, read_json
from segcal.metrics import METRICS

HERE = Path(__file__).parent
SEVEN = ("ce", "ce_dice", "focal", "ecp", "ls", "svls", "mbls")
PARTS = {
    "low": ("low", "low-variants")
}  # a study that lies in several folders, each with a plan of its own
MARGIN5 = {"full": "full-margin5", "full-last": "full-last-margin5", "low-last": "low-last-margin5"}
"""Where MbLS with margin 5 lies, to take the place of the margin that validation chose in a study.
"""
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "last")


class Study:
    """A packed study, with its variants if it has some, and what the pages say of it.

    A corruption is `gaussian_noise:0.05`, a calibrator `ts` or `lts`.
    """

    def __init__(self, name: str, *, margin5: bool = False) -> None:
        """`margin5` puts MbLS with margin 5 in the place of MbLS with the chosen margin."""
        self.name = name
        folders = [HERE / part for part in PARTS.get(name, (name,))]
        if margin5:
            others = [
                run
                for folder in folders
                for run in sorted(folder.glob("runs/*"))
                if not _is_mbls(run)
            ]
            folders = [*others, HERE / MARGIN5[name]]
        self.all = read_results(folders, metrics="paper")
        self.trainings = Trainings(self.all)

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
    def n_seeds(self) -> int:
        """How many seeds every method has."""
        return min(len(c.runs) for c in self.all.contenders)

    @property
    def seeds(self) -> str:
        """The same in words."""
        return "one seed" if self.n_seeds == 1 else f"{self.n_seeds} seeds"

    def table(
        self, key: str, *, published: bool = False, variants: bool = False, notes: bool = False
    ) -> str:
        """A table of `segcal compare`, without its title; its notes stand once at the top of the
        page.
        """
        table = TABLES[key](self.all if variants else self.results, DATA, published=published)
        if table is None:
            return ""
        # How settings were chosen stands once at the top of the page.
        kept = tuple(note for note in table.notes if note not in choice_note(self.all))
        _, rows, below = to_markdown(replace(table, notes=kept)).strip().split("\n\n")
        return f"{rows}\n\n{below}" if notes else rows

    def contender(self, key: str) -> Contender:
        """A contender by its key."""
        return next(c for c in self.all.contenders if c.key == key)

    def setting(self, key: str) -> str:
        """The setting that validation chose: `margin 5`."""
        return choice_text(self.contender(key).chosen, " ")

    def chosen_margin(self, key: str) -> str:
        """The margin alone: `5`."""
        (settings,) = self.contender(key).chosen.values()
        return f"{dict(settings)['margin']:g}"

    def tried(self, key: str, settings: Sequence[Settings]) -> str:
        """The validation DSC that several settings had, mean over seeds: `0.8226, 0.8229 and
        0.8232`.
        """
        *most, last = (f"{self.contender(key).tried[setting]:.4f}" for setting in settings)
        return f"{', '.join(most)} and {last}"

    def cell(self, key: str) -> str:
        """The name of the last of the chosen runs."""
        return self.contender(key).runs[-1]

    @cache  # noqa: B019 (there are four studies, and they live as long as the script)
    def per_case(self, metric: str, calibrator: str = "", corruption: str = "") -> pd.DataFrame:
        """A row per test case, a column per contender, each the mean over seeds."""
        kind = self.all.overall_class(DATA, metric)
        condition = {"calibrator": calibrator, "corruption": corruption}
        if METRICS[metric].of == "bins":  # these runs were scored over reference voxels alone
            condition["voxels"] = "reference"
        return self.all.per_case(DATA, metric, kind, **condition)

    def mean(self, key: str, metric: str, calibrator: str = "", corruption: str = "") -> float:
        """The mean over test cases, after the mean over seeds."""
        return float(self.per_case(metric, calibrator, corruption)[key].mean())

    def value(self, key: str, metric: str, calibrator: str = "", corruption: str = "") -> str:
        """The same as text."""
        return shown(self.mean(key, metric, calibrator, corruption), metric)

    def values(self, keys: Sequence[str], metric: str, calibrator: str = "") -> str:
        """Several of them: `0.055, 0.066 and 0.069`."""
        *most, last = (self.value(key, metric, calibrator) for key in keys)
        return f"{', '.join(most)} and {last}"

    def change(self, key: str, metric: str, than: str = "ce") -> str:
        """How much a mean differs from another's, in percent of it: `-31 %`."""
        return percent(self.mean(key, metric) / self.mean(than, metric) - 1)

    def difference(self, key: str, metric: str, than: str = "ce") -> str:
        """How much a mean differs from another's: `−0.018`."""
        return points(self.mean(key, metric) - self.mean(than, metric))

    def rank(self, key: str) -> str:
        """The place of a method by mean case rank, as a word."""
        order = self.ranking.case_rank["mean"].sort_values().index.tolist()
        return PLACES[order.index(key)]

    def case_rank(self, key: str) -> str:
        """The mean case rank itself."""
        return f"{self.ranking.case_rank['mean'][key]:.2f}"

    def over_cases(
        self, a: str, b: str, metric: str, calibrator: str = "", corruption: str = ""
    ) -> str:
        """The p of a paired test of two contenders over cases, uncorrected."""
        (p,) = pairwise(
            self.per_case(metric, calibrator, corruption)[[a, b]], metric, self.all.patients(DATA)
        )["p"]
        return chance(p)

    def p_holm(self, a: str, b: str, metric: str) -> float:
        """The p of the table of tests: paired over cases, corrected over all pairs of the seven."""
        table = self.ranking.pairwise[metric]
        (p,) = table["p_holm"][table["a"].isin((a, b)) & table["b"].isin((a, b))]
        return float(p)

    def holm(self, a: str, b: str, metric: str) -> str:
        """The same as text."""
        return chance(self.p_holm(a, b, metric))

    def against(self, a: str, b: str, metric: str) -> str:
        """Two means and the p of their difference: `0.098 against 0.142 (p = 0.003)`."""
        return (
            f"{self.value(a, metric)} against {self.value(b, metric)}"
            f" ({self.over_cases(a, b, metric)})"
        )

    @cache  # noqa: B019
    def by_seed(self, metric: str, corruption: str = "") -> pd.DataFrame:
        """The means over test cases: a row per seed, a column per contender."""
        return means_by_seed(self.all, DATA, metric, corruption=corruption)

    def each_seed(self, key: str, metric: str, corruption: str = "") -> str:
        """These of a contender as text: `0.120, 0.078, 0.119`."""
        return ", ".join(shown(value, metric) for value in self.by_seed(metric, corruption)[key])

    def each_difference(self, a: str, b: str, metric: str) -> str:
        """The differences of two contenders with the same seed: `−0.016, −0.019, −0.018`."""
        return ", ".join(
            points(value) for value in self.by_seed(metric)[a] - self.by_seed(metric)[b]
        )

    def p_over_seeds(self, a: str, b: str, metric: str, corruption: str = "") -> float:
        """The p of Welch's test between the seeds of two contenders."""
        values = self.by_seed(metric, corruption)
        return float(welch(values[a], values[b]).pvalue)

    def over_seeds(self, a: str, b: str, metric: str, corruption: str = "") -> str:
        """The same as text."""
        return chance(self.p_over_seeds(a, b, metric, corruption))

    def interval(self, a: str, b: str, metric: str) -> str:
        """The 95 % interval of the difference of two means over seeds, by the same test: `−0.057 to
        +0.040`.
        """
        found = welch(self.by_seed(metric)[a], self.by_seed(metric)[b]).confidence_interval(0.95)
        return f"{points(found.low)} to {points(found.high)}"

    def sd_of_seeds(self, metric: str) -> str:
        """The standard deviation between seeds, pooled over the seven."""
        return f"{spreads(self.by_seed(metric)[self.keys])[0]:.3f}"

    def temperatures(self, key: str) -> str:
        """What temperature scaling found for the runs of a contender."""
        return ", ".join(f"{self.temperature(run):.2f}" for run in self.contender(key).runs)

    def temperature(self, run: str) -> float:
        """What temperature scaling found for a run."""
        path = calibrator_path(Path(self.all.runs[run]["folder"]), "ts").with_suffix(".json")
        return float(read_json(path)["temperature"])


def margin(value: float) -> Settings:
    """A margin as a setting that was tried."""
    return (("margin", float(value)),)


def _is_mbls(run: Path) -> bool:
    """Whether a run is of MbLS as it is; its variants have more in their names."""
    return re.fullmatch(r"mbls-margin[\d.]+-unet-s\d+", run.name) is not None
