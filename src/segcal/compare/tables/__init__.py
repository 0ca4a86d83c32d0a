"""Scores as tables: `TABLES` makes them from `Results`, the writers turn them into text.

The main tables hold whole methods on the main network. Variants of a method (another penalty,
another sum over classes) stand in `penalty`, other networks in `backbones`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.compare.tables.cells import failed_note
from segcal.compare.tables.means import (
    backbones,
    calibration,
    discriminative,
    penalty,
    posthoc,
    robustness,
    selection,
)
from segcal.compare.tables.ranks import ranking, tests
from segcal.compare.tables.records import NONE, Cell, Row, Table, stacked
from segcal.compare.tables.seeds import p_text, seeds
from segcal.compare.tables.terminal import to_rich
from segcal.compare.tables.writers import FORMATS, save_tables, to_csv, to_latex, to_markdown
from segcal.types import UserError, check_choice

__all__ = [
    "FORMATS",
    "NEEDS",
    "NONE",
    "TABLES",
    "Cell",
    "Maker",
    "Row",
    "Table",
    "all_tables",
    "failed_note",
    "p_text",
    "save_tables",
]
__all__ += ["to_csv", "to_latex", "to_markdown", "to_rich"]


class Maker(Protocol):
    """A table of results: of one data set, or with a block per data set; `None` if the runs hold
    nothing for it.
    """

    def __call__(
        self,
        results: Results,
        dataset: str | None = None,
        *,
        calibrator: str = "",
        published: bool = False,
    ) -> Table | None:
        """Make it: after a calibrator, and with the paper's values beside, if asked."""


def _per_dataset(make: Callable[[Results, str, str, bool], Table | None]) -> Maker:
    def maker(
        results: Results,
        dataset: str | None = None,
        *,
        calibrator: str = "",
        published: bool = False,
    ) -> Table | None:
        _check(calibrator)
        names = results.datasets if dataset is None else (dataset,)
        for name in names:
            check_choice("data set", name, results.datasets)
        made = (make(results, name, calibrator, published) for name in names)
        return _with_failures(results, stacked([table for table in made if table is not None]))

    maker.__doc__ = make.__doc__
    return maker


def _ranking(
    results: Results, dataset: str | None = None, *, calibrator: str = "", published: bool = False
) -> Table | None:
    _check(calibrator)
    return _with_failures(results, ranking(results, dataset, calibrator=calibrator))


def _with_failures(results: Results, table: Table | None) -> Table | None:
    """No table is silent on cells that are missing from it."""
    return table and replace(table, notes=(*table.notes, *failed_note(results.failed)))


def _check(calibrator: str) -> None:
    if calibrator:  # none is no choice to offer
        check_choice("calibrator", calibrator, tuple(CALIBRATORS))


TABLES: dict[str, Maker] = {
    "discriminative": _per_dataset(discriminative),
    "calibration": _per_dataset(calibration),
    "ranking": _ranking,
    "tests": _per_dataset(tests),
    "seeds": _per_dataset(seeds),
    "posthoc": _per_dataset(posthoc),
    "penalty": _per_dataset(penalty),
    "robustness": _per_dataset(robustness),
    "backbones": _per_dataset(backbones),
    "selection": _per_dataset(selection),
}
"""The tables by key; each a function of `Results`."""

NEEDS = {
    "ranking": "needs runs of two methods",
    "tests": "needs runs of two methods, and two test patients",
    "seeds": "needs every method with the same two seeds or more; segcal study --seeds 3 runs them",
    "posthoc": "needs calibrated scores; segcal calibrate adds them",
    "penalty": "needs runs of a variant, such as segcal train --loss mbls --set loss.penalty=l2",
    "robustness": "needs scores of corrupted images; segcal evaluate --noise-series adds them",
    "backbones": "needs runs on a second network",
    "selection": "needs runs of a method with a setting to choose",
}
"""What a table that was asked for may lack."""


def all_tables(
    results: Results,
    keys: Sequence[str] | None = None,
    *,
    calibrator: str = "",
    published: bool = False,
) -> tuple[Table, ...]:
    """The tables that the runs have something for, data set by data set; each of the `keys` asked
    for must be among them.
    """
    for key in keys or ():
        check_choice("table", key, tuple(TABLES))
    tables = list(_made(results, keys or tuple(TABLES), calibrator, published))
    for key in keys or ():
        if key not in {table.key for table in tables}:
            raise UserError(f"there is no table {key}: it {NEEDS[key]}")
    return tuple(tables)


def _made(
    results: Results, keys: Sequence[str], calibrator: str, published: bool
) -> Iterator[Table]:
    several = len(results.datasets) > 1
    for dataset in results.datasets:
        for key in keys:
            if not (several and key == "ranking"):
                table = TABLES[key](results, dataset, calibrator=calibrator, published=published)
                if table is not None:
                    yield table
    if several and "ranking" in keys:  # over all data sets, and each
        overall = TABLES["ranking"](results, calibrator=calibrator)
        if overall is not None:
            yield overall
