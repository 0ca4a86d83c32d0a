"""Scores as tables: `TABLES` makes them from `Results`, the writers turn them into text.

The main tables hold methods with their default settings on the main network. Variants of a method
(another penalty, another sum over classes) are in `penalty`, other networks in `backbones`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.compare.tables import means
from segcal.compare.tables.notes import failed_note
from segcal.compare.tables.ranks import ranking, tests
from segcal.compare.tables.records import NONE, Entry, Request, Row, Table, p_text
from segcal.compare.tables.seeds import seeds
from segcal.compare.tables.terminal import to_rich
from segcal.compare.tables.writers import FORMATS, save_tables, to_csv, to_latex, to_markdown
from segcal.types import UserError, check_choice

__all__ = ["FORMATS", "NEEDS", "NONE", "TABLES", "Entry", "Maker", "Row", "Table", "all_tables"]
__all__ += ["failed_note", "p_text", "save_tables", "to_csv", "to_latex", "to_markdown", "to_rich"]


@dataclass(frozen=True)
class Maker:
    """A row of `TABLES`: the function that makes a table, and what it needs beside test scores."""

    make: Callable[[Request], Table | None]
    needs: str = ""

    def __call__(
        self, results: Results, dataset: str = "", *, calibrator: str = "", published: bool = False
    ) -> Table | None:
        """Make it; `None` if the runs hold nothing for it. Ranks alone can be of all data sets."""
        if calibrator:
            check_choice("calibrator", calibrator, tuple(CALIBRATORS))
        if len(results.datasets) == 1 and not dataset:
            dataset = results.datasets[0]
        if dataset or self.make is not ranking:
            check_choice("data set", dataset, results.datasets)
        table = self.make(Request(results, dataset, calibrator, published))
        return table and replace(table, notes=(*table.notes, *failed_note(results.failed)))


VARIANT = "runs of a variant, such as segcal train --loss mbls --set loss.penalty=l2"

TABLES: dict[str, Maker] = {
    "discriminative": Maker(means.discriminative),
    "calibration": Maker(means.calibration),
    "ranking": Maker(ranking, "runs of two methods"),
    "tests": Maker(tests, "runs of two methods, and two test patients"),
    "seeds": Maker(
        seeds, "every method with the same two seeds or more; segcal study --seeds 3 runs them"
    ),
    "posthoc": Maker(means.posthoc, "calibrated scores; segcal calibrate adds them"),
    "penalty": Maker(means.penalty, f"{VARIANT}, or scores of both weights"),
    "robustness": Maker(
        means.robustness, "scores of corrupted images; segcal evaluate --noise-series adds them"
    ),
    "backbones": Maker(means.backbones, "runs on a second network"),
    "selection": Maker(means.selection, "runs of a method with a setting to choose"),
}
"""The tables by key; each a function of `Results`."""

NEEDS = {key: f"needs {maker.needs}" for key, maker in TABLES.items() if maker.needs}
"""What a table that was asked for may lack."""


def all_tables(
    results: Results,
    keys: Sequence[str] | None = None,
    *,
    calibrator: str = "",
    published: bool = False,
) -> tuple[Table, ...]:
    """The tables of each data set that the runs have something for, and of ranks over all.

    Each of the `keys` asked for must be among them."""
    for key in keys or ():
        check_choice("table", key, tuple(TABLES))
    several, tables = len(results.datasets) > 1, []
    wanted = [(dataset, key) for dataset in results.datasets for key in keys or TABLES]
    if several:
        wanted = [(dataset, key) for dataset, key in wanted if key != "ranking"]
        wanted += [("", "ranking")] if keys is None or "ranking" in keys else []
    for dataset, key in wanted:
        table = TABLES[key](results, dataset, calibrator=calibrator, published=published)
        tables += [] if table is None else [table]
    for key in keys or ():
        if key not in {table.key for table in tables}:
            raise UserError(f"there is no table {key}: it {NEEDS[key]}")
    return tuple(tables)
