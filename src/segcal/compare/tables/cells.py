"""From scores to rows of cells: means over cases, intervals over patients, marks, and what must be
said of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from segcal.calibrators import CALIBRATORS
from segcal.compare import MAIN_NETWORK, Contender, Results
from segcal.compare.ranking import MAIN, bootstrap_means, counted, credited, ranks
from segcal.compare.tables.records import Cell, Row
from segcal.metrics import METRICS
from segcal.published import published, published_datasets

DIGITS = {"confusion": 3, "bins": 3, "surfaces": 2}
N_SAMPLES, LEVEL = 2000, 0.95
MOST_NAMES = 4  # cells of a study that a note names one by one
MISSED, EMPTY, WITHOUT, NOT_SCORED = (
    "missed",
    "empty",
    "without",
    "not scored",
)  # what the note of a cell says


@dataclass(frozen=True)
class Column:
    """A column of a table: a metric of a class (or all) under a condition, and the paper's table
    that has it.
    """

    metric: str
    kind: str
    calibrator: str = ""
    corruption: str = ""
    name: str = ""  # before the metric's own label: a class
    suffix: str = ""  # after it: a calibrator
    source: str = ""  # the published table to look into

    @property
    def header(self) -> str:
        """The printed head: class, metric, which way is better, unit."""
        row = METRICS[self.metric]
        return " ".join(
            filter(
                None, (self.name, row.label, row.arrow, row.unit and f"({row.unit})", self.suffix)
            )
        )

    @property
    def digits(self) -> int:
        """How many decimals are printed."""
        return DIGITS[METRICS[self.metric].of]

    @property
    def condition(self) -> dict[str, str]:
        """What `Results` asks for."""
        return {"calibrator": self.calibrator, "corruption": self.corruption}


def main_columns(
    results: Results, dataset: str, calibrator: str = "", corruption: str = ""
) -> tuple[Column, ...]:
    """The four main metrics, each summed up over classes."""
    return tuple(Column(m, results.overall_class(dataset, m), calibrator, corruption) for m in MAIN)


def build_rows(
    results: Results,
    contenders: Sequence[Contender],
    columns: Sequence[Column],
    *,
    block: str = "",
    with_published: bool = False,
) -> tuple[Row, ...]:
    """A row per contender, a cell per column; the best and the second of each column are marked if
    there are several.
    """
    cells = [_cells(results, contenders, column, with_published) for column in columns]
    return tuple(
        Row(c.label, tuple(column[c.key] for column in cells), c.key, block) for c in contenders
    )


def _cells(
    results: Results, contenders: Sequence[Contender], column: Column, with_published: bool
) -> dict[str, Cell]:
    dataset = contenders[0].dataset
    values = results.per_case(dataset, column.metric, column.kind, **column.condition)
    keys = [c.key for c in contenders if c.key in values]
    values = values[keys]
    means = bootstrap_means(values, results.patients(dataset), n=N_SAMPLES, level=LEVEL)
    cells = {
        key: _cell(row, int(values[key].count()))
        for key, row in zip(keys, means.to_numpy().tolist(), strict=True)
    }
    missed = None
    if METRICS[column.metric].of != "bins":
        missed = results.per_case(dataset, "missed", column.kind, **column.condition).reindex_like(
            values
        )
    told = _no_value(values, column.metric, missed)
    there = (values.notna() | told[MISSED]).any(
        axis=1
    )  # where nobody has a value there is nothing to have one of
    for key in keys:
        counts = {word: int(which[key].sum()) for word, which in told.items()}
        note = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        cells[key] = replace(cells[key], note=note, of=int(there.sum()))
    for key, mark in marks(values, column.metric, missed).items():
        cells[key] = replace(cells[key], best=mark == 1, second=mark == 2)
    for c in contenders:
        cells.setdefault(c.key, Cell(note=NOT_SCORED))
        if with_published:
            cells[c.key] = replace(cells[c.key], published=paper_value(c, column))
    return cells


def _cell(row: Sequence[float], n: int) -> Cell:
    value, low, high = (None if math.isnan(x) else x for x in row)
    return Cell(value, low, high, n)


def _no_value(
    values: pd.DataFrame, metric: str, missed: pd.DataFrame | None
) -> dict[str, pd.DataFrame]:
    """Where each contender has no value that another has or should have, by the word that tells
    why.
    """
    nothing = pd.DataFrame(False, values.index, values.columns)
    lost = missed > 0 if missed is not None and METRICS[metric].of == "surfaces" else nothing
    fair = credited(values, metric, missed)
    without = fair.isna() & ~lost & values.notna().any(axis=1).to_numpy()[:, None]
    return {MISSED: lost, EMPTY: values.isna() & fair.notna(), WITHOUT: without}


def marks(values: pd.DataFrame, metric: str, missed: pd.DataFrame | None = None) -> dict[str, int]:
    """1 for the contenders with the best mean and 2 for the second best; none if all are alike, no
    second of two.

    What no value counts as is told in `segcal.compare.ranking.no_value`.
    """
    means = counted(credited(values, metric, missed), metric).mean()
    found = ranks(means.to_frame().T, metric)
    if not len(found) or found.iloc[0].nunique() < 2:
        return {}
    places = sorted(found.iloc[0].unique())[: 2 if len(means) > 2 else 1]
    return {
        str(key): places.index(rank) + 1
        for key, rank in found.iloc[0].items()
        if rank in places and values[key].count()
    }


def paper_value(contender: Contender, column: Column) -> float | None:
    """What the paper has for a cell; `None` if it has nothing."""
    if contender.network != MAIN_NETWORK or not column.source or column.corruption:
        return None
    rows = published(contender.dataset)
    penalty = "l2" if "penalty=l2" in contender.variant else "l1"
    wanted = {
        "table": column.source,
        "class": column.kind,
        "method": contender.method,
        "penalty": penalty,
    }
    wanted |= {"calibrator": column.calibrator, "metric": column.metric}
    for key, value in wanted.items():
        rows = rows[rows[key] == value]
    return float(rows["value"].iloc[0]) if len(rows) else None


def notes_on(
    results: Results,
    contenders: Sequence[Contender],
    rows: Sequence[Row],
    columns: Sequence[Column],
    with_published: bool,
) -> tuple[str, ...]:
    """The sentences under a table of means: over what, the interval, the marks, what is missing."""
    dataset = contenders[0].dataset
    cells = [cell for row in rows for cell in row.cells]
    lines = [
        *_basis(results, contenders),
        *_marked(contenders, cells),
        *_pixels(results, dataset, columns),
        *_fewer(len(_cases(results, dataset)), rows, columns),
    ]
    if any(MISSED in cell.note for cell in cells):
        lines.append(
            "Missed: the number of cases in which an object was missed or invented, so that it has"
            " no distance. The mean is over the other cases."
        )
    if any(EMPTY in cell.note for cell in cells):
        lines.append(
            "Empty: the number of cases in which the object is not there and rightly left out,"
            " while another invents it. The mean is over the other cases."
        )
    lacking = dict.fromkeys(row.label for row in rows for cell in row.cells if WITHOUT in cell.note)
    if lacking:
        lines.append(
            "Without: the number of cases in which others have a value, but not"
            f" {', '.join(lacking)}. The mean is over the other cases, so it is not of the same"
            " cases as theirs."
        )
    if any(cell.note == NOT_SCORED for cell in cells):
        lines.append(
            "Not scored: some runs lack these scores; segcal calibrate and segcal evaluate add"
            " them."
        )
    if with_published:
        lines += _published(
            dataset, cells, any(METRICS[c.metric].of == "surfaces" for c in columns)
        )
    return tuple(lines)


def failed_note(failed: Iterable[str]) -> list[str]:
    """What to say of the cells of a study that failed, in one sentence; nothing if none did.

    >>> failed_note(["ls-s0", "ls-s1"])
    ['Left out, for they failed in the study: ls-s0, ls-s1.']
    >>> failed_note([f"ls-s{i}" for i in range(9)])
    ['Left out, for they failed in the study: ls-s0, ls-s1, ls-s2, ls-s3 and 5 more.']
    """
    names = list(failed)
    if not names:
        return []
    more = len(names) - MOST_NAMES
    told = ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return [f"Left out, for {'it' if len(names) == 1 else 'they'} failed in the study: {told}."]


def _basis(results: Results, contenders: Sequence[Contender]) -> list[str]:
    dataset = contenders[0].dataset
    cases = _cases(results, dataset)
    n_cases, n_patients = len(cases), results.patients(dataset).reindex(cases).nunique()
    if n_patients < 2:
        what = "One test case only" if n_cases == 1 else f"{n_cases} test cases of one patient only"
        lines = [f"{what}: no interval and no test."]
    else:
        lines = [
            f"Mean over {n_cases} test cases ± half of the {LEVEL:.0%} bootstrap interval over"
            f" {n_patients} patients ({N_SAMPLES:,} samples)."
        ]
    if any(results.runs[run].get("patients", {}) is None for c in contenders for run in c.runs):
        lines.append(
            "It is not known which cases are of one patient; each counts as a patient of its own."
        )
    seeds = {
        c.label: len({results.runs[run]["settings"]["seed"] for run in c.runs}) for c in contenders
    }
    if set(seeds.values()) != {1}:
        told = ", ".join(f"{label} {n}" for label, n in seeds.items())
        lines.append(
            "Per case the mean over seeds:"
            f" {told if len(set(seeds.values())) > 1 else max(seeds.values())}."
        )
    return lines


def _pixels(results: Results, dataset: str, columns: Sequence[Column]) -> list[str]:
    if results.data(dataset).get("distances") != "pixels" or not any(
        METRICS[c.metric].unit for c in columns
    ):
        return []
    return [
        "Distances are in pixels of the original, not in mm: pictures do not say how large a"
        " pixel is."
    ]


def _marked(contenders: Sequence[Contender], cells: Sequence[Cell]) -> list[str]:
    if len(contenders) < 2:
        return [f"{contenders[0].label} is the only contender: no marks and no ranks."]
    if not any(cell.best for cell in cells):
        return []
    missed, empty, without = (
        any(word in cell.note for cell in cells) for word in (MISSED, EMPTY, WITHOUT)
    )
    mean = "" if missed or empty or without else " mean"
    line = (
        f"Bold is the best{mean}, underlined the second"
        if any(c.second for c in cells)
        else f"Bold is the better{mean}"
    )
    what = " or ".join(["a missed case"] * missed + ["a case without a value"] * without)
    rules = [f"{what} as the worst {'value' if without else 'distance'} anyone had"] if what else []
    rules += ["an empty case as perfect"] if empty else []
    return [f"{line}, counting {' and '.join(rules)}." if rules else f"{line}."]


def _cases(results: Results, dataset: str) -> list[str]:
    rows = results.rows()
    return list(rows.loc[rows["dataset"] == dataset, "case"].unique())


def _fewer(n_cases: int, rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """What to say of columns that nobody has a value of in some cases, such as of a class that is
    not there.
    """
    lines, found = [], defaultdict(list)
    for i, column in enumerate(columns):
        scored = [row.cells[i] for row in rows if row.cells[i].note != NOT_SCORED]
        if len(scored) == len(rows) and all(cell.value is None for cell in scored):
            lines.append(f"{column.header} has no value in any case.")
        elif any(cell.of < n_cases for cell in scored):
            counts = {
                str(f(cell.of for cell in scored)): None for f in (min, max)
            }  # a block may have fewer than another
            found[" to ".join(counts)].append(column.header)
    for n, headers in found.items():
        lines.append(
            f"Over {n} of {n_cases} cases, as nobody has a value in the others:"
            f" {', '.join(headers)}."
        )
    return lines


def _published(dataset: str, cells: Sequence[Cell], distances: bool) -> list[str]:
    if dataset not in published_datasets():
        known = ", ".join(published_datasets())
        return [f"The paper has no values for {dataset}; it has for {known}."]
    if all(cell.published is None for cell in cells):
        return ["The paper has no values for this table."]
    return [
        "In brackets the value that the paper"
        f" has{'; its surface distances are in voxels' if distances else ''}."
    ]


def calibrated(title: str, calibrator: str) -> str:
    """A title that says which calibrator was applied."""
    return f"{title} with {CALIBRATORS[calibrator].label}" if calibrator else title


def digits_of(columns: Sequence[Column]) -> tuple[int, ...]:
    """The decimals of each column."""
    return tuple(column.digits for column in columns)


def headers_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """The heads of the columns."""
    return tuple(column.header for column in columns)


def labels_of(contenders: Sequence[Contender]) -> Mapping[str, str]:
    """The printed name of each contender's key."""
    return {c.key: c.label for c in contenders}
