"""Scores as tables: `TABLES` makes them from `Results`, the writers turn them into text.

The main tables hold methods with their default settings on the main network. Variants of a method
(another penalty, another sum over classes) are in `penalty`, other networks in `backbones`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from segcal.calibrators import CALIBRATORS
from segcal.compare import Results
from segcal.compare.tables import means
from segcal.compare.tables.notes import choice_note, failed_note
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
    """A row of `TABLES`: a title, and the function that makes the table."""

    key: str
    label: str
    make: Callable[[Request], Table | None]

    def __call__(
        self, results: Results, dataset: str = "", *, calibrator: str = "", published: bool = False
    ) -> Table | None:
        """Make it; `None` if the runs hold nothing for it. Ranks alone can be of all data sets."""
        if calibrator:
            check_choice("calibrator", calibrator, tuple(CALIBRATORS))
        if published and results.metrics.key != "paper":
            raise UserError("the paper has values of its own metrics only; add --metrics paper")
        if len(results.datasets) == 1 and not dataset:
            dataset = results.datasets[0]
        if dataset or self.make is not ranking:
            check_choice("data set", dataset, results.datasets)
        request = Request(self.key, self.label, results, dataset, calibrator, published)
        table = self.make(request)
        if table is None:
            return None
        rules = choice_note(results, (row.key for row in table.rows))
        return replace(table, notes=(*table.notes, *rules, *failed_note(results.failed)))


NEEDS = {
    "ranking": "runs of two methods",
    "tests": "runs of two methods, and two test patients",
    "seeds": "every method with the same two seeds or more; segcal study --seeds 3 runs them",
    "confidence": "scores over all voxels; segcal evaluate --again adds them to older runs",
    "reference": "scores over reference voxels; with --metrics paper it is the table calibration",
    "posthoc": "calibrated scores; segcal calibrate adds them",
    "penalty": "runs of a variant, such as segcal train --loss mbls --set loss.penalty=l2, or"
    " scores of both weights",
    "robustness": "scores of corrupted images; segcal evaluate --noise-series adds them",
    "backbones": "runs on a second network",
    "selection": "runs of a method with a setting to choose",
}
"""What a table needs beside test scores."""

_MAKERS = (
    Maker("discriminative", "Discriminative performance", means.discriminative),
    Maker("calibration", "Calibration", means.calibration),
    Maker("confidence", "Over- or underconfident", means.confidence),
    Maker("reference", "The paper's ECE and CECE, over reference voxels", means.reference),
    Maker("ranking", "Ranks", ranking),
    Maker("tests", "Tests between contenders", tests),
    Maker("seeds", "Seeds", seeds),
    Maker("posthoc", "Post-hoc calibration", means.posthoc),
    Maker("penalty", "Penalty and other variants", means.penalty),
    Maker("robustness", "Robustness to corrupted images", means.robustness),
    Maker("backbones", "Backbones", means.backbones),
    Maker("selection", "Settings chosen on validation", means.selection),
)
TABLES = {maker.key: maker for maker in _MAKERS}
"""The tables by key; each a function of `Results`."""


def all_tables(
    results: Results, keys: Sequence[str] = (), *, calibrator: str = "", published: bool = False
) -> tuple[Table, ...]:
    """The tables of each data set that the runs have something for, and of ranks over all.

    Each of the `keys` asked for must be among them."""
    for key in keys:
        check_choice("table", key, tuple(TABLES))
    several, tables = len(results.datasets) > 1, []
    for dataset in (*results.datasets, ""):
        for key in keys or TABLES:
            of_all = several and key == "ranking"
            if of_all == (not dataset):
                maker = TABLES[key]
                tables.append(maker(results, dataset, calibrator=calibrator, published=published))
    made = tuple(table for table in tables if table is not None)
    for key in keys:
        if key not in {table.key for table in made}:
            raise UserError(f"there is no table {key}: it needs {NEEDS[key]}")
    return made
