"""What the page says of a packed study: its tables and numbers, each computed from the scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.published import published
from segcal.ranking import Ranking, pairwise, rank_results
from segcal.results import Contender, Results, read_results
from segcal.store import read_json, read_rows
from segcal.tables import TABLES, to_markdown

HERE = Path(__file__).parent
DATA = "hippocampus"
SEVEN = ("ce", "ce_dice", "focal", "ecp", "ls", "svls", "mbls")
NOISE = (0.01, 0.02, 0.03, 0.04, 0.05)


class Study:
    """A packed study, and what the page says of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.all = read_results([HERE / name])

    @cached_property
    def results(self) -> Results:
        """The paper's seven methods alone: ranks and tests are among them."""
        return replace(self.all, contenders=tuple(c for c in self.all.contenders if c.key in SEVEN))

    @cached_property
    def ranking(self) -> Ranking:
        """Ranks and tests among the seven."""
        return rank_results(self.results, DATA)

    @property
    def seeds(self) -> str:
        """How many seeds every method has, in words."""
        n = min(len(c.runs) for c in self.all.contenders)
        return "one seed" if n == 1 else f"{n} seeds"

    def table(self, key: str, *, published: bool = False, variants: bool = False) -> str:
        """A table of `segcal compare`, without its title."""
        table = TABLES[key](self.all if variants else self.results, DATA, published=published)
        return "" if table is None else to_markdown(table).partition("\n\n")[2].strip()

    def mean(self, key: str, metric: str, calibrator: str = "") -> float:
        """The mean over test cases, after the mean over seeds."""
        kind = self.all.overall_class(DATA, metric)
        return float(self.all.per_case(DATA, metric, kind, calibrator=calibrator)[key].mean())

    def value(self, key: str, metric: str, calibrator: str = "") -> str:
        """The same as text."""
        return _text(self.mean(key, metric, calibrator), metric)

    def against(self, a: str, b: str, metric: str, calibrator: str = "") -> str:
        """Two means and the p of their difference: `0.098 against 0.142 (p = 0.003)`."""
        kind = self.all.overall_class(DATA, metric)
        values = self.all.per_case(DATA, metric, kind, calibrator=calibrator)[[a, b]]
        (p,) = pairwise(values, metric, self.all.patients(DATA))["p"]
        said = _said(p)
        return f"{_text(values[a].mean(), metric)} against {_text(values[b].mean(), metric)} ({said})"

    def by_seed(self, key: str, metric: str) -> list[float]:
        """The mean over test cases of each seed."""
        rows = self.all.rows()
        wanted = (
            (rows["contender"] == key) & (rows["metric"] == metric) & (rows["class"] == self.all.overall_class(DATA, metric))
        )
        return rows[wanted].groupby("seed")["value"].mean().tolist()

    def each_seed(self, key: str, metric: str) -> str:
        """These as text: `0.120, 0.078, 0.119`."""
        return ", ".join(_text(value, metric) for value in self.by_seed(key, metric))

    def over_seeds(self, a: str, b: str, metric: str) -> str:
        """The p of Welch's test between the seeds of two contenders."""
        return _said(_welch(self.by_seed(a, metric), self.by_seed(b, metric)).pvalue)

    def interval(self, a: str, b: str, metric: str) -> str:
        """The 95 % interval of the difference of two means over seeds, by the same test: `−0.057 to +0.040`."""
        found = _welch(self.by_seed(a, metric), self.by_seed(b, metric)).confidence_interval(0.95)
        return f"{found.low:+.3f} to {found.high:+.3f}".replace("-", "−")

    def holm(self, a: str, b: str, metric: str) -> str:
        """The p of the table of tests: paired over cases, corrected over all pairs of the seven."""
        table = self.ranking.pairwise[metric]
        (p,) = table["p_holm"][table["a"].isin((a, b)) & table["b"].isin((a, b))]
        return _said(p)

    def corrupted(self, key: str, metric: str, level: float) -> str:
        """A mean over test cases with noise."""
        kind = self.all.overall_class(DATA, metric)
        return _text(
            float(self.all.per_case(DATA, metric, kind, corruption=f"gaussian_noise:{level:g}")[key].mean()), metric
        )

    def noise_table(self) -> str:
        """ECE as noise grows, and what it costs in DSC."""
        levels = [f"{level:g}" for level in NOISE]
        heads = ["", "ECE ↓ without", *levels, "DSC ↑ without", levels[-1]]
        rows = []
        for key in SEVEN:
            ece = [self.value(key, "ece"), *(self.corrupted(key, "ece", level) for level in NOISE)]
            rows.append([LOSSES[key].label, *ece, self.value(key, "dice"), self.corrupted(key, "dice", NOISE[-1])])
        return _table(heads, rows)

    def confidence_table(self) -> str:
        """Which way the confidence is wrong, and the temperatures of TS that follow from it."""
        metrics = ("confidence_gap", "overconfidence", "underconfidence")
        heads = ["", *(METRICS[metric].label for metric in metrics), "temperature of TS"]
        rows = [
            [
                c.label,
                f"{self.mean(c.key, metrics[0]):+.3f}".replace("-", "−"),
                *(self.value(c.key, metric) for metric in metrics[1:]),
                ", ".join(f"{self._temperature(run):.2f}" for run in c.runs),
            ]
            for c in self.results.contenders
        ]
        return _table(heads, rows)

    def _temperature(self, run: str) -> float:
        return float(read_json(HERE / self.name / "runs" / run / "calibrators" / "ts.json")["temperature"])

    def rank(self, key: str) -> str:
        """The place of a method by mean case rank, as a word."""
        order = self.ranking.case_rank["mean"].sort_values().index.tolist()
        return ("first", "second", "third", "fourth", "fifth", "sixth", "last")[order.index(key)]

    def change(self, key: str, metric: str, than: str = "ce") -> str:
        """How much a mean differs from another's, in percent of it: `-31 %`."""
        return _percent(self.mean(key, metric) / self.mean(than, metric) - 1)

    def lowest(self, metric: str, calibrator: str = "") -> str:
        """The lowest mean among the seven."""
        return _text(min(self.mean(key, metric, calibrator) for key in SEVEN), metric)

    def highest(self, metric: str, calibrator: str = "") -> str:
        """The highest mean among the seven."""
        return _text(max(self.mean(key, metric, calibrator) for key in SEVEN), metric)

    def has_grid(self) -> bool:
        """Whether a method was tried with several settings."""
        return any(len(c.runs_tried) > 1 for c in self.results.contenders)

    def n_runs(self) -> int:
        """How many runs the study has."""
        return len(self.all.runs)

    def kept(self, key: str) -> str:
        """The epochs whose weights were kept."""
        return ", ".join(str(self.all.runs[run]["best"]["epoch"] + 1) for run in self._contender(key).runs)

    def chosen(self, key: str) -> str:
        """The setting that validation chose."""
        return self._contender(key).setting

    def cell(self, key: str) -> str:
        """The name of the last of the chosen runs."""
        return self._contender(key).runs[-1]

    def runs_table(self) -> str:
        """Which runs stand for each contender."""
        rows = [
            [
                c.label,
                c.setting or "—",
                *(self.each_seed(c.key, m) for m in ("dice", "ece")),
                ", ".join(f"`{r}`" for r in c.runs),
            ]
            for c in self.all.contenders
        ]
        return _table(["", "setting", "DSC ↑ of each", "ECE ↓ of each", "cells"], rows)

    def epochs(self) -> int:
        """Epochs of every run."""
        return int(next(iter(self.all.runs.values()))["settings"]["training"]["epochs"])

    def hours(self) -> str:
        """The time that all trainings took together."""
        return f"{sum(info['seconds'] for info in self.all.runs.values()) / 3600:.1f}"

    def settings_tried(self) -> str:
        """Validation DSC and ECE of every setting that was tried, at the epoch of the best DSC and over the second half."""
        heads = ["", "chosen", "kept epoch", "DSC ↑", "ECE ↓", "DSC ↑, second half", "ECE ↓, second half"]
        return _table(heads, self._tried())

    def _tried(self) -> Iterator[list[str]]:
        for c in self.all.contenders:
            for setting, runs in sorted(c.runs_tried.items(), key=lambda item: _number(item[0])):
                best = [self.all.runs[run]["best"] for run in runs]
                late = [self.late(run) for run in runs]
                label = f"{c.label}, {setting.replace('=', ' ')}" if setting else c.label
                epochs = ", ".join(str(b["epoch"] + 1) for b in best)
                scores = [_spread([row[key] for row in rows]) for rows in (best, late) for key in ("val_dice", "val_ece")]
                yield [label, "yes" if setting == c.setting else "", epochs, *scores]

    def late(self, run: str) -> dict[str, float]:
        """Validation scores of a run, mean over the second half of its epochs, which have the lower rate."""
        rows = read_rows(HERE / self.name / "runs" / run / "log.csv")
        return {key: float(np.mean([float(row[key]) for row in rows[len(rows) // 2 :]])) for key in ("val_dice", "val_ece")}

    def late_eces(self, key: str, setting: str = "") -> list[float]:
        """This ECE of each run of a setting; of the chosen one if none is named."""
        c = self._contender(key)
        return [self.late(run)["val_ece"] for run in c.runs_tried[setting or c.setting]]

    def late_ece(self, key: str, setting: str = "") -> str:
        """Their mean."""
        return f"{np.mean(self.late_eces(key, setting)):.3f}"

    def late_against(self, a: str, b: str, setting: str = "") -> str:
        """The same of two, with the p of Welch's test between their seeds where there are several; `setting` is a's."""
        one, two = self.late_eces(a, setting), self.late_eces(b)
        said = f" ({_said(_welch(one, two).pvalue)} over seeds)" if len(one) > 1 else ""
        return f"{_spread(one)} against {_spread(two)}{said}"

    def late_change(self, a: str, b: str, setting: str = "") -> str:
        """How much they differ, in percent."""
        return _percent(float(np.mean(self.late_eces(a, setting)) / np.mean(self.late_eces(b))) - 1)

    def cece_table(self) -> str:
        """CECE as mean and as sum over the classes, beside the paper's."""
        n_classes = len(self.all.data(DATA)["classes"]) + 1
        rows = []
        for key in SEVEN:
            theirs, ece = _published(key, "cece"), _published(key, "ece")
            mean, own = self.mean(key, "cece"), self.mean(key, "ece")
            ratios = [f"{mean / own:.2f}", f"{n_classes * mean / own:.2f}", f"{theirs / ece:.2f}"]
            rows.append([LOSSES[key].label, f"{mean:.3f}", f"{n_classes * mean:.3f}", f"{theirs:.3f}", *ratios])
        heads = ["", "mean over classes", "sum", "published", "mean / ECE", "sum / ECE", "published / ECE"]
        return _table(heads, rows)

    def _contender(self, key: str) -> Contender:
        return next(c for c in self.all.contenders if c.key == key)


def published_change(metric: str, key: str = "mbls", than: str = "ce") -> str:
    """How much a published mean differs from another, in percent of it."""
    return _percent(_published(key, metric) / _published(than, metric) - 1)


def printed(metric: str, penalty: str) -> str:
    """What the paper has for a penalty."""
    rows = published(DATA)
    rows = rows[(rows["table"] == "penalty") & (rows["metric"] == metric) & (rows["penalty"] == penalty)]
    return _text(float(rows["value"].iloc[0]), metric)


def _published(key: str, metric: str) -> float:
    table = "calibration" if METRICS[metric].of == "bins" else "discriminative"
    rows = published(DATA)
    kind = "all" if METRICS[metric].of == "bins" else "mean"
    wanted = {"table": table, "class": kind, "method": key, "metric": metric}
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    return float(rows["value"].iloc[0])


def _text(value: float, metric: str) -> str:
    return f"{value:.{2 if METRICS[metric].of == 'surfaces' else 3}f}"


def _welch(one: Sequence[float], two: Sequence[float]) -> Any:
    return scipy.stats.ttest_ind(one, two, equal_var=False)


def _said(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def _percent(share: float) -> str:
    text = f"{100 * share:+.0f} %".replace("-", "−")
    return f"±{text[1:]}" if text[1:] == "0 %" else text


def _number(setting: str) -> float:
    return float(setting.partition("=")[2] or 0)


def _spread(values: Sequence[float]) -> str:
    """A mean, and the standard deviation if there are several.

    >>> _spread([0.8, 0.82])
    '0.810 ± 0.014'
    """
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "")


def _table(heads: Sequence[str], rows: Iterator[list[str]] | Sequence[list[str]]) -> str:
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
