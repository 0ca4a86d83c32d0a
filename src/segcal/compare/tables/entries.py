"""From scores to rows of a table: means over cases, intervals over patients, and marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from segcal.compare import MAIN_NETWORK, Contender, Results
from segcal.compare.metric_sets import PERFECT
from segcal.compare.ranking import (
    SUMS,
    bootstrap_means,
    counted,
    credited,
    ranks,
    ratios_of_sums,
    summed,
)
from segcal.compare.tables.records import Entry, Request, Row
from segcal.metrics import METRICS
from segcal.published import published

DIGITS = {"confusion": 3, "bins": 3, "surfaces": 2, "volume_ratio": 2, "slope": 2}
MISSED, EMPTY, WITHOUT, NOT_SCORED = "missed", "empty", "without", "not scored"  # notes of entries
NOWHERE = "no near voxels"  # another: the contender was scored, but predicts nothing


@dataclass(frozen=True)
class Column:
    """A column of a table: a metric of a class (or all) under a condition."""

    metric: str
    kind: str
    calibrator: str = ""
    corruption: str = ""
    voxels: str = ""  # if not those that the results' metrics name
    name: str = ""  # printed before the metric: a class
    suffix: str = ""  # printed after it: a calibrator
    source: str = ""  # the paper's table that has it

    @property
    def header(self) -> str:
        """The printed head: class, metric, voxels, which direction is better, unit."""
        row = METRICS[self.metric]
        arrow, unit = "" if self.beside else row.arrow, f"({row.unit})" if row.unit else ""
        parts = (self.name, row.label, self.voxels, arrow, unit, self.suffix)
        return " ".join(filter(None, parts))

    @property
    def beside(self) -> bool:
        """Whether no value of it is better: what a perfect network has, and what stands beside it.

        In the paper's set, which names no voxels, the paper's scores are ordered as there."""
        return self.metric in PERFECT.values() or self.voxels == "reference"

    @property
    def digits(self) -> int:
        """The decimals of its means."""
        return DIGITS.get(self.metric, DIGITS[METRICS[self.metric].of])

    def values(self, results: Results, dataset: str, metric: str = "") -> pd.DataFrame:
        """The values of its metric, or of another one, per case and contender; or what it sums."""
        condition = {"calibrator": self.calibrator, "corruption": self.corruption}
        if not metric and self.of_sums(results):
            return summed(results, dataset, self.metric, self.kind, **condition)
        condition |= {"voxels": "" if metric else self.voxels}
        return results.per_case(dataset, metric or self.metric, self.kind, **condition)

    def of_sums(self, results: Results) -> bool:
        """Whether it is a ratio of sums over cases, and not a mean."""
        voxels = self.voxels or results.metrics.voxels_of(self.metric)
        return self.metric in SUMS and voxels == "all"

    def means(self, results: Results, dataset: str, values: pd.DataFrame) -> pd.DataFrame:
        """From values per case what is printed of each contender: mean, low and high."""
        if not self.of_sums(results):
            return bootstrap_means(values, results.patients(dataset))
        condition = {"calibrator": self.calibrator, "corruption": self.corruption}
        ratios = ratios_of_sums(results, dataset, self.metric, self.kind, **condition)
        return ratios.loc[values.columns]


def with_perfect(
    request: Request, metric: str, calibrator: str = "", **options: str
) -> list[Column]:
    """A metric over reference voxels, and what a perfect network has."""
    voxels = "" if request.results.metrics.key == "paper" else "reference"
    same = {name: options[name] for name in ("corruption", "suffix") if name in options}
    beside = Column(PERFECT[metric], "all", calibrator, **same)
    return [Column(metric, "all", calibrator, voxels=voxels, **options), beside]


def main_columns(request: Request, corruption: str = "", source: str = "") -> list[Column]:
    """The metrics that lead, each over all classes; the paper's with what is perfect."""
    results, columns = request.results, list[Column]()
    known = set(results.scores.loc[results.scores["dataset"] == request.dataset, "metric"])
    options = {"corruption": corruption, "source": source}
    for metric in results.metrics.lead:
        if PERFECT.get(metric) in known:
            columns += with_perfect(request, metric, request.calibrator, **options)
        else:
            kind = results.overall_class(request.dataset, metric)
            columns.append(Column(metric, kind, request.calibrator, **options))
    return columns


def rows_of(
    request: Request, contenders: Sequence[Contender], columns: Sequence[Column], block: str = ""
) -> list[Row]:
    """A row per contender; the best and the second of each column are marked."""
    parts = [_entries(request.results, contenders, column) for column in columns]
    rows = []
    for c in contenders:
        entries = [part.get(c.key, Entry(note=NOT_SCORED)) for part in parts]
        if request.published:
            for i, column in enumerate(columns):
                entries[i] = replace(entries[i], published=_paper_value(c, column))
        rows.append(Row(c.label, tuple(entries), c.key, block))
    return rows


def _entries(results: Results, contenders: Sequence[Contender], column: Column) -> dict[str, Entry]:
    """The entry of each contender that has scores for a column."""
    dataset, of = contenders[0].dataset, METRICS[column.metric].of
    nowhere = _nowhere(results, dataset, column)
    values = column.values(results, dataset)
    values = values[[c.key for c in contenders if c.key in values]]
    missed = None
    if of != "bins":
        missed = column.values(results, dataset, "missed").reindex_like(values)
    lost = pd.DataFrame(False, values.index, values.columns)
    if missed is not None and of == "surfaces":
        lost = missed > 0
    fair = credited(values, column.metric, missed)
    without = fair.isna() & ~lost & values.notna().any(axis=1).to_numpy()[:, None]
    reasons = {MISSED: lost, EMPTY: values.isna() & fair.notna(), WITHOUT: without}
    # If no contender has a value in a case, the object is not there.
    there = int((values.notna() | lost).any(axis=1).sum())
    means = column.means(results, dataset, values)
    compared = means["mean"].to_frame().T if column.of_sums(results) else values
    places = {} if column.beside else marks(compared, column.metric, missed)
    entries = {}
    for key, line in zip(map(str, values), means.to_numpy().tolist(), strict=True):
        mean, low, high = (None if math.isnan(x) else x for x in line)
        counts = {word: int(where[key].sum()) for word, where in reasons.items()}
        note = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        note = NOWHERE if key in nowhere else note
        best, second = (places.get(key) == place for place in (1, 2))
        n = int(values[key].count())
        entries[key] = Entry(mean, low, high, n, best, second, note=note, of=there)
    return entries


def _nowhere(results: Results, dataset: str, column: Column) -> set[str]:
    """Of a column over near voxels the contenders that have none in any case."""
    if column.voxels != "near":
        return set()
    values = replace(column, metric="ece", kind="all").values(results, dataset)
    return {str(key) for key in values if values[key].isna().all()}


def marks(values: pd.DataFrame, metric: str, missed: pd.DataFrame | None = None) -> dict[str, int]:
    """1 for the contenders with the best mean, 2 for the second best.

    None if all are equal, no second of two. `segcal.compare.ranking.no_value` says what a missing
    value counts as."""
    means = counted(credited(values, metric, missed), metric).mean()
    order = ranks(means.to_frame().T, metric)
    if not len(order) or order.iloc[0].nunique() < 2:
        return {}
    places = sorted(order.iloc[0].unique())[: 2 if len(means) > 2 else 1]
    marked = {}
    for key, rank in order.iloc[0].items():
        if rank in places and values[key].count():
            marked[str(key)] = places.index(rank) + 1
    return marked


def _paper_value(c: Contender, column: Column) -> float | None:
    if c.network != MAIN_NETWORK or c.members > 1 or not column.source:
        return None
    wanted = {"table": column.source, "class": column.kind, "metric": column.metric}
    wanted |= {"method": c.method, "penalty": dict(c.variant).get("penalty", "l1")}
    wanted |= {"calibrator": column.calibrator}
    rows = published(c.dataset)
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return float(rows["value"].iloc[0]) if len(rows) else None
